"""Files that other packages read: Run:ai's streamer, fastsafetensors and tensorizer.

Each is an extra of this package, of the format's name. A file is read whole, when the first of its
tensors is asked for, and its memory is released with the last layer that it fills.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from vllm_lite.config.model import LoadConfig
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.loader.safetensors import WholeFile
from vllm_lite.loader.stored import HeldTensors

# Package: its extra.
_EXTRAS = {"runai_model_streamer": "runai", "fastsafetensors": "fastsafetensors"}


def open_streamed(path: Path, load: LoadConfig) -> WholeFile:
    """The safetensors file at `path`, read by Run:ai's streamer."""
    streamer = _package("runai_model_streamer", load)
    extra = load.model_loader_extra_config
    # The package reads its settings there.
    for name, variable in _RUNAI_VARIABLES.items():
        if name in extra:
            os.putenv(variable, str(extra[name]))

    def read(path: Path) -> dict[str, Tensor]:
        with streamer.SafetensorsStreamer() as reader:
            reader.stream_file(str(path))
            return {name: tensor.clone() for name, tensor in reader.get_tensors()}

    return WholeFile(path, read)


_RUNAI_VARIABLES = {
    "concurrency": "RUNAI_STREAMER_CONCURRENCY",
    "memory_limit": "RUNAI_STREAMER_MEMORY_LIMIT",
}


def open_fast(path: Path, load: LoadConfig) -> WholeFile:
    """The safetensors file at `path`, read by fastsafetensors."""
    package = _package("fastsafetensors", load)

    def read(path: Path) -> dict[str, Tensor]:
        reader = package.SafeTensorsFileLoader(package.SingleGroup(), device="cpu", nogds=True)
        try:
            reader.add_filenames({0: [str(path)]})
            buffer = reader.copy_files_to_device()
            try:
                return {name: buffer.get_tensor(name).clone() for name in reader.get_keys()}
            finally:
                buffer.close()
        finally:
            reader.close()

    return WholeFile(path, read)


def open_tensorized(path: Path, load: LoadConfig) -> HeldTensors:
    """The file at `path` that tensorizer wrote, on the CPU; raises CheckpointError."""
    package = _package("tensorizer", load)
    extra = load.model_loader_extra_config
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
        with package.TensorDeserializer(path, device="cpu", lazy_load=True, **options) as read:
            return HeldTensors(path, {name: tensor.data for name, tensor in read.items()})
    except Exception as error:  # the package's own types, and struct's
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path} cannot be read by tensorizer ({reason}); write it again"
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
