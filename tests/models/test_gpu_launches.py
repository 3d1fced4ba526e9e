"""Launches of a decode step for each layer, read from the graph that a GPU's worker captures.

Kernels are noted and not run. The model has Qwen3-0.6B's layers, the device an H100's processors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from triton.runtime import interpreter

from tests.checkpoints import write_hf
from tests.models.checkpoints import make_model, save
from tests.models.families import FAMILIES
from tests.models.gpu_ops import selected, triton_ops
from tests.stand_in_device import NoWaits, StandInDevice
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.kernels.gpu import tuning
from vllm_lite.quantization import unquantized
from vllm_lite.worker.decode_graphs import DecodeGraphs
from vllm_lite.worker.drafting.drafters import load_models
from vllm_lite.worker.gpu_worker import device_runner
from vllm_lite.worker.graph_sampler import GraphSampler
from vllm_lite.worker.graph_shapes import GraphShape
from vllm_lite.worker.kv_cache import allocate_kv_cache, allocate_states

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
# Rows of steps, and launches a layer by the weights. Seven are four products, rotation with the
# write to the cache, attention and its merge; benchmarks/NOTES.md says what the others are for.
ROWS = (1, 2, 4, 64)
LAUNCHES = {
    "bfloat16": (7, 7, 10, 9),
    "int4": (9, 9, 9, 11),
    "fp8": (15, 15, 15, 12),
    "int8": (15, 15, 15, 12),
}


class _Noted(TorchDispatchMode):
    """Appends the names of torch's operations that are neither views nor new memory."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        returns = function._schema.returns
        is_view = bool(returns) and returns[0].alias_info is not None
        is_view = is_view and not returns[0].alias_info.is_write
        if not is_view and "empty" not in str(function):
            self._names.append(str(function.overloadpacket))
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Notes kernels' names, and loads weights as on a device that is no CPU."""
    names: list[str] = []

    def note(executor: Any, *args: Any, **kwargs: Any) -> None:
        names.append(executor.fn.__name__)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", note)
    monkeypatch.setattr(unquantized, "_is_packed", lambda _: False)
    monkeypatch.setattr(tuning, "processor_count", lambda _: 132)
    with selected(triton_ops()):
        yield names


def graphs_of(
    path: Path, sizes: tuple[int, ...], longer: tuple[GraphShape, ...] = (), **options: Any
) -> DecodeGraphs:
    """Of the steps of a checkpoint's model, none captured yet."""
    settings: dict[str, Any] = {"dtype": "bfloat16", "skip_tokenizer_init": True} | options
    config = EngineArgs(model=str(path), **settings).create_engine_config()
    models, device = load_models(config, "cpu"), StandInDevice()
    plan, place = plan_kv_cache(config, models.kv_cache_spec(), 1 << 26), device.torch_device
    models.bind_kv_cache(allocate_kv_cache(plan, place), allocate_states(plan, place))
    return device_runner(config, plan, models, device, sizes, longer)[1]


def captured(folder: Path, names: list[str], layers: int, **options: Any) -> list[Counter[str]]:
    """The launches of the graphs of decode steps of ROWS."""
    path = write_hf(folder / str(layers), num_hidden_layers=layers, **QWEN3)
    options |= {"max_model_len": 512, "max_num_seqs": 64, "load_format": "dummy"}
    graphs = graphs_of(path, ROWS, **options)
    found = []
    for shape in graphs.shapes:
        graphs.capture(shape)
        names.clear()
        with torch.inference_mode(), _Noted(names):
            graphs._graphs[shape].replay()
        found.append(Counter(names))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_no_step_that_graphs_hold_makes_the_host_wait(tmp_path: Path, family: str) -> None:
    """It could not be captured; with a token of each request, and with parts of prompts."""
    path = save(make_model(family), tmp_path)
    longer = (GraphShape(16, 4, 64),)
    graphs = graphs_of(path, (4,), longer, device="cpu", max_model_len=64, max_num_seqs=4)
    for shape in graphs.shapes:
        graphs.capture(shape)
        with torch.inference_mode(), NoWaits():
            graphs._graphs[shape].replay()


@pytest.mark.parametrize("weights", LAUNCHES)
def test_a_layer_takes_so_many_launches_and_sampling_four(
    tmp_path: Path, on_a_device: list[str], weights: str
) -> None:
    options = {} if weights == "bfloat16" else {"quantization": weights}
    one, two = (captured(tmp_path, on_a_device, count, **options) for count in (1, 2))
    for rows, fewer, more, number in zip(ROWS, one, two, LAUNCHES[weights], strict=True):
        layer, rest = more - fewer, fewer - (more - fewer)
        assert sum(layer.values()) == number, (rows, layer)
        if rows <= GraphSampler.most_rows:
            names = ("uniforms", "part_largest", "weights", "draw", "greedy")
            assert [rest[f"{name}_kernel"] for name in names] == [1, 1, 1, 1, 0]
            assert rest["aten.index_put_"] == 1  # the token's entry in the table
        else:
            assert not rest["draw_kernel"] and not rest["aten.index_put_"]
