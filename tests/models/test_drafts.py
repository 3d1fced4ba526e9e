"""Drafts change how many tokens a step gives, and nothing that is told of any request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints import write_hf
from tests.models.byte_model import save_byte_model
from tests.models.test_async_scheduling import (
    EAGER,
    GRAPHS,
    KINDS,
    PROMPTS,
    on_stand_in,
    serve,
    told,
)
from tests.unit.structured_output.shared_pools import shared_pools
from vllm_lite import LLM, SamplingParams
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import NotInBuildError, UsageError
from vllm_lite.metrics.stats import SpecDecodingStats
from vllm_lite.sample.penalties import SeenTokens
from vllm_lite.sampling_params import StructuredOutputsParams
from vllm_lite.spec_decode.ngram import NgramDrafter
from vllm_lite.spec_decode.suffix import SuffixDrafter
from vllm_lite.worker.worker import Worker

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
DRAFTS["prompt_lookup_max"] = 3
# As many as there are, whatever they cost.
DRAFTS["num_speculative_tokens_per_batch_size"] = [[1, 64, 4]]
SUFFIX = {"method": "suffix", "num_speculative_tokens": 4}
# Greedy ones fall into loops, which drafts foresee; whatever depends on the tokens before is here.
LOOPS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1),
    SamplingParams(temperature=0, max_tokens=23, min_tokens=9, frequency_penalty=0.02),
    SamplingParams(temperature=0.05, seed=4, max_tokens=24, repetition_penalty=1.01),
    SamplingParams(temperature=0, max_tokens=24, stop_token_ids=list(range(20)), min_tokens=12),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf(tmp_path_factory.mktemp("tiny")))


def run(model: str, **options: Any) -> tuple[list[Any], SpecDecodingStats | None]:
    settings = {"dtype": "float32", "max_model_len": 64, "load_format": "dummy", "seed": 1}
    settings |= {"skip_tokenizer_init": True, "block_size": 8, "max_num_batched_tokens": 24}
    settings |= {"disable_frontend_multiprocessing": True, "max_num_seqs": 6}
    with LLM(model, **(settings | options)) as llm:
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS + PROMPTS[:4]]
        outputs = [llm.generate(prompts, KINDS + LOOPS, use_tqdm=False) for _ in range(2)]
        stats = llm.get_stats()
        assert stats.num_used_blocks == 0
        return [told(o) for told_of in outputs for o in told_of], stats.spec_decoding


@pytest.fixture(scope="module")
def plain(model: str) -> list[Any]:
    outputs, stats = run(model)
    assert stats is None
    return outputs


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_gpu_blocks_override": 14},
        {"enable_prefix_caching": False, "max_num_batched_tokens": 9},
    ],
    ids=["roomy", "tight", "chunks"],
)
def test_drafts_change_no_output(
    model: str, plain: list[Any], ahead: bool, options: dict[str, Any]
) -> None:
    outputs, stats = run(model, async_scheduling=ahead, speculative_config=DRAFTS, **options)
    assert outputs == plain
    assert stats is not None and 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    assert len(stats.num_accepted_tokens_per_pos) == 4
    assert stats.num_drafts < stats.num_draft_tokens <= 4 * stats.num_drafts


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("table", [None, [[1, 2, 3], [3, 64, 1]]], ids=["automatic", "table"])
def test_suffix_drafts_change_no_output(
    model: str, plain: list[Any], ahead: bool, table: list[list[int]] | None
) -> None:
    drafts = SUFFIX | ({} if table is None else {"num_speculative_tokens_per_batch_size": table})
    outputs, stats = run(model, async_scheduling=ahead, speculative_config=drafts)
    assert outputs == plain
    # The second round repeats what the first one generated.
    assert stats is not None and stats.num_accepted_tokens > 0


@pytest.mark.parametrize("graphs", [EAGER, GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_device_takes_drafts_too(model: str, graphs: dict[str, Any], ahead: bool) -> None:
    drafted = serve(model, on_stand_in, speculative_config=DRAFTS, async_scheduling=ahead, **graphs)
    assert drafted == serve(model, Worker)


@pytest.mark.parametrize("level", ["none", "summary", "detailed"])
def test_choices_count_their_drafts(model: str, level: str) -> None:
    settings: dict[str, Any] = {"max_model_len": 64, "load_format": "dummy", "seed": 1}
    settings |= {"skip_tokenizer_init": True, "disable_frontend_multiprocessing": True}
    settings |= {"speculative_config": DRAFTS, "per_request_spec_decode_metrics": level}
    with LLM(model, **settings) as llm:
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS + PROMPTS[:4]]
        outputs = llm.generate(prompts, KINDS + LOOPS, use_tqdm=False)
        stats = llm.get_stats().spec_decoding
    counted = [choice.spec_decode_metrics for output in outputs for choice in output.outputs]
    if level == "none":
        assert set(counted) == {None}
        return
    told = [one.to_dict() for one in counted if one is not None]
    assert len(told) == len(counted) and stats is not None
    assert sum(one["num_spec_steps"] for one in told) == stats.num_drafts > 0
    assert sum(one["num_draft_tokens"] for one in told) == stats.num_draft_tokens
    assert sum(one["num_accepted_draft_tokens"] for one in told) == stats.num_accepted_tokens > 0
    assert {len(one["acceptance_histogram"]) for one in told} == {5}
    # Without drafts there are zeros.
    assert min(one["num_spec_steps"] for one in told) == 0
    assert {one["num_spec_tokens"] for one in told} == {4}
    steps = [sum(one.get("per_step_drafted", [])) for one in told]
    assert steps == [one["num_draft_tokens"] * (level == "detailed") for one in told]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("make_worker", [Worker, on_stand_in])
def test_suffix_remembers_what_requests_generated(
    model: str, make_worker: Any, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[list[int]] = []
    monkeypatch.setattr(
        SuffixDrafter, "remember", lambda self, token_ids, scope: texts.append(token_ids.tolist())
    )
    options = {"speculative_config": SUFFIX, "async_scheduling": ahead, **EAGER}
    told = sorted(tokens for tokens, *_ in serve(model, make_worker, **options).values())
    # Before them come those of the steps that try the worker out.
    remembered = sorted(texts[-len(told) :])
    if make_worker is Worker and ahead:
        # A step in flight, which the host has read, sampled more.
        remembered = [ids[: len(own)] for ids, own in zip(remembered, told, strict=True)]
    assert remembered == told


def test_texts_end_where_they_would(tmp_path: Path) -> None:
    model = str(save_byte_model(tmp_path))
    params = [
        SamplingParams(temperature=0.4, seed=i, max_tokens=40, stop=stop, logprobs=0, **more)
        for i in range(4)
        for stop, more in [
            (["a", "ee"], {}),
            (["t", "\x00"], {"include_stop_str_in_output": True, "min_tokens": 5}),
        ]
    ]
    regex = StructuredOutputsParams(regex="(ab|cd){4,9}")
    params.append(SamplingParams(structured_outputs=regex, seed=1, max_tokens=30))

    def texts(**options: Any) -> list[Any]:
        settings: dict[str, Any] = {"dtype": "float32", "block_size": 8, "max_model_len": 256}
        settings |= {"num_gpu_blocks_override": 200, "disable_frontend_multiprocessing": True}
        with LLM(model, **settings, **options) as llm:
            outputs = llm.generate(["abcabcab eeteet abc"] * len(params), params, use_tqdm=False)
            choices = [output.outputs[0] for output in outputs]
            return [
                (c.text, c.token_ids, c.stop_reason, c.logprobs, c.finish_reason) for c in choices
            ]

    with shared_pools():
        plain = texts()
        for ahead in (False, True):
            assert texts(speculative_config=DRAFTS, async_scheduling=ahead) == plain


@given(
    tokens=st.lists(st.sampled_from([0, 1, 256, 257, 65536]), min_size=1, max_size=30),
    bounds=st.tuples(st.integers(1, 4), st.integers(0, 3)),
    most=st.integers(1, 5),
)
def test_drafts_follow_the_first_longest_match(
    tokens: list[int], bounds: tuple[int, int], most: int
) -> None:
    shortest, longest = bounds[0], sum(bounds)
    found: list[int] = []
    for size in range(longest, shortest - 1, -1):
        places = [i for i in range(len(tokens) - size) if tokens[i : i + size] == tokens[-size:]]
        if places:
            found = tokens[places[0] + size :][:most]
            break
    drafter = NgramDrafter(shortest, longest)
    assert drafter.propose(np.array(tokens, np.int32), most, "").tolist() == found


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=4))
def test_penalties_forget_drafts_that_came_to_nothing(drafts: list[list[int]]) -> None:
    prompt, sure = np.array([1, 2, 2], np.int32), [3, 1]
    seen, fresh = (SeenTokens(prompt, 10) for _ in range(2))
    for draft in drafts:
        seen.update(np.array(sure + draft, np.int32))
        seen.rewind(len(sure))
    fresh.update(np.array(sure, np.int32))
    assert seen.ids.tolist() == fresh.ids.tolist() and seen.times.tolist() == fresh.times.tolist()


@pytest.mark.parametrize(
    ("given", "words", "kind"),
    [
        (
            {"method": "tree", "num_speculative_tokens": 2},
            r"method must be one of ngram.* not 'tree'",
            UsageError,
        ),
        ({"method": "ngram"}, "num_speculative_tokens", UsageError),
        ({"num_speculative_tokens": 2}, "no method", UsageError),
        ({**DRAFTS, "prompt_lookup_min": 9}, "prompt_lookup_min 9 is more than", UsageError),
    ],
)
def test_drafts_are_refused_where_impossible(
    model: str, given: dict[str, Any], words: str, kind: type[UsageError] | None
) -> None:
    with pytest.raises(kind or NotInBuildError, match=words) as caught:
        run(model, speculative_config=given)
    assert "\n" not in str(caught.value)


def test_drafts_may_be_asked_for_by_flags_of_their_own(model: str) -> None:
    args = EngineArgs(model=model, spec_method="ngram", spec_tokens=3, skip_tokenizer_init=True)
    drafts = args.create_engine_config().speculative
    assert (drafts.num_drafts, drafts.lookup) == (3, (5, 5))
