"""Reads the JSON files of a checkpoint, which may hold anything."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError


def read_json(path: Path) -> Json:
    """The JSON object in the file at `path`; raises CheckpointError."""
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a regular file; put the checkpoint's own there")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"Cannot read {path}: {error.strerror}; is the checkpoint complete?"
        ) from None
    except RecursionError:
        raise CheckpointError(f"{path} is nested too deeply; fetch it again") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}; fetch it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def check_sendable(path: object, value: Json) -> None:
    """Raise CheckpointError for what msgpack has no form of, and so no other process would get."""
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, RecursionError, ValueError) as error:
        raise CheckpointError(
            f"The configuration of {path} cannot be used ({error}): numbers have at most 64 bits, "
            "and text is valid Unicode"
        ) from None
