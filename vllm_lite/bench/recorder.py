"""From the bytes of one answer to its times, text and token counts; one recorder for each API.

State machines: however the bytes are cut into pieces, text and counts are the same. They read
the clock once for each piece, before they look at it. They know no connection.
"""

from __future__ import annotations

import itertools
import random
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from vllm_lite.bench.datasets import Prompt, Sample
from vllm_lite.bench.options.target import SamplingOptions, TargetOptions

Body = dict[str, object]


@dataclass(slots=True)
class RequestResult:
    """The result of one request; times in seconds, `start_time` on perf_counter's clock.

    `error` is "" where it succeeded. `latency` reaches to the last chunk, `ttft` to the first,
    `itls` are the gaps between. `output_tokens` is None where the server did not tell;
    `prompt_tokens` is the server's count where it told. `num_inputs` prompts were in it.
    """

    prompt_tokens: int
    num_inputs: int = 1
    start_time: float = 0.0
    queue_time: float = 0.0
    ttft: float = 0.0
    itls: array[float] = field(default_factory=lambda: array("d"))
    latency: float = 0.0
    output_tokens: int | None = None
    text: str = ""
    error: str = ""

    @property
    def is_success(self) -> bool:
        return not self.error


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None


class _Usage(msgspec.Struct):
    """Completions count prompt and completion tokens, responses input and output tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    """One event of the responses API."""

    type: str = ""
    delta: Any = None
    response: _Response | None = None
    error: Any = None


_CHUNKS = msgspec.json.Decoder(_Chunk)
_EVENTS = msgspec.json.Decoder(_Event)
_FIELD = b"data:"
_TEXT = "response.output_text.delta"
_TOKENS = frozenset({_TEXT, "response.reasoning_text.delta"})
_ENDS = frozenset({"response.completed", "response.incomplete"})
_FAILURES = frozenset({"response.failed", "error"})


class StreamRecorder:
    """Records a text/event-stream of completions or of a chat."""

    __slots__ = ("_first", "_itls", "_last", "_rest", "_texts", "_usage", "error", "is_done")

    def __init__(self) -> None:
        self.error = ""
        self.is_done = False
        self._rest = b""
        self._first = self._last = 0.0
        self._itls = array("d")
        self._texts: list[str] = []
        self._usage = _Usage()

    @property
    def num_chunks(self) -> int:
        return len(self._itls) + 1 if self._first else 0

    def on_body(self, piece: bytes) -> None:
        now = time.perf_counter()
        lines = (self._rest + piece).split(b"\n") if self._rest else piece.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(_FIELD):
                self._on_event(line[len(_FIELD) :].strip(), now)

    def _on_event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = _CHUNKS.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.error = self.error or f"a chunk is not as OpenAI's: {error}"
            return
        if chunk.error is not None:
            self.error = self.error or error_text(payload)
        if chunk.choices:
            choice = chunk.choices[0]
            self._on_output(choice.text if choice.delta is None else choice.delta.content, now)
        if chunk.usage is not None:
            self._usage = chunk.usage

    def _on_output(self, text: str | None, now: float) -> None:
        if self._first:
            self._itls.append(now - self._last)
        else:
            self._first = now
        self._last = now
        if text:
            self._texts.append(text)

    def finish(self, result: RequestResult) -> None:
        if not self._first:
            result.error = result.error or self.error or "the answer has no tokens"
            return
        result.ttft = self._first - result.start_time
        result.latency = self._last - result.start_time
        result.itls = self._itls
        usage = self._usage
        result.output_tokens = _first_known(usage.completion_tokens, usage.output_tokens)
        prompt = _first_known(usage.prompt_tokens, usage.input_tokens)
        result.prompt_tokens = result.prompt_tokens if prompt is None else prompt
        result.text = "".join(self._texts)
        result.error = result.error or self.error


class ResponsesRecorder(StreamRecorder):
    """Records the events of the responses API."""

    __slots__ = ()

    def _on_event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            return
        try:
            event = _EVENTS.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.error = self.error or f"an event is not as OpenAI's: {error}"
            return
        if event.type in _TOKENS:
            self._on_output(event.delta if event.type == _TEXT else None, now)
        elif event.type in _ENDS:
            self.is_done = True
            if event.response is not None and event.response.usage is not None:
                self._usage = event.response.usage
        elif event.type in _FAILURES or event.error is not None:
            self.error = self.error or error_text(payload)

    def finish(self, result: RequestResult) -> None:
        """Write what was seen into `result`; a stream without its last event has failed."""
        if self._first and not self.is_done:
            self.error = self.error or "the stream ended before its last event"
        super().finish(result)


class WholeRecorder(StreamRecorder):
    """Records an answer that comes in one piece: embeddings, or a completion without a stream."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def on_body(self, piece: bytes) -> None:
        self._last = time.perf_counter()
        self._pieces.append(piece)

    def finish(self, result: RequestResult) -> None:
        if not self._pieces:
            result.error = result.error or "the answer is empty"
            return
        result.ttft = result.latency = self._last - result.start_time
        try:
            answer = _CHUNKS.decode(b"".join(self._pieces))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            result.error = result.error or f"the answer is not as OpenAI's: {error}"
            return
        for choice in answer.choices[:1]:
            result.text = (choice.message.content if choice.message else choice.text) or ""
        usage = answer.usage or _Usage()
        result.output_tokens = usage.completion_tokens or 0
        result.prompt_tokens = _first_known(usage.prompt_tokens, result.prompt_tokens) or 0


def _first_known(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def error_text(body: bytes) -> str:
    """The message of an error body, or its beginning if it is not OpenAI's."""
    try:
        content = msgspec.json.decode(body)
        error = (content.get("response") or content).get("error") or content
        message = error if isinstance(error, str) else error["message"]
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError):
        message = body[:200].decode("utf-8", "replace")
    return " ".join(str(message).split())


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request as it goes over the wire, and the tokens of its `num_inputs` prompts."""

    body: bytes
    prompt_tokens: int
    num_inputs: int = 1


def recorder_of(target: TargetOptions) -> Callable[[], StreamRecorder]:
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
    body = {"model": model, **_BODIES[target.api.path](sample.prompt, sample.output_tokens, target)}
    if target.streams:
        body["stream"] = True
    if target.ignore_eos:
        body["ignore_eos"] = True
    if target.use_beam_search:
        body["use_beam_search"] = True
    body |= {**sampling.body, **target.extra_body}
    documents = body.get("documents")
    count = _count(sample.prompt if documents is None else documents)
    return PreparedRequest(msgspec.json.encode(body), sample.prompt_tokens, count)


def _count(prompt: object) -> int:
    is_many = isinstance(prompt, list) and prompt and isinstance(prompt[0], str)
    return len(prompt) if isinstance(prompt, list) and is_many else 1


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


def _reranking(prompt: Prompt, length: int, target: TargetOptions) -> Body:
    # A probe's prompt is a text; a load's are a query and its documents.
    query, *documents = [prompt, prompt] if isinstance(prompt, str) else prompt
    return {"query": query, "documents": documents}


_BODIES: dict[str, Callable[[Prompt, int, TargetOptions], Body]] = {
    "/v1/completions": _completion,
    "/v1/chat/completions": _chat,
    "/v1/responses": _response,
    "/rerank": _reranking,
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/pooling"), _embedding),
}
