"""Writes demo_tokens.json: what the demo model says in float32 on the CPU, and how surely.

    python benchmarks/gpu/demo_tokens.py

A gap is the distance of the two best logits where a token was chosen. Other number types and other
orders of summation may choose otherwise below the tolerance, and nowhere else.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

OUTPUT = Path(__file__).with_name("demo_tokens.json")
NUM_TOKENS = 32
TOLERANCE = 0.5
PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a little",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "1, 2, 3, 4, 5,",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first human being",
)


def main() -> None:
    os.environ["VLLM_LITE_CPU_ISA"] = "reference"
    from vllm_lite import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
    texts = []
    with LLM("demo", dtype="float32", max_model_len=256, quantization="dequantize") as llm:
        for output in llm.generate(list(PROMPTS), params, use_tqdm=False):
            (choice,) = output.outputs
            best = [
                sorted((p.logprob for p in place.values()), reverse=True)[:2]
                for place in choice.logprobs or []
            ]
            text = {
                "prompt": list(output.prompt_token_ids or []),
                "tokens": list(choice.token_ids),
                "gaps": [round(first - second, 3) for first, second in best],
            }
            texts.append(text)
            print(repr(choice.text))
    lines = ",\n".join(json.dumps(text) for text in texts)
    OUTPUT.write_text(f'{{"tolerance": {TOLERANCE}, "texts": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
