"""Row, checkpoint and options together say how a model pools."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_hf
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.pooling import DenseFacts, PoolingFacts
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import CheckpointError, NotInBuildError, UsageError

MODULES = "sentence_transformers.models."
POOLING = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
DENSE = {
    "in_features": 64,
    "out_features": 32,
    "bias": False,
    "activation_function": "torch.nn.modules.activation.Tanh",
}
CLASSES = {"architectures": ["LlamaForSequenceClassification"]}


def resolved(model: Path, **options: Any) -> VllmConfig:
    return EngineArgs(model=str(model), load_format="dummy", **options).create_engine_config()


def pooling(model: Path, **options: Any) -> PoolingFacts:
    config = resolved(model, **options)
    assert config.model.runner == "pooling" and config.facts.pooling is not None
    return config.facts.pooling


def write_modules(path: Path, kinds: str, **files: Any) -> Path:
    """A checkpoint whose modules.json lists `kinds`; `files` are the modules' configurations."""
    write_hf(path)
    listed = []
    for number, kind in enumerate(kinds.split()):
        folder = f"{number}_{kind}" if number else ""
        listed.append({"type": MODULES + kind, "path": folder})
        if kind in files:
            (path / folder).mkdir(exist_ok=True)
            (path / folder / "config.json").write_text(json.dumps(files[kind]))
    (path / "modules.json").write_text(json.dumps(listed))
    return path


def test_a_model_is_run_for_what_it_is_made_for(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "text")
    assert resolved(model).facts.pooling is None and resolved(model).model.runner == "generate"
    assert pooling(model, runner="pooling").tasks == ("embed", "token_embed")
    assert pooling(model, convert="embed").tasks == ("embed", "token_embed")
    assert pooling(model, convert="classify").tasks == ("classify", "token_classify")
    for end, tasks in [
        ("Model", ("embed", "token_embed")),
        ("ForSequenceClassification", ("classify", "token_classify")),
        ("ForTokenClassification", ("token_classify",)),
    ]:
        named = write_hf(tmp_path / end, architectures=[f"Llama{end}"])
        assert pooling(named).tasks == tasks
        with pytest.raises(UsageError, match=f"Llama{end} is made for .* generates no text"):
            resolved(named, runner="generate")


@pytest.mark.parametrize(
    ("task", "tasks"),
    [
        ("embed", ("embed", "token_embed")),
        ("embedding", ("embed", "token_embed")),
        ("classify", ("classify", "token_classify")),
        ("score", ("classify", "token_classify")),
        ("reward", ("token_classify",)),
        ("generate", None),
        ("transcription", None),
        ("auto", None),
    ],
)
def test_older_names_of_tasks_warn(
    task: str,
    tasks: tuple[str, ...] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    config = resolved(write_hf(tmp_path), task=task)
    assert (config.facts.pooling and config.facts.pooling.tasks) == tasks
    assert "--task is deprecated; use --runner and --convert" in caplog.text
    assert ("--convert reward is deprecated; the task is token_c" in caplog.text) == (
        task == "reward"
    )


def test_modules_say_how_vectors_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    caplog.set_level(logging.INFO)
    path = write_modules(
        tmp_path, "Transformer Pooling Dense Normalize", Pooling=POOLING, Dense=DENSE
    )
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24}))
    sentences = {"prompts": {"query": "Q: "}, "default_prompt_name": "query"}
    sentences["similarity_fn_name"] = "dot"
    (path / "config_sentence_transformers.json").write_text(json.dumps(sentences))
    found = pooling(path)
    assert (found.seq_pooling_type, found.use_activation, found.size) == ("MEAN", True, 32)
    assert found.dense == (
        DenseFacts(folder="2_Dense", in_size=64, out_size=32, has_bias=False, activation="tanh"),
    )
    assert found.prompts == {"query": "Q: "} and found.counts_prompts
    assert "has a prompt for texts that come without one, 'Q: '" in caplog.text
    assert found.similarity_fn_name == "dot" and found.score_type == "bi-encoder"
    assert resolved(path).model.max_model_len == 24
    assert resolved(path, max_model_len=40).model.max_model_len == 40
    changed = pooling(path, pooler_config={"seq_pooling_type": "CLS", "use_activation": False})
    assert (changed.seq_pooling_type, changed.use_activation) == ("CLS", False)


