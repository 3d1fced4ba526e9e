"""Samples as they go over the wire: one body and one recorder for each API."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from vllm_lite.bench.datasets import Prompt, Sample
from vllm_lite.bench.options import SamplingOptions, TargetOptions
from vllm_lite.bench.recorder import Recorder, ResponsesRecorder, StreamRecorder, WholeRecorder

Body = dict[str, object]


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request as it goes over the wire, and the tokens of its `num_inputs` prompts."""

    body: bytes
    prompt_tokens: int
    num_inputs: int = 1


def recorder_of(target: TargetOptions) -> Callable[[], Recorder]:
    """The recorder of the target's API."""
    if not target.streams:
        return WholeRecorder
    return ResponsesRecorder if target.backend == "openai-responses" else StreamRecorder


def model_names(target: TargetOptions, model: str, count: int, seed: int) -> list[str]:
    """The model that each of `count` requests asks for: `model`, or an adapter."""
    adapters = target.lora_modules
    if not adapters:
        return [model] * count
    if target.lora_assignment == "round-robin":
        return list(itertools.islice(itertools.cycle(adapters), count))
    return random.Random(seed).choices(adapters, k=count)


def prepare(
    sample: Sample, model: str, target: TargetOptions, sampling: SamplingOptions
) -> PreparedRequest:
    """The request for `sample`, in the shape of the target's API."""
    make = _BODIES[target.backend]
    body = {"model": model, **make(sample.prompt, sample.output_tokens, target)}
    if target.streams:
        body["stream"] = True
    if target.ignore_eos:
        body["ignore_eos"] = True
    if target.use_beam_search:
        body["use_beam_search"] = True
    body |= {**sampling.body, **target.extra_body}
    return PreparedRequest(msgspec.json.encode(body), sample.prompt_tokens, _count(sample.prompt))


def _count(prompt: Prompt) -> int:
    is_many = isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], str)
    return len(prompt) if is_many and not isinstance(prompt, str) else 1


def _completion(prompt: Prompt, length: int, target: TargetOptions) -> Body:
    body: Body = {"prompt": prompt, "max_tokens": length}
    if target.logprobs is not None:
        body["logprobs"] = target.logprobs
    return body | _usage(target)


def _chat(prompt: Prompt, length: int, target: TargetOptions) -> Body:
    messages = [{"role": "user", "content": prompt}]
    body: Body = {"messages": messages, "max_completion_tokens": length}
    if target.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": target.logprobs}
    return body | _usage(target)


def _usage(target: TargetOptions) -> Body:
    return {"stream_options": {"include_usage": True}} if target.streams else {}


def _response(prompt: Prompt, length: int, target: TargetOptions) -> Body:
    # Kept answers would fill the server's memory for nothing.
    body: Body = {"input": prompt, "max_output_tokens": length, "store": False}
    if target.logprobs is not None:
        body |= {"top_logprobs": target.logprobs, "include": ["message.output_text.logprobs"]}
    return body


def _embedding(prompt: Prompt, length: int, target: TargetOptions) -> Body:
    return {"input": prompt}


_BODIES: dict[str, Callable[[Prompt, int, TargetOptions], Body]] = {
    "openai": _completion,
    "vllm": _completion,
    "openai-chat": _chat,
    "openai-responses": _response,
    "openai-embeddings": _embedding,
    "infinity-embeddings": _embedding,
    "vllm-pooling": _embedding,
}
