"""The cost of a JSON schema: decode throughput of 32 constrained against 32 free requests.

    python benchmarks/structured_output.py
    python benchmarks/structured_output.py --requests 8 --rounds 2 --max-overhead 100

Both generate the same number of tokens: free requests ignore the end of text, and the schema is
one that no text of that length completes. Rounds alternate; the medians are compared. Prints one
line of JSON a kind of constraint; fails where one costs more than --max-overhead percent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from vllm_lite import LLM, SamplingParams
from vllm_lite.sampling_params import StructuredOutputsParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "skills": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
        },
        "member": {"type": "boolean"},
    },
    "required": ["name", "age", "skills", "address", "member"],
}
# Lengths and patterns are llguidance's, the rest is xgrammar's.
BOUNDED = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "note": {"type": "string", "maxLength": 200},
    },
    "required": ["id", "name", "note"],
}
KINDS: dict[str, dict[str, Any]] = {
    "xgrammar: people": {"json": {"type": "array", "items": PERSON, "minItems": 200}},
    "guidance: bounded": {"json": {"type": "array", "items": BOUNDED, "minItems": 200}},
}


def run(llm: LLM, args: argparse.Namespace, constraint: dict[str, Any] | None) -> float:
    """Generated tokens a second over the decode of one batch."""
    params = SamplingParams(
        max_tokens=args.tokens,
        temperature=0.8,
        seed=1,
        ignore_eos=True,
        structured_outputs=StructuredOutputsParams(**constraint) if constraint else None,
    )
    prompts = [f"Data of {number} people as JSON:\n" for number in range(args.requests)]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - start
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    if num_tokens != args.requests * args.tokens:
        raise SystemExit(f"a request ended early: {num_tokens} tokens")
    return num_tokens / elapsed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-overhead", type=float, default=10.0, help="percent")
    args = parser.parse_args()
    worst = 0.0
    with LLM(args.model, max_model_len=512, max_num_seqs=args.requests) as llm:
        for name, constraint in KINDS.items():
            run(llm, args, constraint)  # compiled, and the prompts cached
            free, constrained = [], []
            for _ in range(args.rounds):
                free.append(run(llm, args, None))
                constrained.append(run(llm, args, constraint))
            rates = statistics.median(free), statistics.median(constrained)
            overhead = 100 * (rates[0] / rates[1] - 1)
            worst = max(worst, overhead)
            found = {
                "kind": name,
                "requests": args.requests,
                "free_tokens_per_s": round(rates[0], 1),
                "constrained_tokens_per_s": round(rates[1], 1),
                "overhead_percent": round(overhead, 2),
            }
            print(json.dumps(found), flush=True)
    return int(worst > args.max_overhead)


if __name__ == "__main__":
    sys.exit(main())
