"""The header of a GGUF file: metadata and the table of tensors, without their data.

Owns parsing and bounds checking (a damaged file is a CheckpointError, never a crash or a
huge allocation); knows no model and no tensor library. Arrays are decoded when first used.
Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError

_MAX_DIMS = 4
_MAX_KEY_BYTES = 65535
_MIN_ALIGNMENT = 8
_STRING, _ARRAY = 8, 9
# One file of several.
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# Metadata value type -> struct code (type 7 is a boolean byte).
_SCALARS = dict(enumerate("BbHhIif?")) | dict(enumerate("Qqd", 10))


class GGMLType(NamedTuple):
    """How a tensor type is stored: `block_bytes` bytes hold `block_size` values."""

    name: str
    block_size: int
    block_bytes: int


GGML_TYPES = {
    0: GGMLType("F32", 1, 4),
    1: GGMLType("F16", 1, 2),
    2: GGMLType("Q4_0", 32, 18),
    3: GGMLType("Q4_1", 32, 20),
    6: GGMLType("Q5_0", 32, 22),
    7: GGMLType("Q5_1", 32, 24),
    8: GGMLType("Q8_0", 32, 34),
    9: GGMLType("Q8_1", 32, 36),
    10: GGMLType("Q2_K", 256, 84),
    11: GGMLType("Q3_K", 256, 110),
    12: GGMLType("Q4_K", 256, 144),
    13: GGMLType("Q5_K", 256, 176),
    14: GGMLType("Q6_K", 256, 210),
    15: GGMLType("Q8_K", 256, 292),
    16: GGMLType("IQ2_XXS", 256, 66),
    17: GGMLType("IQ2_XS", 256, 74),
    18: GGMLType("IQ3_XXS", 256, 98),
    19: GGMLType("IQ1_S", 256, 50),
    20: GGMLType("IQ4_NL", 32, 18),
    21: GGMLType("IQ3_S", 256, 110),
    22: GGMLType("IQ2_S", 256, 82),
    23: GGMLType("IQ4_XS", 256, 136),
    24: GGMLType("I8", 1, 1),
    25: GGMLType("I16", 1, 2),
    26: GGMLType("I32", 1, 4),
    27: GGMLType("I64", 1, 8),
    28: GGMLType("F64", 1, 8),
    29: GGMLType("IQ1_M", 256, 56),
    30: GGMLType("BF16", 1, 2),
    34: GGMLType("TQ1_0", 256, 54),
    35: GGMLType("TQ2_0", 256, 66),
    39: GGMLType("MXFP4", 32, 17),
    40: GGMLType("NVFP4", 64, 36),
    41: GGMLType("Q1_0", 128, 18),
    42: GGMLType("Q2_0", 64, 18),
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor's place. `shape` is row-major (torch order); `offset` counts from byte 0.

    `path` is the file, or that of its parts which has the tensor.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    nbytes: int
    path: str


class GGUFArray(Sequence[Any]):
    """An array of the metadata, decoded when an element is first asked for."""

    def __init__(self, data: memoryview, count: int, code: str) -> None:
        """`data` is exactly the array's bytes; `code` is a struct code, or "" for strings."""
        self._data = data
        self._count = count
        self._code = code
        self._items: list[Any] | None = None

    def tolist(self) -> list[Any]:
        """All elements; strings as str, with U+FFFD for bytes that are not UTF-8."""
        if self._items is None:
            if self._code:
                self._items = list(struct.unpack(f"<{self._count}{self._code}", self._data))
            else:
                self._items = self._strings()
        return self._items

    def _strings(self) -> list[str]:
        raw = bytes(self._data)
        unpack = _U64.unpack_from
        items = []
        pos = 0
        for _ in range(self._count):
            start = pos + 8
            pos = start + unpack(raw, pos)[0]
            items.append(raw[start:pos].decode("utf-8", "replace"))
        return items

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.tolist()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"GGUFArray({self._count} x {self._code or 'str'})"


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A parsed header. `data` are the whole file's parts, memory-mapped and read-only, by path."""

    path: str
    metadata: Json
    tensors: dict[str, GGUFTensor]
    data: dict[str, memoryview]

    def of_architecture(self, key: str, default: Any = None) -> Any:
        """The metadata's value of the architecture's own `key`."""
        return self.metadata.get(f"{self.metadata['general.architecture']}.{key}", default)

    def tensor_data(self, name: str) -> memoryview:
        """The raw bytes of a tensor, not copied."""
        tensor = self.tensors[name]
        return self.data[tensor.path][tensor.offset : tensor.offset + tensor.nbytes]


