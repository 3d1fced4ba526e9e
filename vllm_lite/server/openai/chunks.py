"""Counts of tokens and times of a request as replies report them, and the chunks of a stream.

A chunk is `data: {HEAD,"choices":[CHOICE]TAIL}`, made of parts that are encoded once per request;
only CHOICE changes from token to token. This is the hottest code of the API process: no models,
no dicts per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from vllm_lite.outputs import RequestMetrics, RequestOutput, RequestSpecDecodeMetrics
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.logprobs import token_view
from vllm_lite.server.openai.sampling_protocol import SamplingFields

encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class UsageCounter:
    """Adds up what the prompts and choices of one HTTP request used, in tokens.

    `with_details` reports cached tokens, `with_reasoning` those of the reasoning's text.
    """

    with_details: bool
    with_reasoning: bool = False
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0

    def add_prompt(self, output: RequestOutput) -> None:
        """Count a prompt, once, at its first output."""
        self.num_prompt_tokens += len(output.prompt_token_ids)
        self.num_cached_tokens += output.num_cached_tokens or 0

    def brief(self) -> dict[str, object]:
        """The three sums, for a chunk of a stream."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "completion_tokens": self.num_completion_tokens,
        }

    def final(self) -> dict[str, object]:
        """The sums, and details where the server reports them: the last word of a stream."""
        usage = self.brief()
        if self.with_details:
            usage["prompt_tokens_details"] = {"cached_tokens": self.num_cached_tokens}
        if self.with_reasoning:
            usage["completion_tokens_details"] = self._reasoning()
        return usage

    def full(self) -> dict[str, object]:
        """The sums with every key, for a reply that is not streamed."""
        usage = self.brief()
        usage["prompt_tokens_details"] = None
        if self.with_details:
            usage["prompt_tokens_details"] = {
                "cached_tokens": self.num_cached_tokens,
                "created_cache_tokens": None,
                "multimodal_tokens": None,
            }
        usage["completion_tokens_details"] = self._reasoning() if self.with_reasoning else None
        return usage

    def _reasoning(self) -> dict[str, int]:
        # Counted from text, so that it can never exceed what was generated.
        return {"reasoning_tokens": min(self.num_reasoning_tokens, self.num_completion_tokens)}


def request_timings(metrics: RequestMetrics | None, num_tokens: int) -> dict[str, float | None]:
    """Times of a request that generated `num_tokens` with one choice; None where unknown.

    As in vLLM: the first token's time counts from the first schedule, the generation from the
    first token to the last, and the speed is all tokens over the time from schedule to end.
    """
    if metrics is None:
        metrics = RequestMetrics(arrival_time=0.0)
    arrival, scheduled = metrics.arrival_time, metrics.first_scheduled_time
    first, last = metrics.first_token_time, metrics.last_token_time
    decode = _between(first, last)
    whole = _between(scheduled, last)
    return {
        "time_to_first_token_ms": _between(scheduled, first),
        "generation_time_ms": decode,
        "queue_time_ms": _between(arrival, scheduled),
        "mean_itl_ms": None if decode is None or num_tokens < 2 else decode / (num_tokens - 1),
        "tokens_per_second": num_tokens / whole * 1000 if whole else None,
    }


def reply_metrics(
    metrics: RequestMetrics | None,
    drafts: RequestSpecDecodeMetrics | None,
    num_tokens: int,
    *,
    has_timings: bool,
) -> dict[str, object] | None:
    """The metrics of a reply of one choice, with every key; None where none are to be told."""
    if not (has_timings or drafts):
        return None
    timings = request_timings(metrics if has_timings else None, num_tokens)
    return {**timings, "speculative_decoding": drafts and drafts.to_dict()}


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(end - start, 0.0) * 1000


class Reply:
    """Counts of a reply of chat or completions, and the frame around its choices."""

    # As the field `object` names a whole reply, and a chunk of a streamed one.
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(
        self,
        context: ServingContext,
        body: SamplingFields,
        request_id: str,
        *,
        is_single: bool,
        has_reasoning: bool = False,
    ) -> None:
        """`is_single`: there is one choice, whose metrics the reply may report."""
        config = context.server_config
        self._context = context
        self._request_id = request_id
        self._usage = UsageCounter(config.enable_prompt_tokens_details, has_reasoning)
        self._has_timings, self._is_single = config.enable_per_request_metrics, is_single
        self._view = token_view(context, as_ids=body.return_tokens_as_token_ids)
        if body.stream:
            options, is_forced = body.stream_options, config.enable_force_include_usage
            # Whether usage is in a last chunk of its own, and in every chunk.
            self._ends_with_usage = is_forced or bool(options and options.include_usage)
            self._always_usage = is_forced or bool(
                self._ends_with_usage and options and options.continuous_usage_stats
            )
            identity = encode(context.identity(request_id, self.chunk_kind))
            self._open = b"data: " + identity[:-1] + b',"choices":['
            self._fingerprint = b'"system_fingerprint":' + encode(context.fingerprint)

    def _metrics(self, output: RequestOutput) -> dict[str, object] | None:
        if not (self._is_single and output.outputs):
            return None
        drafts, count = output.outputs[0].spec_decode_metrics, self._usage.num_completion_tokens
        return reply_metrics(output.metrics, drafts, count, has_timings=self._has_timings)

    def _frame(self, choices: object, output: RequestOutput, **more: object) -> dict[str, object]:
        """The reply of `choices`, with every key; `output` has its metrics."""
        return {
            **self._context.identity(self._request_id, self.kind),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self._context.fingerprint,
            "usage": self._usage.full(),
            **more,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": self._metrics(output),
        }

    def _framed(self, choice: bytes, extra: bytes = b"", *, last: bool = False) -> bytes:
        """One event that carries `choice` and, beside the choices, `extra` (",key:value...").

        `last` says that the choice finishes with it.
        """
        if self._always_usage:
            extra += b',"usage":' + encode(self._usage.brief())
        if last and not self._ends_with_usage:
            extra += b"," + self._fingerprint
        return b"%b%b]%b}\n\n" % (self._open, choice, extra)

    def _ending(self, last: RequestOutput | None) -> bytes:
        """The event after the last choice; empty where usage was not asked for."""
        if not self._ends_with_usage:
            return b""
        usage = encode(self._usage.final())
        metrics = b""
        if last is not None and (told := self._metrics(last)) is not None:
            known = {name: value for name, value in told.items() if value is not None}
            metrics = b',"metrics":' + encode(known)
        return b'%b],"usage":%b,%b%b}\n\n' % (self._open, usage, self._fingerprint, metrics)
