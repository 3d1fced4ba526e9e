"""A rank's own part of every weight, in safetensors files: written once, read without cutting.

Names are the model's own. Files carry no layout of their own: they fit the model and the number of
ranks that they were written for, with the same quantisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from vllm_lite.config.model import LoadConfig
from vllm_lite.distributed.groups import tp_rank, tp_size
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.stored import WORDS, StoredTensor, TensorFile
from vllm_lite.loader.weight_map import Target, is_ignorable
from vllm_lite.loader.weight_rules import Part

PATTERN = "model-rank-{rank}-part-{part}.safetensors"


class ShardTensor(StoredTensor):
    """This rank's part of a tensor, which fills a slot as it is."""

    __slots__ = ()

    def fill(self, slot: WeightSlot, part: Part) -> None:
        slot.write(self.read())


def shard_files(directory: Path, load: LoadConfig) -> list[Path]:
    """This rank's files; raises CheckpointError where there are none."""
    pattern = load.model_loader_extra_config.get("pattern", PATTERN)
    named = file_name(pattern, tp_rank(), "*")
    files = sorted(directory.glob(named))
    if not files:
        raise CheckpointError(
            f"{directory} holds no {named} for --load-format {load.load_format}; write them with "
            f"LLM.save_sharded_state of {tp_size()} rank{'s' if tp_size() > 1 else ''}"
        )
    return files


def file_name(pattern: str, rank: int, part: int | str) -> str:
    """The name of a rank's file; raises CheckpointError for a pattern that makes none."""
    try:
        name = pattern.format(rank=rank, part=part)
    except (KeyError, IndexError, ValueError, AttributeError):
        name = ""
    if not name or "/" in name or "{part}" not in pattern:
        raise CheckpointError(
            f"the pattern {pattern!r} does not name files by {{rank}} and {{part}}, as {PATTERN}"
        )
    return name


def shard_tensors(
    files: Iterable[TensorFile], targets: Mapping[str, Target]
) -> dict[str, ShardTensor]:
    """The tensor of each target; raises CheckpointError unless files and targets fit."""
    found: dict[str, ShardTensor] = {}
    for file in files:
        for name in file.names():
            dtype, shape = file.entry(name)
            if name not in targets:
                if is_ignorable(name, targets):
                    continue
                raise CheckpointError(f"{file.path}: the model has no place for {name!r}")
            tensor = targets[name].slot.tensor
            if shape != tuple(tensor.shape) or WORDS[tensor.dtype] != dtype:
                raise CheckpointError(
                    f"{file.path}: {name!r} is {dtype} {list(shape)}, but this rank of {tp_size()} "
                    f"takes {WORDS[tensor.dtype]} {list(tensor.shape)}; write the files again with "
                    "the same --tensor-parallel-size, --dtype and --quantization"
                )
            found[name] = ShardTensor(name, shape, tensor.nbytes, file, name)
    lacking = [n for n, t in targets.items() if n not in found and not t.slot.is_optional]
    if lacking:
        raise CheckpointError(
            f"the files of rank {tp_rank()} lack {lacking[0]!r}; write them again"
        )
    return found


def write_shards(
    tensors: Iterable[tuple[str, Tensor]], directory: Path, pattern: str, max_size: int
) -> None:
    """Write this rank's files of at most `max_size` bytes, or of one tensor.

    Raises CheckpointError for a tensor that is no part of a weight.
    """
    for part, held in enumerate(_batches(tensors, max_size)):
        save_file(held, directory / file_name(pattern, tp_rank(), part))


def _batches(tensors: Iterable[tuple[str, Tensor]], max_size: int) -> Iterator[dict[str, Tensor]]:
    held: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if name.endswith(".codebooks"):
            raise CheckpointError(
                f"{name!r} is a book for all ranks, which a sharded state cannot hold; serve the "
                "AQLM checkpoint as it is"
            )
        if held and sum(t.nbytes for t in held.values()) + tensor.nbytes > max_size:
            yield held
            held = {}
        held[name] = tensor
    if held:
        yield held
