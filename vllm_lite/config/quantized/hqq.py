"""Settings of HQQ's checkpoints."""

from __future__ import annotations

import re
from typing import Any

from vllm_lite.config.quantized.schemes import Form, PackedIntegers, Scheme, Settings

_GROUPS = "weight_quant_params"


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    found = settings.table("quant_config", settings.get("quant_config"))
    plain = settings.left_plain("skip_modules")
    if _GROUPS in found:
        return Scheme(_form_of(settings, found), patterns=plain)
    # Settings by the last names of layers; others are plain.
    forms = (
        (re.compile(rf".*\.{re.escape(name)}$"), _form_of(settings, one))
        for name, one in found.items()
    )
    return Scheme(None, patterns=(*plain, *forms))


def _form_of(settings: Settings, found: Any) -> Form | None:
    if found is None:
        return None
    found = settings.table("quant_config", found)
    of_weights = settings.table(_GROUPS, found.get(_GROUPS))
    for name in ("scale_quant_params", "zero_quant_params"):
        settings.one_of(name, found.get(name), (None,))
    own = settings.changed(of_weights)
    own.one_of("axis", of_weights.get("axis"), (1,))
    own.one_of("view_as_float", of_weights.get("view_as_float", False), (False,))
    bits: int = own.one_of("nbits", of_weights.get("nbits"), (2, 3, 4, 8))
    whole = of_weights.get("group_size") is None
    return PackedIntegers("hqq", bits, None if whole else own.group_size(is_any=True))
