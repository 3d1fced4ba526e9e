"""A request is refused before it costs anything, and the message names the field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.engines import VOCAB_SIZE, byte_tokenizer, engine_config
from vllm_lite.engine.front.admission import fan_out
from vllm_lite.engine.front.input_processor import InputProcessor, ProcessedInput
from vllm_lite.errors import RequestError, UsageError
from vllm_lite.sampling_params import SamplingParams


def process(prompt: Any, salt: str | None = None, **params: Any) -> ProcessedInput:
    processor = InputProcessor(engine_config(max_model_len=32), byte_tokenizer())
    return processor.process(prompt, SamplingParams(**params), salt)


@pytest.mark.parametrize(
    ("prompt", "text", "ids"),
    [
        ("abc", "abc", list(b"abc")),
        ([1, 2], None, [1, 2]),
        ({"prompt": "abc"}, "abc", list(b"abc")),
        ({"prompt_token_ids": [3]}, None, [3]),
        ({"prompt": "shown", "prompt_token_ids": [3]}, "shown", [3]),
    ],
)
def test_every_form_of_a_prompt_becomes_token_ids(
    prompt: Any, text: str | None, ids: list[int]
) -> None:
    processed = process(prompt)
    assert (processed.prompt, processed.prompt_token_ids) == (text, ids)


@pytest.mark.parametrize(
    ("prompt", "params", "param", "says"),
    [
        ("", {}, "prompt", "empty"),
        ([], {}, "prompt", "empty"),
        ([-1], {}, "prompt", "-1"),
        ([VOCAB_SIZE], {}, "prompt", str(VOCAB_SIZE)),
        ([10**30], {}, "prompt", "vocabulary"),
        ([True], {}, "prompt", "True"),
        (["a"], {}, "prompt", "'a'"),
        ({}, {}, "prompt", "neither"),
        ({"prompt": 5}, {}, "prompt", "text"),
        (5, {}, "prompt", "int"),
        ("x" * 32, {}, "input_tokens", "32"),
        ("x" * 100, {}, "input_tokens", "100"),
        ("x" * 10_000, {}, "input_text", "10000"),
        ("a", {"logprobs": 21}, "logprobs", "20"),
        ("a", {"logprobs": -1}, "logprobs", "20"),
        ("a", {"prompt_logprobs": 10_000}, "prompt_logprobs", "10000"),
        ("a", {"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias", str(VOCAB_SIZE)),
        ("a", {"allowed_token_ids": [1, 999]}, "allowed_token_ids", "999"),
        ("a", {"stop_token_ids": [999]}, "stop_token_ids", "999"),
        ("a", {"truncate_prompt_tokens": 33}, "truncate_prompt_tokens", "33"),
        ("a", {"salt": ""}, "cache_salt", "128"),
        ("a", {"salt": "x" * 129}, "cache_salt", "128"),
    ],
)
def test_a_bad_request_is_refused_by_name(
    prompt: Any, params: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        process(prompt, **params)
    assert refused.value.param == param
    assert "\n" not in refused.value.message


def test_max_tokens_is_limited_by_the_context() -> None:
    assert process([1] * 10, max_tokens=None).params.max_tokens == 22
    assert process([1] * 10, max_tokens=100).params.max_tokens == 22
    assert process([1] * 31).params.max_tokens == 1


def test_the_callers_parameters_stay_as_they_were() -> None:
    params = SamplingParams(max_tokens=1000, bad_words=["x"])
    processor = InputProcessor(engine_config(max_model_len=32), byte_tokenizer())
    assert processor.process([1], params).params is not params
    assert params.max_tokens == 1000 and params.bad_words_token_ids is None


def test_truncation_keeps_the_end_of_the_prompt() -> None:
    assert process("abcdef", truncate_prompt_tokens=2).prompt_token_ids == list(b"ef")
    right = process("abcdef", truncate_prompt_tokens=2, truncation_side="right")
    assert right.prompt_token_ids == list(b"ab")
    kept = process("x" * 100, truncate_prompt_tokens=-1).prompt_token_ids
    assert len(kept) == 31


def test_bad_words_are_banned_at_a_start_and_inside_a_text() -> None:
    ids = process("a", bad_words=["no"]).params.bad_words_token_ids
    # With bytes a leading space is a token of its own, which must stay allowed.
    assert ids == [list(b"no")]


def test_a_salt_comes_with_the_prompt_or_beside_it() -> None:
    assert process({"prompt": "a", "cache_salt": "s"}).cache_salt == "s"
    assert process({"prompt": "a", "cache_salt": "s"}, salt="t").cache_salt == "t"


def test_an_engine_without_tokenizer_takes_ids_only() -> None:
    processor = InputProcessor(engine_config(), None)
    assert processor.process([1], SamplingParams()).prompt_token_ids == [1]
    for prompt, params in (("a", {}), ([1], {"stop": ["x"]}), ([1], {"bad_words": ["x"]})):
        with pytest.raises(RequestError, match="skip-tokenizer-init"):
            processor.process(prompt, SamplingParams(**params))  # type: ignore[arg-type]


def test_choices_draw_from_seeds_of_their_own() -> None:
    processed = process("ab", n=3, seed=7, prompt_logprobs=1)
    requests = fan_out("id", processed, 0.0)
    assert [r.request_id for r in requests] == ["0_id", "1_id", "2_id"]
    assert [r.task.seed for r in requests] == [7, 8, 9]
    assert [r.task.n for r in requests] == [1, 1, 1]
    assert [r.task.prompt_logprobs for r in requests] == [1, None, None]
    assert fan_out("id", process("ab"), 0.0)[0].request_id == "id"


def test_seeds_of_choices_stay_64_bit() -> None:
    requests = fan_out("id", process("ab", n=2, seed=2**63 - 1), 0.0)
    assert requests[1].task.seed == -(2**63)


def test_no_choice_draws_from_the_seed_that_means_none() -> None:
    requests = fan_out("id", process("ab", n=3, seed=-2), 0.0)
    assert [r.task.seed for r in requests] == [-2, 0, 1]


def test_a_token_of_the_tokenizer_that_the_model_lacks_is_refused() -> None:
    """An embedding would be read past its end, and the whole step would fail."""
    tokenizer = byte_tokenizer()
    tokenizer.backend.add_tokens(["<extra>"])
    processor = InputProcessor(engine_config(), tokenizer)
    assert processor.process("extra", SamplingParams()).prompt_token_ids == list(b"extra")
    with pytest.raises(RequestError, match=str(VOCAB_SIZE)) as refused:
        processor.process("an <extra> token", SamplingParams())
    assert refused.value.param == "prompt"


def test_a_callers_list_may_change_afterwards() -> None:
    ids = [1, 2, 3]
    processed = process(ids)
    ids[0] = 10**6
    assert processed.prompt_token_ids == [1, 2, 3]


def test_defaults_that_no_request_could_have_are_the_users_mistake() -> None:
    config = engine_config(generation_config={"temperature": "hot"})
    with pytest.raises(UsageError, match=r"a number.*generation-config vllm"):
        InputProcessor(config, byte_tokenizer())
