"""Settings of torchao's checkpoints in safetensors: integers of four and eight bits."""

from __future__ import annotations

from typing import Any

from vllm_lite.config.quantized.awq import left_plain
from vllm_lite.config.quantized.schemes import Form, PackedIntegers, Scheme, Settings
from vllm_lite.config.values import Json

_KINDS = ("Int8WeightOnlyConfig", "Int4WeightOnlyConfig")


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    found = values.get("quant_type")
    kind = found.get("default") if isinstance(found, dict) else found
    form = _form_of(settings, kind)
    patterns = left_plain(settings, "modules_to_not_convert")
    if isinstance(kind, dict) and kind.get("_type") == "ModuleFqnToConfig":
        raise settings.refusal("quant_type ModuleFqnToConfig", " or ".join(_KINDS))
    return Scheme(form, patterns=patterns)


def _form_of(settings: Settings, kind: Any) -> Form:
    name = kind.get("_type") if isinstance(kind, dict) else kind
    settings.one_of("quant_type", name, _KINDS)
    found = kind.get("_data") if isinstance(kind, dict) else None
    data = settings.changed(settings.table("_data", found))
    if name == "Int8WeightOnlyConfig":
        if data.values.get("group_size") is None:
            return PackedIntegers("torchao_int8", 8, None, is_symmetric=True)
        return PackedIntegers("torchao_int8", 8, data.group_size(), is_symmetric=True)
    packing = data.values.get("int4_packing_format") or "plain"
    packing = packing.get("_data") if isinstance(packing, dict) else packing
    data.one_of("int4_packing_format", str(packing).lower(), ("plain",))
    return PackedIntegers("torchao_int4", 4, data.group_size(), is_symmetric=True)
