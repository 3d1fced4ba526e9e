"""Constraints hold in the engine, whatever else happens to a request; and they cost only it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.models.byte_model import CONTEXT, save_byte_model
from tests.models.test_draft_methods import Repeater
from tests.unit.structured_output.shared_pools import shared_pools
from tests.unit.structured_output.walks import schema_cases
from vllm_lite import LLM, RequestOutput, SamplingParams
from vllm_lite.engine.core import constraints
from vllm_lite.errors import RequestError
from vllm_lite.sampling_params import StructuredOutputsParams
from vllm_lite.structured_output import sequence

CASES = [case for case in schema_cases() if "refused" not in case]
REFUSED = [case for case in schema_cases() if "refused" in case]
SHORT = "[ab]{3,6}"
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
}


@pytest.fixture(scope="module", autouse=True)
def pools() -> Iterator[None]:
    with shared_pools():
        yield


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
    # These run ahead, while the others wait for their tokens.
    params += [SamplingParams(max_tokens=20 * i, seed=i, temperature=1.0) for i in range(1, 4)]
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


def test_contradicting_fields_are_refused_by_both_names(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("z")
    every = [{"allowed_token_ids": ids}, {"bad_words": ["a"]}]
    every.append({"bad_words": ["a"], "allowed_token_ids": llm.get_tokenizer().encode("za")})
    for options in every:
        with pytest.raises(RequestError, match="constraint") as error:
            run(llm, [constrained(regex="a{3}", enable_in_reasoning=True, **options)])
        assert all(name in error.value.message for name in options)


@pytest.mark.parametrize(
    ("pattern", "options", "name"),
    [
        ("a[bc]", {"allowed_token_ids": [97]}, "allowed_token_ids"),
        ("aab", {"bad_words": ["aab"]}, "bad_words"),
        ("abab", {"stop_token_ids": [98], "min_tokens": 3}, "min_tokens and stop_token_ids"),
    ],
)
def test_request_without_allowed_token_fails_alone_with_cause(
    llm: LLM, pattern: str, options: dict[str, Any], name: str
) -> None:
    encode = llm.get_tokenizer().encode
    for field in ("allowed_token_ids", "stop_token_ids"):
        if field in options:
            options = {**options, field: [encode(chr(one))[0] for one in options[field]]}
    outputs = run(llm, [constrained(regex=pattern, **options), constrained(regex=SHORT)])
    assert [reason for _, reason in texts(outputs)] == ["error", "stop"]
    reason = str(outputs[0].outputs[0].stop_reason)
    assert "leave no token" in reason and "constraint" in reason and name in reason


def test_a_bias_forbids_nothing(llm: LLM) -> None:
    bias = {llm.get_tokenizer().encode("a")[0]: -100}
    assert texts(run(llm, [constrained(regex="aaa", logit_bias=bias)])) == [("aaa", "stop")]


SLOW = 'start: s\ns: s s s | s s | "a" | "aa" | "aaa"'


@pytest.mark.parametrize("min_tokens", [0, 200])
def test_a_slow_grammar_ends_its_request_alone(llm: LLM, min_tokens: int) -> None:
    slow = constrained(grammar=SLOW, min_tokens=min_tokens, max_tokens=400, temperature=0.0)
    beside = constrained(regex="[ab]{40}")
    outputs = run(llm, [slow, beside])
    assert texts(outputs)[1][1] == "stop"
    assert texts(outputs)[0][1] in ("error", "length", "stop")
    assert texts(run(llm, [beside])) == texts(outputs)[1:]


@pytest.mark.parametrize("call", ["fill", "accept", "must_end"])
def test_the_time_of_every_call_counts(
    llm: LLM, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = {"fill": 0, "accept": 0, "must_end": 0}

    class Costly:
        """Takes its time in one kind of call."""

        is_terminated = False

        def forced_text(self) -> bytes:
            return b""

        def fill(self, masks: Any, row: int) -> None:
            masks[row] = -1
            self._spend("must_end" if spent["accept"] else "fill")

        def accept(self, token_id: int) -> bool:
            self._spend("accept")
            return True

        def _spend(self, kind: str) -> None:
            spent[kind] += 1
            start = time.thread_time()
            while kind == call and time.thread_time() - start < 0.2:
                pass

    monkeypatch.setattr(sequence, "MASK_SECONDS", 0.1)
    monkeypatch.setattr(constraints, "_matcher", lambda grammar: Costly())
    params = [constrained(regex="a+", min_tokens=5), SamplingParams(max_tokens=3, ignore_eos=True)]
    outputs = run(llm, params)
    assert [reason for _, reason in texts(outputs)] == ["error", "length"]
    assert "takes too long to follow" in str(outputs[0].outputs[0].stop_reason)


class Panic(BaseException):
    """As Rust's panics arrive."""


