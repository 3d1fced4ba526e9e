"""Output speed with drafts against without, in turns in one process.

    python benchmarks/drafts.py                          a quarter of an hour
    python benchmarks/drafts.py --works edit --quantization gguf   beside llama.cpp (`make peers`)
    python benchmarks/drafts.py --works large --rounds 5              a draft model for one of 1.1B

Works: `edit`, where the demo model copies a text; `chat` at 1, 8, 32 and 64 streams, which repeats
little (64 ask the same in each round, whose answers `suffix` remembers); `json`, one stream under
a strict schema with long keys, where only the schema drafts. Every engine generates the same
tokens, which is checked. `large` has made-up weights, and drafts that are kept by chance. `again`
is a second engine without drafts. llama.cpp computes as many rows a step as if every draft came
true; it neither looks for drafts nor samples, which favours it. Writes drafts.json and prints a
table: medians over rounds of the speed with drafts over that without (or over llama.cpp's), the
least and the largest, and the share of drafts that came true.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from peers.children.session import MARK
from peers.engines import default_peers, engines
from peers.machine import describe_machine
from peers.processes import run_child
from peers.workloads import LARGE_CONFIG, LLAMACPP

from vllm_lite import LLM, SamplingParams
from vllm_lite.platform import num_compute_threads
from vllm_lite.sampling_params import StructuredOutputsParams

# "again" is a second engine without drafts: how far apart two of them are is the machine's noise.
METHODS = ("off", "again", "ngram", "suffix")
WITHOUT = ("off", "again")
# Of the model of 1.1B: shares of steps in which the first draft is kept, the second too, and so on.
KEPT = [0.7, 0.49, 0.34]
TEXT = (
    "The keeper of the lighthouse wrote down the weather every evening before the lamp was lit. "
    "On Monday the wind came from the west and the sea was grey and low. On Tuesday two ships "
    "passed far out, and one of them answered his signal. On Wednesday he repaired the stairs, "
    "painted the door green, and counted forty gulls on the rock below the gallery. "
)
QUESTIONS = [
    f"Tell me {what} about {topic}."
    for topic in ("bread", "rivers", "maps", "the moon", "trains", "glass", "bees", "salt")
    for what in ("a story", "a fact", "a joke", "the history", "a poem", "a rule", "news", "more")
]
ORDER = {
    "type": "object",
    "properties": {
        "customer_identification_number": {"type": "integer", "maximum": 9999, "minimum": 1000},
        "preferred_delivery_method": {"enum": ["express_delivery", "standard_delivery"]},
        "requires_signature_on_delivery": {"type": "boolean"},
        "number_of_ordered_articles": {"type": "integer", "maximum": 99, "minimum": 1},
    },
    "additionalProperties": False,
}
ORDER["required"] = list(ORDER["properties"])
ORDERS = {"type": "array", "items": ORDER, "minItems": 4, "maxItems": 4}


@dataclass
class Work:
    """Requests that all engines answer."""

    prompts: list[str]
    params: SamplingParams
    num_requests: int = 1
    # By engine, the seconds of each round, and drafts and those that came true.
    seconds: dict[str, list[float]] = field(default_factory=dict)
    drafts: dict[str, list[int]] = field(default_factory=dict)
    num_tokens: int = 0


def make_works(tokens: int) -> dict[str, Work]:
    """All works by name."""
    free = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    orders = StructuredOutputsParams(json=ORDERS, disable_any_whitespace=True)
    chats = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in QUESTIONS]
    copied = f"{TEXT}\n\n{TEXT}\n\n{TEXT[:60]}"
    constrained = SamplingParams(temperature=0, max_tokens=400, structured_outputs=orders)
    return {
        "edit": Work([copied], free),
        "chat 1": Work(chats, free),
        "chat 8": Work(chats, free, 8),
        "chat 32": Work(chats, free, 32),
        "chat 64": Work(chats, free, 64),
        "json": Work(["Four orders as JSON:\n"], constrained),
        "large": Work(chats, free),
    }


def set_forced(llm: LLM, is_on: bool) -> None:
    """Let schemas draft, or not."""
    llm.llm_engine._core.core.constraints._can_draft = is_on  # type: ignore[attr-defined]


def run(llm: LLM, name: str, work: Work, turn: int, told: dict[int, Any]) -> None:
    """One turn of an engine at one work."""
    # Other texts in each turn, as far as there are any: `suffix` remembers answers.
    first = turn * work.num_requests % len(work.prompts)
    prompts = work.prompts[first : first + work.num_requests]
    before = llm.get_stats().spec_decoding
    start = time.perf_counter()
    outputs = llm.generate(prompts, work.params, use_tqdm=False)
    work.seconds.setdefault(name, []).append(time.perf_counter() - start)
    ids = [output.outputs[0].token_ids for output in outputs]
    work.num_tokens = sum(map(len, ids))
    if told.setdefault(turn, ids) != ids:
        raise SystemExit(f"{name} generated other tokens than the engine before it")
    after = llm.get_stats().spec_decoding
    if after is not None:
        counts = work.drafts.setdefault(name, [0, 0])
        counts[0] += after.num_draft_tokens - (before.num_draft_tokens if before else 0)
        counts[1] += after.num_accepted_tokens - (before.num_accepted_tokens if before else 0)


def run_peer(work: Work, num_drafts: int) -> None:
    """One turn of llama.cpp at the model's file, where all drafts come true."""
    step = {"work": "lookup", "kind": "lookup", "input_len": 512, "num_drafts": num_drafts}
    step |= {"num_steps": 16, "output_len": 24 * (num_drafts + 1)}
    (peer,) = (one for one in engines(default_peers(), num_compute_threads()) if one.id == LLAMACPP)
    words = peer.child_words([step], time.monotonic(), None)

    def on_line(line: str) -> None:
        values = json.loads(line[len(MARK) :]) if line.startswith(MARK) else {}
        if "tokens_per_s" in values:
            seconds = work.num_tokens / values["tokens_per_s"]
            work.seconds.setdefault(LLAMACPP, []).append(seconds)

    if failed := run_child(words, peer.environment, 300.0, on_line):
        raise SystemExit(f"llama.cpp: {failed}")


