"""From the `quantization_config` of a Hugging Face directory to its Scheme, checked.

Every refusal is one line that names the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vllm_lite.config.facts import EXPANDED, ModelFacts
from vllm_lite.config.quantized import awq, bitnet, compressed_tensors, fp8, gptq
from vllm_lite.config.quantized.schemes import Scheme
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import CheckpointError, UsageError

# By the names that checkpoints give their methods.
READERS: Final[dict[str, Callable[[str, Json], Scheme]]] = {
    "awq": awq.read,
    "gptq": gptq.read,
    "fp8": fp8.read,
    "compressed-tensors": compressed_tensors.read,
    "bitnet": bitnet.read,
}
# Names of methods in memory.
READABLE: Final = tuple(name for name in READERS if name not in EXPANDED)


def read_scheme(path: str, hf_config: JsonView) -> Scheme | None:
    """The scheme of the checkpoint at `path`, None for a plain one; raises CheckpointError."""
    settings = hf_config.get("quantization_config")
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if method == "mxfp4":
        return None
    if method not in READERS:
        raise CheckpointError(
            f"{path} is quantised by {method or 'an unnamed method'}, which this build cannot run; "
            f"use one by {', '.join(READERS)}, the unquantised checkpoint or a GGUF file"
        )
    return READERS[method](path, settings)


def check_quantization(quantization: str | None, facts: ModelFacts) -> None:
    """Raise UsageError for a --quantization that does not fit the checkpoint of `facts`."""
    given, is_gguf = f"--quantization {quantization}", facts.format == "gguf"
    stored = facts.quantization
    if quantization == "gguf" and not is_gguf:
        raise UsageError(f"{given} needs a .gguf file as the model")
    if quantization == "dequantize" and not is_gguf and stored is None:
        raise UsageError(f"{given} needs a .gguf file or another quantised checkpoint")
    if is_gguf and quantization not in (None, "gguf", "dequantize"):
        raise UsageError(
            f"{given} is for safetensors models; a .gguf file is used with gguf or dequantize"
        )
    if stored is not None and quantization not in (stored, "dequantize"):
        raise UsageError(
            f"{given} does not fit {facts.path}, which is quantised by {stored}; "
            "leave the option out, or use dequantize"
        )
    if stored is None and quantization in ("awq", "gptq", "compressed-tensors"):
        raise UsageError(
            f"{given} needs a checkpoint that {quantization} quantised; "
            "use int8, int4 or fp8 with a plain one"
        )
