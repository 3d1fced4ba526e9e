"""Files that other packages read: Run:ai's streamer, fastsafetensors and tensorizer.

Each is an extra of this package, of the format's name. Reading begins when the first of a file's
tensors is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor

from vllm_lite import envs
from vllm_lite.config.model import LoadConfig
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.loader.safetensors import StreamedFile
from vllm_lite.loader.stored import HeldTensors

# Package: its extra.
_EXTRAS = {"runai_model_streamer": "runai", "fastsafetensors": "fastsafetensors"}


def open_streamed(path: Path, load: LoadConfig) -> StreamedFile:
    """The safetensors file at `path`, read by Run:ai's streamer."""
    streamer = _package("runai_model_streamer", load)
    if "owned" not in signature(streamer.SafetensorsStreamer.stream_file).parameters:
        raise UsageError(
            f"--load-format {load.load_format} needs a later runai_model_streamer: "
            "pip install --upgrade 'vllm-lite[runai]'"
        )
    extra = load.model_loader_extra_config
    for name, variable in _RUNAI_VARIABLES.items():
        if name in extra:
            envs.give(variable, str(extra[name]))
    # One tensor at a time, unless it is said how much.
    envs.give("RUNAI_STREAMER_MEMORY_LIMIT", "0", is_default=True)

    def stream(path: Path) -> Iterator[tuple[str, Tensor]]:
        with streamer.SafetensorsStreamer() as reader:
            # Tensors of our own, where others would be written over by the next.
            reader.stream_file(str(path), owned=True)
            yield from reader.get_tensors()

    return StreamedFile(path, stream)


_RUNAI_VARIABLES = {
    "concurrency": "RUNAI_STREAMER_CONCURRENCY",
    "memory_limit": "RUNAI_STREAMER_MEMORY_LIMIT",
}


def open_fast(path: Path, load: LoadConfig) -> StreamedFile:
    """The safetensors file at `path`, read by fastsafetensors, which holds all of it meanwhile."""
    package = _package("fastsafetensors", load)

    def stream(path: Path) -> Iterator[tuple[str, Tensor]]:
        reader = package.SafeTensorsFileLoader(package.SingleGroup(), device="cpu", nogds=True)
        try:
            reader.add_filenames({0: [str(path)]})
            buffer = reader.copy_files_to_device()
            try:
                for name in reader.get_keys():
                    yield name, buffer.get_tensor(name).clone()
            finally:
                buffer.close()
        finally:
            reader.close()

    return StreamedFile(path, stream)


def open_tensorized(path: Path, load: LoadConfig) -> HeldTensors:
    """The file at `path` that tensorizer wrote, on the CPU; raises CheckpointError."""
    package = _package("tensorizer", load)
    extra = load.model_loader_extra_config
    # An address is no path.
    source = extra.get("tensorizer_uri", str(path))
    options: dict[str, Any] = {"verify_hash": extra.get("verify_hash", True)}
    if "num_readers" in extra:
        options["num_readers"] = extra["num_readers"]
    if keyfile := extra.get("encryption_keyfile"):
        try:
            key = Path(keyfile).read_bytes()
        except OSError as error:
            raise UsageError(
                f"--model-loader-extra-config encryption_keyfile {keyfile}: {error.strerror}"
            ) from None
        options["encryption"] = package.DecryptionParams.from_key(key)
    try:
        with package.TensorDeserializer(source, device="cpu", lazy_load=True, **options) as read:
            return HeldTensors(path, {name: tensor.data for name, tensor in read.items()})
    except Exception as error:  # the package's own types, and struct's
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{source} cannot be read by tensorizer ({reason}); write it again"
        ) from None


def _package(name: str, load: LoadConfig) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        extra = _EXTRAS.get(name, name)
        raise UsageError(
            f"--load-format {load.load_format} needs the package {name}: "
            f"pip install 'vllm-lite[{extra}]'"
        ) from None
