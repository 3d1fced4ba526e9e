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
from vllm_lite.config.values import Json


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    patterns = settings.left_plain("llm_int8_skip_modules")
    switches = ("load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit")
    for name in switches:
        settings.one_of(name, values.get(name, False), (False, True))
    in_four = values.get("load_in_4bit") or values.get("_load_in_4bit")
    if not in_four:
        settings.one_of("load_in_8bit", values.get("load_in_8bit"), (True,))
        form = PackedIntegers("llm_int8", 8, None, is_symmetric=True)
        rounded = Rounded(StoredCodes("int", 8, block=(1, None)))
        return Scheme(form, patterns=patterns, in_flight=rounded)
    name = "bnb_4bit_quant_storage"
    storage = settings.one_of(name, values.get(name, "uint8"), STORAGES)
    name = "bnb_4bit_quant_type"
    number = settings.one_of(name, values.get(name, "fp4"), ("nf4", "fp4"))
    rounded = Rounded(replace(NF4, number=number))
    return Scheme(FlatBlocks(number, storage), patterns=patterns, in_flight=rounded)
