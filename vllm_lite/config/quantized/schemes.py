"""The forms in which quantised checkpoints store layers, and which layer has which. Plain data."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal

from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError

# What precedes the text model's layers in models of several media.
_MARKS = ("", "language_model.", "model.language_model.", "language_model.model.")


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """Small integers in groups, in a layout of `quantization/layouts/packed.py`.

    group_size is how many inputs share a scale; None: all of them. Stored zero points of GPTQ's
    first format are less by one than those meant. A symmetric form may lack them.
    Inputs are rounded to `tokens` by each token's largest value; "": they are not.
    """

    layout: str
    bits: int
    group_size: int | None
    zeros_are_less_by_one: bool = False
    is_symmetric: bool = False
    tokens: Literal["", "int8", "float8_e4m3fn"] = ""
    # Of BitBLAS's, which its tensors tell: codes for inputs of float16, and a tensor's suffix.
    is_paired: bool = False
    zeros: str = "zeros"


Number = Literal[
    "int",
    "float8_e4m3fn",
    "float8_e5m2",
    "float6_e2m3",
    "float6_e3m2",
    "float4_e2m1",
    "nf4",
    "fp4",
]


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a layer's inputs are rounded: to numbers times a scale, which `scope` share.

    The scale is the largest value's, or, with `is_static`, the checkpoint's for the whole tensor,
    as is the zero point then unless it `is_symmetric`.
    Groups of floats of four bits have scales that are 8-bit floats themselves, or powers of two;
    DeepSeek's powers, ue8m0, are those that leave no value out of range; QuEST's are those below
    what their spread asks for.
    """

    number: Number
    bits: int
    scope: Literal["tensor", "token", "group"]
    group_size: int = 0
    is_static: bool = False
    scale: Literal["float32", "float8_e4m3fn", "e8m0", "ue8m0", "spread"] = "float32"
    is_symmetric: bool = True
    # Magnitudes beyond it are cut off; 0: none are.
    largest: float = 0.0
    # Numbers are divided by it.
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """Codes of a few bits with a scale for each block of outputs and inputs.

    Suffixes name the tensors; "" is one that the checkpoint does not have.
    """

    number: Number
    bits: int
    # One to a byte; bytes of two or 32-bit words, the first in the lowest or highest bits; four
    # of six bits in three bytes; bytes of two outputs' signed numbers.
    packing: Literal["bytes", "pairs", "swapped pairs", "words", "fours", "outputs"] = "bytes"
    weight: str = "weight"
    scale: str = "weight_scale"
    # Outputs and inputs that share a scale; None is all.
    block: tuple[int | None, int | None] = (None, None)
    scale_number: Literal["float32", "float8_e4m3fn", "e8m0"] = "float32"
    # Rows of outputs; "flat" has no dimension of inputs, "spread" has two of one number, "tiles"
    # has them as GPUs read them, "bytes" as integers.
    scale_shape: Literal["matrix", "flat", "spread", "tiles", "bytes"] = "matrix"
    # One number by which scales are multiplied or, where it `divides`, divided.
    super_scale: str = ""
    divides: bool = False
    zero_point: str = ""
    # Zero points are those of signed numbers where the tensor is not there.
    may_lack_zeros: bool = False
    # Each input's group.
    order: str = ""
    rounding: Rounding | None = None
    input_scale: str = ""
    input_zero_point: str = ""
    # A number for each input, by which it is multiplied first; layers may lack it.
    input_factor: str = ""
    # A matrix by which each `transform_size` inputs are multiplied first.
    input_transform: str = ""
    transform_size: int = 0


@dataclass(frozen=True, slots=True)
class Ternary:
    """Codes of two bits with a scale for each layer, or floats that are rounded to such."""

    is_rounded: bool
    # By the scale, rather than multiplied.
    is_divided: bool


@dataclass(frozen=True, slots=True)
class FlatBlocks:
    """bitsandbytes' codes of four bits: a matrix in one line, in which 64 values share a scale.

    Their bytes are stored as numbers of the type `storage`, so that tools may shard them.
    """

    number: Literal["nf4", "fp4"]
    storage: Literal["uint8", "float16", "bfloat16", "float32"] = "uint8"


@dataclass(frozen=True, slots=True)
class Codebooks:
    """AQLM's indices of vectors of eight inputs, of `bits` bits for each book."""

    num_books: int
    bits: int


@dataclass(frozen=True, slots=True)
class Rounded:
    """Plain weights, rounded to codes as they are loaded."""

    codes: StoredCodes
    # Settings ask for quantised scales, which these do not get.
    nests_scales: bool = False


Form = PackedIntegers | StoredCodes | Ternary | FlatBlocks | Codebooks | Rounded


def describe(form: Any) -> str:
    """The fields of a Form that are not as usual, for errors: unlike forms read unlike."""
    shown = []
    for one in fields(form):
        value = getattr(form, one.name)
        if value != one.default:
            nested = f"({describe(value)})" if is_dataclass(value) else value
            shown.append(f"{one.name} {nested}")
    return ", ".join(shown)


STORAGES: Final = ("uint8", "float16", "bfloat16", "float32")


def names_of(value: object) -> list[str] | None:
    """The names of a setting: a list of them, one alone, or none; None if it is no such thing."""
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return names


