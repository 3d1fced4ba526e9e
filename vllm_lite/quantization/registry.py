"""Maps --quantization and a checkpoint's format to LinearMethods.

A checkpoint may leave some layers unquantised, as its settings and its tensors tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import torch

from vllm_lite.config.quantized.in_flight import BLOCKS, CODES, InFlight
from vllm_lite.config.quantized.schemes import (
    Codebooks,
    FlatBlocks,
    Form,
    PackedIntegers,
    Rounded,
    Scheme,
    StoredCodes,
    Ternary,
    describe,
    group_size_of,
)
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels.dispatch import gpu_only_ops, is_compiled, is_deterministic
from vllm_lite.kernels.grouped_weight import GROUP_MULTIPLE, LEAST_GROUP
from vllm_lite.kernels.reference.rounding import ActivationRounding
from vllm_lite.log import init_logger
from vllm_lite.quantization.codebooks import CodebookMethod
from vllm_lite.quantization.gguf import GGUFLinearMethod
from vllm_lite.quantization.grouped import GroupedLinearMethod
from vllm_lite.quantization.layouts.codes import CodesLayout
from vllm_lite.quantization.layouts.flat_blocks import FlatBlocksLayout
from vllm_lite.quantization.layouts.integers import IntegerLayout
from vllm_lite.quantization.method import LinearMethod
from vllm_lite.quantization.named import NamedMethod
from vllm_lite.quantization.online import OnlineLinearMethod
from vllm_lite.quantization.padded_experts import UnpackedMethod
from vllm_lite.quantization.rounded import RoundedLinearMethod
from vllm_lite.quantization.scaled import SCALED_NUMBERS, ScaledLinearMethod
from vllm_lite.quantization.stored_codes import StoredCodesMethod
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod

logger = init_logger(__name__)


class LinearMethods:
    """The LinearMethod of each layer of a model."""

    def __init__(
        self,
        quantization: str | None,
        dtype: torch.dtype,
        scheme: Scheme | None,
        plain_layers: Mapping[str, bool],
        in_flight: InFlight,
    ) -> None:
        """`plain_layers`: whether a quantised checkpoint's layer is not, as far as is known.

        `in_flight` is for a plain checkpoint.
        """
        self._plain = UnquantizedLinearMethod(dtype)
        self._scheme = scheme
        self._keeps = quantization != "dequantize"
        self._plain_layers = plain_layers
        self._in_flight = in_flight
        # One object for each form, and for each name: it is shared by its layers.
        self._by_form = cache(partial(get_linear_method, quantization, dtype))
        self._of_experts = cache(partial(get_experts_method, quantization, dtype))
        self._by_name = cache(partial(_method_in_flight, dtype=dtype))
        # Those of layers that are rounded in flight, and the first layer of each mixture.
        self._rounding: list[LinearMethod] = []
        self._mixtures: dict[str, tuple[str, Form | str | None]] = {}

    def of(self, path: str, layers: Sequence[str]) -> LinearMethod:
        """The method of the model's layer at `path`, fused of the checkpoint's `layers`."""
        if self._scheme is None:
            names = {layer: self._in_flight.name_of(layer) for layer in layers}
            if len(set(names.values())) > 1:
                raise _unlike(names)
            name = names[layers[0]]
            self._check_mixture(path, layers[0], name)
            if name is None or _is_router(path):
                return self._plain
            method = self._by_name(name, ".experts." in path)
            if name not in CODES or not path.endswith(("embed_tokens", "lm_head")):
                self._rounding.append(method)
            return method
        is_embedding = path.endswith("embed_tokens")
        is_usually_plain = is_embedding or _is_router(path) or path.endswith("lm_head")
        forms = {
            layer: self._scheme.form_of(layer, is_embedding)
            for layer in layers
            if not self._plain_layers.get(layer, is_usually_plain)
        }
        forms = {layer: forms.get(layer) for layer in layers}
        if len(set(forms.values())) > 1:
            raise _unlike(forms)
        form = forms[layers[0]]
        if self._keeps:
            self._check_mixture(path, layers[0], form)
        if form is None:
            return self._plain
        method = self._of_experts(form) if ".experts." in path else self._by_form(form)
        return NamedMethod(method, tuple(layers))

    def _check_mixture(self, path: str, layer: str, form: Form | str | None) -> None:
        """Raise CheckpointError if some layers of a mixture are quantised, and others plain.

        A GPU's operation may take the two layers of all experts unlike each other.
        """
        mixture, is_expert, _ = path.partition(".experts.")
        if is_expert and is_compiled():
            first, other = self._mixtures.setdefault(mixture, (layer, form))
            if (form is None) != (other is None):
                raise _unlike({first: other, layer: form}, "in one mixture")

    def check(self) -> None:
        """Raise UsageError if an option rounds no layer; warn of those it rounds otherwise."""
        for method in dict.fromkeys(self._rounding):
            if isinstance(method, OnlineLinearMethod):
                method.check()
        option = self._in_flight.option
        if option and not self._rounding:
            has_names = self._in_flight.targets or self._in_flight.ignore
            reason = (
                "name layers as the checkpoint does, such as down_proj, or by re:PATTERN"
                if has_names
                else "it has none of the kind that the option names: leave it out"
            )
            raise UsageError(f"{option} rounds no layer of this model; {reason}")


def _method_in_flight(name: str, is_expert: bool, dtype: torch.dtype) -> LinearMethod:
    """The method for layers that are rounded by `name`."""
    if is_expert and name in CODES:
        return RoundedLinearMethod(name, CODES[name], dtype)
    if is_expert and name in BLOCKS:
        return OnlineLinearMethod(name, dtype)
    return get_linear_method(name, dtype)


def _unlike(forms: Mapping[str, Form | str | None], how: str = "fused") -> CheckpointError:
    plain = [layer for layer, form in forms.items() if form is None]
    shown = {
        layer: f"{layer} ({form if isinstance(form, str) else describe(form)})"
        for layer, form in forms.items()
        if form is not None
    }
    if plain:
        return CheckpointError(
            f"{plain[0]} is not quantised but {how} with layers that are: "
            f"{', '.join(shown.values())}"
        )
    (first, form), *others = forms.items()
    other = next(layer for layer, of_layer in others if of_layer != form)
    return CheckpointError(
        f"{shown[first]} and {shown[other]} are fused but quantised unlike each other"
    )


def _is_router(path: str) -> bool:
    """Whether the layer is a router, which is small and would choose other experts if rounded."""
    return path.endswith((".mlp.gate", ".mlp.shared_expert_gate"))


def get_linear_method(
    quantization: str | None, dtype: torch.dtype, form: Form | None = None
) -> LinearMethod:
    """The method for `quantization` of a checkpoint in `form`; None is plain.

    A quantised checkpoint stays quantised, unless `quantization` is "dequantize".
    """
    keeps = quantization != "dequantize"
    size = None if form is None else group_size_of(form)
    if keeps and size is not None and size < LEAST_GROUP:
        warn_of_small_groups(size, dtype)
        keeps = False
    if quantization is not None and keeps and is_deterministic() and not is_compiled():
        raise UsageError(
            "--deterministic (VLLM_BATCH_INVARIANT) cannot be kept on a GPU by --quantization "
            f"{quantization}, whose tiles follow from the number of rows; leave one of them out"
        )
    if isinstance(form, StoredCodes):
        return StoredCodesMethod(form, dtype, keeps, ops=gpu_only_ops())
    if isinstance(form, Codebooks):
        return CodebookMethod(form, dtype, keeps)
    if isinstance(form, PackedIntegers):
        rounding = ActivationRounding(getattr(torch, form.tokens)) if form.tokens else None
        return GroupedLinearMethod(IntegerLayout(form), dtype, keeps, rounding=rounding)
    if isinstance(form, Rounded) and keeps:
        if form.nests_scales:
            warn_of_exact_scales()
        return RoundedLinearMethod(quantization or form.codes.number, form.codes, dtype)
    if isinstance(form, FlatBlocks):
        return GroupedLinearMethod(FlatBlocksLayout(form), dtype, keeps)
    if quantization == "gguf" or (isinstance(form, Ternary) and quantization is None):
        return GGUFLinearMethod(dtype)
    if quantization in (None, "dequantize"):
        return UnquantizedLinearMethod(dtype)
    on_gpu = gpu_only_ops()
    if quantization in SCALED_NUMBERS and on_gpu is not None:
        return ScaledLinearMethod(SCALED_NUMBERS[quantization], dtype, on_gpu)
    if quantization in CODES:
        return RoundedLinearMethod(quantization, CODES[quantization], dtype)
    if quantization in BLOCKS:
        return OnlineLinearMethod(quantization, dtype)
    raise UsageError(
        f"--quantization {quantization} is not supported; use int8, int4 or fp8, or a checkpoint "
        "that is quantised"
    )


def get_experts_method(quantization: str | None, dtype: torch.dtype, form: Form) -> LinearMethod:
    """The same for a layer of experts, which have to be multiplied alike, whatever they hold."""
    if isinstance(form, StoredCodes):
        # They have no seam for what is done to inputs: such tensors have no place.
        form = replace(form, input_factor="", input_transform="")
    size = group_size_of(form)
    is_padded = size is not None and size >= LEAST_GROUP and size % GROUP_MULTIPLE > 0
    if is_padded and quantization != "dequantize":
        if isinstance(form, StoredCodes):
            return UnpackedMethod(CodesLayout(form), dtype, form)
        if isinstance(form, PackedIntegers):
            return UnpackedMethod(IntegerLayout(form), dtype)
    method = get_linear_method(quantization, dtype, form)
    return method.for_experts() if isinstance(method, StoredCodesMethod) else method


@cache
def warn_of_small_groups(size: int, dtype: torch.dtype) -> None:
    """Say once in a process what a checkpoint with such groups takes."""
    logger.warning(
        "groups of %d inputs, which products take padded to 16, would need as much memory as "
        "bfloat16 or more: their weights are dequantised to %s as they are loaded",
        size,
        str(dtype).removeprefix("torch."),
    )


@cache
def warn_of_exact_scales() -> None:
    """Say once in a process that one setting of bitsandbytes is not followed."""
    logger.warning(
        "bnb_4bit_use_double_quant has no effect on weights that are rounded as they are loaded: "
        "their scales are kept exact, in float32"
    )
