"""Loads a model that is ready to run.

A checkpoint and a model must match exactly: names and shapes are compared before any weight is
read. A layer is finished (packed, originals dropped) once its last tensor is read, so that memory
never holds the model twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES, DRAFTS
from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.model import LoadConfig
from vllm_lite.config.quantized.registry import read_scheme, rounding_of
from vllm_lite.config.quantized.schemes import FlatBlocks, Scheme, Ternary
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_spec import CACHE_FORMATS, CacheFormat, KVCacheSpec
from vllm_lite.distributed.groups import in_turn
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.cpu.mapped_memory import packed_weights, return_unused_heap
from vllm_lite.layers.embedding import ParallelLMHead
from vllm_lite.layers.weights import WeightedLayer, WeightSlot
from vllm_lite.loader.contents import (
    cache_scales,
    plain_layers,
    scheme_of,
    warn_unless_scales_are_used,
)
from vllm_lite.loader.dummy import make_dummies
from vllm_lite.loader.formats import SHARDED, open_heads, open_shards, open_tensors
from vllm_lite.loader.forms.bitsandbytes import BlockScales, join_blocks
from vllm_lite.loader.forms.mxfp4 import Float4Tensor, join_float4
from vllm_lite.loader.forms.sparse import SparseTensor, join_sparse, name_of_whole
from vllm_lite.loader.forms.ternary import TernaryTensor, join_ternary
from vllm_lite.loader.gguf.file import gguf_rules, open_gguf
from vllm_lite.loader.sharded_state import shard_tensors, write_shards
from vllm_lite.loader.stored import StoredTensor
from vllm_lite.loader.tensors import CheckpointTensor, listed, place_of, refusals_name
from vllm_lite.loader.weight_map import (
    Target,
    is_ignorable,
    lacking,
    parts_of_layer,
    weight_targets,
)
from vllm_lite.loader.weight_rules import WHOLE, Part, WeightRules
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.heads import head_of_tokens, head_rules, with_dense
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.registry import AnyModel, get_model_class, marks_of
from vllm_lite.progress import progress_bar
from vllm_lite.quantization.registry import LinearMethods

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_LARGEST = 1e15
# Before the names of the layers of a model that pools, behind the pooling.
_HEADS = "heads."
# Read until the memory of copies is returned.
_BYTES_UNTIL_RETURN = 128 << 20
# Progress is shown only for loads longer than this; shorter ones would flicker.
_QUIET_SECONDS = 1.0


@torch.inference_mode()
def load_model(config: VllmConfig, device: str = "cpu") -> CausalLM:
    """The model of `config` on `device` (an nn.Module); raises CheckpointError."""
    with _refusals_name(config.facts.path):
        try:
            model, rules = _build(config, device)
        except (MemoryError, RuntimeError):
            # Sizes that the files contradict are a better reason than memory.
            model, rules = _build(config, "meta")
            _fills(config, rules, weight_targets(model))
            raise
        numbers = {id(module): number for number, module in enumerate(model.modules())}
        jobs = _jobs(_fills(config, rules, weight_targets(model)).values(), numbers)
        tensors = {id(job.layer): [fill.tensor for fill in job.fills] for job in jobs}
        with in_turn(config.parallel.max_parallel_loading_workers):
            _run_jobs(jobs, config.load)
        # Layers that depend on others' tensors come last, and those without any.
        filled = {id(job.layer) for job in jobs if not _depends_on_others(job.layer)}
        for module in model.modules():
            if isinstance(module, WeightedLayer) and id(module) not in filled:
                packed_weights.begin_layer(numbers[id(module)])
                with refusals_name([t for m in module.modules() for t in tensors.get(id(m), ())]):
                    module.process_weights_after_loading()
    return model


@torch.inference_mode()
def save_sharded_state(config: VllmConfig, directory: str, pattern: str, max_size: int) -> str:
    """Write this rank's part of the weights of `config`; why that failed, or "".

    They are read again: a layer that is ready to run has packed its own.
    """
    if config.facts.format == "gguf":
        return f"{config.facts.path} is a GGUF file, which every rank maps; serve it as it is"
    try:
        with _refusals_name(config.facts.path):
            model, rules = _build(config, "meta")
            fills = _fills(config, rules, weight_targets(model))
            write_shards(map(_read, fills.items()), Path(directory), pattern, max_size)
    except (CheckpointError, OSError, SafetensorError) as error:
        return str(error)
    return ""


def _read(item: tuple[str, _Fill]) -> tuple[str, Tensor]:
    name, fill = item
    slot = fill.target.slot
    tensor = torch.empty(slot.tensor.shape, dtype=slot.tensor.dtype, device="cpu")
    fill.read(replace(slot, tensor=tensor, keep=None, packing=None))
    return name, tensor


def cache_spec(config: VllmConfig) -> KVCacheSpec:
    """The cache of each layer of the model of `config`; takes no memory for weights."""
    with _refusals_name(config.facts.path):
        return _build(config, "meta")[0].kv_cache_spec()


def _build(config: VllmConfig, device: str) -> tuple[AnyModel, WeightRules]:
    """The model of `config` without its weights, and the rules for the checkpoint's names."""
    facts = config.facts
    dtype = _DTYPES[config.model.dtype]
    scheme = scheme_of(config)
    model_class = get_model_class(facts.architecture, facts.implementation)
    own, row = model_class.weight_rules(facts), ARCHITECTURES.get(facts.architecture)
    if facts.format == "gguf":
        own = gguf_rules(facts, own)
    if facts.pooling is not None:
        heads = with_dense(model_class.heads_of(facts), facts.pooling)
        own = [*own, *head_rules(heads)]
        if facts.pooling.method:
            own = head_of_tokens(own, facts)
    rules = WeightRules(
        own,
        is_text_part=row is not None and row.is_text_part,
        may_lack_root=facts.pooling is not None and issubclass(model_class, DecoderForCausalLM),
        marks=marks_of(facts),
        suffixes={} if scheme is None else scheme.suffixes,
    )
    held = plain_layers(config, scheme, rules)
    if scheme is not None and scheme.in_flight is not None and held and all(held.values()):
        scheme, held = Scheme(scheme.in_flight, patterns=scheme.patterns), {}
    rounding = rounding_of(config.model.quantization, config.model.quantization_config, facts)
    methods = LinearMethods(config.model.quantization, dtype, scheme, held, rounding)
    options = BuildOptions(
        dtype=dtype,
        cache_format=CACHE_FORMATS.get(
            config.cache.kv_cache_dtype, CacheFormat(config.model.dtype)
        ),
        max_model_len=config.model.max_model_len,
        methods=lambda path: methods.of(
            path, [rules.source_of(layer) for layer in parts_of_layer(path)]
        ),
        cache_scales=cache_scales(config, scheme, rules),
    )
    with torch.device(device):
        model = model_class(facts, options)
    methods.check()
    if options.cache_scales is not None:
        warn_unless_scales_are_used(model, facts.path)
    return model, rules


