"""No method of drafting changes what is told of any request, however its steps are scheduled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_hf
from tests.models.checkpoints import make_model
from tests.models.test_async_scheduling import GRAPHS, on_stand_in, serve
from tests.models.test_draft_methods import HEAD, Repeater
from tests.models.test_drafts import run
from vllm_lite.worker.worker import Worker

METHODS = ["ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "custom_class"]
SCHEDULES: dict[str, dict[str, Any]] = {
    "in chunks": {"max_num_batched_tokens": 16},
    "in chunks, ahead": {"max_num_batched_tokens": 16, "async_scheduling": True},
    "preempted": {"num_gpu_blocks_override": 14},
    "preempted, ahead": {"num_gpu_blocks_override": 14, "async_scheduling": True},
    "one by one": {"max_num_seqs": 1, "enable_prefix_caching": False},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def plain(model: str) -> list[Any]:
    return run(model)[0]


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The options of each method; heads have random weights."""
    folder = tmp_path_factory.mktemp("heads")
    configs = {
        "draft_model": {"architectures": ["LlamaForCausalLM"], **HEAD, "hidden_size": 32},
        "eagle": {"architectures": ["LlamaForCausalLM"], **HEAD},
        "eagle3": {
            "architectures": ["LlamaForCausalLMEagle3"],
            "eagle_aux_hidden_state_layer_ids": [0, 1, 1],
            "draft_vocab_size": 100,
            **HEAD,
        },
        "medusa": {"hidden_size": 64, "vocab_size": 100, "num_heads": 3},
    }
    for name, config in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    models = {name: str(folder / name) for name in configs}
    models["custom_class"] = f"{Repeater.__module__}.Repeater"
    return {
        method: {
            "method": method,
            "model": models.get(method),
            "num_speculative_tokens": 3,
            "num_speculative_tokens_per_batch_size": [[1, 3, 3], [4, 64, 2]],
        }
        for method in METHODS
    }


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", METHODS)
def test_no_draft_changes_any_output(
    model: str, plain: list[Any], drafts: dict[str, Any], method: str, schedule: str
) -> None:
    outputs, stats = run(model, speculative_config=drafts[method], **SCHEDULES[schedule])
    assert outputs == plain
    assert stats is not None and stats.num_draft_tokens > (10 if method == "ngram" else 100)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_further_layer_changes_any_output(schedule: str, tmp_path: Path) -> None:
    settings = {"vocab_size": 100, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1}
    config = make_model("deepseek_v3", **settings).config
    config.architectures = ["DeepseekV3ForCausalLM"]
    config.save_pretrained(tmp_path)
    given = {"method": "mtp", "num_speculative_tokens": 3}
    given["num_speculative_tokens_per_batch_size"] = [[1, 64, 3]]
    path = str(tmp_path)
    outputs, stats = run(path, speculative_config=given, **SCHEDULES[schedule])
    assert outputs == run(path)[0]
    assert stats is not None and stats.num_draft_tokens > 100


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa"])
def test_a_device_takes_heads_too(
    model: str, drafts: dict[str, Any], method: str, ahead: bool
) -> None:
    options = {"speculative_config": drafts[method], "async_scheduling": ahead, **GRAPHS}
    assert serve(model, on_stand_in, **options) == serve(model, Worker)
