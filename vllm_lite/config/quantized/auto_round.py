"""Settings of auto-round's checkpoints, which pack as GPTQ or AWQ do, with bits by layer."""

from __future__ import annotations

import re

from vllm_lite.config.quantized import awq, gptq
from vllm_lite.config.quantized.schemes import Form, Scheme, Settings

# An entry with one of these is a pattern.
_SPECIAL = frozenset("*+?^$()[]{}|\\")
_PACKINGS = {
    **dict.fromkeys(("auto_round:auto_gptq", "auto_round:gptq", "auto_gptq", "gptq"), "gptq"),
    **dict.fromkeys(("auto_round", "auto_round:gptqmodel", "gptqmodel"), "gptq"),
    **dict.fromkeys(("auto_round:auto_awq", "auto_round:awq", "auto_awq", "awq"), "awq"),
}


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    for name in ("rotation_config", "spinquant_config"):
        settings.choice(name, (None,))
    named: dict[str, Form | None] = {}
    patterns: list[tuple[re.Pattern[str], Form | None]] = []
    for name, changes in settings.table("extra_config", settings.get("extra_config")).items():
        form = _form_of(settings.changed(settings.table(f"extra_config of {name}", changes)))
        if _SPECIAL.isdisjoint(name):
            named[name] = form
        else:
            patterns.append((re.compile(f".*(?:{settings.pattern(name).pattern})"), form))
    blocks = settings.get("block_name_to_quantize") or settings.get("to_quant_block_names")
    others: Form | None = _form_of(settings)
    if blocks:
        names = _flat(settings, blocks)
        patterns += [(re.compile(re.escape(name.strip()) + r"(?:\.|$)"), others) for name in names]
        others = None
    return Scheme(others, named, tuple(patterns))


def _form_of(settings: Settings) -> Form | None:
    values = settings.values
    if isinstance(values.get("bits"), int) and values["bits"] >= 16:
        return None
    settings.one_of("data_type", values.get("data_type", "int"), ("int",))
    # Earlier releases named a kernel alone.
    usual = "auto_awq" if "awq" in str(values.get("backend")) else "auto_gptq"
    packing = values.get("packing_format") or usual
    if _PACKINGS[settings.one_of("packing_format", packing, tuple(_PACKINGS))] == "awq":
        # Its zero points are there whether or not they are all the middle.
        return awq.form_of(settings)
    return gptq.form_of(settings)


def _flat(settings: Settings, names: object) -> list[str]:
    """Names of blocks with commas between them, or lists of lists of such."""
    if isinstance(names, str):
        return names.split(",")
    if not isinstance(names, list):
        raise settings.refusal(f"block_name_to_quantize {names!r}", "a list of names")
    return [one for name in names for one in _flat(settings, name)]