@pytest.mark.parametrize(
    ("kinds", "mode", "words"),
    [
        (
            "Transformer Pooling Normalize",
            POOLING | {"pooling_mode_max_tokens": True},
            "pools by mean_tokens, max_tokens",
        ),
        ("Transformer Pooling", {"pooling_mode": ["mean", "max"]}, "pools by mean, max"),
        ("Transformer Pooling", {"pooling_mode": "median"}, "pools by median"),
        ("Transformer Pooling", {}, "pools by nothing"),
        ("Transformer Normalize Pooling", POOLING, "in this order"),
        ("WordEmbeddings Pooling", POOLING, "lists WordEmbeddings, Pooling"),
    ],
)
def test_modules_that_cannot_be_computed_are_refused(
    kinds: str, mode: Any, words: str, tmp_path: Path
) -> None:
    path = write_modules(tmp_path, kinds, Pooling=mode)
    with pytest.raises(UsageError, match=words) as caught:
        resolved(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    if "pools by" in words:
        assert pooling(path, pooler_config={"pooling_type": "MEAN"}).seq_pooling_type == "MEAN"


@pytest.mark.parametrize(
    ("stated", "kind", "counts"),
    [
        ({"pooling_mode_cls_token": True, "include_prompt": False}, "CLS", True),
        ({"pooling_mode_lasttoken": True, "include_prompt": False}, "LAST", True),
        ({"pooling_mode_mean_tokens": True, "include_prompt": False}, "MEAN", False),
        ({"pooling_mode_max_tokens": True}, "MAX_STATE", True),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "MEAN_SQRT", True),
        ({"pooling_mode_weightedmean_tokens": True}, "WEIGHTED_MEAN", True),
        ({"pooling_mode": ["weightedmean"]}, "WEIGHTED_MEAN", True),
    ],
)
def test_a_mode_of_sentence_transformers_is_a_kind_of_pooling(
    stated: dict[str, Any], kind: str, counts: bool, tmp_path: Path
) -> None:
    found = pooling(write_modules(tmp_path, "Transformer Pooling", Pooling=stated))
    assert (found.seq_pooling_type, found.counts_prompts) == (kind, counts)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"similarity_fn_name": "angular"}, "similarity_fn_name is 'angular', and scores are one"),
        ({"similarity_fn_name": 7}, "similarity_fn_name is 7"),
        ({"prompts": ["Q: "]}, "prompts are no texts by name"),
        ({"prompts": {"query": 1}}, "prompts are no texts by name"),
    ],
)
def test_sentences_that_cannot_be_scored_are_refused(
    stated: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = write_modules(tmp_path, "Transformer Pooling", Pooling=POOLING)
    (path / "config_sentence_transformers.json").write_text(json.dumps(stated))
    with pytest.raises(CheckpointError, match=words) as caught:
        resolved(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"pooling_type": "STEP", "step_tag_id": 5}, "tok_pooling_type", "STEP"),
        ({"pooling_type": "STEP", "returned_token_ids": [1, 0]}, "returned_token_ids", (1, 0)),
        ({"logit_mean": 0.5}, "logit_mean", 0.5),
        ({"logit_bias": 0.5}, "logit_mean", 0.5),
        ({"logit_scale": 4.0}, "logit_sigma", 0.25),
        ({"normalize": False}, "use_activation", False),
        ({"softmax": False}, "use_activation", False),
        ({"activation": True, "use_activation": False}, "use_activation", False),
        ({"task": "token_classify"}, "default_task", "token_classify"),
    ],
)
def test_options_win_over_the_checkpoint(
    given: dict[str, Any], field: str, value: Any, tmp_path: Path
) -> None:
    assert getattr(pooling(write_hf(tmp_path, **CLASSES), pooler_config=given), field) == value


