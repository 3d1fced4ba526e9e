"""A second model drafts: the text is the same, and its cache is whole, whatever the schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_hf
from tests.models.test_async_scheduling import EAGER, GRAPHS, KINDS, PROMPTS, on_stand_in, serve
from tests.models.test_drafts import run
from vllm_lite import LLM, SamplingParams
from vllm_lite.config.draft import draft_config
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import UsageError
from vllm_lite.worker.worker import Worker

ALL = {"num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": [[1, 64, 4]]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another model with the same vocabulary; its words are seldom the same."""
    folder = tmp_path_factory.mktemp("small")
    shape = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    return str(write_hf(folder, num_hidden_layers=1, **shape))


@pytest.fixture(scope="module")
def plain(model: str) -> list[Any]:
    return run(model)[0]


SCHEDULES: dict[str, dict[str, Any]] = {
    "roomy": {},
    "tight": {"num_gpu_blocks_override": 14},
    "chunks": {"enable_prefix_caching": False, "max_num_batched_tokens": 9},
    "eager": {"enforce_eager": True},
}
# Any two of a draft model, a schedule and whether steps run ahead; the other runs are slow ones.
RUNS = [
    pytest.param(drafts, schedule, ahead, marks=() if (i + j + ahead) % 2 else pytest.mark.slow)
    for i, drafts in enumerate(("itself", "small"))
    for j, schedule in enumerate(SCHEDULES)
    for ahead in (False, True)
]


@pytest.mark.parametrize(("drafts", "schedule", "ahead"), RUNS)
def test_a_draft_model_changes_no_output(
    model: str, small: str, plain: list[Any], drafts: str, schedule: str, ahead: bool
) -> None:
    options = SCHEDULES[schedule]
    given = ALL | {"method": "draft_model", "model": model if drafts == "itself" else small}
    outputs, stats = run(model, async_scheduling=ahead, speculative_config=given, **options)
    assert outputs == plain
    assert stats is not None and stats.num_accepted_tokens < stats.num_draft_tokens


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_gpu_blocks_override": 20},
        {"max_num_batched_tokens": 9},
        {"speculative_table": None},
        {"speculative_table": [[1, 2, 4], [3, 4, 0], [5, 64, 1]]},
    ],
    ids=["roomy", "tight", "chunks", "automatic", "table"],
)
def test_a_model_that_drafts_for_itself_is_never_wrong(model: str, options: dict[str, Any]) -> None:
    """Its keys and values would differ if one were missing, or another's."""
    table = options.pop("speculative_table", [[1, 64, 4]])
    drafts = {"model": model, "num_speculative_tokens": 4}
    drafts["num_speculative_tokens_per_batch_size"] = table
    settings = {"dtype": "float32", "max_model_len": 128, "load_format": "dummy", "seed": 1}
    settings |= {"skip_tokenizer_init": True, "block_size": 8, "max_num_batched_tokens": 24}
    settings |= {"disable_frontend_multiprocessing": True, "max_num_seqs": 6}
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(model, **(settings | options), speculative_config=drafts) as llm:
        for _ in range(2):  # the second time from the prefix cache
            told = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], greedy)
            told = [
                {"prompt_token_ids": one.prompt_token_ids + list(one.outputs[0].token_ids)}
                for one in told
            ]
            llm.generate(told, greedy)
        stats = llm.get_stats().spec_decoding
    # What it costs is as much as it saves.
    assert stats is not None and stats.num_draft_tokens > (0 if table is None else 400)
    assert stats.num_accepted_tokens == stats.num_draft_tokens


WINDOWS = {
    "every layer": {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
    "one layer": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "max_window_layers": 1,
    },
}


@pytest.mark.parametrize("layers", WINDOWS)
def test_windows_hold_both_models(layers: str, tmp_path: Path) -> None:
    """Blocks that windows leave are released, though the draft model may be behind."""
    path = str(write_hf(tmp_path, sliding_window=12, **WINDOWS[layers]))
    outputs, stats = run(path, speculative_config=ALL | {"model": path}, max_model_len=128)
    assert outputs == run(path, max_model_len=128)[0]
    greedy = SamplingParams(temperature=0, max_tokens=70, ignore_eos=True)
    settings = {"dtype": "float32", "load_format": "dummy", "skip_tokenizer_init": True}
    settings |= {"block_size": 8, "disable_frontend_multiprocessing": True}
    with LLM(path, **settings, speculative_config=ALL | {"model": path}) as llm:
        llm.generate([{"prompt_token_ids": [5, 6, 7, 8] * 9}], greedy, use_tqdm=False)
        stats = llm.get_stats().spec_decoding
    assert stats is not None and stats.num_accepted_tokens == stats.num_draft_tokens > 40


