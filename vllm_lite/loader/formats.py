"""The files of a Hugging Face directory that hold its weights, and which format opens them.

Owns --load-format: a row of _FORMATS is a format, and knows the files that are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from vllm_lite.config.json_file import read_json
from vllm_lite.config.model import LoadConfig
from vllm_lite.errors import CheckpointError
from vllm_lite.loader.mistral_files import MistralFile, as_hugging_face
from vllm_lite.loader.pickled import open_cached, open_pickled
from vllm_lite.loader.prefetch import fit, is_worth_it, prefetch
from vllm_lite.loader.safetensors import SafetensorsFile
from vllm_lite.loader.sharded_state import shard_files
from vllm_lite.loader.stored import StoredTensor, TensorFile, Wanted, stored_tensor
from vllm_lite.loader.streamed import open_fast, open_streamed, open_tensorized
from vllm_lite.loader.tensors import listed
from vllm_lite.platform import free_memory

_SAFETENSORS, _CONSOLIDATED = "model.safetensors", "consolidated.safetensors"
_PICKLED = "pytorch_model.bin"


@dataclass(frozen=True, slots=True)
class _Format:
    """Files named by the index of `single`, `single` itself, or else all of `patterns`."""

    single: str
    patterns: tuple[str, ...]
    open: Callable[[Path, LoadConfig], TensorFile]
    skips: tuple[str, ...] = ()
    # Whether an index names the tensors as `open` does.
    has_index: bool = True

    @property
    def is_safetensors(self) -> bool:
        return self.single.endswith(".safetensors")

    def files(self, directory: Path, wanted: Wanted) -> dict[Path, set[str] | None]:
        """File to the tensors to take of it (None: all); {} where there are no files."""
        index = self._index(directory)
        if self.has_index and index.is_file():
            return _indexed(directory, index, wanted)
        return dict.fromkeys(self._unindexed(directory))

    def is_in(self, directory: Path) -> bool:
        return self._index(directory).is_file() or bool(self._unindexed(directory))

    def _index(self, directory: Path) -> Path:
        return directory / f"{self.single}.index.json"

    def _unindexed(self, directory: Path) -> list[Path]:
        if (directory / self.single).is_file():
            return [directory / self.single]
        for pattern in self.patterns:
            found = sorted(directory.glob(pattern))
            if kept := [file for file in found if not file.name.startswith(self.skips)]:
                return kept
        return []


def _open_safetensors(path: Path, load: LoadConfig) -> TensorFile:
    return SafetensorsFile(path)


def _open_mistral(path: Path, load: LoadConfig) -> MistralFile:
    return as_hugging_face(_open_safetensors(path, load))


# Mistral's repositories hold the weights twice, once in a layout of their own.
_safetensors = partial(_Format, _SAFETENSORS, ("*.safetensors",), skips=("consolidated",))
# What training leaves beside the weights.
_TRAINING = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
_pickled = partial(_Format, _PICKLED, ("*.bin", "*.pt"), skips=_TRAINING)

_FORMATS = {
    "safetensors": _safetensors(_open_safetensors),
    "mistral": _Format(
        _CONSOLIDATED, ("consolidated*.safetensors",), _open_mistral, has_index=False
    ),
    "pt": _pickled(open_pickled),
    "npcache": _pickled(open_cached),
    "runai_streamer": _safetensors(open_streamed),
    "fastsafetensors": _safetensors(open_fast),
    "tensorizer": _Format("model.tensors", ("*.tensors",), open_tensorized),
}
# Formats of a rank's own files, and what opens those.
SHARDED = {"sharded_state": "safetensors", "runai_streamer_sharded": "runai_streamer"}
# What auto looks for.
_FOUND = ("safetensors", "mistral", "pt")


def format_of(directory: Path, load: LoadConfig) -> str:
    """The format of the weights in `directory`; raises CheckpointError where there are none."""
    if load.load_format not in ("auto", "hf", "bitsandbytes"):
        return load.load_format
    for name in _FOUND:
        if _FORMATS[name].is_in(directory):
            return name
    raise CheckpointError(f"{directory} holds no weights (*.safetensors, *.bin); fetch them")


def open_tensors(directory: Path, load: LoadConfig, wanted: Wanted) -> list[StoredTensor]:
    """The tensors of the checkpoint in `directory`, in file order.

    With an index, only files with a wanted tensor are opened. Raises CheckpointError, also for a
    dtype that cannot be read as the wanted one.
    """
    chosen, files = _files_of(directory, load, wanted)
    if chosen.is_safetensors:
        _prefetch(list(files), load, is_mapped=chosen.open in (_open_safetensors, _open_mistral))
    opened = [(chosen.open(path, load), names) for path, names in files.items()]
    for file, names in opened:
        needed = {name for name in names or () if wanted(name) is not None}
        if missing := sorted(needed.difference(file.names())):
            raise CheckpointError(
                f"{file.path} lacks {listed(missing)}, which the index says it has; fetch it again"
            )
    return [
        stored_tensor(file, name, wanted(name))
        for file, names in opened
        for name in file.names()
        if names is None or name in names
    ]


def open_heads(directory: Path, layers: Iterable[str], load: LoadConfig) -> Iterator[StoredTensor]:
    """The tensors of those `layers` that have a pickle of their own, as BGE-M3's, by full names.

    Raises CheckpointError.
    """
    for layer in layers:
        path = directory / f"{layer}.pt"
        if path.parent == directory and path.is_file():
            file = open_pickled(path, load)
            for name in file.names():
                tensor = stored_tensor(file, name, torch.float32)
                yield replace(tensor, name=f"{layer}.{name}")


def open_files(directory: Path, load: LoadConfig) -> list[TensorFile]:
    if load.load_format in SHARDED:
        return open_shards(directory, load)
    chosen, files = _files_of(directory, load, lambda name: torch.float32)
    return [chosen.open(path, load) for path in files]


def open_shards(directory: Path, load: LoadConfig) -> list[TensorFile]:
    """This rank's files of a sharded state."""
    opened = _FORMATS[SHARDED[load.load_format]]
    return [opened.open(path, load) for path in shard_files(directory, load)]


