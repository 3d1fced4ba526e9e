"""Sampling and log-probabilities by the compiled CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.cpu.arguments import (
    check_dense,
    refuse,
    row_stride,
)


def apply_token_mask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    num_rows, vocab_size = logits.shape
    num_masks, num_words = bits.shape
    if logits.dtype != torch.float32 or bits.dtype != torch.int32:
        raise refuse("apply_token_mask", "takes float32 logits and int32 masks")
    if num_words * 32 < vocab_size:
        raise refuse("apply_token_mask", f"{num_words} words do not cover {vocab_size} tokens")
    check_dense("apply_token_mask", rows, torch.int64, num_masks)
    _cpu.apply_token_mask(
        *(num_rows, num_masks, logits, row_stride("apply_token_mask", logits)),
        *(rows, bits, row_stride("apply_token_mask", bits), vocab_size),
    )


def penalize_tokens(
    logits: Tensor, rows: Tensor, starts: Tensor, token_ids: Tensor, times: Tensor, factors: Tensor
) -> None:
    stride = _check_logits("penalize_tokens", logits)
    num_lists, num_tokens = len(rows), len(token_ids)
    check_dense("penalize_tokens", rows, torch.int64, num_lists)
    check_dense("penalize_tokens", starts, torch.int64, num_lists + 1)
    check_dense("penalize_tokens", token_ids, torch.int64, num_tokens)
    check_dense("penalize_tokens", times, torch.float32, num_tokens)
    check_dense("penalize_tokens", factors, torch.float32, num_lists, 3)
    if starts[0] != 0 or starts[-1] != num_tokens:
        raise refuse("penalize_tokens", "takes lists that cover all tokens")
    _cpu.penalize_tokens(
        *(len(logits), num_lists, logits, stride, logits.shape[1]),
        *(rows, starts, token_ids, times, factors),
    )


def _check_logits(operation: str, logits: Tensor) -> int:
    """Check logits and return their row stride."""
    if logits.dtype != torch.float32 or logits.dim() != 2 or logits.shape[1] == 0:
        raise refuse(operation, "takes float32 logits [R, V] with V > 0")
    return row_stride(operation, logits)


def greedy_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    stride = _check_logits("greedy_tokens", logits)
    num_rows, vocab_size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64)
    largest = torch.empty(num_rows)
    of_rows = (None,) * 5
    _cpu.sample(num_rows, logits, stride, vocab_size, *of_rows, tokens, largest)
    return tokens, largest


def sample_tokens(
    logits: Tensor,
    inverse_temperature: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    chances: Tensor,
) -> tuple[Tensor, Tensor]:
    stride = _check_logits("sample_tokens", logits)
    num_rows, vocab_size = logits.shape
    for vector in (inverse_temperature, min_p, top_p):
        check_dense("sample_tokens", vector, torch.float32, num_rows)
    check_dense("sample_tokens", top_k, torch.int64, num_rows)
    check_dense("sample_tokens", chances, torch.float64, num_rows)
    tokens = torch.empty(num_rows, dtype=torch.int64)
    largest = torch.empty(num_rows)
    of_rows = (inverse_temperature, min_p, top_k, top_p, chances)
    _cpu.sample(num_rows, logits, stride, vocab_size, *of_rows, tokens, largest)
    return tokens, largest


def token_logprobs(
    logits: Tensor, rows: Tensor, token_ids: Tensor, num_top: int, is_normalized: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    stride = _check_logits("token_logprobs", logits)
    num_rows, vocab_size = logits.shape
    num_entries = len(rows)
    check_dense("token_logprobs", rows, torch.int64, num_entries)
    check_dense("token_logprobs", token_ids, torch.int64, num_entries)
    if not 0 <= num_top <= vocab_size:
        raise ValueError(f"token_logprobs: {num_top} of {vocab_size} tokens cannot be reported")
    values = torch.empty(num_entries, 1 + num_top)
    ids = torch.empty(num_entries, 1 + num_top, dtype=torch.int64)
    ranks = torch.empty(num_entries, dtype=torch.int64)
    _cpu.token_logprobs(
        *(num_rows, num_entries, logits, stride, vocab_size, is_normalized),
        *(rows, token_ids, num_top, values, ids, ranks),
    )
    return values, ids, ranks
