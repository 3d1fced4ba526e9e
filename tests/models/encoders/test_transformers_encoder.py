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
from vllm_lite.errors import CheckpointError

# Without a family here, with another head, and with a window on both sides.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ernie-plain": ("ErnieModel", {"use_task_id": False}),
    "ernie": ("ErnieForSequenceClassification", {}),
    "eurobert": ("EuroBertModel", {"num_key_value_heads": 2}),
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
    model: Any = load(tmp_path, runner="pooling", model_impl="transformers")
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


def test_a_decoder_is_no_encoder(tmp_path: Path) -> None:
    transformers.LlamaModel(transformers.LlamaConfig(**TINY)).save_pretrained(tmp_path)
    model = load(tmp_path, runner="pooling", model_impl="transformers")
    with pytest.raises(CheckpointError, match="LlamaModel cannot run here: its masks are not"):
        model.kv_cache_spec()
