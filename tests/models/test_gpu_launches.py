"""Kernels that a GPU's worker launches for a step, counted in Triton's interpreter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from triton.runtime import interpreter

from tests.checkpoints import write_hf
from tests.models import test_async_scheduling as requests
from tests.models.test_async_scheduling import on_stand_in, serve
from vllm_lite import SamplingParams
from vllm_lite.kernels import dispatch
from vllm_lite.kernels.gpu import tuning
from vllm_lite.quantization import unquantized


def test_a_step_of_one_sequence_takes_seven_launches_a_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    run = interpreter.GridExecutor.__call__

    def record(executor: Any, *args: Any, **kwargs: Any) -> None:
        launched.append(executor.fn.__name__)
        run(executor, *args, **kwargs)

    monkeypatch.setattr(requests, "PROMPTS", requests.PROMPTS[:1])
    monkeypatch.setattr(requests, "KINDS", [SamplingParams(temperature=0, max_tokens=3)])
    one: dict[str, Any] = {"requests": 1, "max_num_seqs": 1, "cudagraph_capture_sizes": [1]}
    one |= {"dtype": "bfloat16", "max_model_len": 256, "max_num_batched_tokens": 8}
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", record)
    # As on a device that is no CPU.
    monkeypatch.setattr(unquantized, "_is_packed", lambda _: False)
    monkeypatch.setattr(tuning, "processor_count", lambda _: 3)
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "triton")
    try:
        serve(str(write_hf(tmp_path, num_hidden_layers=1)), on_stand_in, **one)
    finally:
        monkeypatch.undo()
        dispatch.select_ops("cpu")
    ends = [place for place, name in enumerate(launched) if name == "greedy_kernel"]
    step = Counter(launched[ends[-2] + 1 : ends[-1] + 1])
    assert step == {
        "row_products_kernel": 4 + 1,
        "rotate_and_cache_kernel": 1,
        "paged_attention_kernel": 1,
        "merge_splits_kernel": 1,
        "add_norm_kernel": 1,
        "part_largest_kernel": 1,
        "greedy_kernel": 1,
    }