@pytest.mark.parametrize("call", ["matcher", "fill", "accept", "late fill", "forced"])
@pytest.mark.parametrize("error", [RuntimeError, Panic])
def test_whatever_a_grammar_fails_with_ends_its_request_alone(
    llm: LLM, call: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        is_terminated = False
        num_accepted = 0

        def forced_text(self) -> bytes:
            self._fail("forced")
            return b""

        def fill(self, masks: Any, row: int) -> None:
            masks[row] = -1
            self._fail("late fill" if self.num_accepted else "fill")

        def accept(self, token_id: int) -> bool:
            self.num_accepted += 1
            self._fail("accept")
            return True

        @staticmethod
        def _fail(kind: str) -> None:
            if kind == call:
                raise error("0xdead in /opt/x")

    class Grammar:
        num_bytes = 1

        def matcher(self) -> Broken:
            Broken._fail("matcher")
            return Broken()

    done: Future[Any] = Future()
    done.set_result(Grammar())
    core = llm.llm_engine._core.core  # type: ignore[attr-defined]
    llm.generate("x", constrained(regex="b"), use_tqdm=False)  # the pool has its facts
    monkeypatch.setattr(core.constraints._cache, "get", lambda params: done)
    params = [constrained(regex="a+", min_tokens=5), SamplingParams(max_tokens=3, ignore_eos=True)]
    outputs = run(llm, params)
    assert [reason for _, reason in texts(outputs)] == ["error", "length"]
    assert "0xdead" not in str(outputs[0].outputs[0].stop_reason)
    monkeypatch.undo()
    assert texts(run(llm, [constrained(regex="abc")])) == [("abc", "stop")]


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


KEYS = {
    "type": "object",
    "properties": {
        "a_rather_long_name": {"enum": ["first of the constants", "second of the constants"]},
        "another_quite_long_name": {"type": "boolean"},
    },
    "required": ["a_rather_long_name", "another_quite_long_name"],
    "additionalProperties": False,
}
FORCED = [
    constrained(json=KEYS, max_tokens=200, temperature=0),
    constrained(1, json=KEYS, max_tokens=200, logprobs=1),
    constrained(2, json=KEYS, max_tokens=40),
    constrained(3, json=KEYS, max_tokens=200, frequency_penalty=0.3, min_tokens=150),
    constrained(4, json=KEYS, max_tokens=200, stop=["long"], disable_any_whitespace=True),
    constrained(5, regex="(abcdefgh|abcdexyz){9}", max_tokens=60),
]


def told_of_forced(
    model: Path, backend: str, can_draft: bool, **options: Any
) -> tuple[list[Any], Any]:
    """The outputs of FORCED, twice, and what the engine counts of drafts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints.VllmConfig, "has_states", not can_draft)
        with start(model, structured_outputs_config={"backend": backend}, **options) as llm:
            outputs = [llm.generate(["ab"] * 6, FORCED, use_tqdm=False) for _ in range(2)]
            choices = [o.outputs[0] for some in outputs for o in some]
            stats = llm.get_stats().spec_decoding
    return [(c.token_ids, c.finish_reason, c.logprobs, c.stop_reason) for c in choices], stats


@cache
def told_without_forced(model: Path, backend: str) -> tuple[list[Any], Any]:
    return told_of_forced(model, backend, False)


# A constraint's backend knows nothing of schedules: each of them runs with one of the backends.
SCHEDULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ahead": {"async_scheduling": True},
    "suffix": {"speculative_config": {"method": "suffix", "num_speculative_tokens": 5}},
    "tight": {"max_num_batched_tokens": 16, "num_gpu_blocks_override": 80},
}
FORCED_RUNS = [
    pytest.param(backend, schedule, marks=() if (i + j) % 2 == 0 else pytest.mark.slow)
    for i, backend in enumerate(("xgrammar", "guidance"))
    for j, schedule in enumerate(SCHEDULES)
]


@pytest.mark.parametrize(("backend", "schedule"), FORCED_RUNS)
def test_text_that_must_come_is_drafted_and_changes_nothing(
    model: Path, backend: str, schedule: str
) -> None:
    plain, nothing = told_without_forced(model, backend)
    drafted, stats = told_of_forced(model, backend, True, **SCHEDULES[schedule])
    assert drafted == plain
    assert nothing is None
    assert stats.num_accepted_tokens > 50


FREE = [
    constrained(json={"type": "array", "items": {"type": "string"}}, max_tokens=60, temperature=0),
    constrained(1, regex="[a-z ]{10,60}", temperature=0.3, logprobs=1),
    constrained(2, regex="[ -~]{60}", temperature=0.0),
    constrained(3, regex="[^x]{20,50}", temperature=0.2, bad_words=["e"]),
    constrained(4, json=OBJECT, temperature=0.5),
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
]


def told_of_free(model: Path, **options: Any) -> tuple[list[Any], list[dict[str, int]]]:
    """The outputs of FREE, twice, and their counts of drafts."""
    with start(model, per_request_spec_decode_metrics="summary", **options) as llm:
        outputs = [llm.generate(["ab"] * len(FREE), FREE, use_tqdm=False) for _ in range(2)]
    choices = [o.outputs[0] for some in outputs for o in some]
    counted = [c.spec_decode_metrics.to_dict() for c in choices]
    return [(c.token_ids, c.finish_reason, c.logprobs) for c in choices], counted


@cache
def told_without_drafts(model: Path, is_tight: bool) -> tuple[list[Any], list[dict[str, int]]]:
    return told_of_free(model, **(TIGHT if is_tight else {}))


TIGHT = {"max_num_batched_tokens": 16, "num_gpu_blocks_override": 80}


# Any two of a method, a schedule and whether steps run ahead; the other runs are slow ones.
RUNS = [
    pytest.param(
        method,
        is_tight,
        ahead,
        id=f"{method}-{'tight' if is_tight else 'roomy'}-{'ahead' if ahead else 'in turn'}",
        marks=() if (i + is_tight + ahead) % 2 else pytest.mark.slow,
    )
    for i, method in enumerate(("draft_model", "eagle", "medusa", "custom_class"))
    for is_tight in (False, True)
    for ahead in (False, True)
]


@pytest.mark.parametrize(("method", "is_tight", "ahead"), RUNS)
def test_models_draft_what_a_grammar_leaves_open(
    model: Path, tmp_path: Path, method: str, is_tight: bool, ahead: bool
) -> None:
    head = json.loads((model / "config.json").read_text()) | {"num_hidden_layers": 1}
    names = {"eagle": ["EagleLlamaForCausalLM"], "medusa": ["MedusaModel"]}.get(method)
    (tmp_path / "config.json").write_text(json.dumps(head | {"architectures": names}))
    named = {"draft_model": str(model), "custom_class": f"{Repeater.__module__}.Repeater"}
    drafts = {
        "method": method,
        "model": named.get(method, str(tmp_path)),
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 64, 3]],
    }
    if method in ("eagle", "medusa"):
        drafts["draft_load_config"] = {"load_format": "dummy"}

    plain, without = told_without_drafts(model, is_tight)
    options = TIGHT if is_tight else {}
    drafted, counted = told_of_free(
        model, speculative_config=drafts, async_scheduling=ahead, **options
    )
    assert drafted == plain
    # The grammar dictates little of these, and of none that has bans.
    counts = [sum(one["num_draft_tokens"] for one in some[:3]) for some in (counted, without)]
    assert counts[0] > counts[1] + 20
    assert counted[3]["num_draft_tokens"] == 0
    if method == "draft_model":
        # It is the model itself, which is wrong only where the grammar is against it.
        for one in (counted[0], counted[2]):
            assert one["num_accepted_draft_tokens"] == one["num_draft_tokens"] > 10
