"""Metadata of the running step for the attention layers.

The runner builds one AttentionMetadata for a step and enters `attention_metadata(...)` around
the model's forward pass; layers read `current_metadata()`. It holds no cache and no sizes of
the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class StateIndices(NamedTuple):
    """Slots of the states that a step reads and writes; see kernels/reference/state.py."""

    # [R] int32: slot of each request's initial state; -1: zeros.
    state_in: Tensor
    # [T] int32: slot to which the state after each token is written; -1: none.
    state_out: Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """T tokens of R requests, request by request; see kernels/reference/attention.py."""

    # [R + 1] int32: request r's tokens are query_start_loc[r] : query_start_loc[r + 1].
    query_start_loc: Tensor
    # [R] int32: tokens of each request after this step.
    seq_lens: Tensor
    # For each group of layers, [R, M] int32: each request's block ids in order, padded
    # with 0.
    block_tables: tuple[Tensor, ...]
    # For each group, [T] int64: block * block_size + offset of each token's key; negative ones
    # are not written.
    slot_mappings: tuple[Tensor, ...]
    num_tokens: int
    num_requests: int
    max_query_len: int
    max_seq_len: int
    # For models with state-space layers.
    states: StateIndices | None = None


_current: ContextVar[AttentionMetadata] = ContextVar("attention_metadata")


@contextmanager
def attention_metadata(metadata: AttentionMetadata) -> Iterator[None]:
    """Make `metadata` current in the `with` block."""
    token = _current.set(metadata)
    try:
        yield
    finally:
        _current.reset(token)


def current_metadata() -> AttentionMetadata:
    """The running step's metadata; LookupError outside `attention_metadata`."""
    return _current.get()
