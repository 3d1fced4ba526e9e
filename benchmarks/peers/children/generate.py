"""Measures an engine with vLLM's LLM class: ours, or vLLM in its own environment.

    PYTHON generate.py '{"module": "vllm", "model": DIR, "options": {...}, "steps": [...]}'

Prefix caching is off, decoding is greedy and the end of text ignored. A decode step's time is the
difference between two runs that differ in the number of output tokens alone.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

import session

# Tokens of the shorter of the two runs whose difference is so many decode steps.
SHORT_OUTPUT = 8


class Engine:
    """One engine, ready to generate."""

    def __init__(self, orders: dict[str, Any]) -> None:
        module = importlib.import_module(orders["module"])
        self._params = module.SamplingParams
        self._seed: int = orders["seed"]
        self.llm = module.LLM(model=orders["model"], **orders["options"])
        session.ready(orders["spawned"])
        self._generate(session.prompts(4, 64, self._seed), 8)

    def _generate(self, prompts: list[list[int]], length: int) -> float:
        """Seconds for `length` tokens after each prompt."""
        params = self._params(temperature=0.0, max_tokens=length, ignore_eos=True)
        batch = [{"prompt_token_ids": ids} for ids in prompts]
        begin = time.perf_counter()
        outputs = self.llm.generate(batch, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        if tokens != len(prompts) * length:
            raise RuntimeError(f"{tokens} tokens came instead of {len(prompts) * length}")
        return seconds

    def run(self, step: dict[str, Any]) -> None:
        """Measure one piece of work and tell the parent."""
        getattr(self, step["kind"])(step)

    def prefill(self, step: dict[str, Any]) -> None:
        """Prompt tokens a second of one prompt."""
        length = step["input_len"]

        def once(number: int) -> float:
            return self._generate(session.prompts(1, length, self._seed + number), 1)

        once(0)
        seconds = session.median_seconds(once, step["times"])
        session.measured(step["work"], tokens_per_s=length / seconds)

    def decode(self, step: dict[str, Any]) -> None:
        """Milliseconds of a step of `num_seqs` sequences."""
        session.measured(step["work"], step_ms=self._step_ms(step))

    def _step_ms(self, step: dict[str, Any]) -> float:
        batch = session.prompts(step["num_seqs"], step["input_len"], self._seed)
        num_steps = step["num_steps"]

        def once(_: int) -> float:
            short = self._generate(batch, SHORT_OUTPUT)
            return self._generate(batch, SHORT_OUTPUT + num_steps) - short

        self._generate(batch, SHORT_OUTPUT)
        return session.median_seconds(once, step["times"]) * 1000 / num_steps

    def offline(self, step: dict[str, Any]) -> None:
        """Output tokens a second of a whole batch of requests."""
        batch = session.prompts(step["num_seqs"], step["input_len"], self._seed)
        self._generate(batch[:8], 8)
        seconds = self._generate(batch, step["output_len"])
        tokens = len(batch) * step["output_len"]
        session.measured(step["work"], tokens_per_s=tokens / seconds)

    def neighbours(self, step: dict[str, Any]) -> None:
        """The share of its quiet speed that decoding keeps beside busy loops."""
        quiet = self._step_ms(step)
        with session.busy_neighbours(step["num_loops"]):
            loaded = self._step_ms(step)
        session.measured(step["work"], kept=quiet / loaded, quiet_ms=quiet, loaded_ms=loaded)


if __name__ == "__main__":
    session.run_all(Engine)
