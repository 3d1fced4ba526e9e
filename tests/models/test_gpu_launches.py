"""Launches of a decode step for each layer, read from the graph that a GPU's worker captures.

Kernels are noted and not run. The model has Qwen3-0.6B's layers, the device an H100's processors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.checkpoints import write_hf
from tests.models.checkpoints import make_model, save
from tests.models.families import FAMILIES
from tests.models.gpu_ops import selected, triton_ops
from tests.stand_in_device import NoWaits, StandInDevice
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.step import TokenMasks
from vllm_lite.kernels.gpu import tuning
from vllm_lite.quantization import unquantized
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker import trial_steps
from vllm_lite.worker.decode_graphs import DecodeGraphs
from vllm_lite.worker.drafting.drafters import load_models
from vllm_lite.worker.gpu_worker import GpuWorker, device_runner
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


# Requests of a served step's tokens, and their lengths; then how all sample.
ROWS_SERVED = (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64)
LENGTHS_SERVED = (70, 200, 300, 600, 1100, 4000)
TOKENS_SERVED = (2, 3, 4, 5, 8, 16, 17, 33, 64, 65, 112, 127, 128, 130, 256, 500)
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = {
    "filters": SamplingParams(temperature=1.0, top_p=0.9, top_k=5, min_p=0.1, seed=1),
    "penalties": SamplingParams(frequency_penalty=0.1, presence_penalty=0.1),
    "repetition": SamplingParams(temperature=0.0, repetition_penalty=1.1, min_tokens=3),
    "bias": SamplingParams(logit_bias={3: 1.0}, allowed_token_ids=[3, 4, 5]),
    "words": SamplingParams(bad_words_token_ids=[[4], [7, 8]]),
    "log-probability": SamplingParams(temperature=0.0, logprobs=0),
    "candidates": SamplingParams(logprobs=5, prompt_logprobs=2),
}


def served() -> Iterator[tuple[list[int], int, SamplingParams]]:
    """Tokens of the requests of some steps, all requests' length, and how they sample."""
    for rows in ROWS_SERVED:
        yield [1] * rows, 17, GREEDY
    for length in LENGTHS_SERVED:
        for counts in ([1], [1] * 2, [1] * 5, [1] * 16, [2], [17], [2, 1], [400, 1, 1]):
            yield counts, max(length, *counts, 2), GREEDY
    for tokens in TOKENS_SERVED:
        yield [tokens], tokens, GREEDY
        yield [tokens, 1, 1, 1], tokens, GREEDY
    for sampling in SAMPLED.values():
        for counts in ([1], [1] * 2, [1] * 3, [1] * 16, [1] * 33, [7, 5]):
            yield counts, 17, sampling


def form_of(value: Any, is_special: bool, looks_at_alignment: bool) -> Hashable:
    """All that Triton compiles a kernel for of an argument."""
    if isinstance(value, tuple):
        return tuple(form_of(part, is_special, looks_at_alignment) for part in value)
    if isinstance(value, Tensor):
        return value.dtype, looks_at_alignment and value.data_ptr() % 16 == 0
    if isinstance(value, TensorDescriptor):
        return value.base.dtype, *value.block_shape
    if isinstance(value, bool) or not isinstance(value, int):
        return type(value)
    size = "int32" if abs(value) < 1 << 31 else "int64"
    if not is_special:
        return size
    return 1 if value == 1 else (size, looks_at_alignment and value % 16 == 0)


def _finite(make: Any) -> Any:
    """As `make`, but with zeros in small tensors: what a request gets has to be finite."""

    def made(*args: Any, **kwargs: Any) -> Tensor:
        tensor: Tensor = make(*args, **kwargs)
        return tensor.zero_() if tensor.numel() < 4096 else tensor

    return made


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> set[Hashable]:
    """Notes what kernels would be compiled for. Neither they nor torch's products run."""
    found: set[Hashable] = set()

    def note(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        plain, unaligned = (
            kernel.kwargs.get(name) or ()
            for name in ("do_not_specialize", "do_not_specialize_on_alignment")
        )
        names = kernel.arg_names[: len(arguments)]
        told = [
            (name, form_of(value, name not in plain, name not in (*plain, *unaligned)))
            for name, value in zip(names, arguments, strict=True)
        ]
        found.add((kernel.fn.__name__, *told, *constants.items()))

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", note)
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _finite(getattr(owner, name)))

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x.new_empty(*x.shape[:-1], len(weight))

    monkeypatch.setattr(torch.nn.functional, "linear", product)
    monkeypatch.setattr(GpuWorker, "_start_kernels", lambda *_: None)
    return found


# With two block tables, with latents, with states, and with experts.
@pytest.mark.parametrize(
    ("name", "eager"),
    [
        *((weights, eager) for weights in LAUNCHES for eager in (True, False)),
        *((family, True) for family in ("gemma3n", "deepseek_v3", "qwen3_next")),
    ],
)
def test_nothing_is_compiled_while_serving(
    tmp_path: Path, forms: set[Hashable], name: str, eager: bool
) -> None:
    """All that kernels are compiled for in steps of any size is what they were at start."""
    options: dict[str, Any] = {"quantization": name} if name.startswith(("int", "fp")) else {}
    options |= {"dtype": "bfloat16", "load_format": "dummy", "skip_tokenizer_init": True}
    options |= {"max_num_seqs": 64, "max_num_batched_tokens": 512, "enforce_eager": eager}
    if name in LAUNCHES:
        path = write_hf(tmp_path, num_hidden_layers=1, max_position_embeddings=4096, **QWEN3)
    else:
        path = save(make_model(name), tmp_path)
    config = EngineArgs(model=str(path), **options).create_engine_config()
    worker = GpuWorker(config, StandInDevice(1 << 33))
    plan = plan_kv_cache(config, worker.kv_cache_spec(), worker.available_memory())
    worker.initialize_cache(plan)
    started, step = set(forms), None
    for counts, length, sampling in served():
        if length > config.model.max_model_len:
            continue
        step = trial_steps._step(config, [length] * len(counts), counts, sampling, after=step)
        for request in step.new_requests:
            request.block_ids *= len(plan.groups)
        if sampling is GREEDY and len(counts) in (1, 3):
            names = list(step.num_scheduled_tokens)[-2:]
            bits = np.full((len(names), -(-config.facts.vocab_size // 32)), -1, np.int32)
            step.token_masks = TokenMasks(names, bits)
        worker.submit(step).get()
        assert forms == started, (counts, length, sampling, forms - started)
