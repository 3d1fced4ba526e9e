"""Encoders agree with transformers, alone and in any batch, bit for bit between those."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.models.encoders.cases import CASES, MODELS, make_encoder
from tests.models.runner import load
from tests.models.test_tensor_parallel import Meeting, ThreadRank
from vllm_lite.distributed.groups import tensor_parallel
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels import dispatch
from vllm_lite.kernels.metadata import AttentionMetadata, attention_metadata
from vllm_lite.models.interfaces import Model
from vllm_lite.worker.drafting.model import Forward
from vllm_lite.worker.recorded_forward import recorded_forward

LENGTHS = [(7 * i * i + 3) % 45 + 1 for i in range(32)]


def prompts() -> list[list[int]]:
    """Thirty-two of mixed lengths; their first ids are no padding, which RoBERTa counts over."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 131, (n,), generator=generator).tolist() for n in LENGTHS]


def hidden_states(
    model: Model, batch: list[list[int]], forward: Forward | None = None
) -> list[Tensor]:
    """Of each prompt, computed in one step, by the model or a recording of it."""
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
        ids = torch.tensor([i for ids in batch for i in ids])
        hidden = (forward or model.forward)(ids, positions)
    return list(hidden.clone().split(counts))


@torch.inference_mode()
def expected(model: PreTrainedModel, ids: list[int]) -> tuple[Tensor, Tensor | None]:
    """Hidden states, and the logits of a model that has any."""
    given, base = torch.tensor([ids]), model.base_model
    return base(given)[0][0], None if base is model else model(given).logits[0]


@pytest.mark.parametrize("implementation", ["vllm", "transformers"])
def test_a_token_whose_embedding_is_no_number_is_refused_with_its_tensor(
    implementation: str, tmp_path: Path
) -> None:
    broken = make_encoder("BertModel")
    with torch.inference_mode():
        broken.get_input_embeddings().weight[7] = torch.nan
    broken.save_pretrained(tmp_path)
    words = r"model.safetensors: the tensor 'embeddings.word_embeddings.weight' holds .* nan; fetch"
    with pytest.raises(CheckpointError, match=words) as caught:
        load(tmp_path, model_impl=implementation)
    assert "\n" not in str(caught.value)


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


@pytest.mark.parametrize("case", MODELS)
def test_bfloat16_is_close_to_float32(case: str, tmp_path: Path) -> None:
    reference, ids = make_encoder(case), max(prompts(), key=len)
    reference.save_pretrained(tmp_path)
    (got,) = hidden_states(load(tmp_path, dtype="bfloat16", runner="pooling"), [ids])
    want, _ = expected(reference, ids)
    assert torch.nn.functional.cosine_similarity(got.float(), want, dim=1).min() > 0.99


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [None, "model", "bfloat16", "float"])
def test_a_head_has_the_dtype_that_was_asked_for(
    kind: str | None, dtype: str, tmp_path: Path
) -> None:
    reference = make_encoder("BertForTokenClassification")
    reference.save_pretrained(tmp_path)
    overrides = {} if kind is None else {"head_dtype": kind}
    model = load(tmp_path, dtype=dtype, runner="pooling", hf_overrides=overrides)
    rows, head = torch.randn(3, 48), reference.classifier
    own = getattr(torch, {"model": dtype, "bfloat16": "bfloat16"}.get(str(kind), "float32"))
    given, weight, bias = (x.detach().to(own).float() for x in (rows, head.weight, head.bias))
    found = model.pooled("token_classify", rows)  # type: ignore[attr-defined]
    want = torch.nn.functional.linear(given, weight, bias)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not dispatch.is_compiled(), reason="records compiled kernels")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", MODELS)
def test_a_recorded_step_is_the_forward_pass(case: str, dtype: str, tmp_path: Path) -> None:
    make_encoder(case).save_pretrained(tmp_path)
    model = load(tmp_path, dtype=dtype, runner="pooling")
    batches = [prompts()[:n] for n in (1, 5, 2)]
    recorded = recorded_forward(model, max_tokens=160, num_groups=0)
    assert recorded != model.forward
    for batch in batches:
        found = hidden_states(model, batch, recorded)
        for got, want in zip(found, hidden_states(model, batch), strict=True):
            assert want.isfinite().all()
            assert torch.equal(got, want)


@pytest.mark.parametrize(
    "case", ["BertModel", "ElectraModel", "ModernBertModel", "GteModel", "MPNetModel"]
)
def test_ranks_together_equal_one(case: str, tmp_path: Path) -> None:
    make_encoder(case).save_pretrained(tmp_path)
    batch, meeting, models = prompts()[:3], Meeting(2), []
    for rank in range(2):
        with tensor_parallel(ThreadRank(rank, 2, meeting)):
            models.append(load(tmp_path, runner="pooling"))
    want = hidden_states(load(tmp_path, runner="pooling"), batch)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda model: hidden_states(model, batch), models):
            torch.testing.assert_close(found, want, atol=1e-4, rtol=0)
