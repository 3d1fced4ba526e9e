"""Which implementation of the operations this process uses: chosen once, at start.

Shapes and meaning of each operation are stated in `reference`; every implementation here is its
twin. Knows no model and no layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from vllm_lite import envs
from vllm_lite.errors import UsageError
from vllm_lite.kernels.gpu.backends import gpu_ops
from vllm_lite.kernels.head_ops import HeadOps
from vllm_lite.kernels.narrow_ops import NarrowOps
from vllm_lite.kernels.reference import ops as reference
from vllm_lite.kernels.reference.ops import PackedLinear
from vllm_lite.kernels.reference.quantized import PackedRows, QuantizedRows


class Ops(Protocol):
    """The operations of `reference`, by whichever implementation suits this machine."""

    def embedding(self, ids: Tensor, rows: Tensor, first_row: int | None = None) -> Tensor: ...

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None
    ) -> Tensor: ...

    def fused_add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]: ...

    def layer_norm(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        out: Tensor | None = None,
    ) -> Tensor: ...

    def fused_add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]: ...

    def scaled_add(
        self,
        x: Tensor,
        y: Tensor | None = None,
        x_scale: float = 1.0,
        y_scale: float = 1.0,
        out: Tensor | None = None,
    ) -> Tensor: ...

    def rotary_embedding(
        self,
        positions: Tensor,
        query: Tensor,
        key: Tensor,
        cos_sin_cache: Tensor,
        is_neox: bool = True,
    ) -> None: ...

    def activation(self, x: Tensor, name: str, out: Tensor | None = None) -> Tensor: ...

    def act_and_mul(self, x: Tensor, name: str) -> Tensor: ...

    def reshape_and_cache(
        self,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
    ) -> None: ...

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor,
        query_start_loc: Tensor,
        seq_lens: Tensor,
        scale: float,
        sliding_window: int = 0,
        logits_soft_cap: float = 0.0,
        *,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor: ...

    def apply_token_mask(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None: ...

    def greedy_tokens(self, logits: Tensor) -> tuple[Tensor, Tensor]: ...

    def draw_tokens(
        self,
        logits: Tensor,
        inverse_temperature: Tensor,
        min_p: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        chances: Tensor,
    ) -> tuple[Tensor, Tensor]: ...

    def token_logprobs(
        self,
        logits: Tensor,
        rows: Tensor,
        token_ids: Tensor,
        num_top: int,
        is_normalized: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def dequantize_gguf(
        self,
        raw: memoryview | Tensor,
        ggml_type: int,
        shape: Sequence[int],
        dtype: torch.dtype,
    ) -> Tensor: ...

    def pack_linear(self, weight: Tensor) -> PackedLinear: ...

    def linear(
        self,
        x: Tensor,
        weight: PackedLinear,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def gated_linear(
        self, x: Tensor, weight: PackedLinear, bias: Tensor | None = None, name: str = "silu"
    ) -> Tensor: ...

    def route_topk(
        self, logits: Tensor, top_k: int, is_renormalized: bool = True
    ) -> tuple[Tensor, Tensor]: ...

    def pack_experts(self, weights: Sequence[Any]) -> Any: ...

    def experts_mlp(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        gate_up: Any,
        down: Any,
        act: str = "silu",
        first_expert: int = 0,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def causal_conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        states: Tensor,
        query_start_loc: Tensor,
        state_in: Tensor,
        state_out: Tensor,
        act: str = "silu",
    ) -> Tensor: ...

    def selective_scan(
        self,
        x: Tensor,
        dt: Tensor,
        b: Tensor,
        c: Tensor,
        states: Tensor,
        query_start_loc: Tensor,
        state_in: Tensor,
        state_out: Tensor,
        *,
        a: Tensor,
        d: Tensor,
        dt_bias: Tensor,
        dt_limit: tuple[float, float],
    ) -> Tensor: ...

    def gated_rms_norm(
        self,
        x: Tensor,
        gate: Tensor,
        weight: Tensor,
        eps: float,
        group_size: int,
        act: str = "silu",
    ) -> Tensor: ...

    # Weights below are those that pack_quantized of the same implementation made.
    def pack_quantized(self, parts: Sequence[QuantizedRows]) -> PackedRows: ...

    def quantized_linear(
        self,
        x: Tensor,
        weight: Any,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def quantized_lookup(
        self, weight: Any, ids: Tensor, dtype: torch.dtype, first_row: int | None = None
    ) -> Tensor: ...


# `triton` is the GPU's kernels, run by Triton's interpreter: slow, and proof that they are right.
ISA_CHOICES = (
    *("auto", "amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2", "portable"),
    *("reference", "triton"),
)

# Bytes by which threads take turns at reading (csrc/cpu/memory.cpp), and that are timed together.
READ_UNIT = 256 << 10
READ_PIECE = 16 << 20

_selected: Ops | None = None
# Whether a row's results may not depend on the rows beside it.
_deterministic = False
# What `_selected` is called where it is not the compiled module, and runs on torch's threads.
_plain_name: str | None = None


def ops() -> Ops:
    """The implementation that `select_ops` chose; the CPU's if it chose none yet."""
    return _selected if _selected is not None else select_ops("cpu")