def layers_of(name: str) -> str:
    """A regular expression of layers: after "re:", a wildcard's, or those of a module by its name.

    Modules may be named by the end of their names, and layers as their weights are.
    """
    if name.startswith("re:"):
        return name[3:]
    if "*" in name:
        return fnmatch.translate(name)
    return rf"(?:.*\.)?{re.escape(name.strip('.').removesuffix('.weight'))}(?:\.|$)"


# bitsandbytes' default, and QLoRA's.
NF4 = StoredCodes("nf4", 4, block=(1, 64))


def group_size_of(form: Form) -> int | None:
    """How many inputs share a scale; None: all of them, or a form's own number."""
    if isinstance(form, PackedIntegers):
        return form.group_size
    return form.block[1] if isinstance(form, StoredCodes) else None


@dataclass(frozen=True, slots=True)
class CacheScales:
    """A checkpoint's scales of cached keys and values: a number of each for a layer, or a head.

    "stored": those of a layer where the checkpoint's tensors have them.
    """

    scope: Literal["layer", "head", "stored"] = "layer"
    # The kind of cache that they are for; "": 8-bit floats, which alone can be used.
    other: str = ""


@dataclass(frozen=True, slots=True)
class Scheme:
    """The form of each layer of a checkpoint.

    `named` goes first, then the first of `patterns` that begins a layer's name, then `others`;
    None is a plain layer. Layers that are stored as floats are plain all the same.
    """

    others: Form | None
    named: Mapping[str, Form | None] = field(default_factory=dict)
    patterns: tuple[tuple[re.Pattern[str], Form | None], ...] = ()
    cache_scales: CacheScales | None = None
    # Of embeddings, where they are stored unlike the others.
    embeddings: Form | None = None
    # Matrices are stored without their zeros.
    is_sparse: bool = False
    # Other suffixes of tensors, and those that forms have for them.
    suffixes: Mapping[str, str] = field(default_factory=dict)
    # What layers of a plain checkpoint with these settings are rounded to; None: they stay.
    in_flight: Rounded | None = None

    def form_of(self, layer: str, is_embedding: bool = False) -> Form | None:
        """The form of a layer by its name in the checkpoint."""
        bare = layer.removeprefix("model.")
        names = [layer, *(mark + name for mark in _MARKS for name in (layer, bare))]
        for name in names:
            if name in self.named:
                return self.named[name]
        for pattern, form in self.patterns:
            if any(pattern.match(name) for name in names):
                return form
        return (is_embedding and self.embeddings) or self.others


class Settings:
    """A checkpoint's `quantization_config`, whose values are checked as they are read."""

    def __init__(self, path: str, values: Json) -> None:
        self._path = path
        self.values = values

    def get(self, name: str, usual: Any = None) -> Any:
        """The setting `name`, or what it usually is."""
        return self.values.get(name, usual)

    def choice(self, name: str, allowed: tuple[Any, ...], usual: Any = None) -> Any:
        """The setting `name`, or what it usually is; raises CheckpointError as `one_of`."""
        return self.one_of(name, self.get(name, usual), allowed)

    def one_of(self, name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
        """`value`, the setting `name`; raises CheckpointError unless it is one of `allowed`."""
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            shown = " or ".join(repr(choice) for choice in allowed)
            raise self.refusal(f"{name} {value!r}", shown)
        return value

    def table(self, name: str, value: Any) -> Json:
        """`value`, the setting `name`, with names of its own; none for None."""
        if value is not None and not isinstance(value, dict):
            raise self.refusal(f"{name} {value!r}", "an object")
        return value or {}

    def changed(self, changes: Json) -> Settings:
        """The settings of some layers, where they differ."""
        return Settings(self._path, {**self.values, **changes})

    def group_size(self, name: str = "group_size", *, is_any: bool = False) -> int | None:
        """Inputs that share a scale; None for -1, all of them.

        Unless `is_any`, they have to fill the tiles for which a layout is written.
        """
        size = self.values.get(name)
        if size == -1:
            return None
        known = "-1, or 1 and more" if is_any else "-1, 16 or a multiple of 32"
        if type(size) is not int or size < 1 or not (is_any or size == 16 or size % 32 == 0):
            raise self.refusal(f"{name} {size!r}", known)
        return size

    def names(self, *settings: str) -> list[str]:
        """The names under the first of `settings` that has any; a string is one of them."""
        setting = next((name for name in settings if self.values.get(name)), settings[0])
        found = names_of(self.values.get(setting))
        if found is None:
            raise self.refusal(f"{setting} {self.values[setting]!r}", "a list of names")
        return found

    def left_plain(self, *settings: str) -> tuple[tuple[re.Pattern[str], None], ...]:
        """Patterns of the layers that the first of `settings` with any names leaves as they are."""
        names = self.names(*settings)
        return tuple((self.pattern(layers_of(name)), None) for name in names)

    def pattern(self, text: str) -> re.Pattern[str]:
        """A regular expression of the settings, compiled."""
        try:
            return re.compile(text)
        except re.error as error:
            raise self.refusal(f"the pattern {text!r} ({error})", "regular expressions") from None

    def refusal(self, found: str, known: str) -> CheckpointError:
        """The error for settings with `found` where only `known` can be read."""
        return CheckpointError(
            f"{self._path} is quantised by {self.values.get('quant_method')} with {found}; this "
            f"build reads {known}: use the unquantised checkpoint or a GGUF file"
        )
