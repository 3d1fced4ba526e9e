"""Settings of GPTQ's checkpoints, with rules for modules, of Marlin's tiles and BitBLAS's."""

from __future__ import annotations

import re
from typing import Any

from vllm_lite.config.quantized.schemes import Form, PackedIntegers, Scheme, Settings

_BITS = (2, 3, 4, 8)
_FORMATS = ("gptq", "gptq_v2", "marlin", "marlin_24", "bitblas")


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    rules = settings.table("dynamic", settings.get("dynamic"))
    patterns = tuple(_rule(settings, text, changes) for text, changes in rules.items())
    return Scheme(form_of(settings), patterns=patterns)


def read_marlin(settings: Settings) -> Scheme:
    """The same, where Marlin's own tool wrote it: four bits, symmetric."""
    named = {"bits": 4, "sym": True, "checkpoint_format": "marlin"}
    return read(settings.changed({**named, **settings.values}))


def read_bitblas(settings: Settings) -> Scheme:
    """The same, by the name of BitBLAS."""
    return read(settings.changed({"checkpoint_format": "bitblas", **settings.values}))


def form_of(settings: Settings) -> PackedIntegers:
    """The form of layers for which there is no rule."""
    usual = "marlin_24" if settings.get("quant_method") == "gptq_marlin_24" else "gptq"
    stored = settings.get("checkpoint_format") or settings.get("format") or usual
    if settings.get("is_marlin_format"):
        stored = "marlin"
    if settings.get("is_bitblas_format"):
        stored = "bitblas"
    stored = settings.one_of("checkpoint_format", stored, _FORMATS)
    bits: int = settings.choice("bits", _BITS)
    group_size = settings.group_size(is_any=stored.startswith("gptq"))
    is_symmetric: bool = settings.choice("sym", (True, False), True)
    if stored.startswith("marlin"):
        settings.one_of("bits", bits, (4, 8))
        settings.one_of("sym", is_symmetric, (True,))
        return PackedIntegers(stored, bits, group_size, is_symmetric=True)
    if stored == "bitblas":
        settings.one_of("bits", bits, (2, 4, 8))
        # Its files do not say which group an input is of.
        settings.one_of("desc_act", bool(settings.get("desc_act") and group_size), (False,))
        return PackedIntegers(stored, bits, group_size, is_symmetric=is_symmetric)
    return PackedIntegers("gptq", bits, group_size, stored == "gptq", is_symmetric)


def _rule(settings: Settings, text: str, changes: Any) -> tuple[re.Pattern[str], Form | None]:
    """A rule of `dynamic`: layers whose names begin so have other settings, or none after "-:"."""
    pattern = settings.pattern(text.removeprefix("-:").removeprefix("+:"))
    if text.startswith("-:"):
        return pattern, None
    return pattern, form_of(settings.changed(settings.table(f"dynamic {text!r}:", changes)))
