"""From the `quantization_config` of a Hugging Face directory to its Scheme, checked.

Every refusal is one line that names the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from vllm_lite.config.facts import EXPANDED, ModelFacts, method_of
from vllm_lite.config.json_file import read_json
from vllm_lite.config.quantized import (
    aqlm,
    auto_round,
    awq,
    bitnet,
    bitsandbytes,
    compressed_tensors,
    fp8,
    fp_quant,
    gptq,
    hqq,
    modelopt,
    qqq,
    quark,
    torchao,
)
from vllm_lite.config.quantized.in_flight import EXPERTS, IN_FLIGHT, InFlight, in_flight
from vllm_lite.config.quantized.schemes import Scheme, Settings
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import CheckpointError, UsageError

# By the names that checkpoints give their methods.
READERS: Final[dict[str, Callable[[Settings], Scheme]]] = {
    "aqlm": aqlm.read,
    "awq": awq.read,
    "gptq": gptq.read,
    "fp8": fp8.read,
    "fbgemm_fp8": fp8.read_fbgemm,
    "fp_quant": fp_quant.read,
    "mxfp8": fp8.read_mxfp8,
    "modelopt": modelopt.read,
    "quark": quark.read,
    "compressed-tensors": compressed_tensors.read,
    "bitnet": bitnet.read,
    "marlin": gptq.read_marlin,
    "bitblas": gptq.read_bitblas,
    "ptpc_fp8": fp8.read_ptpc,
    "auto-round": auto_round.read,
    "hqq": hqq.read,
    "qqq": qqq.read,
    "bitsandbytes": bitsandbytes.read,
    "torchao": torchao.read,
}
# Other names of --quantization, mostly of kernels, for what checkpoints call otherwise.
OTHER_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "deepseek_v4_fp8": ("fp8",),
    "gpt_oss_mxfp4": ("mxfp4",),
    **dict.fromkeys(
        ("modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "petit_nvfp4"), ("modelopt",)
    ),
    "awq_marlin": ("awq", "auto-round"),
    "auto_awq": ("awq",),
    **dict.fromkeys(("auto_gptq", "bitblas"), ("gptq",)),
    "gptq": ("bitblas",),
    "gptq_bitblas": ("gptq", "bitblas"),
    **dict.fromkeys(("marlin", "gptq_marlin_24"), ("gptq", "marlin")),
    "gptq_marlin": ("gptq", "marlin", "auto-round"),
    "moe_wna16": ("awq", "gptq"),
    **dict.fromkeys(("inc", "intel/auto-round"), ("auto-round", "awq", "gptq")),
    "ipex": ("awq", "gptq", "auto-round"),
}
# Settings that some of these names need, and the field of a form or a scheme that shows them.
_NEEDS: Final[dict[str, tuple[str, str, object]]] = {
    **dict.fromkeys(("modelopt_fp4", "petit_nvfp4"), ("quant_algo NVFP4", "number", "float4_e2m1")),
    "modelopt_mxfp8": ("quant_algo MXFP8", "scale_number", "e8m0"),
    "modelopt_mixed": ("quant_algo MIXED_PRECISION", "named", None),
    "deepseek_v4_fp8": ("weight_block_size [128, 128]", "block", (128, 128)),
    "gptq_marlin_24": ("checkpoint_format marlin_24", "layout", "marlin_24"),
}
# Files that hold the settings where config.json does not.
_BESIDE: Final = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
# Names of methods in memory.
READABLE: Final = tuple(
    dict.fromkeys([*(name for name in READERS if name not in EXPANDED), *OTHER_NAMES])
)
# Names of methods, and what they need that this build does not have: mostly hardware.
HARDWARE: Final = {
    "tpu_int8": "TPUs",
    "neuron_quant": "AWS Inferentia or Trainium",
    "humming": "its own kernels for NVIDIA GPUs",
    "deepspeedfp": "DeepSpeed's kernels for NVIDIA GPUs",
}


def with_quantization(hf_config: Json, directory: Path) -> Json:
    """`hf_config` with the settings that a checkpoint has under another name or in another file."""
    hf_config = dict(hf_config)
    older = hf_config.pop("compression_config", None)  # compressed-tensors' own name
    found = hf_config.get("quantization_config", older)
    for name in _BESIDE:
        if not found and (directory / name).is_file():
            found = read_json(directory / name)
            found = {"quant_method": _usual_method(name, found), **found}
    if isinstance(found, dict) and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        found = {"quant_method": "bitsandbytes", **found}
    if isinstance(found, dict) and method_of({"quantization_config": found}) == "fp8":
        experts = hf_config.pop("expert_dtype", None)  # beside the settings, in DeepSeek-V4's
        found = found if experts is None else {"expert_dtype": experts, **found}
    return {**hf_config, "quantization_config": found} if found else hf_config


def _usual_method(file: str, settings: Json) -> str:
    """The method of settings in a file of their own, which may not say it."""
    if file == "hf_quant_config.json":
        return "modelopt"
    return "gptq" if settings.keys().isdisjoint(("w_bit", "zero_point")) else "awq"


def read_scheme(path: str, hf_config: JsonView) -> Scheme | None:
    """The scheme of the checkpoint at `path`, None for a plain one; raises CheckpointError."""
    settings, method = hf_config.get("quantization_config"), method_of(hf_config)
    if not settings or method == "mxfp4":
        return None
    if method not in READERS:
        raise _unreadable(path, method)
    try:
        return READERS[method](Settings(path, settings))
    except (AttributeError, TypeError) as error:
        raise CheckpointError(
            f"{path} has a quantization_config with a value of another kind than {method} writes "
            f"({error}); fetch config.json again"
        ) from None


def _unreadable(path: str, method: str | None) -> CheckpointError:
    """The error for a checkpoint whose settings name a method that reads none."""
    given = f"{path} is quantised by {method or 'an unnamed method'}"
    if method in HARDWARE:
        return CheckpointError(
            f"{given}, which needs {HARDWARE[method]}; use the unquantised checkpoint or a "
            "GGUF file"
        )
    if method in IN_FLIGHT or method in EXPERTS:
        return CheckpointError(
            f"{given}, which rounds plain checkpoints as they are loaded; if its weights are plain"
            f", use --quantization {method} and --hf-overrides '{{\"quantization_config\": null}}'"
            ", else name what packed them, as modelopt or compressed-tensors"
        )
    if method in OTHER_NAMES:
        return CheckpointError(
            f"{given}, a name of kernels; its quant_method has to be what packed it: "
            f"{' or '.join(OTHER_NAMES[method])}"
        )
    return CheckpointError(
        f"{given}, which this build cannot run; use one by {', '.join(READERS)}, the unquantised "
        "checkpoint or a GGUF file"
    )


def rounding_of(quantization: str | None, settings: Json | None, facts: ModelFacts) -> InFlight:
    """How layers of a plain checkpoint are rounded as they are loaded; raises UsageError."""
    stored = method_of(facts.hf_config)
    if settings and (stored is not None or facts.format == "gguf"):
        raise UsageError(
            f"--quantization-config is for plain checkpoints, and {facts.path} is quantised; "
            "leave it out"
        )
    return in_flight(quantization, settings, stored)


def _check_needs(name: str, facts: ModelFacts) -> None:
    """Raise UsageError for a name of kernels that need layers unlike the checkpoint's."""
    scheme = read_scheme(facts.path, facts.hf_config) if name in _NEEDS else None
    if scheme is None:
        return
    needed, field, value = _NEEDS[name]
    has = scheme.named if field == "named" else getattr(scheme.others, field, None) == value
    if not has:
        raise UsageError(
            f"--quantization {name} needs {needed}, which {facts.path} does not have; "
            "leave the option out, or use dequantize"
        )