def _files_of(
    directory: Path, load: LoadConfig, wanted: Wanted
) -> tuple[_Format, dict[Path, set[str] | None]]:
    chosen = _FORMATS[format_of(directory, load)]
    if uri := load.model_loader_extra_config.get("tensorizer_uri"):
        return chosen, {Path(uri): None}
    files = chosen.files(directory, wanted)
    if not files:
        shown = " or ".join(chosen.patterns)
        raise CheckpointError(
            f"{directory} holds no {shown} for --load-format {load.load_format}; use auto"
        )
    return chosen, files


def _prefetch(files: list[Path], load: LoadConfig, *, is_mapped: bool) -> None:
    """Begin to read `files` ahead of those who take their tensors, in the same order."""
    strategy, threads = load.safetensors_load_strategy, 0
    if strategy == "prefetch" or (strategy is None and is_worth_it(files, free_memory())):
        threads = load.safetensors_prefetch_num_threads
    elif strategy == "eager" or (is_mapped and fit(files, free_memory())):
        threads = 1
    prefetch(files, threads, load.safetensors_prefetch_block_size)


def _indexed(directory: Path, index: Path, wanted: Wanted) -> dict[Path, set[str] | None]:
    """The files with a needed tensor."""
    try:
        weight_map = read_json(index)["weight_map"]
        places = {str(name): str(file) for name, file in weight_map.items()}
    except (KeyError, AttributeError):
        raise CheckpointError(
            f"{index} is not a valid index of weight files; fetch it again"
        ) from None
    files: dict[Path, set[str] | None] = {}
    for file in sorted({file for name, file in places.items() if wanted(name) is not None}):
        path = directory / file
        if path.parent != directory or not path.is_file():
            raise CheckpointError(
                f"{index} names the file {file!r}, which {directory} lacks; fetch it"
            )
        files[path] = {name for name, place in places.items() if place == file}
    return files
