"""Terms of attention's scores beside their scale, and the arguments that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature

import torch
from torch import Tensor

from vllm_lite.distributed.groups import Shard
from vllm_lite.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms:
    """Terms of scores beside their scale, for this rank's heads."""

    heads: Shard
    # Scores become softcap * tanh(score / softcap).
    softcap: float = 0.0
    # One for each head of all ranks: slope * (key position - query position) is added.
    alibi_slopes: Sequence[float] = ()
    # The checkpoint has a score for each head, of an extra key without a value.
    has_sinks: bool = False
    # The window is a chunk: a token sees keys of its own.
    is_chunked: bool = False


def alibi_slopes(num_heads: int, largest: float = 8.0) -> tuple[float, ...]:
    """The slopes of heads (Press et al., 2021): 2^(-largest i / n), for n heads, a power of two.

    For another number those of the next lower power of two, then every second of the next higher.
    """
    lower = 1 << num_heads.bit_length() - 1
    whole = [2 ** (-largest * i / lower) for i in range(1, lower + 1)]
    between = [2 ** (-largest * (i - 0.5) / lower) for i in range(1, num_heads - lower + 1)]
    return (*whole, *between)


def per_head(terms: ScoreTerms) -> dict[str, Tensor]:
    """Arguments of paged_attention, [H] float32 each: slopes now, sinks when they are loaded."""
    heads, numbers = terms.heads, {}
    if terms.alibi_slopes:
        own = terms.alibi_slopes[heads.start : heads.start + heads.size]
        numbers["alibi_slopes"] = torch.tensor(own, dtype=torch.float32)
    if terms.has_sinks:
        numbers["sinks"] = torch.empty(heads.size, dtype=torch.float32)
    return numbers


def check_arguments(operation: Callable[..., Tensor], names: Iterable[str], need: str = "") -> None:
    """Raise UsageError unless `operation` takes arguments of these names, which `need` sums up."""
    known = signature(operation).parameters
    if any(argument.kind is Parameter.VAR_KEYWORD for argument in known.values()):
        return
    missing = [name for name in names if name not in known]
    if missing:
        raise UsageError(
            f"the model's attention needs {need or ' and '.join(missing)}, which the chosen "
            "--attention-backend lacks; use TRITON_ATTN or leave the option out"
        )
