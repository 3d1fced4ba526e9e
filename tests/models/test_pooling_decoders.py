"""Decoders that pool agree with transformers: vectors, classes, rewards, in both directions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.models.checkpoints import make_model, save
from vllm_lite import LLM, PoolingParams

# Thirty-two of mixed lengths; the first few are also computed alone.
LENGTHS = [(0, 40), (1, 5), (2, 1), (3, 17), (0, 44), (4, 64)]
LENGTHS += [(start, (5 * start * start + 3) % 47 + 1) for start in range(5, 31)]
PROMPTS = [[(7 * i * i + 3 * start) % 97 for i in range(length)] for start, length in LENGTHS]
NUM_ALONE = 6
COMMON: dict[str, Any] = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "disable_frontend_multiprocessing": True,
}
# Chunks of few tokens beside others', and all in one step.
TIGHT = {"block_size": 8, "max_num_batched_tokens": 16, "long_prefill_token_threshold": 5}
SCHEDULES: tuple[dict[str, Any], ...] = (TIGHT, {}, {"enforce_eager": True})
RAW = PoolingParams(use_activation=False)


def answers(
    path: Path,
    task: str,
    params: PoolingParams = RAW,
    given: list[list[int]] = PROMPTS,
    **options: Any,
) -> list[torch.Tensor]:
    """Those of the prompts, alone, in a batch and in chunks, which have the same bits."""
    seen = []
    for schedule in SCHEDULES:
        with LLM(str(path), **COMMON, **schedule, **options) as llm:
            prompts = [{"prompt_token_ids": ids} for ids in given]
            batch = llm.encode(prompts, params, use_tqdm=False, pooling_task=task)
            alone = [
                llm.encode(ids, params, use_tqdm=False, pooling_task=task)[0].outputs
                for ids in given[:NUM_ALONE]
            ]
            assert [output.outputs for output in batch[:NUM_ALONE]] == alone
            assert llm.get_stats().num_used_blocks == 0
            seen.append([output.outputs.data for output in batch])
    for other in seen[1:]:
        assert all(map(torch.equal, seen[0], other))
    return seen[0]


@torch.inference_mode()
def check(
    found: list[Tensor], want: Callable[[Tensor], Tensor], given: list[list[int]] = PROMPTS
) -> None:
    for ids, got in zip(given, found, strict=True):
        torch.testing.assert_close(got, want(torch.tensor([ids])).float(), atol=1e-4, rtol=1e-4)


def headed(family: str, name: str, **changes: Any) -> PreTrainedModel:
    """A random model with another head, whose numbers all matter."""
    base = make_model(family, **changes)
    torch.manual_seed(1)
    model = getattr(transformers, name)(base.config).eval()
    model.base_model.load_state_dict(base.base_model.state_dict())
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if "score" in part or "classifier" in part:
                parameter.normal_(0.0, 0.25)
    return model


@pytest.mark.parametrize("pooling", ["LAST", "MEAN", "CLS"])
def test_a_decoder_embeds_by_any_pooling(pooling: str, tmp_path: Path) -> None:
    model = make_model("qwen3")
    rows = {"LAST": lambda h: h[-1], "MEAN": lambda h: h.mean(0), "CLS": lambda h: h[0]}
    path = save(model, tmp_path)
    found = answers(path, "embed", convert="embed", pooler_config={"seq_pooling_type": pooling})
    check(found, lambda ids: rows[pooling](model.base_model(ids).last_hidden_state[0]))


@pytest.mark.parametrize(
    "name",
    [
        "LlamaForSequenceClassification",
        "Qwen3ForSequenceClassification",
        "GPT2ForSequenceClassification",
        "Gemma3TextForSequenceClassification",
        "Qwen2ForSequenceClassification",
        "Qwen2ForTokenClassification",
        "GPT2ForTokenClassification",
    ],
)
def test_a_head_for_classes_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    family = name.split("For")[0].lower().removesuffix("text")
    model = headed(family, name, num_labels=3, pad_token_id=0)
    path, is_whole = save(model, tmp_path), "Sequence" in name
    tokens = answers(path, "token_classify")
    if is_whole:
        check(answers(path, "classify"), lambda ids: tokens_of(model, ids)[-1])
        shares = answers(path, "classify", PoolingParams())
        check(shares, lambda ids: tokens_of(model, ids)[-1].softmax(-1))
    check(tokens, lambda ids: tokens_of(model, ids))


def tokens_of(model: Any, ids: Tensor) -> Tensor:
    """The logits of each token."""
    head = getattr(model, "score", None) or model.classifier
    logits: Tensor = head(model.base_model(ids).last_hidden_state)[0]
    return logits


def test_a_head_may_be_made_of_tokens(tmp_path: Path) -> None:
    vocabulary = {"model": {"vocab": {"no": 11, "yes": 42}}}
    for family, tied in (("qwen3", True), ("llama", False)):
        model = make_model(family, tie_word_embeddings=tied)
        path = save(model, tmp_path / family)
        (path / "tokenizer.json").write_text(json.dumps(vocabulary))
        overrides = {"classifier_from_token": ["no", "yes"]}
        two = answers(path, "classify", convert="classify", hf_overrides=overrides)
        check(two, lambda ids, m=model: (lambda x: x[[42]] - x[[11]])(m(ids).logits[0, -1]))
        shares = answers(
            path, "classify", PoolingParams(), convert="classify", hf_overrides=overrides
        )
        check(shares, lambda ids, m=model: m(ids).logits[0, -1, [11, 42]].softmax(-1)[1:])
        overrides |= {"method": "no_post_processing"}
        both = answers(path, "classify", convert="classify", hf_overrides=overrides)
        check(both, lambda ids, m=model: m(ids).logits[0, -1, [11, 42]])


def test_tensors_may_lack_the_models_root(tmp_path: Path) -> None:
    model = make_model("llama")
    path = save(model.base_model, tmp_path)
    assert json.loads((path / "config.json").read_text())["architectures"] == ["LlamaModel"]
    check(answers(path, "embed"), lambda ids: model.base_model(ids).last_hidden_state[0, -1])


def test_dense_layers_follow_the_pooling(tmp_path: Path) -> None:
    model = make_model("llama")
    path = save(model, tmp_path)
    size = model.config.hidden_size
    weight, bias = torch.randn(24, size), torch.randn(24)
    kinds = ["Transformer", "Pooling", "Dense", "Normalize"]
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}" if i else ""}
        for i, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    stated = {"in_features": size, "out_features": 24, "activation_function": "torch.nn.Tanh"}
    for folder, config in (("1_Pooling", {"pooling_mode": "mean"}), ("2_Dense", stated)):
        (path / folder).mkdir()
        (path / folder / "config.json").write_text(json.dumps(config))
    tensors = {"linear.weight": weight, "linear.bias": bias}
    save_file(tensors, path / "2_Dense" / "model.safetensors")

    def want(ids: Tensor) -> Tensor:
        mean = model.base_model(ids).last_hidden_state[0].mean(0)
        return torch.nn.functional.normalize(torch.tanh(weight @ mean + bias), dim=0)

    check(answers(path, "embed", PoolingParams()), want)


def weighted_mean(hidden: Tensor, num_before: int) -> Tensor:
    places = torch.arange(num_before + 1.0, num_before + len(hidden) + 1)
    return places @ hidden / places.sum()


MODES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda hidden, _: hidden.mean(0),
    "max": lambda hidden, _: hidden.amax(0),
    "mean_sqrt_len_tokens": lambda hidden, _: hidden.sum(0) / len(hidden) ** 0.5,
    "weightedmean": weighted_mean,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sees_later", [False, True], ids=["causal", "both directions"])
def test_sentence_transformers_pools_in_other_ways(
    sees_later: bool, mode: str, tmp_path: Path
) -> None:
    model = make_model("gemma3", use_bidirectional_attention=sees_later)
    path = save(model.base_model, tmp_path)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"type": f"sentence_transformers.models.{k}", "path": p} for p, k in kinds.items()]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
    # Six tokens are more than the first chunk has.
    for num_out in (0, 6):
        given = [ids for ids in PROMPTS if len(ids) > num_out]
        params = PoolingParams(use_activation=False, num_uncounted_tokens=num_out)

        def want(ids: Tensor, num_out: int = num_out) -> Tensor:
            return MODES[mode](model.base_model(ids).last_hidden_state[0, num_out:], num_out)

        check(answers(path, "embed", params, given), want, given)


# Windows whose half holds a whole prompt: transformers takes none beside a mask.
SEEING_ALL: dict[str, dict[str, Any]] = {
    "LlamaBidirectionalModel": {},
    "Qwen2Model": {},
    "MistralModel": {"sliding_window": None},
    "Phi3Model": {"sliding_window": None},
    "Gemma2Model": {"sliding_window": 128},
    "Gemma3TextModel": {"use_bidirectional_attention": True},
}


@pytest.mark.parametrize("kind", SEEING_ALL)
def test_tokens_may_see_later_ones(kind: str, tmp_path: Path) -> None:
    family = kind.lower().split("bidirectional")[0].removesuffix("model").removesuffix("text")
    is_told = kind in ("LlamaBidirectionalModel", "Gemma3TextModel")
    model = make_model(family, **SEEING_ALL[kind])
    path = save(model.base_model, tmp_path)
    config = json.loads((path / "config.json").read_text()) | {"architectures": [kind]}
    if not is_told:
        config["is_causal"] = False
    (path / "config.json").write_text(json.dumps(config))

    def hidden(ids: Tensor) -> Tensor:
        mask = None if family == "gemma3" else torch.zeros(1, 1, ids.shape[1], ids.shape[1])
        last: Tensor = model.base_model(ids, attention_mask=mask).last_hidden_state[0]
        return last

    check(answers(path, "token_embed"), hidden)
    rows = (lambda h: h.mean(0)) if is_told else (lambda h: h[-1])
    check(answers(path, "embed"), lambda ids: rows(hidden(ids)))


def with_tensors(path: Path, architecture: str, tensors: dict[str, Tensor], **config: Any) -> Path:
    """The checkpoint at `path` under another name, with further tensors for its head."""
    weights = load_file(path / "model.safetensors")
    weights = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    save_file(weights | tensors, path / "model.safetensors")
    stated = json.loads((path / "config.json").read_text())
    stated |= {"architectures": [architecture], **config}
    (path / "config.json").write_text(json.dumps(stated))
    return path


@pytest.mark.parametrize("count", [1, 2])
def test_rewards_are_of_each_token_or_of_steps(count: int, tmp_path: Path) -> None:
    model = make_model("qwen2")
    size = model.config.hidden_size
    torch.manual_seed(0)
    first, second = torch.nn.Linear(size, size), torch.nn.Linear(size, count)
    tensors = {
        f"score.{place}.{name}": tensor.detach()
        for place, layer in ((0, first), (2, second))
        for name, tensor in layer.named_parameters()
    }
    name = "Qwen2ForRewardModel" if count == 1 else "Qwen2ForProcessRewardModel"
    path = with_tensors(save(model, tmp_path), name, tensors)

    def want(ids: Tensor) -> Tensor:
        return second(torch.relu(first(model.base_model(ids).last_hidden_state[0])))

    check(answers(path, "token_classify"), want)
    if count == 2:
        tag = {"step_tag_id": PROMPTS[0][3]}
        steps = answers(path, "token_classify", PoolingParams(), pooler_config=tag)
        check(steps, lambda ids: want(ids)[ids[0] == PROMPTS[0][3]].softmax(-1))
        good = PoolingParams(use_activation=False, step_tag_id=3, returned_token_ids=[1])
        check(answers(path, "token_classify", good), lambda ids: want(ids)[ids[0] == 3][:, 1:])


def test_inputs_beyond_the_context_are_embedded_in_parts(tmp_path: Path) -> None:
    path = save(make_model("llama"), tmp_path)
    given = [i * i % 97 for i in range(150)]
    chunked = {"enable_chunked_processing": True, "max_embed_len": 150}
    with LLM(str(path), **COMMON, convert="embed", pooler_config=chunked) as llm:
        long = llm.embed({"prompt_token_ids": given}, use_tqdm=False)[0]
        parts = [given[i : i + 64] for i in range(0, 150, 64)]
        vectors = [llm.embed(part, use_tqdm=False)[0].outputs.embedding for part in parts]
        with pytest.raises(ValueError, match=r"in parts 150 .* prompt has 151"):
            llm.embed([1] * 151)
    mean = torch.tensor(vectors).T @ torch.tensor([64.0, 64.0, 22.0])
    assert long.prompt_token_ids == given
    torch.testing.assert_close(
        torch.tensor(long.outputs.embedding), torch.nn.functional.normalize(mean, dim=0)
    )


def test_vectors_are_cut_to_the_size_asked_for(tmp_path: Path) -> None:
    path = save(make_model("llama"), tmp_path)
    sizes = {"matryoshka_dimensions": [8, 16]}
    with LLM(str(path), **COMMON, convert="embed", hf_overrides=sizes) as llm:
        whole = torch.tensor(llm.embed([1, 2], RAW, use_tqdm=False)[0].outputs.embedding)
        cut = llm.embed([1, 2], PoolingParams(dimensions=8), use_tqdm=False)[0].outputs
        want = torch.nn.functional.normalize(whole[:8], dim=0)
        torch.testing.assert_close(torch.tensor(cut.embedding), want)
        with pytest.raises(ValueError, match=r"dimensions is 9; this model has 8, 16"):
            llm.embed([1, 2], PoolingParams(dimensions=9))
