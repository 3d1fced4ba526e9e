"""Measures llama.cpp through the low-level interface of llama-cpp-python, in its own environment.

    PYTHON llamacpp.py '{"model": FILE, "num_threads": 2, "steps": [...]}'

Its next tokens are given, so that its sampling costs nothing: what is timed is `llama_decode`
alone, which favours it. A context is made for each piece of work, with as many sequences.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp as lib
import session

BATCH_TOKENS = 512
WARM_STEPS = 4
# A step beside busy neighbours may take a hundred times as long: this is where patience ends.
MAX_SECONDS = 20.0


class Context:
    """Sequences of one model, and a batch to move them on with."""

    def __init__(self, model: Any, num_seqs: int, length: int, num_threads: int) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = num_seqs * length
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = num_seqs
        params.n_threads = params.n_threads_batch = num_threads
        self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"no context of {num_seqs} sequences of {length} tokens")
        self._batch = lib.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._num_seqs = num_seqs
        self._lengths = [0] * num_seqs

    def close(self) -> None:
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._context)

    def _decode(self, tokens: list[tuple[int, int, bool]]) -> None:
        """Compute (sequence, token, whether logits are wanted) at their sequences' ends."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for row, (sequence, token, wanted) in enumerate(tokens):
            batch.token[row] = token
            batch.pos[row] = self._lengths[sequence]
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = wanted
            self._lengths[sequence] += 1
        status = lib.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        lib.llama_synchronize(self._context)

    def prefill(self, prompts: list[list[int]]) -> float:
        """Seconds to read the prompts, one for each sequence."""
        flat = [
            (sequence, token, at == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for at, token in enumerate(prompt)
        ]
        begin = time.perf_counter()
        for start in range(0, len(flat), BATCH_TOKENS):
            self._decode(flat[start : start + BATCH_TOKENS])
        return time.perf_counter() - begin

    def step(self, num_drafts: int = 0) -> float:
        """Seconds to move every sequence on by one token, and by drafts that all come true."""
        begin = time.perf_counter()
        rows = range(num_drafts + 1)
        self._decode([(one, 1000 + one, True) for one in range(self._num_seqs) for _ in rows])
        return time.perf_counter() - begin


class Engine:
    """One loaded model."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._num_threads: int = orders["num_threads"]
        self._seed: int = orders["seed"]
        # It keeps the object: a callback that is collected would be called all the same.
        self._silence = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._silence, ctypes.c_void_p(0))
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        self._model = lib.llama_model_load_from_file(orders["model"].encode(), params)
        if not self._model:
            raise RuntimeError("the model was not loaded")
        session.ready(orders["spawned"])

    def run(self, step: dict[str, Any]) -> None:
        """Measure one piece of work and tell the parent."""
        num_seqs, length = step.get("num_seqs", 1), step["input_len"]
        room = length + step.get("output_len", 0) + 2 * step.get("num_steps", 0) + 2 * WARM_STEPS
        context = Context(self._model, num_seqs, room, self._num_threads)
        prompts = session.prompts(num_seqs, length, self._seed)
        try:
            getattr(self, step["kind"])(step, context, prompts)
        finally:
            context.close()

    def prefill(self, step: dict[str, Any], context: Context, prompts: list[list[int]]) -> None:
        """Prompt tokens a second of one prompt."""
        seconds = context.prefill(prompts)
        session.measured(step["work"], tokens_per_s=len(prompts[0]) / seconds)

    def decode(self, step: dict[str, Any], context: Context, prompts: list[list[int]]) -> None:
        """Milliseconds of a step of `num_seqs` sequences."""
        context.prefill(prompts)
        session.measured(step["work"], step_ms=_step_ms(context, step["num_steps"]))

    def lookup(self, step: dict[str, Any], context: Context, prompts: list[list[int]]) -> None:
        """Output tokens a second of one sequence whose drafts all come true."""
        context.prefill(prompts)
        times = [context.step(step["num_drafts"]) for _ in range(WARM_STEPS + step["num_steps"])]
        tokens = step["num_steps"] * (step["num_drafts"] + 1)
        session.measured(step["work"], tokens_per_s=tokens / sum(times[WARM_STEPS:]))

    def offline(self, step: dict[str, Any], context: Context, prompts: list[list[int]]) -> None:
        """Output tokens a second of a whole batch of requests."""
        seconds = context.prefill(prompts)
        seconds += sum(context.step() for _ in range(step["output_len"] - 1))
        tokens = len(prompts) * step["output_len"]
        session.measured(step["work"], tokens_per_s=tokens / seconds)

    def neighbours(self, step: dict[str, Any], context: Context, prompts: list[list[int]]) -> None:
        """The share of its quiet speed that decoding keeps beside busy loops."""
        context.prefill(prompts)
        quiet = _step_ms(context, step["num_steps"])
        with session.busy_neighbours(step["num_loops"]):
            loaded = _step_ms(context, step["num_steps"])
        session.measured(step["work"], kept=quiet / loaded, quiet_ms=quiet, loaded_ms=loaded)


def _step_ms(context: Context, num_steps: int) -> float:
    """The mean of up to `num_steps` steps after some that do not count."""
    begin = time.perf_counter()
    for _ in range(WARM_STEPS):
        context.step()
        if time.perf_counter() - begin > MAX_SECONDS / 2:
            break
    seconds: list[float] = []
    while len(seconds) < num_steps and sum(seconds) < MAX_SECONDS:
        seconds.append(context.step())
    return sum(seconds) * 1000 / len(seconds)


if __name__ == "__main__":
    session.run_all(Engine)
