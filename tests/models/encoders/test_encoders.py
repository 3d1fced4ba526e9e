"""Encoders agree with transformers, alone and in any batch, bit for bit between those."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.models.encoders.cases import CASES, make_encoder
from tests.models.runner import load
from vllm_lite.kernels.metadata import AttentionMetadata, attention_metadata
from vllm_lite.models.interfaces import Model

LENGTHS = [(7 * i * i + 3) % 45 + 1 for i in range(32)]


def prompts() -> list[list[int]]:
    """Thirty-two of mixed lengths; their first ids are no padding, which RoBERTa counts over."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 131, (n,), generator=generator).tolist() for n in LENGTHS]


def hidden_states(model: Model, batch: list[list[int]]) -> list[Tensor]:
    """Of each prompt, computed in one step."""
    counts = [len(ids) for ids in batch]
    positions = torch.cat([torch.arange(count) for count in counts])
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
        seq_lens=torch.tensor(counts, dtype=torch.int32),
        block_tables=(),
        slot_mappings=(),
        num_tokens=sum(counts),
        num_requests=len(counts),
        max_query_len=max(counts),
        max_seq_len=max(counts),
    )
    with attention_metadata(metadata):
        hidden = model.forward(torch.tensor([i for ids in batch for i in ids]), positions)
    return list(hidden.clone().split(counts))


@torch.inference_mode()
def expected(model: PreTrainedModel, ids: list[int]) -> tuple[Tensor, Tensor | None]:
    """Hidden states, and the logits of a model that has any."""
    given, base = torch.tensor([ids]), model.base_model
    return base(given)[0][0], None if base is model else model(given).logits[0]


@pytest.mark.parametrize("case", CASES)
def test_answers_are_transformers(case: str, tmp_path: Path) -> None:
    reference = make_encoder(case)
    reference.save_pretrained(tmp_path)
    model, batch = load(tmp_path, runner="pooling"), prompts()
    assert not model.kv_cache_spec().layers
    together = hidden_states(model, batch)
    for ids, found in zip(batch, together, strict=True):
        (alone,) = hidden_states(model, [ids])
        assert torch.equal(alone, found)
    for ids, found in zip(batch[:5], together, strict=False):
        want, logits = expected(reference, ids)
        torch.testing.assert_close(found, want, atol=1e-4, rtol=0)
        if logits is None:
            continue
        task = "classify" if logits.dim() == 1 else "token_classify"
        rows = found
        if task == "classify":
            takes_mean = getattr(reference.config, "classifier_pooling", "cls") == "mean"
            rows = found.mean(0, keepdim=True) if takes_mean else found[:1]
        got = model.pooled(task, rows)  # type: ignore[attr-defined]
        assert got.dtype is torch.float32
        torch.testing.assert_close(got, logits.view(len(rows), -1), atol=1e-4, rtol=0)
        assert torch.equal(model.pooled(task, rows[-1:]), got[-1:])  # type: ignore[attr-defined]