def test_retired_keys_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    given = {"normalize": False}
    model = write_hf(tmp_path)
    assert not pooling(model, convert="embed", override_pooler_config=given).use_activation
    assert given == {"normalize": False}
    assert "--override-pooler-config is deprecated; use --pooler-config" in caplog.text
    assert "--pooler-config.normalize is deprecated; use --pooler-config.use_act" in caplog.text


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"runner": "generate", "convert": "embed"}, UsageError, "needs --runner pooling"),
        ({"pooler_config": {"logit_mean": 1.0}}, UsageError, "--pooler-config needs --runner"),
        ({"runner": "pooling", "convert": "none"}, UsageError, "--convert none"),
        ({"runner": "draft"}, NotInBuildError, "--runner draft .*--speculative-config.model MODEL"),
        (
            {
                "convert": "embed",
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
            },
            UsageError,
            "nothing to draft",
        ),
        ({"hf_overrides": {"is_causal": False}}, UsageError, "see later ones"),
    ],
)
def test_runners_and_conversions_that_do_not_fit_are_refused(
    options: dict[str, Any], kind: type[UsageError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words) as caught:
        resolved(write_hf(tmp_path), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seq_pooling_type": "MAX"}, "must be one of CLS, LAST, MEAN"),
        ({"pooling_type": "LAST", "tok_pooling_type": "ALL"}, "drop it"),
        ({"logit_sigma": 0}, "logits are divided by it"),
        ({"max_embed_len": 9}, "needs --pooler-config.enable_chunked"),
        ({"enable_chunked_processing": True}, "makes no vectors"),
        ({"dimensions": 8}, "dimensions 8: LlamaFor"),
        ({"step_tag_id": 1}, "need tok_pooling_type STEP"),
        ({"pooling_type": "STEP", "returned_token_ids": [2]}, "has 2 classes"),
        ({"pooling_type": "STEP", "step_tag_id": 10**6}, "none of the model's"),
        ({"task": "embed"}, "answers classify, token_classify"),
        ({"task": "plugin"}, "a task of the model's"),
        ({"pooling": "MEAN"}, "no key 'pooling'"),
    ],
)
def test_options_that_the_model_has_no_use_for_are_refused(
    given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        resolved(write_hf(tmp_path, **CLASSES), pooler_config=given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "count", "activation"),
    [
        ({}, 2, "softmax"),
        ({"num_labels": 3}, 3, "softmax"),
        ({"id2label": {"0": "bad", "1": "good", "2": "odd"}}, 3, "softmax"),
        ({"problem_type": "multi_label_classification"}, 2, "sigmoid"),
        ({"problem_type": "regression"}, 2, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity"}}, 2, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.Sigmoid"}, 2, "softmax"),
    ],
)
def test_classes_are_those_of_the_configuration(
    fields: dict[str, Any], count: int, activation: str, tmp_path: Path
) -> None:
    path = write_hf(tmp_path, **CLASSES)
    found = pooling(path, hf_overrides=fields)
    assert (found.num_labels, found.activation, found.score_type) == (count, activation, None)
    names = fields.get("id2label", {}).values()
    assert found.id2label == (tuple(names) or tuple(f"LABEL_{i}" for i in range(count)))


def test_classes_may_be_tokens_of_the_language_model(tmp_path: Path) -> None:
    path = write_hf(tmp_path)
    vocabulary = {"no": 3, "yes": 5, "Yes": 7}
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    two: dict[str, Any] = {"classifier_from_token": ["no", "yes"]}
    found = pooling(path, convert="classify", hf_overrides=two)
    assert (found.classifier_from_token, found.method) == ((3, 5), "from_2_way_softmax")
    assert (found.num_labels, found.score_type) == (1, "cross-encoder")
    one: dict[str, Any] = {"classifier_from_token": ["Yes"], "method": "no_post_processing"}
    found = pooling(path, convert="classify", hf_overrides=one)
    assert (found.classifier_from_token, found.num_labels) == ((7,), 1)
    for wrong, words in [
        ({"classifier_from_token": ["nein"]}, "nein is no token"),
        ({"method": "from_2_way_softmax"}, "needs classifier_from_token"),
        (one | {"method": "from_2_way_softmax"}, "needs classifier_from_token"),
        (two | {"method": "guess"}, "none of from_2_way"),
    ]:
        with pytest.raises(UsageError, match=words):
            pooling(path, convert="classify", hf_overrides=wrong)


def test_vectors_that_may_be_cut_say_to_which_sizes(tmp_path: Path) -> None:
    path, pool = write_hf(tmp_path), {"dimensions": 8}
    for fields in ({"is_matryoshka": True}, {"matryoshka_dimensions": [8, 16]}):
        found = pooling(path, runner="pooling", hf_overrides=fields, pooler_config=pool)
        assert found.is_matryoshka and found.dimensions == 8
    with pytest.raises(UsageError, match=r"dimensions 8: .* has vectors of 16, 64"):
        sizes = {"matryoshka_dimensions": [16]}
        pooling(path, runner="pooling", hf_overrides=sizes, pooler_config=pool)


def test_prompts_whose_tokens_see_later_ones_are_computed_whole(tmp_path: Path) -> None:
    path, both = write_hf(tmp_path, max_position_embeddings=4096), {"is_causal": False}
    config = resolved(path, runner="pooling", hf_overrides=both, max_num_batched_tokens=300)
    assert config.facts.pooling is not None and not config.facts.pooling.is_causal
    scheduler = config.scheduler
    assert not (scheduler.enable_chunked_prefill or config.cache.enable_prefix_caching)
    assert scheduler.step_tokens == config.model.max_model_len == 4096


def test_a_head_s_dtype_is_one_that_heads_have(tmp_path: Path) -> None:
    model = write_hf(tmp_path)
    assert (
        pooling(model, convert="embed", hf_overrides={"head_dtype": "model"}).head_dtype == "model"
    )
    assert resolved(model, hf_overrides={"head_dtype": "model"}).facts.pooling is None
    for kind, options, message in [
        ("float16", {"convert": "embed"}, "head_dtype float16 is none of model, float32"),
        ("float32", {}, "head_dtype float32 is for models that pool"),
    ]:
        with pytest.raises(UsageError, match=message):
            resolved(model, hf_overrides={"head_dtype": kind}, **options)
