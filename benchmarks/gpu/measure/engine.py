"""The engine core in this process, driven step by step: no socket, no tokenizer, no child.

Needs torch, triton, numpy, safetensors and tqdm of what is installed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from measure import plain_structs
from measure.place import Place
from measure.shapes import model_folder

plain_structs.install()

from vllm_lite.config.engine_args import EngineArgs  # noqa: E402
from vllm_lite.config.vllm import VllmConfig  # noqa: E402
from vllm_lite.core.step import EngineCoreRequest  # noqa: E402
from vllm_lite.engine.core.engine_core import EngineCore  # noqa: E402
from vllm_lite.errors import UsageError as UsageError  # noqa: E402
from vllm_lite.executor.executor import Executor  # noqa: E402
from vllm_lite.executor.select import make_executor  # noqa: E402
from vllm_lite.executor.uniproc import UniprocExecutor  # noqa: E402
from vllm_lite.kernels.transfer import Arriving  # noqa: E402
from vllm_lite.sampling_params import SamplingParams  # noqa: E402
from vllm_lite.worker.gpu_worker import GpuWorker  # noqa: E402


@dataclass(frozen=True, slots=True)
class Job:
    """So many made-up tokens in, so many out."""

    prompt: list[int]
    num_outputs: int


def executor_of(place: Place) -> Callable[[VllmConfig], Executor]:
    """Make the GPU's worker, on the GPU or on the tests' stand-in."""
    if not place.is_dry:
        return make_executor
    from tests.stand_in_device import StandInDevice

    return lambda config: UniprocExecutor(config, lambda c: GpuWorker(c, StandInDevice()))


@contextmanager
def engine(place: Place, model: Path, **settings: Any) -> Iterator[EngineCore]:
    """A core over `model`; its memory is given back afterwards."""
    if place.is_dry:
        # The largest step is run once at start, on the host at its speed.
        settings.setdefault("max_num_batched_tokens", 64)
    args = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        disable_log_stats=True,
        device=place.device.type,
        **{"dtype": place.either("bfloat16", "float32"), "async_scheduling": True, **settings},
    )
    core = EngineCore(args.create_engine_config("llm"), executor_of(place))
    try:
        yield core
    finally:
        core.shutdown()
        del core
        give_back(place)


def dummy_engine(
    place: Place, name: str, max_model_len: int, max_num_seqs: int, **settings: Any
) -> AbstractContextManager[EngineCore]:
    """A core over one of SHAPES, with random weights; small on the stand-in."""
    small = {"max_model_len": 128, "kv_cache_memory_bytes": 1 << 22}
    settings |= place.either({"max_model_len": max_model_len}, small)
    settings |= {"max_num_seqs": max_num_seqs, "load_format": "dummy"}
    return engine(place, model_folder(place, name), **settings)


def give_back(place: Place) -> None:
    """Free what nothing refers to, on the device too."""
    gc.collect()
    if not place.is_dry:
        torch.cuda.empty_cache()


def add(core: EngineCore, name: str, jobs: Sequence[Job]) -> None:
    """Queue greedy requests that run to their full length."""
    core.add_requests(
        EngineCoreRequest(
            f"{name}-{number}",
            job.prompt,
            SamplingParams(temperature=0.0, max_tokens=job.num_outputs, ignore_eos=True),
            [],
            time.monotonic(),
        )
        for number, job in enumerate(jobs)
    )


def run(core: EngineCore) -> dict[str, list[int]]:
    """Step until nothing is left; the tokens of each request. Raises where one failed."""
    tokens: dict[str, list[int]] = {}
    while core.has_work():
        take(core, tokens)
    return tokens


def take(core: EngineCore, tokens: dict[str, list[int]]) -> int:
    """One step; how many tokens it gave."""
    count = 0
    for output in core.step().outputs:
        if output.finish_reason == "error":
            raise RuntimeError(f"request {output.request_id} failed: {output.stop_reason}")
        tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        count += len(output.new_token_ids)
    return count


@contextmanager
def timed_waits() -> Iterator[list[float]]:
    """Seconds of the host's waits for answers in the `with` block."""
    waits: list[float] = []
    wait = Arriving.wait

    def timed(arriving: Arriving) -> Any:
        began = time.perf_counter()
        found = wait(arriving)
        waits.append(time.perf_counter() - began)
        return found

    with patch.object(Arriving, "wait", timed):
        yield waits


def made_up(vocabulary: int, length: int, seed: int) -> list[int]:
    """Tokens that no other seed's prompt begins with."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, (length,), generator=generator).tolist()
