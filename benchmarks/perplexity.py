"""Perplexity of a model on data/perplexity.txt under several settings: what each one costs.

    python benchmarks/perplexity.py                        the demo model, all settings that fit
    python benchmarks/perplexity.py --settings float32 bfloat16 --windows 4
    python benchmarks/perplexity.py --model DIR --add 'small blocks={"block_size": 8}'
    python benchmarks/perplexity.py --json perplexity.json

int8 and int4 are for models of safetensors; export_demo_checkpoint.py writes the demo as one.
The text is cut into windows of equal length; every token of a window but its first is scored, by
prompt log-probabilities of the offline engine. All settings see the same tokens, so that their
differences mean much more than the figures. A setting is held against another and has a limit for
its change, where one is known; the exit code is 1 where a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_lite import LLM, SamplingParams

TEXT = Path(__file__).with_name("data") / "perplexity.txt"


@dataclass(frozen=True, slots=True)
class Setting:
    """Options of the engine, and the setting that the result is held against."""

    options: dict[str, Any]
    against: str | None = None
    limit_percent: float | None = None


def _weights(quantization: str, against: str, limit_percent: float | None) -> Setting:
    return Setting({"dtype": "bfloat16", "quantization": quantization}, against, limit_percent)


def _cache(kv_cache_dtype: str, limit_percent: float | None) -> Setting:
    options = {"dtype": "bfloat16", "kv_cache_dtype": kv_cache_dtype}
    return Setting(options, "bfloat16", limit_percent)


SETTINGS = {
    "float32": Setting({"dtype": "float32"}),
    "bfloat16": Setting({"dtype": "bfloat16"}, "float32", 0.5),
    "kv fp8": _cache("fp8", 1.0),
    "kv fp8_per_token_head": _cache("fp8_per_token_head", 1.0),
    "kv int8": _cache("int8", 1.0),
    # Two bits of mantissa: for models whose keys are larger than E4M3 can say.
    "kv fp8_e5m2": _cache("fp8_e5m2", None),
    "weights gguf": _weights("gguf", "bfloat16", 0.5),
    "weights int8": _weights("int8", "float32", 1.0),
    # Sixteen values a group are too few for a limit that holds for any model.
    "weights int4": _weights("int4", "float32", None),
}


@dataclass(frozen=True, slots=True)
class Result:
    """`change_percent` is that of the perplexity against the setting's other one."""

    setting: str
    perplexity: float
    num_scored: int
    against: str | None
    change_percent: float | None
    limit_percent: float | None

    @property
    def is_within_limit(self) -> bool:
        """True where there is nothing to hold it against."""
        if self.change_percent is None or self.limit_percent is None:
            return True
        return abs(self.change_percent) <= self.limit_percent


def windows(llm: LLM, text: str, length: int, count: int | None) -> list[list[int]]:
    """The text's tokens in whole windows of `length`, the first `count` of them."""
    ids = llm.get_tokenizer().encode(text)
    cut = [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]
    return cut[:count]


def score(args: argparse.Namespace, options: dict[str, Any]) -> tuple[float, int]:
    """Perplexity and number of scored tokens under `options`."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    if is_file(args.model):
        options = {"quantization": "dequantize", **options}
    llm = LLM(
        args.model,
        max_model_len=args.window + 1,
        max_num_seqs=4,
        enable_prefix_caching=False,
        disable_frontend_multiprocessing=True,
        **options,
    )
    with llm:
        cut = windows(llm, Path(args.text).read_text(encoding="utf-8"), args.window, args.windows)
        if not cut:
            raise SystemExit(f"{args.text} is shorter than one window of {args.window} tokens")
        prompts = [{"prompt_token_ids": ids} for ids in cut]
        outputs = llm.generate(prompts, params, use_tqdm=False)
    total, count = 0.0, 0
    for ids, output in zip(cut, outputs, strict=True):
        for token, found in zip(ids[1:], (output.prompt_logprobs or [])[1:], strict=True):
            assert found is not None
            total -= found[token].logprob
            count += 1
    return math.exp(total / count), count


def measure(args: argparse.Namespace, settings: dict[str, Setting]) -> Iterator[Result]:
    """One result a setting, in their order."""
    found: dict[str, float] = {}
    for name, setting in settings.items():
        found[name], count = score(args, setting.options)
        base = found.get(setting.against or "")
        change = None if base is None else 100 * (found[name] / base - 1)
        yield Result(name, found[name], count, setting.against, change, setting.limit_percent)


def is_file(model: str) -> bool:
    """Whether a model is a .gguf file, whose weights are expanded where a setting says nothing."""
    return model == "demo" or model.endswith(".gguf")


def fits(setting: Setting, model: str) -> bool:
    """Whether the setting's weights can be had of a model: only a file can keep what it holds."""
    quantization = setting.options.get("quantization")
    return quantization is None or (quantization == "gguf") == is_file(model)


def chosen(args: argparse.Namespace) -> dict[str, Setting]:
    """The settings that the command line names, those it adds at the end."""
    names = args.settings or [name for name in SETTINGS if fits(SETTINGS[name], args.model)]
    if unknown := [name for name in names if name not in SETTINGS]:
        raise SystemExit(f"unknown settings {unknown}; there are {', '.join(SETTINGS)}")
    settings = {name: SETTINGS[name] for name in SETTINGS if name in names}
    for added in args.add:
        name, _, options = added.partition("=")
        settings[name] = Setting({"dtype": "bfloat16", **json.loads(options)}, "bfloat16")
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--text", default=str(TEXT))
    parser.add_argument("--window", type=int, default=512, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=None, help="how many, from the beginning")
    parser.add_argument("--settings", nargs="*", default=None, help=", ".join(SETTINGS))
    parser.add_argument("--add", action="append", default=[], metavar="NAME=JSON")
    parser.add_argument("--json", default=None, metavar="FILE", help="also write the results here")
    args = parser.parse_args()
    results = []
    print(f"{'setting':28}{'perplexity':>12}{'change':>10}  against", flush=True)
    for result in measure(args, chosen(args)):
        results.append(result)
        change = "" if result.change_percent is None else f"{result.change_percent:+.2f} %"
        verdict = "" if result.is_within_limit else f"  more than {result.limit_percent} %"
        line = f"{result.setting:28}{result.perplexity:12.4f}{change:>10}  {result.against or ''}"
        print(line.rstrip() + verdict, flush=True)
    if args.json:
        body = {"model": args.model, "window": args.window, "results": [asdict(r) for r in results]}
        Path(args.json).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    if not all(result.is_within_limit for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