def narrow_ops() -> NarrowOps | None:
    """The same implementation's products by narrow numbers; None where it has other forms."""
    chosen = ops()
    return chosen if isinstance(chosen, NarrowOps) else None


def head_ops() -> HeadOps | None:
    """The same implementation's operations for an output head; None where it has none."""
    chosen = ops()
    return chosen if isinstance(chosen, HeadOps) else None


def select_ops(
    device_type: str = "cpu", attention_backend: str | None = None, deterministic: bool = False
) -> Ops:
    """Choose the implementation for a device; VLLM_LITE_CPU_ISA forces one of ISA_CHOICES.

    The attention's backend is a choice on GPUs alone. Raises UsageError for an unknown device,
    backend or instruction set, for one that this machine lacks, for one that is not
    `deterministic` where that is asked for, and where the compiled module is missing.
    """
    global _selected, _plain_name, _deterministic
    _deterministic = deterministic
    if device_type == "cuda" and torch.cuda.is_available():
        _selected = gpu_ops(attention_backend, deterministic)
        _plain_name = attention_backend or "TRITON_ATTN"
        return _selected
    if device_type != "cpu":
        raise UsageError(f"torch can use no device {device_type!r} here; use --device cpu")
    isa = envs.VLLM_LITE_CPU_ISA.lower()
    if isa not in ISA_CHOICES:
        raise UsageError(
            f"VLLM_LITE_CPU_ISA={isa!r} is unknown; choose from {', '.join(ISA_CHOICES)}"
        )
    if deterministic and isa in ("reference", "triton"):
        raise UsageError(
            f"--deterministic (VLLM_BATCH_INVARIANT) cannot be kept with VLLM_LITE_CPU_ISA={isa}, "
            "where torch multiplies in an order that depends on the batch; unset one of them"
        )
    if isa == "reference":
        _selected, _plain_name = reference, "reference (plain torch)"
    elif isa == "triton":
        _selected, _plain_name = _interpreted(), "Triton, interpreted"
    else:
        _selected, _plain_name = _compiled(isa), None
    return _selected


def is_deterministic() -> bool:
    """Whether a row's results may not depend on the rows beside it: no other library's products."""
    return _deterministic


def is_compiled() -> bool:
    """Whether the operations are the compiled module's."""
    ops()
    return _plain_name is None


def set_num_threads(count: int) -> None:
    """Let the operations use `count` threads, the calling one among them."""
    ops()
    if _plain_name is not None:
        torch.set_num_threads(count)
    else:
        _module().set_num_threads(count)


def describe() -> str:
    """One line for the log: instruction set and number of threads."""
    ops()
    kept = ", deterministic" if _deterministic else ""
    if _plain_name is not None:
        return f"{_plain_name}, {torch.get_num_threads()} threads{kept}"
    module = _module()
    return f"{module.selected_isa()}, {module.num_threads()} threads{kept}"


def read_bandwidth(tensors: Iterable[Tensor], max_seconds: float) -> float | None:
    """Bytes a second at which the threads read dense `tensors`, as far as the time reaches.

    The upper quartile over pieces of READ_PIECE bytes: a busy machine slows some, a cache holds
    others. None where there is no whole piece, or no compiled module to read it.
    """
    ops()
    if _plain_name is not None:
        return None
    read_seconds = _module().read_seconds
    speeds: list[float] = []
    num_bytes, seconds, left = 0, 0.0, max_seconds
    for tensor in tensors:
        if left <= 0:
            break
        for start in range(0, tensor.nbytes, READ_PIECE):
            size = min(tensor.nbytes - start, READ_PIECE)
            seconds += read_seconds(tensor.data_ptr() + start, size)
            num_bytes += size // READ_UNIT * READ_UNIT
            if num_bytes >= READ_PIECE:
                speeds.append(num_bytes / seconds)
                left -= seconds
                num_bytes, seconds = 0, 0.0
    return sorted(speeds)[len(speeds) * 3 // 4] if speeds else None


def _interpreted() -> Ops:
    if not envs.TRITON_INTERPRET:
        raise UsageError("VLLM_LITE_CPU_ISA=triton needs TRITON_INTERPRET=1: there is no GPU here")
    try:
        from vllm_lite.kernels.gpu.triton import ops as triton_ops
    except ImportError as error:
        raise UsageError(
            f"VLLM_LITE_CPU_ISA=triton needs Triton ({error}); run `pip install triton`"
        ) from None
    return triton_ops


def _compiled(isa: str) -> Ops:
    module = _module()
    supported = module.supported_isas()
    if isa == "auto":
        isa = supported[0]
    if isa not in supported:
        raise UsageError(
            f"VLLM_LITE_CPU_ISA={isa}: this machine only runs {', '.join(supported)}; unset it"
        )
    module.select_isa(isa)
    from vllm_lite.kernels.cpu import ops as cpu

    return cpu


def _module() -> Any:
    try:
        from vllm_lite import _cpu
    except ImportError as error:
        raise UsageError(
            f"the compiled kernels cannot be loaded ({error}); run `pip install .` in the source "
            "tree, or set VLLM_LITE_CPU_ISA=reference for slow plain torch"
        ) from None
    return _cpu