def shortest(value: Any) -> Any:
    """A float32 of the file as the decimal it was written from: 9.99999e-06 is 1e-05."""
    if not isinstance(value, float):
        return value
    for digits in range(6, 9):
        text = float(f"{value:.{digits}g}")
        if struct.pack("<f", text) == struct.pack("<f", value):
            return text
    return value


def read_gguf(path: str | Path) -> GGUFFile:
    """Parse the header of the GGUF file at `path`, and of its other parts if it is one of several.

    Raises CheckpointError where one is damaged or not there.
    """
    file = _read_one(str(path))
    count = file.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return file
    parts = [_read_one(name) for name in _parts_of(str(path), count)]
    tensors: dict[str, GGUFTensor] = {}
    for part in parts:
        tensors |= part.tensors
    stated = parts[0].metadata.get("split.tensors.count", len(tensors))
    if stated != len(tensors):
        raise CheckpointError(
            f"{path} has {len(tensors)} tensors in its {count} parts, but they say {stated}; "
            "fetch all of them again, of the same model"
        )
    data = {name: view for part in parts for name, view in part.data.items()}
    return GGUFFile(str(path), parts[0].metadata, tensors, data)


def first_parts(files: Iterable[Path]) -> list[Path]:
    """`files` without those that are later parts of another."""
    return [
        path for path in files if not (found := _PART.fullmatch(str(path))) or int(found[2]) == 1
    ]