@pytest.mark.parametrize("graphs", [EAGER, GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_device_takes_a_draft_model_too(
    model: str, small: str, graphs: dict[str, Any], ahead: bool
) -> None:
    given = ALL | {"model": small}
    drafted = serve(model, on_stand_in, speculative_config=given, async_scheduling=ahead, **graphs)
    assert drafted == serve(model, Worker)


def test_nothing_is_drafted_beyond_the_draft_models_context(model: str, small: str) -> None:
    outputs, stats = run(model, speculative_config=ALL | {"model": small, "max_model_len": 40})
    assert outputs == run(model)[0] and stats is not None


def save_tokenizer(folder: str, texts: list[str]) -> None:
    vocab = {text: number for number, text in enumerate(texts)}
    written = {"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": []}
    Path(folder, "tokenizer.json").write_text(json.dumps(written))


def test_a_draft_model_is_loaded_as_it_is_told(model: str, small: str) -> None:
    given = {"model": small, "num_speculative_tokens": 2, "quantization": "int8"}
    given |= {"draft_load_config": {"load_format": "dummy"}, "max_model_len": 100}
    args = EngineArgs(model=model, speculative_config=given, skip_tokenizer_init=True)
    config = draft_config(args.create_engine_config())
    assert (config.facts.path, config.model.quantization) == (small, "int8")
    assert (config.load.load_format, config.model.max_model_len) == ("dummy", 100)
    assert config.speculative.num_drafts == 0 and config.draft is None


def test_flags_name_a_draft_model(model: str, small: str) -> None:
    options = {"spec_model": small, "spec_tokens": 2, "load_format": "dummy"}
    config = EngineArgs(model=model, **options, skip_tokenizer_init=True).create_engine_config()
    assert config.speculative.method == "draft_model" and config.draft is not None
    assert config.draft.path == small


def test_vocabularies_are_compared(model: str, tmp_path: Path) -> None:
    target, draft = (str(write_hf(tmp_path / name)) for name in ("target", "draft"))
    save_tokenizer(target, ["a", "b", "c"])
    for texts, words in [(["a", "b", "c"], None), (["a", "c", "b"], "its token 1 is 'c'.*'b'")]:
        save_tokenizer(draft, texts)
        given = {"model": draft, "num_speculative_tokens": 2}
        args = EngineArgs(model=target, speculative_config=given, load_format="dummy")
        if words is None:
            assert args.create_engine_config().draft is not None
            continue
        with pytest.raises(UsageError, match=words):
            args.create_engine_config()


def test_rows_that_are_no_tokens_may_differ_in_number(model: str, tmp_path: Path) -> None:
    """Padding of vocabularies, whose tokenizers agree."""
    target, draft = str(write_hf(tmp_path / "target")), str(write_hf(tmp_path / "d", vocab_size=96))
    for folder in (target, draft):
        save_tokenizer(folder, [f"t{i}" for i in range(90)])
    for one, other in [(target, draft), (draft, target)]:
        given = ALL | {"model": other}
        prompts = [ids for ids in PROMPTS if max(ids) < 90]
        settings = {"dtype": "float32", "max_model_len": 64, "load_format": "dummy", "seed": 1}
        settings |= {"skip_tokenizer_init": True, "disable_frontend_multiprocessing": True}
        told = []
        for options in ({}, {"speculative_config": given}):
            with LLM(one, **settings, **options) as llm:
                kinds = [kind for kind in KINDS if not kind.n > 1][: len(prompts)]
                told.append(llm.generate([{"prompt_token_ids": ids} for ids in prompts], kinds[0]))
        assert [o.outputs[0].token_ids for o in told[0]] == [
            o.outputs[0].token_ids for o in told[1]
        ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "draft_model"}, "method draft_model has no model"),
        ({"model": "no/such/place/"}, "No model at 'no/such/place/'"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be at least 1"),
        ({"num_speculative_tokens": 1000}, "num_speculative_tokens must be .*at most 64"),
        ({"num_speculative_tokens": None}, "has no num_speculative_tokens"),
        ({"use_heterogeneous_vocab": True}, "same vocabulary"),
        ({"parallel_drafting": True}, "one after another"),
        ({"draft_tensor_parallel_size": 2}, "divided as the model is; set it to 1"),
        ({"draft_sample_method": "probabilistic"}, "draft_sample_method probabilistic"),
        ({"draft_load_config": {"format": "pt"}}, "draft_load_config has no key 'format'"),
    ],
)
def test_a_draft_model_is_refused_in_one_line(
    model: str, small: str, given: dict[str, Any], words: str
) -> None:
    whole = {"model": small, "num_speculative_tokens": 2} | given
    if "method" in given:
        del whole["model"]
    args = EngineArgs(
        model=model, speculative_config=whole, load_format="dummy", skip_tokenizer_init=True
    )
    with pytest.raises(UsageError, match=words) as caught:
        args.create_engine_config()
    assert "\n" not in str(caught.value)


def test_a_draft_model_of_another_vocabulary_or_with_states_is_refused(
    model: str, tmp_path: Path
) -> None:
    other = str(write_hf(tmp_path / "other", vocab_size=96))
    states = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "state_size": 16}
    mamba = str(write_hf(tmp_path / "mamba", **states, num_heads=4, head_dim=32, n_groups=1))
    for draft, words in [(other, "it has 96 tokens, and the model 100"), (mamba, "keep states")]:
        given = {"model": draft, "num_speculative_tokens": 2}
        args = EngineArgs(model=model, speculative_config=given, load_format="dummy")
        with pytest.raises(UsageError, match=words):
            args.create_engine_config()