def row(name: str, engine: str, work: Work, beside: str = "off") -> dict[str, Any]:
    """A work's figures for one engine, beside another."""
    base, own = work.seconds[beside], work.seconds[engine]
    ratios = sorted(one / other for one, other in zip(base, own, strict=True))
    drafted, accepted = work.drafts.get(engine, [0, 0])
    return {
        "work": name,
        "drafts": engine,
        "beside": beside,
        "tokens_per_s_beside": round(work.num_tokens / statistics.median(base), 1),
        "ratio": round(statistics.median(ratios), 3),
        "least": round(ratios[0], 3),
        "largest": round(ratios[-1], 3),
        "came_true": round(accepted / drafted, 3) if drafted else None,
        "of_output": round(accepted / (work.num_tokens * len(own)), 3),
    }


def make_engines(args: argparse.Namespace, folder: Path) -> dict[str, LLM]:
    """An engine of each method, or for a model of 1.1B, whose checkpoint goes to `folder`."""
    options: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": 64}
    options |= {"quantization": args.quantization, "disable_frontend_multiprocessing": True}
    if args.works != "large":
        drafting = {"num_speculative_tokens": args.drafts}
        methods = {name: {**drafting, "method": name} for name in METHODS}
    else:
        tokenizer = default_peers().bf16_model
        vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
        config = {**LARGE_CONFIG, "vocab_size": vocabulary}
        (folder / "config.json").write_text(json.dumps(config))
        options |= {"model": str(folder), "tokenizer": str(tokenizer), "load_format": "dummy"}
        drafting = {"method": "draft_model", "model": args.model, "quantization": "gguf"}
        drafting |= {"draft_load_config": {"load_format": "gguf"}}
        drafting |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": KEPT}
        methods = {"off": {}, "draft_model": {**drafting, "num_speculative_tokens": len(KEPT)}}
    options.setdefault("model", args.model)
    return {
        name: LLM(**options, **({} if name in WITHOUT else {"speculative_config": drafting}))
        for name, drafting in methods.items()
    }


def measure(engines: dict[str, LLM], name: str, work: Work, args: argparse.Namespace) -> list[Any]:
    """All rounds of a work: its rows."""
    names = ("off", "schema") if name == "json" else tuple(engines)
    has_peer = name == "edit" and args.quantization == "gguf"
    told: dict[int, Any] = {}
    for turn in range(args.rounds + 1):
        for engine in names if turn % 2 else names[::-1]:
            llm = engines["off" if engine == "schema" else engine]
            set_forced(llm, engine == "schema")
            run(llm, engine, work, turn, {} if name == "large" else told)
        if has_peer:
            run_peer(work, args.drafts)
        if not turn:  # everything is compiled and cached
            work.seconds.clear()
            work.drafts.clear()
    rows = [row(name, engine, work) for engine in names[1:]]
    if has_peer:
        rows += [row(name, engine, work, LLAMACPP) for engine in names]
    for one in rows:
        print(json.dumps(one), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--quantization")
    parser.add_argument("--works", default="edit,chat 1,chat 8,chat 32,chat 64,json")
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("build/drafts.json"))
    args = parser.parse_args()
    works, chosen = make_works(args.tokens), args.works.split(",")
    if unknown := [name for name in chosen if name not in works]:
        parser.error(f"--works {unknown[0]!r} is none of {', '.join(works)}")
    if min(args.rounds, args.drafts, args.tokens) < 1:
        parser.error("--rounds, --drafts and --tokens are 1 or more")
    works = {name: works[name] for name in chosen}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        engines = make_engines(args, Path(folder))
        for name, work in works.items():
            rows += measure(engines, name, work, args)
        for llm in engines.values():
            llm.close()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "machine": describe_machine(),
        "model": args.model,
        "quantization": args.quantization,
        "num_speculative_tokens": args.drafts,
        "rounds": args.rounds,
        "rows": rows,
    }
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    head = ("work", "drafts", "beside", "tok/s", "ratio", "range", "true")
    print("\n{:9} {:11} {:9} {:>7} {:>6} {:>13} {:>5}".format(*head))
    for one in rows:
        share = "-" if one["came_true"] is None else f"{one['came_true']:.0%}"
        span = f"{one['least']:.2f}-{one['largest']:.2f}"
        names = f"{one['work']:9} {one['drafts']:11} {one['beside']:9}"
        print(
            f"{names} {one['tokens_per_s_beside']:7.1f} {one['ratio']:6.2f} {span:>13} {share:>5}"
        )


if __name__ == "__main__":
    main()
