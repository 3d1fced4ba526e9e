"""Output speed with drafts against without, in turns in one process.

    python benchmarks/drafts.py                          a quarter of an hour
    python benchmarks/drafts.py --works edit,chat --rounds 3 --quantization int4

Works: `edit`, where the demo model copies a text; `chat` at 1, 8 and 64 streams, which repeats
little (64 ask the same in each round, whose answers `suffix` remembers); `json`, one stream under
a strict schema with long keys, where only the schema drafts. Every engine generates the same
tokens, which is checked. Writes drafts.json and prints a table: medians over rounds of the speed
with drafts over that without, the least and the largest, and the share of drafts that came true.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from peers.machine import describe_machine

from vllm_lite import LLM, SamplingParams
from vllm_lite.sampling_params import StructuredOutputsParams

METHODS = ("off", "ngram", "suffix")
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
        "chat 64": Work(chats, free, 64),
        "json": Work(["Four orders as JSON:\n"], constrained),
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


def row(name: str, engine: str, work: Work) -> dict[str, Any]:
    """A work's figures for one engine."""
    base, own = work.seconds["off"], work.seconds[engine]
    ratios = sorted(one / other for one, other in zip(base, own, strict=True))
    drafted, accepted = work.drafts.get(engine, [0, 0])
    return {
        "work": name,
        "drafts": engine,
        "tokens_per_s_off": round(work.num_tokens / statistics.median(base), 1),
        "ratio": round(statistics.median(ratios), 3),
        "least": round(ratios[0], 3),
        "largest": round(ratios[-1], 3),
        "came_true": round(accepted / drafted, 3) if drafted else None,
        "of_output": round(accepted / (work.num_tokens * len(own)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--quantization")
    parser.add_argument("--works", default="edit,chat 1,chat 8,chat 64,json")
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("build/drafts.json"))
    args = parser.parse_args()
    works = {name: one for name, one in make_works(args.tokens).items() if name in args.works}
    engines: dict[str, LLM] = {}
    for method in METHODS:
        drafting = {"method": method, "num_speculative_tokens": args.drafts}
        engines[method] = LLM(
            args.model,
            max_model_len=2048,
            max_num_seqs=64,
            quantization=args.quantization,
            disable_frontend_multiprocessing=True,
            **({} if method == "off" else {"speculative_config": drafting}),
        )
    rows = []
    for name, work in works.items():
        told: dict[int, Any] = {}
        names = ("off", "schema") if name == "json" else METHODS
        for turn in range(args.rounds + 1):
            for engine in names if turn % 2 else names[::-1]:
                llm = engines["off" if engine == "schema" else engine]
                set_forced(llm, engine == "schema")
                run(llm, engine, work, turn, told)
            if not turn:  # everything is compiled and cached
                work.seconds.clear()
                work.drafts.clear()
        rows += [row(name, engine, work) for engine in names[1:]]
        for one in rows[1 - len(names) :]:
            print(json.dumps(one), flush=True)
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
    print(f"\n{'work':10} {'drafts':8} {'off, tok/s':>10} {'ratio':>6} {'range':>13} {'true':>5}")
    for one in rows:
        share = "-" if one["came_true"] is None else f"{one['came_true']:.0%}"
        span = f"{one['least']:.2f}-{one['largest']:.2f}"
        print(
            f"{one['work']:10} {one['drafts']:8} {one['tokens_per_s_off']:10.1f} "
            f"{one['ratio']:6.2f} {span:>13} {share:>5}"
        )


if __name__ == "__main__":
    main()
