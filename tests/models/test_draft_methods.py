"""Further methods of drafting: classes of the user's own, drafts kept by chance, speculators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import write_hf
from tests.models.checkpoints import make_model
from tests.models.test_drafts import run
from vllm_lite import LLM, SamplingParams
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import UsageError

ALL = {"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 64, 3]]}
HEAD = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


class Repeater:
    """Drafts the last token again, and at times what no vocabulary has."""

    def __init__(self, config: Any) -> None:
        self.num_calls = 0

    def propose(
        self, newest: list[list[int]], num_tokens: np.ndarray, token_ids: np.ndarray
    ) -> list[list[int]]:
        self.num_calls += 1
        for ids, count, row in zip(newest, num_tokens, token_ids, strict=True):
            assert ids[-1] == row[count - 1]
        beyond = [100] if self.num_calls % 3 == 0 else []
        return [ids[-1:] + beyond + ids[-1:] * 4 for ids in newest]


class Nothing:
    """No drafter."""

    def __init__(self, config: Any) -> None: ...


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_class_of_ones_own_drafts(model: str, ahead: bool) -> None:
    drafts = {"method": "custom_class", "model": f"{__name__}.Repeater"}
    outputs, stats = run(model, async_scheduling=ahead, speculative_config=ALL | drafts)
    assert outputs == run(model)[0]
    assert stats is not None and 0 < stats.num_accepted_tokens < stats.num_draft_tokens


@pytest.mark.parametrize(
    ("name", "method"), [("ngram", "ngram"), ("[ngram]", "ngram"), ("some.Class", "custom_class")]
)
def test_names_of_no_models_are_methods(model: str, name: str, method: str) -> None:
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "spec_tokens": 2}
    config = EngineArgs(model=model, spec_model=name, **options).create_engine_config()
    assert (config.speculative.method, config.draft) == (method, None)


@pytest.mark.parametrize("ahead", [False, True])
def test_drafts_are_kept_by_chance(model: str, ahead: bool) -> None:
    chance = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1.0, 0.5, 0.5]}
    drafts = {"method": "custom_class", "model": f"{__name__}.Repeater"}
    options = {"dtype": "float32", "load_format": "dummy", "skip_tokenizer_init": True}
    with LLM(
        model,
        **options,
        async_scheduling=ahead,
        disable_frontend_multiprocessing=True,
        speculative_config=ALL | drafts | chance,
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": [4, 5, 6]}], params, use_tqdm=False)
        stats = llm.get_stats().spec_decoding
    assert len(output.outputs[0].token_ids) == 300 and stats is not None
    first, second, third = stats.num_accepted_tokens_per_pos
    assert first > 0.97 * stats.num_drafts  # but where the text ends
    assert 0.3 < second / first < 0.7 and third <= second


def speculator(folder: Path, target: str, kind: str = "eagle3") -> str:
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.3.0",
        "draft_vocab_size": 100,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 1],
        "transformer_layer_config": {**HEAD, "model_type": "llama", "rope_theta": 5000.0},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": target, "architectures": ["LlamaForCausalLM"]},
        },
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_speculator_is_served_with_the_model_that_it_drafts_for(
    model: str, tmp_path: Path
) -> None:
    draft = speculator(tmp_path / "head", model)
    options = {"load_format": "dummy", "skip_tokenizer_init": True}
    args = EngineArgs(model=draft, **options)
    config = args.create_engine_config()
    assert (config.facts.path, config.speculative.method) == (model, "eagle3")
    assert config.speculative.num_drafts == 3 and config.draft is not None
    assert config.draft.hf_config["rope_parameters"]["rope_theta"] == 5000.0
    assert config.draft.hf_config["norm_before_residual"] is True
    assert config.model.served_model_name == [draft]
    outputs, stats = run(draft)
    assert outputs == run(model)[0] and stats is not None
    named, _ = run(model, speculative_config={"model": draft})
    assert named == outputs


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "mlp_speculator", "model": "x"}, "method mlp_speculator is not available"),
        ({"method": "dflash", "model": "x"}, "method dflash is not available"),
        ({"method": "dspark"}, "method dspark is not available"),
        ({"method": "extract_hidden_states"}, "drafts nothing"),
        ({"method": "custom_class"}, "has no model; .* a Python class"),
        ({"method": "mtp"}, "no such layers of LlamaForCausalLM"),
        ({"method": "qwen3_next_mtp"}, "no such layers of LlamaForCausalLM"),
        ({"method": "eagle"}, "method eagle has no model"),
        ({"method": "ngram", "synthetic_acceptance_length": 2.0}, "belongs to rejection_sample"),
        (
            {"method": "ngram", "rejection_sample_method": "synthetic"},
            "_rates or .*_length, and only one",
        ),
        (
            {
                "method": "ngram",
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": [0.2, 0.4],
            },
            "set it to 2 numbers",
        ),
        (
            {
                "method": "ngram",
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": 9.0,
            },
            "is more than 3 tokens",
        ),
    ],
)
def test_methods_are_refused_in_one_line(model: str, given: dict[str, Any], words: str) -> None:
    drafts = {"num_speculative_tokens": 2} | given
    args = EngineArgs(
        model=model, speculative_config=drafts, load_format="dummy", skip_tokenizer_init=True
    )
    with pytest.raises(UsageError, match=words) as caught:
        args.create_engine_config()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["qwen3_next_mtp", "mtp", "ngram", "draft_model", None])
def test_a_model_with_states_refuses_drafts(model: str, tmp_path: Path, method: str | None) -> None:
    make_model("qwen3_next").config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["Qwen3NextForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    drafts = {"method": method, "num_speculative_tokens": 2}
    if method in ("draft_model", None):
        drafts["model"] = model
    options = {"load_format": "dummy", "skip_tokenizer_init": True}
    args = EngineArgs(model=str(tmp_path), speculative_config=drafts, **options)
    words = "--speculative-config: Qwen3NextForCausalLM has states, from which a wrong draft cannot"
    with pytest.raises(UsageError, match=words) as caught:
        args.create_engine_config()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere.Drafter", "names no class"),
        (f"{__name__}.Missing", "names no class"),
        (f"{__name__}.Nothing", "has no method propose"),
        ("plain", "names no class"),
    ],
)
def test_classes_are_refused_in_one_line(model: str, path: str, words: str) -> None:
    drafts = {"method": "custom_class", "model": path, "num_speculative_tokens": 2}
    with pytest.raises(UsageError, match=words) as caught:
        run(model, speculative_config=drafts)
    assert "\n" not in str(caught.value)


def test_heads_of_other_models_are_refused(model: str, tmp_path: Path) -> None:
    other = write_hf(tmp_path / "other", architectures=["EagleLlamaForCausalLM"], vocab_size=96)
    medusa = write_hf(tmp_path / "medusa", model_type="medusa", hidden_size=32, num_heads=2)
    wrong = speculator(tmp_path / "wrong", model, "mtp")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"speculators_config": {}}')
    layers = write_hf(
        tmp_path / "layers", draft_vocab_size=100, eagle_aux_hidden_state_layer_ids=[0, 1, 7]
    )
    for draft, words in [
        (other, "whose vocab_size is 96, and that of .* is 100"),
        (medusa, "whose hidden_size is 32"),
        (wrong, "speculator of the kind mtp"),
        (broken, "has no verifier"),
        (layers, r"\[0, 1, 7\], and not 3 of the model's 2 layers"),
    ]:
        with pytest.raises(UsageError, match=words):
            run(model, speculative_config={"model": str(draft), "num_speculative_tokens": 2})