@contextmanager
def _refusals_name(path: str) -> Iterator[None]:
    """Turn errors of a checkpoint or of memory into one that names the path."""
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


@dataclass(frozen=True, slots=True)
class _Fill:
    """A tensor of the checkpoint, and the view of it that a target takes."""

    tensor: CheckpointTensor
    target: Target
    part: Part

    def read(self, slot: WeightSlot) -> None:
        """Fill `slot`; raises CheckpointError, which names the tensor."""
        with refusals_name([self.tensor]):
            self.tensor.fill(slot, self.part)


def _fills(
    config: VllmConfig, rules: WeightRules, targets: Mapping[str, Target]
) -> dict[str, _Fill]:
    """The tensors to read for each target; raises CheckpointError unless the checkpoint fits."""
    facts = config.facts
    if config.load.load_format == "dummy":
        dummies = make_dummies(targets, config.model.seed)
        return {dummy.name: _Fill(dummy, targets[dummy.name], WHOLE) for dummy in dummies}
    if config.load.load_format in SHARDED:
        files = open_shards(Path(facts.path), config.load)
        shards = shard_tensors(files, targets)
        return {name: _Fill(shard, targets[name], WHOLE) for name, shard in shards.items()}
    if facts.format == "gguf":
        opened = open_gguf(facts.path, rules)
        held = (tensor for tensor in opened if not _is_for_drafts(facts, tensor.name))
        return _match(facts.path, held, rules, targets, pools=facts.pooling is not None)

    scheme = read_scheme(facts.path, facts.hf_config)
    form = None if scheme is None else scheme.others
    plain = plain_layers(config, scheme, rules) if isinstance(form, Ternary) else {}

    def wanted(name: str) -> torch.dtype | None:
        name = name_of_whole(name)
        whole = rules.stack_of(name) is None
        parts = rules.parts_of(rules.name_of(name) if whole else rules.slice_name(name, 0))
        takers = [target for target, _ in parts if target in targets]
        if not takers:
            return None
        layer, _, suffix = takers[0].rpartition(".")
        is_packed = suffix == "weight" and not plain.get(rules.source_of(layer), True)
        if is_packed or name.endswith("_blocks"):
            return torch.uint8
        return targets[takers[0]].slot.dtype_in_file

    found = open_tensors(Path(facts.path), config.load, wanted)
    stored: Iterator[StoredTensor | Float4Tensor | TernaryTensor | BlockScales | SparseTensor]
    if isinstance(form, FlatBlocks):
        stored = join_blocks(found, form)
    elif scheme is not None and isinstance(form, Ternary):
        stored = join_ternary(found, scheme, rules)
    else:
        stored = join_float4(found)
    if scheme is not None and scheme.is_sparse:
        stored = join_sparse(found)
    for dense in facts.pooling.dense if facts.pooling is not None else ():
        stored = chain(stored, _of_folder(config, dense.folder))
    heads = {name.rpartition(".")[0] for name in targets if name.startswith(_HEADS)}
    layers = sorted(layer.removeprefix(_HEADS) for layer in heads)
    stored = chain(stored, open_heads(Path(facts.path), layers, config.load))
    needed = (
        tensor
        for tensor in stored
        if rules.has_place(tensor.name) and not _is_for_drafts(facts, tensor.name)
    )
    tensors = (item for tensor in needed for item in tensor.slices(rules))
    return _match(facts.path, tensors, rules, targets, pools=facts.pooling is not None)


