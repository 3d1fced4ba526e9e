"""An EngineClient that says what it is told to: scripted replies over a byte tokenizer.

Requests are checked by the real input processor, so that what the engine would refuse is
refused here as well.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Gauge

from tests.builders import TINY_FACTS
from vllm_lite.config.model import ModelConfig
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.config.structured_outputs import StructuredOutputsConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.client import (
    NOBODY,
    Origin,
    PauseMode,
    Prompt,
    memory_to_release,
    memory_to_wake,
)
from vllm_lite.engine.front.admission import PreparedConstraints, fan_out
from vllm_lite.engine.front.input_processor import InputProcessor
from vllm_lite.engine.front.request_state import tensor_of
from vllm_lite.engine.link.channel import decode_to_core, message_encoder
from vllm_lite.engine.link.messages import AddRequests, Call, Prepare, ToCore
from vllm_lite.errors import EngineDeadError, UnavailableError
from vllm_lite.metrics.stats import EngineSnapshot, RequestSnapshot, SchedulerStats
from vllm_lite.outputs import (
    CompletionOutput,
    Logprob,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
)
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import (
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm_lite.tokenizer.parts import ChatEncoder

EOS = 256
VOCAB_SIZE = 258
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if tools %}[{{ tools | length }} tools]{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class ByteTokenizer:
    """A token is a byte; 256 ends a text, 257 pads."""

    def __init__(self, template: str = TEMPLATE) -> None:
        self.chat_templates = {"default": template}
        self.special_tokens = {"eos_token": "<eos>"}
        self.eos_token_id = EOS
        self.bos_token_id = None
        self.all_special_ids = frozenset({EOS, EOS + 1})
        self.vocab_size = VOCAB_SIZE
        self.spelling = None
        self.chat: ChatEncoder | None = None

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates["default"]

    has_encodings = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def marker_ids(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int], *_: Any, **__: Any) -> str:
        return bytes(i for i in ids if i < EOS).decode(errors="replace")

    def describe(self) -> dict[str, Any]:
        return {"chat_template": self.chat_template, **self.special_tokens}

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [f"<{i}>" for i in ids]

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else b"<eos>"

    def decode_token(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")


def assert_travels(message: ToCore) -> None:
    """Asserts that a message reaches the engine core unchanged."""
    assert decode_to_core(message_encoder().encode(message)) == message


def fake_config(
    *, reasoning_parser: str = "", pooling: PoolingFacts | None = None, **model: Any
) -> VllmConfig:
    """A config as the server reads it."""
    model.setdefault("runner", "generate" if pooling is None else "pooling")
    model.setdefault("max_model_len", 128)
    model.setdefault("served_model_name", ["tiny", "alias"])
    facts = replace(
        TINY_FACTS,
        path="/models/tiny",
        max_position=1024,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(EOS,),
        pooling=pooling,
    )
    return VllmConfig(
        facts=facts,
        model=ModelConfig(model="tiny", **model),
        structured_outputs=StructuredOutputsConfig(reasoning_parser=reasoning_parser),
    )


def vector_of(token_ids: Sequence[int], width: int) -> NDArray[np.float32]:
    """How often each number is among the ids' remainders, and a little more."""
    counts = np.bincount(np.asarray(token_ids) % width, minlength=width)
    return (counts + 0.1 * np.arange(width)).astype(np.float32)


