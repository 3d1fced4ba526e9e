"""Outputs for a blocking caller: text, tokens, log-probabilities, finish reasons."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import scripted_tokens
from tests.unit.engine.engines import EOS, VOCAB_SIZE, run_all, says, sync_engine
from vllm_lite.core.step import EngineCoreOutput, TokenLogprobs
from vllm_lite.engine.front.output_processor import in_turns
from vllm_lite.engine.front.sync_llm import LLMEngine
from vllm_lite.engine.link.inproc_client import InprocClient
from vllm_lite.errors import RequestError
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams

TEXT = "naïve café, 漢字 and 🙂🙂 stop here. More text follows."


def answer(engine: LLMEngine, **params: Any) -> RequestOutput:
    """The last output of one request."""
    engine.add_request("r", "say>", SamplingParams(**{"max_tokens": 200, **params}))
    return run_all(engine)[-1]


def core_of(engine: LLMEngine) -> InprocClient:
    client = engine._core
    assert isinstance(client, InprocClient)
    return client


def test_an_answer_ends_at_eos_which_is_a_token_but_no_text() -> None:
    output = answer(sync_engine(says(TEXT)))
    (choice,) = output.outputs
    assert choice.text == TEXT
    assert choice.token_ids == [*TEXT.encode(), EOS]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
    assert output.finished and output.prompt == "say>"
    assert output.prompt_token_ids == list(b"say>")


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_string_cuts_the_text_and_frees_the_core(included: bool) -> None:
    engine = sync_engine(says(TEXT))
    output = answer(engine, stop=["xyz", "stop"], include_stop_str_in_output=included)
    (choice,) = output.outputs
    expected = TEXT[: TEXT.index("stop")]
    assert choice.text == (expected + "stop" if included else expected)
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "stop")
    core_of(engine).get_output()
    assert engine.get_stats().num_used_blocks == 0


def test_length_is_the_finish_reason_at_max_tokens() -> None:
    (choice,) = answer(sync_engine(says(TEXT)), max_tokens=3).outputs
    assert (choice.text, choice.finish_reason) == ("na", "length")  # the third byte is half of ï


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("ab é漢🙂"), min_size=1, max_size=30),
    stop=st.lists(st.text("ab é", min_size=1, max_size=3), max_size=2),
    interval=st.integers(1, 4),
)
def test_deltas_joined_are_the_cumulative_output(text: str, stop: list[str], interval: int) -> None:
    engine = sync_engine(says(text), stream_interval=interval)
    outputs: dict[RequestOutputKind, list[RequestOutput]] = {}
    for kind in RequestOutputKind:
        params = SamplingParams(max_tokens=40, stop=stop, logprobs=1, output_kind=kind)
        engine.add_request("r", "say>", params)
        outputs[kind] = run_all(engine)
    (final,) = outputs[RequestOutputKind.FINAL_ONLY]
    whole = outputs[RequestOutputKind.CUMULATIVE][-1].outputs[0]
    deltas = [output.outputs[0] for output in outputs[RequestOutputKind.DELTA]]
    assert whole == final.outputs[0]
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [i for delta in deltas for i in delta.token_ids] == whole.token_ids
    assert [p for delta in deltas for p in delta.logprobs or []] == whole.logprobs
    assert deltas[-1].finish_reason == whole.finish_reason
    assert all(delta.finish_reason is None for delta in deltas[:-1])
    assert "\ufffd" not in whole.text


def test_stream_interval_gathers_tokens_but_not_the_first() -> None:
    engine = sync_engine(says("0123456789"), stream_interval=4)
    engine.add_request("r", ">", SamplingParams(output_kind=RequestOutputKind.DELTA))
    sizes = [len(output.outputs[0].token_ids) for output in run_all(engine)]
    assert sizes == [1, 4, 4, 2]


@pytest.mark.parametrize(("own", "sizes"), [(2, [1, 4, 4, 2]), (6, [1, 6, 4])])
def test_a_request_may_ask_for_a_longer_interval(own: int, sizes: list[int]) -> None:
    engine = sync_engine(says("0123456789"), stream_interval=4)
    params = SamplingParams(output_kind=RequestOutputKind.DELTA, stream_interval=own)
    engine.add_request("r", ">", params)
    assert [len(output.outputs[0].token_ids) for output in run_all(engine)] == sizes


def test_choices_come_in_order_and_finish_together() -> None:
    def by_choice(request_id: str, token_ids: list[int]) -> int:
        index = int(request_id.split("_")[0])
        return EOS if len(token_ids) > 4 + index else ord("abc"[index])

    output = answer(sync_engine(by_choice), n=3, output_kind=RequestOutputKind.FINAL_ONLY)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert [choice.text for choice in output.outputs] == ["a", "bb", "ccc"]
    assert output.finished


def test_deltas_of_several_choices_show_only_new_tokens() -> None:
    def by_choice(request_id: str, token_ids: list[int]) -> int:
        return EOS if request_id.startswith("0") else ord("x")

    engine = sync_engine(by_choice)
    params = SamplingParams(n=2, max_tokens=3, output_kind=RequestOutputKind.DELTA)
    engine.add_request("r", "say>", params)
    outputs = run_all(engine)
    shown = [[choice.index for choice in output.outputs] for output in outputs]
    assert shown == [[0, 1], [1], [1]]
    assert [output.finished for output in outputs] == [False, False, True]


def test_logprobs_name_the_sampled_token_first_with_its_text() -> None:
    (choice,) = answer(sync_engine(says("é")), logprobs=2, max_tokens=2).outputs
    assert choice.logprobs is not None
    assert [next(iter(position)) for position in choice.logprobs] == choice.token_ids
    assert [len(position) for position in choice.logprobs] == [2, 2]
    assert choice.logprobs[0][0xC3].rank == 1
    assert choice.logprobs[0][0xC3].decoded_token == "\ufffd"
    assert choice.cumulative_logprob == pytest.approx(-1.0)


def test_without_detokenize_there_is_no_text_at_all() -> None:
    (choice,) = answer(sync_engine(says("abc")), detokenize=False, logprobs=0).outputs
    assert choice.text == "" and choice.token_ids == [*b"abc", EOS]
    assert choice.logprobs is not None
    assert choice.logprobs[0][ord("a")].decoded_token is None


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_prompt_logprobs_cover_the_prompt_but_its_first_token(kind: RequestOutputKind) -> None:
    engine = sync_engine(says("ab"), max_num_batched_tokens=8)
    prompt = "a prompt longer than a step takes>"
    params = SamplingParams(prompt_logprobs=1, n=2, output_kind=kind)
    engine.add_request("r", prompt, params)
    reported = [o.prompt_logprobs for o in run_all(engine) if o.prompt_logprobs is not None]
    whole = reported[-1]
    assert len(whole) == len(prompt) and whole[0] is None
    assert [next(iter(p)) for p in whole[1:] if p] == list(prompt.encode()[1:])
    if kind is RequestOutputKind.DELTA:
        assert len(reported) == 1


def test_a_failed_step_ends_its_own_requests_alone() -> None:
    engine = sync_engine()
    core = core_of(engine)
    executor = core.core._executor
    engine.add_request("bad", [1, 2, 3], SamplingParams(max_tokens=5))
    engine.step()
    executor.raise_next = RuntimeError("at 0x7f00: /secret/path")  # type: ignore[attr-defined]
    (failed,) = [o for o in run_all(engine) if o.finished]
    assert failed.outputs[0].finish_reason == "error"
    assert "secret" not in str(failed.outputs[0].stop_reason)
    engine.add_request("good", [1, 2, 3], SamplingParams(max_tokens=5, ignore_eos=True))
    (good,) = [o for o in run_all(engine) if o.finished]
    assert good.outputs[0].token_ids == scripted_tokens([1, 2, 3], 5, vocab_size=VOCAB_SIZE)


def test_one_request_may_fail_within_a_step_that_works() -> None:
    engine = sync_engine()
    executor = core_of(engine).core._executor
    executor.fail_next = {"bad-0": "no luck"}  # type: ignore[attr-defined]
    for name in ("bad", "good"):
        engine.add_request(name, [1, 2], SamplingParams(max_tokens=4, ignore_eos=True))
    ends = {o.request_id: o.outputs[0].finish_reason for o in run_all(engine) if o.finished}
    assert ends == {"bad": "error", "good": "length"}


def test_an_output_that_cannot_be_processed_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sync_engine(says("ab"))
    tokenizer = engine.tokenizer
    real = type(tokenizer).token_bytes

    def broken(self: Any, token_id: int) -> bytes:
        if token_id == ord("b"):
            raise KeyError("token")
        return real(self, token_id)

    monkeypatch.setattr(type(tokenizer), "token_bytes", broken)
    output = answer(engine)
    assert output.outputs[0].finish_reason == "error"
    core_of(engine).get_output()
    assert engine.get_stats().num_used_blocks == 0


def test_aborted_request_shows_its_tokens() -> None:
    engine = sync_engine(says(TEXT))
    engine.add_request("r", "say>", SamplingParams(max_tokens=50, n=2))
    engine.step()
    engine.abort_request(["r"])
    (output,) = run_all(engine) or engine.step()
    assert output.finished
    assert [(c.text, c.finish_reason) for c in output.outputs] == [("n", "abort")] * 2
    assert engine.get_stats().num_used_blocks == 0


def test_requests_may_share_an_id() -> None:
    engine = sync_engine(says("ab"))
    for _ in range(2):
        engine.add_request("r", "say>", SamplingParams(max_tokens=5))
    ends = [output for output in run_all(engine) if output.finished]
    assert [(o.request_id, o.outputs[0].text) for o in ends] == [("r", "ab")] * 2


def test_an_id_used_again_never_gets_the_outputs_of_an_aborted_request() -> None:
    """They may be on their way from the core when the id is used again."""
    engine = sync_engine(says("ab"))
    engine.add_request("r", "say>", SamplingParams(max_tokens=5))
    engine._send()
    late = core_of(engine).get_output()
    engine.abort_request(["r"])
    engine.step()
    engine.add_request("r", "say>", SamplingParams(max_tokens=5))
    assert engine._processor.process(late.outputs).aborted_ids == []
    assert run_all(engine)[-1].outputs[0].text == "ab"


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 10**30])
def test_a_priority_beyond_32_bits_is_refused(priority: int) -> None:
    engine = sync_engine(says("ab"))
    with pytest.raises(RequestError, match="priority"):
        engine.add_request("r", "say>", SamplingParams(), priority=priority)
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_prompt_of_one_token_has_one_position_without_logprobs(kind: RequestOutputKind) -> None:
    engine = sync_engine(says("ab"))
    params = SamplingParams(prompt_logprobs=1, output_kind=kind, max_tokens=2)
    engine.add_request("r", ">", params)
    assert run_all(engine)[0].prompt_logprobs == [None]


def test_request_metrics_come_with_statistics_only() -> None:
    metrics = answer(sync_engine(says("ab"))).metrics
    assert metrics is not None and metrics.first_scheduled_time is not None
    assert metrics.first_token_time is not None and metrics.last_token_time is not None
    assert metrics.arrival_time <= metrics.first_scheduled_time <= metrics.first_token_time
    assert answer(sync_engine(says("ab"), log_stats=False)).metrics is None


@pytest.mark.parametrize("positions", [0, 1, 511, 512, 513, 4096, 5000])
def test_many_scored_positions_come_some_at_a_time(positions: int) -> None:
    entries = [TokenLogprobs([i] * 16, [0.0] * 16, 1) for i in range(positions)]
    last = EngineCoreOutput("a", [5], new_prompt_logprobs=entries, finish_reason="stop")
    other = EngineCoreOutput("b", [6])
    turns = list(in_turns([last, other]))
    assert turns[-1] == [last, other]
    pieces = [output.new_prompt_logprobs or [] for turn in turns for output in turn]
    assert [entry for piece in pieces for entry in piece] == entries
    assert all(len(piece) <= 512 for piece in pieces)
    assert all(not output.new_token_ids for turn in turns[:-1] for output in turn)
