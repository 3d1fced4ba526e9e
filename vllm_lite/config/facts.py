"""ModelFacts: a checkpoint's description in one form for all formats. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import CheckpointError

# The context of a model that knows no positions, and what is served of it unless more is asked for.
UNLIMITED_POSITIONS = 2**31 - 1
ASSUMED_LENGTH = 2048
# The methods of checkpoints whose numbers are converted as they are read: they count as plain.
EXPANDED = ("mxfp4", "bitnet")
# Other names that checkpoints give a method, of tools and of kernels for it.
_SPELLINGS: Final = {
    **dict.fromkeys(("auto_awq", "awq_marlin"), "awq"),
    **dict.fromkeys(("auto_gptq", "gptq_marlin", "gptq_marlin_24", "gptq_bitblas", "ipex"), "gptq"),
    **dict.fromkeys(("inc", "intel/auto-round"), "auto-round"),
    "compressed_tensors": "compressed-tensors",
    "deepseek_v4_fp8": "fp8",
    "petit_nvfp4": "modelopt",
    "gpt_oss_mxfp4": "mxfp4",
}


def method_of(hf_config: JsonView) -> str | None:
    """The method that quantised a Hugging Face checkpoint, or its experts alone; None: plain."""
    settings = hf_config.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if not isinstance(method, str):
        return None
    return "modelopt" if method.startswith("modelopt") else _SPELLINGS.get(method, method)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Read from config.json or a GGUF header.

    `hf_config` has Hugging Face's keys, with rotary settings always as one
    `rope_parameters` dict that holds rope_type and rope_theta; for transformers' own
    implementation it is the configuration as it was written.
    """

    # A local directory (hf) or .gguf file (gguf).
    path: str
    format: Literal["hf", "gguf"]
    architecture: str
    hf_config: Json
    # What the checkpoint's weights are stored in; "gguf" weights become config.model.dtype.
    dtype: str
    max_position: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    # Of each layer: how many tokens it looks back, itself included; None is all of them.
    layer_windows: tuple[int | None, ...]
    # Of each layer: whether its configuration gives it a window; --disable-sliding-window takes
    # the window away, not what else is different in such a layer.
    local_layers: tuple[bool, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    # Sampling defaults that --generation-config chose; {} where there are none.
    generation_config: Json = field(default_factory=dict)
    # None: the engine generates text.
    pooling: PoolingFacts | None = None
    # A GGUF file may carry the rotary divisors of llama3 scaling as rope_freqs.weight.
    has_rope_freqs: bool = False
    # Whose implementation of the architecture runs, and whether it may be the checkpoint's code.
    implementation: Literal["vllm", "transformers"] = "vllm"
    trusts_code: bool = False

    def error(self, what: str) -> CheckpointError:
        """An error about this checkpoint, to be raised."""
        return CheckpointError(f"{self.path}: {what}")

    @property
    def quantization(self) -> str | None:
        """The quantization method of a Hugging Face checkpoint; None for a plain one."""
        method = method_of(self.hf_config)
        return None if method in EXPANDED else method