def _parts_of(path: str, count: int) -> list[str]:
    found = _PART.fullmatch(path)
    if found is None or int(found[3]) != count:
        raise CheckpointError(
            f"{path} is one of several parts, but its name does not end in "
            f"-00001-of-{count:05}.gguf; give the parts their names back"
        )
    paths = [f"{found[1]}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    for part in paths:
        if not Path(part).is_file():
            raise CheckpointError(
                f"{path} lacks its part {part}; put all {count} beside each other"
            )
    return paths


def _read_one(path: str) -> GGUFFile:
    try:
        with open(path, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}; fetch it again") from None
    reader = _Reader(path, data)
    metadata, num_tensors = reader.read_metadata()
    return GGUFFile(path, metadata, reader.read_tensors(num_tensors, metadata), {path: data})


class _Reader:
    """A cursor over the header that never leaves the file."""

    def __init__(self, path: str, data: memoryview) -> None:
        self._path = path
        self._data = data
        self._end = len(data)
        self._pos = 0

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path} is not a valid GGUF file: {what}; fetch or convert it again"
        )

    def _take(self, count: int) -> int:
        """Move past `count` bytes and return where they start."""
        start = self._pos
        if count > self._end - start:
            raise self._damaged(f"it ends in the middle of its header (at byte {start})")
        self._pos = start + count
        return start

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self._data, self._take(4))[0]
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack_from(self._data, self._take(8))[0]
        return value

    def _string(self, limit: int | None = None) -> str:
        length = self._u64()
        if limit is not None and length > limit:
            raise self._damaged(f"a name of {length} bytes (at byte {self._pos})")
        start = self._take(length)
        return str(self._data[start : start + length], "utf-8", "replace")

    def read_metadata(self) -> tuple[Json, int]:
        """The key-value pairs and the number of tensors that follow them."""
        if self._end < 24 or bytes(self._data[:4]) != b"GGUF":
            raise self._damaged("it does not start with the letters GGUF")
        self._pos = 4
        version = self._u32()
        if version not in (2, 3):
            order = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
            raise self._damaged(f"version {version}{order}, where 2 and 3 are known")
        num_tensors, num_pairs = self._u64(), self._u64()
        # Each pair and each tensor takes at least this much, so a wild count ends here.
        if num_pairs * 12 + num_tensors * 24 > self._end:
            raise self._damaged(f"it claims {num_tensors} tensors and {num_pairs} metadata pairs")
        metadata: Json = {}
        for _ in range(num_pairs):
            key = self._string(_MAX_KEY_BYTES)
            if key in metadata:
                raise self._damaged(f"the metadata key {key!r} stands in it twice")
            metadata[key] = self._value(key)
        return metadata, num_tensors

    def _value(self, key: str) -> Any:
        kind = self._u32()
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        code = _SCALARS.get(kind)
        if code is None:
            raise self._damaged(f"the metadata key {key!r} has the unknown type {kind}")
        return struct.unpack_from(f"<{code}", self._data, self._take(struct.calcsize(code)))[0]

    def _array(self, key: str) -> GGUFArray:
        kind, count = self._u32(), self._u64()
        code = "" if kind == _STRING else _SCALARS.get(kind)
        if code is None:
            raise self._damaged(f"the array {key!r} has the unsupported element type {kind}")
        start = self._pos
        if code:
            self._take(count * struct.calcsize(f"<{code}"))
        else:
            self._skip_strings(key, count)
        return GGUFArray(self._data[start : self._pos], count, code)

    def _skip_strings(self, key: str, count: int) -> None:
        if count * 8 > self._end - self._pos:
            raise self._damaged(f"the array {key!r} claims {count} strings")
        data, end, unpack = self._data, self._end, _U64.unpack_from
        pos, last = self._pos, self._end - 8
        for _ in range(count):
            if pos > last:
                break
            pos += 8 + unpack(data, pos)[0]
        else:
            if pos <= end:
                self._pos = pos
                return
        raise self._damaged(f"the array {key!r} runs past the end of the file")

    def read_tensors(self, num_tensors: int, metadata: Json) -> dict[str, GGUFTensor]:
        """The tensor table; tensors follow each other inside the file, each of them aligned."""
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment % _MIN_ALIGNMENT:
            raise self._damaged(
                f"general.alignment is {alignment!r}, not a multiple of {_MIN_ALIGNMENT}"
            )
        entries = [self._entry() for _ in range(num_tensors)]
        base = -(-self._pos // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        expected = 0
        for name, shape, ggml_type, offset in entries:
            if name in tensors:
                raise self._damaged(f"the tensor {name!r} stands in it twice")
            nbytes = self._nbytes(name, shape, ggml_type)
            if offset != expected:
                before = f"after {next(reversed(tensors))!r}" if tensors else "first"
                raise self._damaged(
                    f"the data of tensor {name!r} begins at {offset}, not {before}, at {expected}"
                )
            if base + offset + nbytes > self._end:
                raise self._damaged(f"the data of tensor {name!r} does not lie inside the file")
            expected = -(-(offset + nbytes) // alignment) * alignment
            tensors[name] = GGUFTensor(name, shape, ggml_type, base + offset, nbytes, self._path)
        return tensors

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string(_MAX_KEY_BYTES)
        num_dims = self._u32()
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._damaged(f"the tensor {name!r} has {num_dims} dimensions")
        dims = [self._u64() for _ in range(num_dims)]
        # GGUF writes the fastest dimension first.
        return name, tuple(reversed(dims)), self._u32(), self._u64()

    def _nbytes(self, name: str, shape: tuple[int, ...], ggml_type: int) -> int:
        kind = GGML_TYPES.get(ggml_type)
        if kind is None:
            raise CheckpointError(
                f"{self._path}: the tensor {name!r} has the unknown type {ggml_type}; "
                "use a file of a type such as Q4_K, Q8_0 or F16"
            )
        if shape[-1] % kind.block_size:
            raise self._damaged(f"the rows of tensor {name!r} are not whole {kind.name} blocks")
        count = 1
        for size in shape:
            count *= size
        if count == 0:
            raise self._damaged(f"the tensor {name!r} is empty")
        return count // kind.block_size * kind.block_bytes
