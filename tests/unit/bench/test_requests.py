"""Request bodies and stream parsing for each API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vllm_lite.bench.datasets import Prompt, Sample
from vllm_lite.bench.options.target import BACKENDS, SamplingOptions, TargetOptions
from vllm_lite.bench.recorder import (
    ResponsesRecorder,
    StreamRecorder,
    WholeRecorder,
    model_names,
    prepare,
    recorder_of,
)
from vllm_lite.errors import UsageError


def body(target: TargetOptions, prompt: Prompt = "Hello", **sampling: Any) -> dict[str, Any]:
    prepared = prepare(Sample(prompt, 5, 9), "m", target, SamplingOptions(**sampling))
    assert prepared.prompt_tokens == 5
    content: dict[str, Any] = json.loads(prepared.body)
    return content


def test_a_completion_asks_for_a_stream_with_usage() -> None:
    for backend in ("openai", "vllm"):
        assert body(TargetOptions(backend=backend)) == {
            "model": "m",
            "prompt": "Hello",
            "max_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def test_a_chat_is_one_turn_of_the_user() -> None:
    assert body(TargetOptions(backend="openai-chat", logprobs=2)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 9,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_response_is_not_kept() -> None:
    target = TargetOptions(backend="openai-responses")
    assert body(target, temperature=0) == {
        "model": "m",
        "input": "Hello",
        "max_output_tokens": 9,
        "store": False,
        "stream": True,
        "temperature": 0,
    }


def test_beams_come_in_one_piece() -> None:
    target = TargetOptions(use_beam_search=True, extra_body={"n": 2})
    assert body(target) == {
        "model": "m",
        "prompt": "Hello",
        "max_tokens": 9,
        "use_beam_search": True,
        "n": 2,
    }
    assert recorder_of(target) is WholeRecorder
    with pytest.raises(UsageError, match="not for responses"):
        TargetOptions(backend="openai-responses", use_beam_search=True)


def test_embeddings_ask_for_no_tokens() -> None:
    for backend in ("openai-embeddings", "infinity-embeddings", "vllm-pooling"):
        target = TargetOptions(backend=backend, extra_body={"dimensions": 8})
        assert body(target, ["a", "b"]) == {"model": "m", "input": ["a", "b"], "dimensions": 8}
    inputs = [
        prepare(Sample(p, 1, 1), "m", target, SamplingOptions()).num_inputs
        for p in ("a", ["a", "b"], [1, 2])
    ]
    assert inputs == [1, 2, 1], "token ids are one prompt"


def test_reranking_sends_a_query_and_its_documents() -> None:
    target = TargetOptions(backend="vllm-rerank", endpoint="/v1/rerank")
    sample = Sample(["q", "a", "b"], 9, 0)
    assert body(target, sample.prompt) == {"model": "m", "query": "q", "documents": ["a", "b"]}
    assert prepare(sample, "m", target, SamplingOptions()).num_inputs == 2


def test_extra_fields_win_over_options_and_these_over_defaults() -> None:
    target = TargetOptions(ignore_eos=True, logprobs=3, extra_body={"top_k": 1, "max_tokens": 2})
    sent = body(target, temperature=0.5, top_k=7)
    assert (sent["ignore_eos"], sent["logprobs"], sent["temperature"]) == (True, 3, 0.5)
    assert (sent["top_k"], sent["max_tokens"]) == (1, 2)


def test_each_api_has_its_path_and_its_recorder() -> None:
    made = {name: type(recorder_of(TargetOptions(backend=name))()) for name in BACKENDS}
    assert made["openai"] is made["vllm"] is made["openai-chat"] is StreamRecorder
    assert made["openai-responses"] is ResponsesRecorder
    assert made["vllm-pooling"] is made["openai-embeddings"] is WholeRecorder
    assert TargetOptions(backend="openai-responses").path == "/v1/responses"
    with pytest.raises(UsageError, match="does not fit --backend vllm-pooling"):
        TargetOptions(backend="vllm-pooling", endpoint="/v1/completions")
    with pytest.raises(UsageError, match="--logprobs makes no sense"):
        TargetOptions(backend="vllm-pooling", logprobs=1)


def test_adapters_are_dealt_to_requests() -> None:
    assert model_names(TargetOptions(), "m", 2, 0) == ["m", "m"]
    dealt = TargetOptions(lora_modules=["a", "b"], lora_assignment="round-robin")
    assert model_names(dealt, "m", 5, 0) == ["a", "b", "a", "b", "a"]
    drawn = model_names(TargetOptions(lora_modules=["a", "b"]), "m", 50, 0)
    assert set(drawn) == {"a", "b"}
    assert drawn == model_names(TargetOptions(lora_modules=["a", "b"]), "m", 50, 0)
