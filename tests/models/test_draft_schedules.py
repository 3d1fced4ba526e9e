"""No method of drafting changes what is told of any request, however its steps are scheduled."""

from __future__ import annotations

import json
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_hf
from tests.models.checkpoints import make_model
from tests.models.test_async_scheduling import GRAPHS, KINDS, on_stand_in, serve, told
from tests.models.test_draft_methods import HEAD, Repeater
from tests.models.test_drafts import LOOPS
from vllm_lite import LLM
from vllm_lite.worker.worker import Worker

METHODS = ["ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mtp", "custom_class"]
# Of each, the second of two rounds has warm prefixes.
SCHEDULES: dict[str, dict[str, Any]] = {
    "in chunks of 16": {"max_num_seqs": 6, "max_num_batched_tokens": 16},
    "preempted": {"max_num_seqs": 6, "num_gpu_blocks_override": 14},
    "32 at once": {"max_num_seqs": 32, "max_num_batched_tokens": 64},
}
ONE_BY_ONE: dict[str, Any] = {"max_num_seqs": 1, "enable_prefix_caching": False}
PARAMS = list(islice(cycle(KINDS + LOOPS), 30))
PROMPTS = [
    {"prompt_token_ids": [7 + (start // 3 * 5 + i * (1 + start % 4)) % 90 for i in range(length)]}
    for start, length in zip(range(30), cycle((5, 40, 1, 17, 33, 23, 8)), strict=False)
]


# Any two of a method, a schedule and whether steps run ahead; the other runs are slow ones.
RUNS = [
    pytest.param(
        method,
        schedule,
        ahead,
        id=f"{method}-{schedule}-{'ahead' if ahead else 'in turn'}",
        marks=() if (i + j + ahead) % 2 else pytest.mark.slow,
    )
    for i, method in enumerate(METHODS)
    for j, schedule in enumerate(SCHEDULES)
    for ahead in (False, True)
]


def run(model: str, **options: Any) -> tuple[Any, Any]:
    """Everything told of each request, round by round, and the statistics after them."""
    settings = {"dtype": "float32", "max_model_len": 64, "load_format": "dummy", "seed": 1}
    settings |= {"skip_tokenizer_init": True, "block_size": 8, "num_gpu_blocks_override": 400}
    settings |= {"disable_frontend_multiprocessing": True, "max_num_batched_tokens": 24}
    with LLM(model, **(settings | options)) as llm:
        rounds = [llm.generate(PROMPTS, PARAMS, use_tqdm=False) for _ in range(2)]
        return [[told(output) for output in outputs] for outputs in rounds], llm.get_stats()


@cache
def plain(model: str) -> Any:
    """Everything told of each request without drafts."""
    return run(model, **ONE_BY_ONE)[0]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, Any]]]:
    """A model and the options of each method; all weights are random."""
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
    target, layered = str(write_hf(folder / "target")), str(save_layered(folder / "layered"))
    table = [[1, 3, 3], [4, 64, 2]]
    given = {"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": table}
    return {
        method: (
            layered if method == "mtp" else target,
            {"method": method, "model": models.get(method), **given},
        )
        for method in METHODS
    }


def save_layered(folder: Path) -> Path:
    """A description of a model with a layer that predicts further tokens."""
    settings = {"vocab_size": 100, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1}
    config = make_model("deepseek_v3", **settings).config
    config.architectures = ["DeepseekV3ForCausalLM"]
    config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("method", "schedule", "ahead"), RUNS)
def test_no_draft_changes_any_output(
    cases: dict[str, Any], method: str, schedule: str, ahead: bool
) -> None:
    model, drafts = cases[method]
    options = {"speculative_config": drafts, "async_scheduling": ahead, **SCHEDULES[schedule]}
    outputs, stats = run(model, **options)
    assert outputs == plain(model)
    assert stats.spec_decoding.num_draft_tokens > (10 if method == "ngram" else 300)
    assert stats.num_used_blocks == 0
    assert (stats.num_preemptions > 0) == (schedule == "preempted")
    assert stats.prefix_cache_hits > 0 or schedule == "preempted"


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa"])
def test_a_device_takes_heads_too(cases: dict[str, Any], method: str, ahead: bool) -> None:
    model, drafts = cases[method]
    options = {"speculative_config": drafts, "async_scheduling": ahead, **GRAPHS}
    assert serve(model, on_stand_in, **options) == serve(model, Worker)
