"""Steps with drafts and with prompts give the same tokens with graphs and without.

By `--deterministic`, which promises it of any shapes. Prints how many tokens were compared and how
many drafts came true.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from tests.checkpoints import write_hf
from vllm_lite import LLM, SamplingParams

PROMPTS = [[3 + (i * step) % 90 for i in range(20 * step)] for step in range(1, 9)]
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
DRAFTS |= {"prompt_lookup_max": 3, "num_speculative_tokens_per_batch_size": [[1, 64, 3]]}
GRAPHS = {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}}


def tokens(model: str, device: str, **options: Any) -> tuple[list[list[int]], int]:
    """The greedy tokens after each prompt, and how many of them were drafts."""
    settings: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "seed": 1}
    settings |= {"max_model_len": 512, "max_num_batched_tokens": 64, "max_num_seqs": 5}
    settings |= {"disable_frontend_multiprocessing": True, "deterministic": True}
    settings |= {"gpu_memory_utilization": 0.3} if device == "cuda" else {}
    greedy = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    with LLM(model, device=device, **settings, **options) as llm:
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
        drafted = llm.get_stats().spec_decoding
    found = [list(output.outputs[0].token_ids) for output in outputs]
    return found, 0 if drafted is None else drafted.num_accepted_tokens


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_hf(Path(folder), head_dim=64, num_key_value_heads=1))
        plain, _ = tokens(model, device, enforce_eager=True)
        for options in ({}, {"speculative_config": DRAFTS}):
            found, accepted = tokens(model, device, **GRAPHS, **options)
            assert found == plain, f"other tokens with {options or 'prompts alone'}"
            print(f"{sum(map(len, found))} tokens are equal, {accepted} were drafts", flush=True)


if __name__ == "__main__":
    main()