def _of_folder(config: VllmConfig, folder: str) -> Iterator[StoredTensor]:
    """The tensors of one of sentence-transformers' folders, under its name."""
    path = Path(config.facts.path, folder)
    for tensor in open_tensors(path, config.load, lambda name: torch.float32):
        yield replace(tensor, name=f"{folder}.{tensor.name}")


def _is_for_drafts(facts: ModelFacts, name: str) -> bool:
    """Whether a tensor is of layers after the last one, which predict tokens further ahead."""
    if facts.architecture in DRAFTS:
        return False
    if re.match(r"(model\.)?mtp[._]", name):
        return True
    hf, found = facts.hf_config, re.match(r"(?:model\.layers|blk)\.(\d+)\.", name)
    names = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules")
    count = next((hf[name] for name in names if hf.get(name)), 0)
    return found is not None and 0 <= int(found[1]) - facts.num_layers < count


def _match(
    path: str,
    tensors: Iterable[CheckpointTensor],
    rules: WeightRules,
    targets: Mapping[str, Target],
    *,
    pools: bool,
) -> dict[str, _Fill]:
    """The checkpoint's tensors and their targets; each target has one, each tensor a target.

    A model that pools has no use for the language model's head.
    """
    fills: dict[str, _Fill] = {}
    held, unexpected = list(tensors), []
    for tensor in held:
        for name, part in rules.parts_of(tensor.name):
            if name in targets:
                fills[name] = _Fill(tensor, targets[name], part)
            elif not (pools and name.startswith("lm_head.")) and not is_ignorable(name, targets):
                unexpected.append(tensor)
    if missing := lacking(targets, fills):
        suffixes = {tensor.name.rpartition(".")[2] for tensor in held}
        missing = [rules.stored_name(name, suffixes) for name in missing]
        layers = {name.rpartition(".")[0] for name in missing}
        beside = [tensor for tensor in held if tensor.name.rpartition(".")[0] in layers]
        place = place_of(beside or held, path)
        raise CheckpointError(f"{place} lacks {listed(missing)}; is the checkpoint complete?")
    if unexpected:
        shown = listed([tensor.name for tensor in unexpected])
        place = place_of(unexpected, path)
        raise CheckpointError(f"{place} has {shown}, for which its configuration has no place")
    for fill in fills.values():
        slot, stored = fill.target.slot, tuple(fill.tensor.shape)
        if not fill.part.fits(stored, slot):
            raise CheckpointError(
                f"{fill.tensor.shown} has the shape {list(stored)}, but its configuration asks "
                f"for {fill.part.expected(slot)}"
            )
    return fills


