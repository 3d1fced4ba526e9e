"""How a quantised checkpoint stores its weights: what its config.json says, checked.

Reads the `quantization_config` of Hugging Face directories; knows no tensors, which tell by
themselves what layers are left plain. Every refusal is one line that names the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from vllm_lite.config.facts import EXPANDED, ModelFacts
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import CheckpointError, UsageError

# Methods whose checkpoints can be read, by the names that they give themselves.
READABLE: Final = ("awq", "gptq", "fp8", "compressed-tensors")
_SCALE_BLOCK = [128, 128]
_MODES, _LINEAR_CLASSES = ("offline", "online"), ("bitlinear", "autobitlinear")


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """Small integers in words of 32 bits, as AWQ (`gemm`) and GPTQ lay them out.

    group_size is how many inputs share a scale; None: all of them. Stored zero points of GPTQ's
    first format are less by one than those meant.
    """

    layout: Literal["awq", "gptq"]
    bits: int
    group_size: int | None
    zeros_are_less_by_one: bool = False


@dataclass(frozen=True, slots=True)
class ScaledCodes:
    """Numbers of one byte with scales for a tensor, for its outputs, or for blocks of 128 x 128.

    `number` is torch's name of the type. With static inputs the checkpoint has their scale.
    """

    number: Literal["int8", "float8_e4m3fn"]
    scales_of: Literal["tensor", "channel", "block"]
    has_input_scale: bool
    # One for the keys and one for the values of each layer, for a cache of 8-bit floats.
    has_cache_scales: bool = False


@dataclass(frozen=True, slots=True)
class Ternary:
    """Codes of two bits with a scale for each layer, or floats that are rounded to such."""

    is_rounded: bool
    # By the scale, rather than multiplied.
    is_divided: bool


StoredForm = PackedIntegers | ScaledCodes | Ternary


def stored_form(path: str, hf_config: JsonView) -> StoredForm | None:
    """The form of the checkpoint at `path`, None for a plain one; raises CheckpointError."""
    settings = hf_config.get("quantization_config")
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if method == "mxfp4":
        return None
    if method not in (*READABLE, *EXPANDED):
        raise CheckpointError(
            f"{path} is quantised by {method or 'an unnamed method'}, which this build cannot run; "
            f"use one by {', '.join((*READABLE, *EXPANDED))}, the unquantised checkpoint or a GGUF "
            "file"
        )
    read = _Reader(path, method, settings)
    if method == "awq":
        return read.awq()
    if method == "gptq":
        return read.gptq()
    if method == "bitnet":
        return read.bitnet()
    return read.fp8() if method == "fp8" else read.compressed_tensors()


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


class _Reader:
    """The settings of one checkpoint."""

    def __init__(self, path: str, method: str, settings: Json) -> None:
        self._path = path
        self._method = method
        self._settings = settings

    def awq(self) -> PackedIntegers:
        self._one_of("version", self._settings.get("version", "gemm"), ("gemm", "GEMM"))
        self._one_of("bits", self._settings.get("bits"), (4,))
        return PackedIntegers("awq", 4, self._group_size())

    def gptq(self) -> PackedIntegers:
        settings = self._settings
        bits: int = self._one_of("bits", settings.get("bits"), (4, 8))
        stored = settings.get("checkpoint_format") or "gptq"
        self._one_of("checkpoint_format", stored, ("gptq", "gptq_v2"))
        self._one_of("lm_head", settings.get("lm_head", False), (False,))
        # Rules that begin with "-:" are of layers that are left plain.
        others = [rule for rule in settings.get("dynamic") or () if not str(rule).startswith("-:")]
        self._one_of("dynamic", others, ([],))
        return PackedIntegers("gptq", bits, self._group_size(), stored == "gptq")

    def fp8(self) -> ScaledCodes:
        settings = self._settings
        block = settings.get("weight_block_size")
        self._one_of("weight_block_size", block, (None, _SCALE_BLOCK))
        schemes = ("dynamic",) if block else ("dynamic", "static")
        scheme = self._one_of("activation_scheme", settings.get("activation_scheme"), schemes)
        return ScaledCodes("float8_e4m3fn", "block" if block else "tensor", scheme == "static")

    def bitnet(self) -> Ternary:
        get = self._settings.get
        self._one_of("use_rms_norm", get("use_rms_norm", False), (False,))
        mode = self._one_of("quantization_mode", get("quantization_mode", "offline"), _MODES)
        kind = self._one_of("linear_class", get("linear_class", "bitlinear"), _LINEAR_CLASSES)
        return Ternary(is_rounded=mode == "online", is_divided=kind == "bitlinear")

    def compressed_tensors(self) -> ScaledCodes:
        groups = list((self._settings.get("config_groups") or {}).values())
        if len(groups) != 1:
            raise self._refusal(f"{len(groups)} config_groups", "one of all linear layers")
        self._one_of("targets", groups[0].get("targets"), (["Linear"],))
        weights = groups[0].get("weights") or {}
        inputs = groups[0].get("input_activations") or {}
        for name, numbers in (("weights", weights), ("input_activations", inputs)):
            self._one_of(f"{name}.num_bits", numbers.get("num_bits"), (8,))
            self._one_of(f"{name}.symmetric", numbers.get("symmetric", True), (True,))
        kind = self._one_of("weights.type", weights.get("type"), ("int", "float"))
        self._one_of("input_activations.type", inputs.get("type"), (kind,))
        per = self._one_of("weights.strategy", weights.get("strategy"), ("tensor", "channel"))
        dynamic = bool(inputs.get("dynamic"))
        allowed = ("token",) if dynamic else ("tensor",)
        self._one_of("input_activations.strategy", inputs.get("strategy"), allowed)
        number: Literal["int8", "float8_e4m3fn"] = "int8" if kind == "int" else "float8_e4m3fn"
        return ScaledCodes(number, per, not dynamic, self._has_cache_scales())

    def _has_cache_scales(self) -> bool:
        scheme = self._settings.get("kv_cache_scheme")
        if not scheme:
            return False
        for name, value in (("num_bits", 8), ("type", "float"), ("strategy", "tensor")):
            self._one_of(f"kv_cache_scheme.{name}", scheme.get(name), (value,))
        self._one_of("kv_cache_scheme.dynamic", scheme.get("dynamic", False), (False,))
        return True

    def _group_size(self) -> int | None:
        size = self._settings.get("group_size")
        if size == -1:
            return None
        if not isinstance(size, int) or size < 32 or size % 32:
            raise self._refusal(f"group_size {size!r}", "-1 or a multiple of 32")
        return size

    def _one_of(self, name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
        if value not in allowed:
            shown = " or ".join(repr(choice) for choice in allowed)
            raise self._refusal(f"{name} {value!r}", shown)
        return value

    def _refusal(self, found: str, known: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path} is quantised by {self._method} with {found}; this build reads {known}: "
            "use the unquantised checkpoint or a GGUF file"
        )
