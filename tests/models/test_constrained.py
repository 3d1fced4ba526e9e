"""Constraints hold in the engine, whatever else happens to a request; and they cost only it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.models.byte_model import CONTEXT, save_byte_model
from tests.unit.structured_output.walks import schema_cases
from vllm_lite import LLM, RequestOutput, SamplingParams
from vllm_lite.errors import RequestError
from vllm_lite.sampling_params import StructuredOutputsParams

CASES = [case for case in schema_cases() if "refused" not in case]
REFUSED = [case for case in schema_cases() if "refused" in case]
SHORT = "[ab]{3,6}"
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


def start(model: Path, **options: Any) -> LLM:
    settings: dict[str, Any] = {
        "dtype": "float32",
        "block_size": 8,
        "max_model_len": CONTEXT,
        "num_gpu_blocks_override": 2000,
        "disable_frontend_multiprocessing": True,
        "reasoning_parser": "qwen3",
    }
    return LLM(str(model), **{**settings, **options})


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with start(model) as engine:
        yield engine


def constrained(seed: int = 0, **given: Any) -> SamplingParams:
    """Parameters under a constraint; options of the request beside it."""
    kinds = StructuredOutputsParams.__struct_fields__
    constraint = StructuredOutputsParams(**{k: v for k, v in given.items() if k in kinds})
    options = {k: v for k, v in given.items() if k not in kinds}
    settings: dict[str, Any] = {"max_tokens": 200, "temperature": 1.0, "seed": seed}
    return SamplingParams(structured_outputs=constraint, **{**settings, **options})


def run(llm: LLM, params: list[SamplingParams], prompt: str = "<think></think>") -> list[Any]:
    return llm.generate([prompt] * len(params), params, use_tqdm=False)


def texts(outputs: list[RequestOutput]) -> list[tuple[str, str | None]]:
    return [(choice.text, choice.finish_reason) for out in outputs for choice in out.outputs]


def test_every_schemas_completed_text_validates(llm: LLM) -> None:
    params = [constrained(i, json=json.dumps(case["schema"])) for i, case in enumerate(CASES)]
    outputs = run(llm, params)
    num_completed = 0
    for case, output in zip(CASES, outputs, strict=True):
        choice = output.outputs[0]
        assert choice.finish_reason in ("stop", "length"), choice.stop_reason
        if choice.finish_reason == "stop":
            num_completed += 1
            jsonschema.validate(json.loads(choice.text), case["schema"])
    assert num_completed > len(CASES) // 3


def test_a_bad_constraint_is_refused_before_anything_runs(llm: LLM) -> None:
    for case in REFUSED:
        with pytest.raises(RequestError) as error:
            run(llm, [constrained(json=json.dumps(case["schema"]))])
        assert error.value.param == "structured_outputs.json"
        assert case["refused"] in error.value.message
    with pytest.raises(RequestError):
        run(llm, [constrained(regex=SHORT), constrained(regex="(")])
    assert llm.get_stats().num_running == llm.get_stats().num_waiting == 0


def test_scheduling_changes_nothing(model: Path, llm: LLM) -> None:
    params = [constrained(i, json=OBJECT) for i in range(6)]
    params += [constrained(i, regex=SHORT, logprobs=2) for i in range(3)]
    prompt = "x" * 40 + "<think></think>"
    roomy = texts(run(llm, params, prompt))
    small = {"max_num_batched_tokens": 16, "num_gpu_blocks_override": 36, "max_model_len": 256}
    for ahead in (False, True):
        with start(model, async_scheduling=ahead, **small) as tight:
            assert texts(run(tight, params, prompt)) == roomy
            assert tight.get_stats().num_preemptions > 0
    assert texts(run(llm, params, prompt)) == roomy  # by prefix hits
    for text, reason in roomy[:6]:
        assert reason == "stop"
        jsonschema.validate(json.loads(text), OBJECT)


def test_free_requests_in_the_same_batch_stay_free(llm: LLM) -> None:
    free = SamplingParams(max_tokens=12, seed=3, temperature=1.0, ignore_eos=True)
    alone = texts(run(llm, [free]))
    assert texts(run(llm, [constrained(regex=SHORT), free, constrained(json=OBJECT)]))[1:2] == alone


def test_choices_logprobs_and_the_end(llm: LLM) -> None:
    (output,) = run(llm, [constrained(choice=["red", "green", "blue"], n=6, logprobs=1)])
    for choice in output.outputs:
        assert choice.text in ("red", "green", "blue")
        assert choice.finish_reason == "stop" and choice.stop_reason is None
        assert len(choice.logprobs) == len(choice.token_ids) == len(choice.text) + 1


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_complete_text_ends(llm: LLM, ignore_eos: bool) -> None:
    options = {"ignore_eos": ignore_eos, "max_tokens": 50, "temperature": 0.0}
    found = texts(run(llm, [constrained(regex=SHORT, **options)]))
    assert found[0][1] == "stop" and 3 <= len(found[0][0]) <= 6


def test_min_tokens_hold_as_long_as_the_grammar_has_more_to_say(llm: LLM) -> None:
    found = texts(run(llm, [constrained(i, regex=SHORT, min_tokens=6) for i in range(8)]))
    assert {len(text) for text, _ in found} == {6}
    found = texts(run(llm, [constrained(i, regex="abc", min_tokens=50) for i in range(2)]))
    assert found == [("abc", "stop")] * 2


def test_stop_strings_and_biases_work_inside(llm: LLM) -> None:
    found = texts(run(llm, [constrained(regex="a{9}", stop=["aaa"])]))
    assert found == [("", "stop")]
    ban = llm.get_tokenizer().encode("a")[0]
    found = texts(
        run(llm, [constrained(i, regex="[ab]{4}", logit_bias={ban: -100}) for i in (1, 2)])
    )
    assert found == [("bbbb", "stop")] * 2


def test_what_is_both_asked_for_and_forbidden_fails_alone(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("z")
    params = [constrained(regex="a{3}", allowed_token_ids=ids), constrained(regex="a{3}")]
    assert [reason for _, reason in texts(run(llm, params))] == ["error", "stop"]


def test_a_grammar_begins_after_the_reasoning(llm: LLM) -> None:
    params = [constrained(i, regex=SHORT, thinking_token_budget=20) for i in range(6)]
    for text, reason in texts(run(llm, params, "<think>")):
        thought, mark, answer = text.partition("</think>")
        assert mark and reason == "stop"
        assert len(thought.encode()) <= 20 * 4
        assert 3 <= len(answer) <= 6 and set(answer) <= {"a", "b"}


def test_without_a_mark_in_the_prompt_the_model_thinks_or_answers(llm: LLM) -> None:
    params = [constrained(i, regex=SHORT, thinking_token_budget=5) for i in range(12)]
    for text, reason in texts(run(llm, params, "hello")):
        thought, _, answer = text.rpartition("</think>")
        assert reason == "stop" and set(answer) <= {"a", "b"}
        assert not thought or thought.startswith("<think>")


def test_reasoning_can_be_constrained_too(llm: LLM) -> None:
    found = texts(run(llm, [constrained(regex=SHORT, enable_in_reasoning=True)], "<think>"))
    assert set(found[0][0]) <= {"a", "b"}


@pytest.mark.parametrize("budget", [1, 3])
def test_a_budget_holds_where_reasoning_is_constrained(llm: LLM, budget: int) -> None:
    regex = "[ab]{1,20}</think>[ab]"
    params = constrained(regex=regex, enable_in_reasoning=True, thinking_token_budget=budget)
    result = run(llm, [params], "<think>")[0].outputs[0]
    assert result.finish_reason == "stop", result.stop_reason
    thought, mark, _ = result.text.partition("</think>")
    assert mark and len(thought) <= budget


@pytest.mark.parametrize("budget", [0, 3])
def test_a_thinking_budget_needs_no_grammar(llm: LLM, budget: int) -> None:
    params = SamplingParams(
        max_tokens=30, seed=1, thinking_token_budget=budget, ignore_eos=True, temperature=1.0
    )
    ids = run(llm, [params], "<think>")[0].outputs[0].token_ids
    end = llm.get_tokenizer().token_to_id("</think>")
    assert ids.index(end) <= budget


def test_a_spent_budget_forces_the_text_said(model: Path) -> None:
    forced = "Enough.</think>"
    params = SamplingParams(max_tokens=30, seed=1, thinking_token_budget=3, ignore_eos=True)
    with start(model, reasoning_config={"reasoning_end_str": forced}) as engine:
        text, _ = texts(run(engine, [params], "<think>"))[0]
    thought, mark, _ = text.partition(forced)
    assert mark and "</think>" not in thought


def test_a_thinking_budget_needs_a_reasoning_parser(model: Path) -> None:
    with start(model, reasoning_parser="") as plain, pytest.raises(RequestError) as error:
        plain.generate("x", SamplingParams(thinking_token_budget=3), use_tqdm=False)
    assert error.value.param == "thinking_token_budget"