def _jobs(fills: Iterable[_Fill], numbers: Mapping[int, int]) -> list[_LayerJob]:
    """The layers in the order of the file, each with its number in the model and its tensors."""
    jobs: dict[int, _LayerJob] = {}
    for fill in fills:
        layer = fill.target.layer
        jobs.setdefault(id(layer), _LayerJob(layer, numbers[id(layer)])).fills.append(fill)
    return list(jobs.values())


@dataclass(frozen=True, slots=True)
class _LayerJob:
    """A layer and its tensors to read."""

    layer: WeightedLayer
    number: int
    fills: list[_Fill] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(fill.tensor.nbytes for fill in self.fills)

    @torch.inference_mode()
    def run(self) -> int:
        """Fill and finish the layer; returns the bytes read."""
        nbytes, tensors = self.nbytes, [fill.tensor for fill in self.fills]
        packed_weights.begin_layer(self.number)
        for fill in self.fills:
            fill.read(fill.target.slot)
            if fill.target.slot.keep is None:
                _check_magnitude(fill.tensor, fill.target.slot)
        # Packing frees the layer's own tensors only if nothing here refers to them.
        self.fills.clear()
        if not _depends_on_others(self.layer):
            with refusals_name(tensors):
                self.layer.process_weights_after_loading()
        return nbytes


def _depends_on_others(layer: WeightedLayer) -> bool:
    return isinstance(layer, ParallelLMHead) and layer.is_tied


def _check_magnitude(tensor: CheckpointTensor, slot: WeightSlot) -> None:
    """Raise CheckpointError for weights that are not finite, or whose squares are not."""
    largest = slot.largest()
    if not largest < _LARGEST:
        raise CheckpointError(
            f"{tensor.shown} holds numbers as large as {largest:g}; fetch the weights again"
        )


def _run_jobs(jobs: Sequence[_LayerJob], load: LoadConfig) -> None:
    """Fill and finish layers, several at a time.

    Each thread takes whole layers: splitting every copy over all threads would make them wait
    for each other at each of hundreds of copies, which on a busy machine takes seconds.
    """
    num_threads = torch.get_num_threads()
    extra = load.model_loader_extra_config
    workers = extra.get("num_threads", num_threads)
    if not extra.get("enable_multithread_load", True):
        workers = 1
    total = sum(job.nbytes for job in jobs)
    pool = ThreadPoolExecutor(workers, "load", torch.set_num_threads, (1,))
    try:
        futures = [pool.submit(job.run) for job in jobs]
        with progress_bar(
            total=total,
            desc="Loading weights",
            unit="B",
            unit_scale=True,
            delay=_QUIET_SECONDS,
            leave=False,
            is_shown=load.use_tqdm_on_load,
        ) as bar:
            unused = 0
            for future in as_completed(futures):
                bar.update(future.result())
                unused += future.result()
                # Not after each layer: the system would clear the same pages for the next one.
                if unused > _BYTES_UNTIL_RETURN:
                    return_unused_heap()
                    unused = 0
        return_unused_heap()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(num_threads)
