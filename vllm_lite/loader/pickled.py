"""Weights that torch pickled, mapped into memory; and copies of them that NumPy maps.

A pickle can run code when it is read. torch's weights_only reader knows tensors and containers
alone; what asks for more is refused.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vllm_lite.config.model import LoadConfig
from vllm_lite.errors import CheckpointError
from vllm_lite.loader.stored import HeldTensors
from vllm_lite.log import init_logger

logger = init_logger(__name__)

_CACHE, _NAMES = "np", "weight_names.json"
# Stands for dtypes that NumPy lacks.
_BITS = {1: torch.uint8, 2: torch.int16}


def open_pickled(path: Path, load: LoadConfig) -> HeldTensors:
    """The tensors in the file at `path`; raises CheckpointError."""
    logger.warning("%s is a pickle, of which only tensors are read; prefer safetensors", path)
    if not zipfile.is_zipfile(path):
        raise CheckpointError(
            f"{path} is cut off, or was saved by torch before 1.6; fetch it again, or save it "
            "as safetensors"
        )
    place = load.pt_load_map_location
    try:
        read: Any = torch.load(path, map_location=place, weights_only=True, mmap=True)
    except Exception as error:  # a pickle may ask for anything, and fail in any way
        raise CheckpointError(_reason(path, place, error)) from None
    if isinstance(read, dict) and any(isinstance(x, dict) and "W_q" in x for x in read.values()):
        raise CheckpointError(
            f"{path} is a pickle by HQQ's own tool, with a table for each layer; save the model "
            "with transformers' save_pretrained, as safetensors"
        )
    if not isinstance(read, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) and value.layout is torch.strided
        for name, value in read.items()
    ):
        raise CheckpointError(f"{path} is not a mapping of names to tensors; save a state_dict")
    return HeldTensors(path, read)


def _reason(path: Path, place: object, error: Exception) -> str:
    text = str(error)
    asked = re.search(r"GLOBAL (\S+)", text)
    if asked and asked[1].startswith("torchao."):
        return (
            f"{path} is a pickle of {asked[1]}, which could run code; save the model as "
            "safetensors, as later releases of torchao do"
        )
    if asked:
        return (
            f"{path} is a pickle that asks for {asked[1]}, which could run code; use a "
            "safetensors file of a source that you trust"
        )
    lines = text.splitlines() or [type(error).__name__]
    if "deserialize" in text or "restore data location" in text:
        return f"--pt-load-map-location {place}: {lines[0]}"
    reason = "its pickle is damaged" if "weights_only" in lines[0] else lines[0]
    return f"{path} cannot be read as tensors that torch saved ({reason}); fetch it again"


def open_cached(path: Path, load: LoadConfig) -> HeldTensors:
    """The tensors of a pickled file as NumPy's files in np/ beside it, which are made if need be.

    Raises CheckpointError.
    """
    folder = path.parent / _CACHE / path.name
    state = path.stat()
    version = [state.st_size, state.st_mtime_ns]
    try:
        made = json.loads((folder / _NAMES).read_text())
        if made["of"] == version:
            return HeldTensors(path, _mapped(folder, made["tensors"]))
    except FileNotFoundError:
        pass
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise CheckpointError(f"{folder} is damaged ({error}); delete it") from None
    try:
        listed = _write(folder, open_pickled(path, load).tensors, version)
        return HeldTensors(path, _mapped(folder, listed))
    except OSError as error:
        raise CheckpointError(
            f"--load-format npcache cannot write {folder} ({error.strerror}); use pt"
        ) from None


def _write(folder: Path, tensors: Any, version: list[int]) -> list[list[str]]:
    """Make the folder, whole or not at all; the names and dtypes of its files."""
    listed = []
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        for i, (name, tensor) in enumerate(tensors.items()):
            bits = _BITS.get(tensor.itemsize)
            held = tensor if bits is None else tensor.contiguous().view(bits)
            # Numbered: a tensor's name may lead anywhere.
            np.save(Path(made, f"{i}.npy"), held.cpu().numpy())
            listed.append([name, str(tensor.dtype).removeprefix("torch.")])
        Path(made, _NAMES).write_text(json.dumps({"of": version, "tensors": listed}))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder, copy_function=shutil.move)
    return listed


def _mapped(folder: Path, listed: list[list[str]]) -> dict[str, Tensor]:
    tensors = {}
    for i, (name, word) in enumerate(listed):
        array = np.load(folder / f"{i}.npy", mmap_mode="c", allow_pickle=False)
        dtype = getattr(torch, word)
        tensors[name] = torch.from_numpy(array).view(dtype)
    return tensors
