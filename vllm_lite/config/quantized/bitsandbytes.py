"""Settings of bitsandbytes' checkpoints."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.quantized.schemes import (
    NF4,
    STORAGES,
    FlatBlocks,
    PackedIntegers,
    Rounded,
    Scheme,
    Settings,
    StoredCodes,
)


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    patterns = settings.left_plain("llm_int8_skip_modules")
    for name in ("load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit"):
        settings.choice(name, (False, True), False)
    in_four = settings.get("load_in_4bit") or settings.get("_load_in_4bit")
    if not in_four:
        settings.choice("load_in_8bit", (True,))
        form = PackedIntegers("llm_int8", 8, None, is_symmetric=True)
        rounded = Rounded(StoredCodes("int", 8, block=(1, None)))
        return Scheme(form, patterns=patterns, in_flight=rounded)
    storage = settings.choice("bnb_4bit_quant_storage", STORAGES, "uint8")
    number = settings.choice("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
    is_nested = settings.choice("bnb_4bit_use_double_quant", (False, True), False)
    rounded = Rounded(replace(NF4, number=number), is_nested)
    return Scheme(FlatBlocks(number, storage), patterns=patterns, in_flight=rounded)
