"""From a config to a model that is ready to run.

Owns the order of loading and the rule that a checkpoint and a model match exactly: names and
shapes are compared before any weight is read. A layer is finished (packed, originals dropped)
as soon as its last tensor is there, so that memory never holds the model twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from vllm_lite.config.quantized_checkpoint import ScaledCodes, stored_form
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_spec import CACHE_FORMATS, CacheFormat
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.weights import WeightedLayer, WeightSlot
from vllm_lite.loader.dummy import make_dummies
from vllm_lite.loader.gguf import open_gguf
from vllm_lite.loader.safetensors import open_safetensors
from vllm_lite.loader.tensors import CheckpointTensor
from vllm_lite.loader.weight_map import Target, is_ignorable, weight_targets
from vllm_lite.models.decoder import BuildOptions
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.models.registry import get_model_class
from vllm_lite.progress import progress_bar
from vllm_lite.quantization.registry import get_linear_method

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Progress is shown only for loads longer than this; shorter ones would flicker.
_QUIET_SECONDS = 1.0


@torch.inference_mode()
def load_model(config: VllmConfig, device: str = "cpu") -> CausalLM:
    """The model of `config` on `device` (an nn.Module); raises CheckpointError."""
    dtype = _DTYPES[config.model.dtype]
    form = stored_form(config.facts.path, config.facts.hf_config)
    options = BuildOptions(
        dtype=dtype,
        cache_format=CACHE_FORMATS.get(
            config.cache.kv_cache_dtype, CacheFormat(config.model.dtype)
        ),
        max_model_len=config.model.max_model_len,
        linear_method=get_linear_method(config.model.quantization, dtype, form),
        cache_has_scales=isinstance(form, ScaledCodes)
        and form.has_cache_scales
        and config.cache.kv_cache_dtype in ("fp8", "fp8_e4m3"),
    )
    with _refusals_name(config.facts.path):
        with torch.device(device):
            model = get_model_class(config.facts.architecture)(config.facts, options)
        targets = weight_targets(model)
        tensors = _open_checkpoint(config, targets)
        used = _match(config.facts.path, tensors, targets)
        _fill(model, used, targets, config.load.use_tqdm_on_load)
    return model


@contextmanager
def _refusals_name(path: str) -> Iterator[None]:
    """Whatever part of a model refuses, the user reads which checkpoint it was."""
    try:
        yield
    except CheckpointError as error:
        if path in str(error):
            raise
        raise CheckpointError(f"{path}: {error}") from None
    except (MemoryError, RuntimeError) as error:
        # torch has no type of its own for this on CPU.
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        raise CheckpointError(
            f"{path} does not fit into this machine's memory; free some, use a smaller or a "
            "quantised (GGUF) model, or --dtype bfloat16"
        ) from None


def _open_checkpoint(config: VllmConfig, targets: dict[str, Target]) -> Sequence[CheckpointTensor]:
    facts = config.facts
    if config.load.load_format == "dummy":
        return make_dummies(targets, config.model.seed)
    if facts.format == "gguf":
        return open_gguf(facts)
    needed = {name: target.slot.tensor.dtype for name, target in targets.items()}
    return open_safetensors(Path(facts.path), needed)


def _match(
    path: str, tensors: Sequence[CheckpointTensor], targets: dict[str, Target]
) -> list[CheckpointTensor]:
    """The tensors to read; raises CheckpointError unless they are the model's, one for one."""
    found = {tensor.name: tensor for tensor in tensors}
    missing = [name for name in targets if name not in found]
    if missing:
        raise CheckpointError(f"{path} lacks {_listed(missing)}; is the checkpoint complete?")
    unexpected = [name for name in found if name not in targets and not is_ignorable(name, targets)]
    if unexpected:
        raise CheckpointError(
            f"{path} has {_listed(unexpected)}, for which its configuration has no place"
        )
    for name, target in targets.items():
        shape, expected = tuple(found[name].shape), target.slot.full_shape
        # A single number may have no dimension.
        if (shape or (1,)) != expected:
            raise CheckpointError(
                f"{path}: the tensor {name!r} has the shape {list(shape)}, "
                f"but its configuration asks for {list(expected)}"
            )
    return [tensor for name, tensor in found.items() if name in targets]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    noun = "the tensor" if len(names) == 1 else f"{len(names)} tensors:"
    return f"{noun} {shown}{', ...' if len(names) > 3 else ''}"


def _fill(
    model: nn.Module,
    tensors: Iterable[CheckpointTensor],
    targets: dict[str, Target],
    show_progress: bool,
) -> None:
    """Fill and finish every layer, several at a time, in the order of the file."""
    jobs: dict[int, _LayerJob] = {}
    for tensor in tensors:
        layer, slot = targets[tensor.name].layer, targets[tensor.name].slot
        jobs.setdefault(id(layer), _LayerJob(layer)).fills.append((tensor, slot))
    _run_jobs(list(jobs.values()), show_progress)
    # Layers without tensors of their own come last: they may depend on others'.
    for module in model.modules():
        if isinstance(module, WeightedLayer) and id(module) not in jobs:
            module.process_weights_after_loading()


@dataclass(frozen=True, slots=True)
class _LayerJob:
    """A layer, and what to read for it."""

    layer: WeightedLayer
    fills: list[tuple[CheckpointTensor, WeightSlot]] = field(default_factory=list)

    @torch.inference_mode()
    def run(self) -> int:
        """Fill and finish the layer; the bytes that were read."""
        for tensor, slot in self.fills:
            tensor.fill(slot)
        self.layer.process_weights_after_loading()
        return sum(tensor.nbytes for tensor, _ in self.fills)


def _run_jobs(jobs: Sequence[_LayerJob], show_progress: bool) -> None:
    """Each thread takes whole layers: splitting every copy over all threads would make them wait
    for each other at each of hundreds of copies, which on a busy machine takes seconds."""
    num_threads = torch.get_num_threads()
    total = sum(tensor.nbytes for job in jobs for tensor, _ in job.fills)
    pool = ThreadPoolExecutor(num_threads, "load", torch.set_num_threads, (1,))
    try:
        futures = [pool.submit(job.run) for job in jobs]
        with progress_bar(
            total=total,
            desc="Loading weights",
            unit="B",
            unit_scale=True,
            delay=_QUIET_SECONDS,
            leave=False,
            is_shown=show_progress,
        ) as bar:
            for future in as_completed(futures):
                bar.update(future.result())
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(num_threads)
