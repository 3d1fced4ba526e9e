"""The server under load, apart from the load: its model, its readiness, its counters.

Works with any server that speaks OpenAI's API; what only some of them have is None elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from vllm_lite import envs
from vllm_lite.bench.http_client import HttpClient, TransportError
from vllm_lite.bench.options.target import TargetOptions
from vllm_lite.bench.recorder import error_text
from vllm_lite.errors import UsageError

POLL_SECONDS = 0.5
_DRAFTS = "vllm:spec_decode_"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model's name in requests, and where its files are."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Drafted and accepted tokens of a server; `accepted_at` counts by position in the draft."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_at: Mapping[int, int]

    def since(self, before: DraftCounts) -> DraftCounts:
        return DraftCounts(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted_tokens - before.accepted_tokens,
            {at: n - before.accepted_at.get(at, 0) for at, n in self.accepted_at.items()},
        )


class TargetServer:
    """Requests to the server before and after the load."""

    def __init__(self, target: TargetOptions) -> None:
        """Does not connect; raises UsageError if the URL is invalid."""
        key = envs.OPENAI_API_KEY
        headers = {**({"authorization": f"Bearer {key}"} if key else {}), **target.headers}
        self.client = HttpClient(target.url, headers, verify_tls=not target.insecure)
        self._target = target

    async def find_model(self, patience: float) -> ServedModel:
        """The model that was named, or the first that the server lists; raises UsageError."""
        target = self._target
        status, body = await self._ask_models(patience)
        if target.model is not None:
            return ServedModel(target.served_model_name or target.model, target.model)
        url = self.client.url
        if status in (401, 403):
            raise UsageError(f"{url} refuses the API key; set OPENAI_API_KEY to one it takes")
        try:
            first = msgspec.json.decode(body)["data"][0]
            name = str(first["id"])
            source = first.get("root") or name
        except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
            raise UsageError(
                f"{url} does not list its models (HTTP {status}: {error_text(body)}); give --model"
            ) from None
        return ServedModel(target.served_model_name or name, str(source))

    async def _ask_models(self, patience: float) -> tuple[int, bytes]:
        """The answer of /v1/models, which also shows that the server is up."""
        deadline = time.perf_counter() + patience
        while True:
            try:
                return await self.client.get("/v1/models")
            except TransportError as error:
                if time.perf_counter() >= deadline:
                    raise UsageError(
                        f"there is no server: {error}; start one with `vllm-lite serve MODEL`, or "
                        "give --base-url"
                    ) from None
            await asyncio.sleep(POLL_SECONDS)

    async def switch_profiler(self, action: str) -> None:
        """Send `start` or `stop` to the server's profiler; raises UsageError if it has none."""
        try:
            status, body = await self.client.post(f"/{action}_profile", b"", lambda piece: None)
        except TransportError as error:
            status, body = 0, str(error).encode()
        if status != 200:
            raise UsageError(
                f"--profile: the server cannot {action} a profiler (HTTP {status}: "
                f"{error_text(body)}); drop --profile, or give the server --profiler-config"
            )

    async def draft_counts(self) -> DraftCounts | None:
        """The server's drafts so far; None if it does not count them."""
        try:
            status, body = await self.client.get("/metrics", max_bytes=16 << 20)
            families = list(text_string_to_metric_families(body.decode()))
        except (TransportError, ValueError):
            return None
        counts = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
        accepted_at: dict[int, int] = {}
        is_told = False
        for sample in (sample for family in families for sample in family.samples):
            if status != 200 or not sample.name.startswith(_DRAFTS):
                continue
            kind = sample.name.removeprefix(_DRAFTS + "num_").removesuffix("_total")
            if kind in counts:
                is_told = True
                counts[kind] += int(sample.value)
            elif kind == "accepted_tokens_per_pos" and sample.name.endswith("_total"):
                place = int(sample.labels["position"])
                accepted_at[place] = accepted_at.get(place, 0) + int(sample.value)
        return DraftCounts(**counts, accepted_at=accepted_at) if is_told else None

    def close(self) -> None:
        self.client.close()
