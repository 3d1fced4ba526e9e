"""Settings of GPTQ's checkpoints, with rules for modules, of Marlin's tiles and BitBLAS's."""

from __future__ import annotations

import re
from typing import Any

from vllm_lite.config.quantized.schemes import Form, PackedIntegers, Scheme, Settings
from vllm_lite.config.values import Json

_BITS = (2, 3, 4, 8)
_FORMATS = ("gptq", "gptq_v2", "marlin", "marlin_24", "bitblas")


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    rules = settings.table("dynamic", values.get("dynamic"))
    patterns = tuple(_rule(settings, text, changes) for text, changes in rules.items())
    return Scheme(form_of(settings), patterns=patterns)


def read_marlin(path: str, values: Json) -> Scheme:
    """The same, where Marlin's own tool wrote it: four bits, symmetric."""
    named = {"bits": 4, "sym": True, "checkpoint_format": "marlin"}
    return read(path, {**named, **values})


def read_bitblas(path: str, values: Json) -> Scheme:
    """The same, by the name of BitBLAS."""
    return read(path, {"checkpoint_format": "bitblas", **values})


def form_of(settings: Settings) -> PackedIntegers:
    """The form of layers for which there is no rule."""
    values = settings.values
    usual = "marlin_24" if values.get("quant_method") == "gptq_marlin_24" else "gptq"
    stored = values.get("checkpoint_format") or values.get("format") or usual
    if values.get("is_marlin_format"):
        stored = "marlin"
    if values.get("is_bitblas_format"):
        stored = "bitblas"
    stored = settings.one_of("checkpoint_format", stored, _FORMATS)
    bits: int = settings.one_of("bits", values.get("bits"), _BITS)
    group_size = settings.group_size(is_any=stored.startswith("gptq"))
    is_symmetric: bool = settings.one_of("sym", values.get("sym", True), (True, False))
    if stored.startswith("marlin"):
        settings.one_of("bits", bits, (4, 8))
        settings.one_of("sym", is_symmetric, (True,))
        return PackedIntegers(stored, bits, group_size, is_symmetric=True)
    if stored == "bitblas":
        # Of eight bits, its tools write signed numbers or codes, and nothing says which.
        settings.one_of("bits", bits, (2, 4))
        # Its files do not say which group an input is of.
        settings.one_of("desc_act", bool(values.get("desc_act") and group_size), (False,))
        return PackedIntegers(stored, bits, group_size, is_symmetric=is_symmetric)
    return PackedIntegers("gptq", bits, group_size, stored == "gptq", is_symmetric)


def _rule(settings: Settings, text: str, changes: Any) -> tuple[re.Pattern[str], Form | None]:
    """A rule of `dynamic`: layers whose names begin so have other settings, or none after "-:"."""
    pattern = settings.pattern(text.removeprefix("-:").removeprefix("+:"))
    if text.startswith("-:"):
        return pattern, None
    return pattern, form_of(settings.changed(settings.table(f"dynamic {text!r}:", changes)))
