"""`bench throughput --backend hf`: transformers on the same prompts, for a side-by-side.

Batches are taken in the prompts' order and padded to their longest; every sequence gets the
tokens that were asked for, so that both sides do the same work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_lite.bench.options import ThroughputOptions
from vllm_lite.bench.work import Job, Work, warmups
from vllm_lite.config.sources import resolve_model_source
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import UsageError
from vllm_lite.progress import on_terminal, progress_bar


def run_transformers(options: ThroughputOptions, config: VllmConfig, jobs: Sequence[Job]) -> Work:
    """Generate for every job; raises UsageError where transformers cannot load the model."""
    trust = config.model.trust_remote_code
    source = Path(resolve_model_source(config.model.model, trust_remote_code=trust))
    if not source.is_dir():
        raise UsageError(
            "--backend hf needs a directory in Hugging Face's layout or a hub id, "
            f"not {source.name}"
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging  # takes seconds

    if not on_terminal():
        logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=config.model.dtype, trust_remote_code=trust
        ).to(config.device)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise UsageError(f"--backend hf cannot load {source}: {reason}") from None
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.eval()
    if options.hf_enable_torch_compile:
        model.compile()
    engine = _Transformers(model, tokenizer, options)
    for batch in _batches(warmups(options, jobs), options.hf_max_batch_size or 1):
        engine.generate(batch)
    began = time.perf_counter()
    num_prompt = num_output = 0
    with progress_bar(total=len(jobs), desc="Processed prompts") as bar:
        for batch in _batches(jobs, options.hf_max_batch_size or 1):
            num_prompt += engine.generate(batch)
            num_output += sum(job.output_tokens for job in batch) * options.n
            rate = num_output / (time.perf_counter() - began)
            bar.set_postfix_str(f"output: {rate:.2f} toks/s", refresh=False)
            bar.update(len(batch))
    return Work(len(jobs), num_prompt, num_output, time.perf_counter() - began)


class _Transformers:
    """A loaded model and what it is asked for."""

    def __init__(self, model: Any, tokenizer: Any, options: ThroughputOptions) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._options = options

    def generate(self, batch: Sequence[Job]) -> int:
        """Generate for one padded batch; returns the tokens of its prompts."""
        ids = [
            self._tokenizer(job.prompt)["input_ids"] if isinstance(job.prompt, str) else job.prompt
            for job in batch
        ]
        padded = self._tokenizer.pad({"input_ids": ids}, return_tensors="pt")
        longest = max(job.output_tokens for job in batch)
        sequences = self._model.generate(
            **padded.to(self._model.device),
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            num_return_sequences=self._options.n,
            use_cache=True,
            min_new_tokens=longest,
            max_new_tokens=longest,
            pad_token_id=self._tokenizer.pad_token_id,
        )
        if not self._options.disable_detokenize:
            self._tokenizer.batch_decode(sequences, skip_special_tokens=True)
        return sum(len(one) for one in ids)


def _batches(jobs: Sequence[Job], size: int) -> list[Sequence[Job]]:
    return [jobs[at : at + size] for at in range(0, len(jobs), size)]
