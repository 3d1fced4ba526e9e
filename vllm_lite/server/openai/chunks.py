"""Chunks of a stream as bytes, made of parts that are encoded once per request.

A chunk is `data: {HEAD,"choices":[CHOICE]TAIL}`; only CHOICE changes from token to token. Knows
no engine. This is the hottest code of the API process: no models, no dicts per token.
"""

from __future__ import annotations

import msgspec

from vllm_lite.server.openai.sampling_protocol import UsageChoice
from vllm_lite.server.openai.usage import UsageCounter

encode = msgspec.json.Encoder().encode


class ChunkWriter:
    """Frames the chunks of one streamed reply."""

    def __init__(
        self,
        identity: dict[str, object],
        usage: UsageCounter,
        usage_choice: UsageChoice,
        fingerprint: str | None,
    ) -> None:
        """`identity` holds what every chunk begins with: id, object, created, model."""
        self._open = b"data: " + encode(identity)[:-1] + b',"choices":['
        self._usage = usage
        self._include_usage = usage_choice.at_end
        self._continuous_usage = usage_choice.always
        self._fingerprint = b'"system_fingerprint":' + encode(fingerprint)

    def chunk(self, choice: bytes, extra: bytes = b"", *, last: bool = False) -> bytes:
        """One event that carries `choice` and, beside the choices, `extra` (",key:value...").

        `last` says that the choice finishes with it.
        """
        if self._continuous_usage:
            extra += b',"usage":' + encode(self._usage.brief())
        if last and not self._include_usage:
            extra += b"," + self._fingerprint
        return b"%b%b]%b}\n\n" % (self._open, choice, extra)

    def usage_chunk(self, timings: dict[str, float | None] | None = None) -> bytes:
        """The event after the last choice, with `metrics` where there are timings.

        Empty where usage was not asked for.
        """
        if not self._include_usage:
            return b""
        usage = encode(self._usage.final())
        metrics = b""
        if timings is not None:
            known = {name: value for name, value in timings.items() if value is not None}
            metrics = b',"metrics":' + encode(known)
        return b'%b],"usage":%b,%b%b}\n\n' % (self._open, usage, self._fingerprint, metrics)
