"""Encoders that run by transformers' own module: its hidden states and logits, in any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.models.encoders.cases import CLASSES, TINY, make_encoder
from tests.models.encoders.test_encoders import expected, hidden_states, prompts
from tests.models.runner import load
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import CheckpointError
from vllm_lite.models.encoders.transformers_encoder import TransformersEncoder

# Without a family here, with another head, and with a window on both sides.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ernie-plain": ("ErnieModel", {"use_task_id": False}),
    "ernie": ("ErnieForSequenceClassification", {}),
    "eurobert": ("EuroBertModel", {"num_key_value_heads": 2}),
    "bert-plain": ("BertModel", {}),
    "bert": ("BertForTokenClassification", {}),
    "modernbert": ("ModernBertForSequenceClassification", {"local_attention": 8}),
}


def make(name: str, **changes: Any) -> Any:
    architecture, settings = CASES[name]
    model_class = getattr(transformers, architecture)
    torch.manual_seed(3)
    classes = {} if architecture.endswith("Model") else CLASSES
    model = model_class(model_class.config_class(**{**TINY, **classes, **settings, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.25)
    return model.eval()


@pytest.mark.parametrize("name", CASES)
def test_answers_are_transformers(name: str, tmp_path: Path) -> None:
    reference = make(name)
    reference.save_pretrained(tmp_path)
    check(load(tmp_path, runner="pooling", model_impl="transformers"), reference)


def check(model: Any, reference: Any) -> None:
    """Fail unless the answers are those of transformers, in any batch."""
    assert isinstance(model, TransformersEncoder)
    assert not model.kv_cache_spec().layers
    batch = prompts()
    together = hidden_states(model, batch)
    for ids, found in zip(batch, together, strict=True):
        assert torch.equal(hidden_states(model, [ids])[0], found)
    for ids, found in zip(batch[:6], together, strict=False):
        want, logits = expected(reference, ids)
        torch.testing.assert_close(found, want, atol=1e-4, rtol=0)
        if logits is not None:
            rows = found[:1] if logits.dim() == 1 else found
            got = model.pooled("classify", rows)
            torch.testing.assert_close(got, logits.view(len(rows), -1), atol=1e-4, rtol=0)
            assert torch.equal(model.pooled("classify", rows[-1:]), got[-1:])


@pytest.mark.parametrize("name", ["ernie-plain", "ernie", "eurobert"])
def test_by_itself_an_encoder_without_a_family_runs_by_transformers(
    name: str, tmp_path: Path
) -> None:
    reference = make(name)
    reference.save_pretrained(tmp_path)
    check(load(tmp_path), reference)


def test_by_itself_an_encoder_with_a_family_does_not(tmp_path: Path) -> None:
    make("bert").save_pretrained(tmp_path)
    assert not isinstance(load(tmp_path), TransformersEncoder)


@pytest.mark.parametrize(
    ("case", "architecture", "tasks"),
    [
        ("ernie-plain", "TransformersEmbeddingModel", ("embed", "token_embed")),
        ("bert-plain", "TransformersMoEEmbeddingModel", ("embed", "token_embed")),
        ("ernie", "TransformersForSequenceClassification", ("classify", "token_classify")),
        ("modernbert", "TransformersMoEForSequenceClassification", ("classify", "token_classify")),
    ],
)
def test_vllms_names_of_its_fallback_are_its_tasks(
    case: str, architecture: str, tasks: tuple[str, ...], tmp_path: Path
) -> None:
    reference = make(case)
    reference.save_pretrained(tmp_path)
    named = {"hf_overrides": {"architectures": [architecture]}}
    args = EngineArgs(model=str(tmp_path), device="cpu", skip_tokenizer_init=True, **named)
    pooling = args.create_engine_config().facts.pooling
    assert pooling is not None
    assert pooling.tasks == tasks
    check(load(tmp_path, **named), reference)


def test_a_name_of_the_fallback_needs_a_type_that_transformers_knows(tmp_path: Path) -> None:
    make("ernie-plain").save_pretrained(tmp_path)
    for model_type in ("nosuch", "funnel", None):
        changes = {"architectures": ["TransformersEmbeddingModel"], "model_type": model_type}
        with pytest.raises(CheckpointError, match=f"no single AutoModel .*{model_type}"):
            load(tmp_path, hf_overrides=changes)


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("T5EncoderModel", "holds T5EncoderModel, whose attention knows positions by numbers"),
        ("MegatronBertModel", "it does not attend by transformers' attention interface"),
        ("BartModel", "of BartModel cannot run here: it is no encoder that takes positions"),
        ("NoSuchModel", "transformers .* has no such model"),
    ],
)
def test_what_cannot_run_is_refused(architecture: str, words: str, tmp_path: Path) -> None:
    make_encoder("BertModel").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=words) as caught:
        load(
            tmp_path,
            runner="pooling",
            model_impl="transformers",
            hf_overrides={"architectures": [architecture]},
        ).kv_cache_spec()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["LlamaModel", "TransformersEmbeddingModel"])
def test_a_decoder_is_no_encoder(name: str, tmp_path: Path) -> None:
    transformers.LlamaModel(transformers.LlamaConfig(**TINY)).save_pretrained(tmp_path)
    named = {"hf_overrides": {"architectures": [name]}}
    model = load(tmp_path, runner="pooling", model_impl="transformers", **named)
    with pytest.raises(CheckpointError, match=f"{name} cannot run here: its masks are not"):
        model.kv_cache_spec()