def check_quantization(
    quantization: str | None, facts: ModelFacts, settings: Json | None = None
) -> None:
    """Raise UsageError for options of quantisation that do not fit the checkpoint of `facts`."""
    rounding_of(quantization, settings, facts)
    given, is_gguf = f"--quantization {quantization}", facts.format == "gguf"
    stored = facts.quantization
    if stored is not None and stored not in READERS:
        raise _unreadable(facts.path, stored)
    if quantization in HARDWARE:
        others = "" if is_gguf or stored is not None else ", or use int8 or int4"
        raise UsageError(f"{given} needs {HARDWARE[quantization]}; leave it out{others}")
    if quantization == "gguf" and not is_gguf:
        raise UsageError(f"{given} needs a .gguf file as the model")
    if quantization == "gpt_oss_mxfp4" and method_of(facts.hf_config) == "mxfp4":
        return
    if quantization == "dequantize" and not is_gguf and method_of(facts.hf_config) is None:
        raise UsageError(f"{given} needs a .gguf file or another quantised checkpoint")
    if is_gguf and quantization not in (None, "gguf", "dequantize"):
        raise UsageError(
            f"{given} is for safetensors models; a .gguf file is used with gguf or dequantize"
        )
    if quantization is not None and stored in OTHER_NAMES.get(quantization, ()):
        _check_needs(quantization, facts)
        return
    if stored is not None and quantization not in (stored, "dequantize"):
        raise UsageError(
            f"{given} does not fit {facts.path}, which is quantised by {stored}; "
            "leave the option out, or use dequantize"
        )
    if stored is None and quantization in READABLE and quantization not in IN_FLIGHT:
        own = (quantization,) if quantization in READERS else ()
        methods = dict.fromkeys((*own, *OTHER_NAMES.get(quantization, ())))
        raise UsageError(
            f"{given} needs a checkpoint that {' or '.join(methods)} quantised; "
            "use int8, int4 or fp8 with a plain one"
        )
