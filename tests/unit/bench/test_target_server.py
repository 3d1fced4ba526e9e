"""Other requests to a benchmarked server: its counters, if any, and its profiler."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.bench.servers import chunked, scripted_server
from vllm_lite.bench.options.target import TargetOptions
from vllm_lite.bench.report import drafts_block
from vllm_lite.bench.target_server import DraftCounts, TargetServer
from vllm_lite.errors import UsageError

COUNTERS = b"""# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0"} 4.0
vllm:spec_decode_num_drafts_total{engine="1"} 6.0
vllm:spec_decode_num_drafts_created{engine="0"} 1.7e+09
# TYPE vllm:spec_decode_num_draft_tokens counter
vllm:spec_decode_num_draft_tokens_total{engine="0"} 30.0
# TYPE vllm:spec_decode_num_accepted_tokens counter
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 12.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
"""


async def ask(answer: bytes) -> tuple[DraftCounts | None, str, list[str]]:
    """The counters, what the profiler's refusal says, and the request lines."""

    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with scripted_server(reply) as scripted:
        server = TargetServer(TargetOptions(base_url=scripted.url))
        counts, refusal = await server.draft_counts(), ""
        try:
            await server.switch_profiler("start")
        except UsageError as error:
            refusal = str(error)
        server.close()
        return counts, refusal, [head.partition("\r\n")[0] for head in scripted.heads]


async def test_drafts_are_counted_over_all_engines() -> None:
    counts, refusal, lines = await ask(chunked(COUNTERS))
    assert counts == DraftCounts(10, 30, 12, {0: 8, 1: 4})
    assert not refusal
    assert lines == ["GET /metrics HTTP/1.1", "POST /start_profile HTTP/1.1"]
    before = DraftCounts(5, 10, 2, {0: 2})
    block = drafts_block(counts.since(before))
    assert block is not None
    assert [" ".join(line.split()) for line in block.lines[1:]] == [
        "Acceptance rate (%): 50.00",
        "Acceptance length: 3.00",
        "Drafts: 5",
        "Draft tokens: 20",
        "Accepted tokens: 10",
        "Per-position acceptance (%):",
        "Position 0: 120.00",
        "Position 1: 80.00",
    ]
    assert block.json["spec_decode_per_position_acceptance_rates"] == [1.2, 0.8]
    assert drafts_block(counts.since(counts)) is None


async def test_a_server_without_counters_or_profiler_is_no_accident() -> None:
    counts, refusal, _ = await ask(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
    assert counts is None
    assert refusal.startswith("--profile: the server cannot start a profiler (HTTP 404")
    assert (await ask(chunked(b"process_cpu_seconds_total 1.0\n")))[0] is None


async def test_nobody_at_home_is_one_line() -> None:
    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    async with scripted_server(reply) as scripted:
        url = scripted.url
    server = TargetServer(TargetOptions(base_url=url))
    with pytest.raises(UsageError, match="there is no server: cannot connect"):
        await server.find_model(0.0)
    assert await server.draft_counts() is None