class FakeEngineClient:
    """Answers choice i of every request with `replies[i]` and an end of text."""

    def __init__(self, *replies: str, defaults: dict[str, Any] | None = None, **model: Any) -> None:
        self.config = fake_config(**model)
        self.tokenizer = ByteTokenizer()
        self.registry: CollectorRegistry | None = CollectorRegistry()
        Gauge("vllm:num_requests_running", "Running.", registry=self.registry).set(0)
        self.replies = replies or ("Hello",)
        self.defaults = defaults or {}
        # Raised by the stream after that many tokens.
        self.failure: Exception | None = None
        self.fail_after = 0
        self.refusal: Exception | None = None
        # Raised by prepare() for any constraint.
        self.constraint_refusal: Exception | None = None
        self.prepared: list[StructuredOutputsParams] = []
        # A request waits here before every token; set it to let all run.
        self.gate: asyncio.Event | None = None
        self.seen: list[tuple[Prompt, SamplingParams, str]] = []
        # What encode() was asked for.
        self.pooled: list[tuple[list[int], PoolingParams, str]] = []
        self.options: list[dict[str, Any]] = []
        self.origins: list[Origin] = []
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.dead_error: BaseException = EngineDeadError("engine core died: killed by signal 9")
        self.errored = False
        self.is_running = True
        self.num_unfinished_elsewhere = 0
        self.pause: tuple[PauseMode, bool] | None = None
        # Whose requests a snapshot shows, and how many were taken.
        self.snapshot_tenants = [""]
        self.num_snapshots = 0
        self._asked_to_stop: set[str] = set()
        self._inputs = InputProcessor(self.config, self.tokenizer)  # type: ignore[arg-type]

    async def prepare(self, params: SamplingParams) -> None:
        """Refuses what `constraint_refusal` says; counts the constraints it saw."""
        if params.structured_outputs is not None:
            self.prepared.append(params.structured_outputs)
            asked = PreparedConstraints().unknown([self._inputs.process_constraint(params)])
            for checked in asked.values():
                assert_travels(Call(7, Prepare(checked)))
            if self.constraint_refusal is not None:
                raise self.constraint_refusal

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        origin: Origin = NOBODY,
        is_part: bool = False,
    ) -> AsyncIterator[RequestOutput]:
        if self.errored:
            raise self.dead_error
        if self.refusal is not None and not is_part:
            raise self.refusal
        if not self.is_running:
            raise UnavailableError("The server is shutting down and takes no new requests")
        processed = self._inputs.process(prompt, params, cache_salt)
        self.seen.append((prompt, params, request_id))
        self.options.append({"priority": priority, "cache_salt": cache_salt})
        self.origins.append(origin)
        processed.origin = origin
        assert_travels(AddRequests(fan_out(f"{request_id}-0.0", processed, 0.5, priority)))
        return self._run(processed.prompt, processed.prompt_token_ids, processed.params, request_id)

    def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        origin: Origin = NOBODY,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """Vectors of the ids' own numbers: see `vector_of`."""
        if self.errored:
            raise self.dead_error
        if self.refusal is not None:
            raise self.refusal
        processed = self._inputs.process(prompt, pooling_params, cache_salt)
        self.pooled.append((processed.prompt_token_ids, pooling_params, request_id))
        self.options.append({"priority": priority, "cache_salt": cache_salt})
        self.origins.append(origin)
        processed.origin = origin
        assert_travels(AddRequests(fan_out(f"{request_id}-0.0", processed, 0.5, priority)))
        return self._pool(processed.prompt_token_ids, pooling_params, request_id)

    async def _pool(
        self, token_ids: list[int], params: PoolingParams, request_id: str
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        self.running.add(request_id)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.failure is not None:
                raise self.failure
            is_aborted = request_id in self._asked_to_stop
            facts = self.config.facts.pooling
            assert facts is not None
            task = params.task or facts.default_task
            width = facts.size if "embed" in task else facts.num_labels
            data = vector_of(token_ids, width)
            if task.startswith("token"):
                data = np.stack([vector_of([one], width) for one in token_ids])
            yield PoolingRequestOutput(
                request_id,
                PoolingOutput(data.astype(np.float32).tobytes(), data.shape, tensor_of),
                token_ids,
                0,
                True,
                error="None" if is_aborted else None,
            )
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.append(request_id)
            raise
        finally:
            self.running.discard(request_id)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        self._asked_to_stop |= {request_id} if isinstance(request_id, str) else set(request_id)
        if self.gate is not None:
            self.gate.set()

    async def check_health(self) -> None:
        if self.errored:
            raise self.dead_error

    async def reset_prefix_cache(self) -> bool:
        return True

    async def pause_generation(self, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        self.pause = (mode, clear_cache)
        if mode == "abort":
            await self.abort(self.running)

    async def resume_generation(self) -> None:
        self.pause = None

    async def is_paused(self) -> bool:
        return self.pause is not None

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        memory_to_release(self.config, level, mode)
        await self.pause_generation(mode)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        self.pause = None if "kv_cache" in memory_to_wake(tags) else self.pause

    async def is_sleeping(self) -> bool:
        return self.pause is not None

    async def snapshot(self) -> EngineSnapshot:
        """Two blocks of the first request, one cached and one free."""
        self.num_snapshots += 1
        return EngineSnapshot(
            time=0.5 * self.num_snapshots,
            stats=SchedulerStats(num_running=len(self.snapshot_tenants), num_total_blocks=4),
            num_steps=10 * self.num_snapshots,
            step_seconds=0.2 * self.num_snapshots,
            num_rows=20 * self.num_snapshots,
            num_tokens=30 * self.num_snapshots,
            blocks=[0, 0, -1, -2],
            stride=1,
            requests=[
                RequestSnapshot(f"chat-{i}", tenant, 2.0, 0.5, True, 20, 16, 24, 4, 2)
                for i, tenant in enumerate(self.snapshot_tenants)
            ],
            start=[("imports", 0.3), ("weights", 1.0)],
        )

    def get_default_sampling_params(self) -> dict[str, Any]:
        return self.defaults

    async def shutdown(self, timeout: float = 0.0) -> None:
        self.is_running = False

    async def _run(
        self, text: str | None, prompt_ids: list[int], params: SamplingParams, request_id: str
    ) -> AsyncIterator[RequestOutput]:
        self.running.add(request_id)
        try:
            choices = [self._choice(index, params) for index in range(params.n)]
            is_delta = params.output_kind is RequestOutputKind.DELTA
            whole = {i: _joined(steps) for i, steps in enumerate(choices)}
            scores = None
            if params.prompt_logprobs is not None:
                known = [_likeliest(i, params.prompt_logprobs) for i in prompt_ids[1:]]
                scores = [None, *known]
            for step in range(max(map(len, choices))):
                if self.gate is not None:
                    await self.gate.wait()
                if self.failure is not None and step >= self.fail_after:
                    raise self.failure
                outputs = [steps[step] for steps in choices if step < len(steps)]
                stopped = request_id in self._asked_to_stop
                if stopped:
                    outputs = [
                        CompletionOutput(o.index, "", [], finish_reason="abort") for o in outputs
                    ]
                finished = stopped or step + 1 == max(map(len, choices))
                if not is_delta and not finished:
                    continue
                if not is_delta and not stopped:
                    outputs = list(whole.values())
                yield RequestOutput(
                    request_id,
                    text,
                    prompt_ids,
                    outputs,
                    finished,
                    prompt_logprobs=scores if finished or step == 0 else None,
                    num_cached_tokens=len(prompt_ids) // 16 * 16,
                )
                if finished:
                    return
                await asyncio.sleep(0)
            return
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.append(request_id)
            raise
        finally:
            self.running.discard(request_id)

    def _choice(self, index: int, params: SamplingParams) -> list[CompletionOutput]:
        """The deltas of one choice, a token each."""
        reply = self.replies[index % len(self.replies)]
        stop_reason: str | None = None
        for stop in params.stop or ():
            if stop in reply:
                reply, stop_reason = reply[: reply.index(stop)], stop
        tokens = list(reply.encode())
        limit = params.max_tokens or 0
        steps = []
        decode = codecs.getincrementaldecoder("utf-8")().decode
        for token_id in [*tokens, EOS][:limit]:
            text = decode(bytes([token_id])) if token_id != EOS else ""
            delta = CompletionOutput(index, text, [token_id])
            if params.reports_logprobs:
                delta.logprobs = [_candidates(token_id, params)]
            steps.append(delta)
        last = steps[-1]
        last.finish_reason = "stop" if last.token_ids == [EOS] else "length"
        last.stop_reason = stop_reason if last.finish_reason == "stop" else None
        return steps


def _candidates(token_id: int, params: SamplingParams) -> dict[int, Logprob]:
    """The token itself, and those that the request asks for."""
    if params.logprob_token_ids is None:
        return _likeliest(token_id, params.logprobs or 0)
    chosen = {i: Logprob(-2.0, None) for i in params.logprob_token_ids}
    return {token_id: Logprob(-0.25, 1)} | chosen | _likeliest(token_id, 1)


def _likeliest(token_id: int, count: int) -> dict[int, Logprob]:
    """The token itself, likeliest, and runners-up."""
    number = VOCAB_SIZE if count == -1 else max(count, 1)
    ids = [(token_id + i) % EOS if i else token_id for i in range(number)]
    show: Callable[[int], str] = ByteTokenizer().decode_token
    return {one: Logprob(-0.25 * (i + 1), i + 1, show(one)) for i, one in enumerate(ids)}


def _joined(steps: list[CompletionOutput]) -> CompletionOutput:
    last = steps[-1]
    return CompletionOutput(
        last.index,
        "".join(step.text for step in steps),
        [token for step in steps for token in step.token_ids],
        logprobs=[p for step in steps for p in step.logprobs or ()]
        if last.logprobs is not None
        else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
