"""Settings of AWQ's checkpoints: AutoAWQ's, gptqmodel's and llm-awq's spellings of them."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import PackedIntegers, Scheme, Settings

# Kernels that read the layout of another.
_LAYOUTS = {
    **dict.fromkeys(("gemm", "exllama", "ipex", "marlin"), "awq"),
    "gemv": "awq_gemv",
    "gemv_fast": "awq_gemv_fast",
    "gemvfast": "awq_gemv_fast",
}


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    return Scheme(form_of(settings), patterns=settings.left_plain("modules_to_not_convert"))


def form_of(settings: Settings) -> PackedIntegers:
    """The form of all layers that are quantised."""
    version = settings.get("version") or settings.get("checkpoint_format") or "gemm"
    version = settings.one_of("version", str(version).lower(), tuple(_LAYOUTS))
    has_zeros = settings.choice("zero_point", (True, False), True)
    settings.choice("bits", (4,), settings.get("w_bit"))
    size = settings.group_size(
        "group_size" if "group_size" in settings.values else "q_group_size",
        is_any=_LAYOUTS[version] == "awq" and version != "marlin",
    )
    if has_zeros:
        return PackedIntegers(_LAYOUTS[version], 4, size)
    # Marlin's tiles are written of codes around their middle alone.
    layout = "awq_marlin" if version == "marlin" else _LAYOUTS[version]
    settings.one_of("zero_point with gemv_fast", layout != "awq_gemv_fast", (True,))
    return PackedIntegers(layout, 4, size, is_symmetric=True)
