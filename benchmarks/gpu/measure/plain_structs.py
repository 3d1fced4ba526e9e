"""Stands in for msgspec where it is not installed: messages of an engine in one process.

They are built, read and compared there and go as they are, so a dataclass is all they need to be.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import sys
from types import ModuleType
from typing import Any, ClassVar, dataclass_transform, get_origin


@dataclass_transform()
class Struct:
    """A class whose annotated names are its fields; how it would be encoded is ignored."""

    def __init_subclass__(cls, *, kw_only: bool = False, frozen: bool = False, **_: Any) -> None:
        super().__init_subclass__()  # a generic class's parameters
        for name, annotation in vars(cls).get("__annotations__", {}).items():
            is_field = get_origin(annotation) is not ClassVar and "ClassVar" not in str(annotation)
            default = vars(cls).get(name)
            if is_field and isinstance(default, list | dict | set):
                make = lambda default=default: copy.copy(default)  # noqa: E731
                setattr(cls, name, dataclasses.field(default_factory=make))
        dataclasses.dataclass(kw_only=kw_only)(cls)
        if frozen:
            # Only as far as it matters here: it can be a key, and nobody writes to it.
            cls.__hash__ = _hash_of_fields  # type: ignore[assignment]


def _hash_of_fields(self: Any) -> int:
    return hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self)))


class Plain:
    """An encoder and decoder of messages that stay in one process: they go as they are."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def encode(self, message: object) -> object:
        return message

    def decode(self, message: object) -> object:
        return message


def _convert(value: Any, _: object) -> Any:
    """A copy; what it holds is vouched for by whoever measures."""
    return copy.copy(value)


def install() -> bool:
    """Give `import msgspec` this, unless there is a real one; whether it was needed."""
    with contextlib.suppress(ImportError):
        importlib.import_module("msgspec")
        return False
    stand_in: Any = ModuleType("msgspec")
    stand_in.Struct = Struct
    stand_in.structs = ModuleType("msgspec.structs")
    stand_in.structs.replace = dataclasses.replace
    stand_in.msgpack = ModuleType("msgspec.msgpack")
    stand_in.msgpack.Encoder = stand_in.msgpack.Decoder = Plain
    stand_in.msgpack.encode = stand_in.msgpack.decode = lambda message: message
    stand_in.Meta = lambda **_: None
    stand_in.convert = _convert
    stand_in.DecodeError = stand_in.ValidationError = ValueError
    sys.modules["msgspec"] = stand_in
    return True
