"""Records of a batch: their content, order and memory."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient, vector_of
from tests.unit.batch.batches import chat, completion, free_port, many, records, run, write
from vllm_lite.batch import lines
from vllm_lite.batch.answering import answer_lines
from vllm_lite.batch.journal import Journal
from vllm_lite.config.batch import BatchConfig
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.config.server import ServerConfig
from vllm_lite.engine.client import Prompt
from vllm_lite.errors import QueueFullError, UsageError
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import SamplingParams


class TestRecords:
    """Lines of the output."""

    def test_answers_have_the_shape_of_a_batch_and_the_body_of_a_server(
        self, tmp_path: Path, output: Path
    ) -> None:
        run(write(tmp_path / "in", chat("a"), "", completion("b", max_tokens=3)), output)
        first, second = records(output)
        assert list(first) == ["id", "custom_id", "response", "error"]
        assert first["id"].startswith("vllm-") and first["error"] is None
        assert list(first["response"]) == ["status_code", "request_id", "body"]
        assert first["response"]["request_id"].startswith("vllm-batch-")
        assert (first["custom_id"], first["response"]["status_code"]) == ("a", 200)
        body = first["response"]["body"]
        assert body["object"] == "chat.completion"
        assert body["choices"][0]["message"]["content"] == "Hello"
        assert second["response"]["body"]["choices"][0]["text"] == "Hel"
        assert list(tmp_path.iterdir()).count(output) == 1 == len(list(tmp_path.iterdir())) - 1

    @pytest.mark.parametrize(
        ("line", "status", "error"),
        [
            (
                {**chat("x"), "url": "/v1/models"},
                400,
                "URL /v1/models was used. Supported endpoints: /v1/chat/completions, "
                "/v1/completions, /v1/embeddings, /v1/audio/transcriptions, "
                "/v1/audio/translations, /score, /rerank",
            ),
            *(
                ({**chat("x"), "url": url}, 400, f"Model does not support endpoint: {url}")
                for url in ("/v1/embeddings", "/v1/score", "/rerank", "/v1/audio/translations")
            ),
            (chat("x", stream=True), 400, "Request must not be sent in stream mode"),
            (chat("x", model="nobody"), 404, "The model 'nobody' does not exist"),
            (chat("x", temperature=-1), 400, "temperature"),
            (chat("x", messages=[]), 400, "messages must not be empty"),
            (completion("x", prompt="long" * 50), 400, "128"),
            ({**chat("x"), "body": [1]}, 400, "The body must be a JSON object"),
        ],
    )
    def test_refusals(
        self, line: dict[str, Any], status: int, error: str, tmp_path: Path, output: Path
    ) -> None:
        run(write(tmp_path / "in", line), output)
        (record,) = records(output)
        assert (record["custom_id"], record["response"]["status_code"]) == ("x", status)
        assert record["response"]["body"] is None
        if isinstance(record["error"], dict):
            inner = record["error"]["error"]
            assert inner["code"] == status and error in inner["message"]
            assert list(inner) == ["message", "type", "param", "code"]
        else:
            assert record["error"] == error

    @pytest.mark.parametrize(
        ("line", "custom_id"),
        [
            ('{"custom_id": "x", "url"', "x"),
            ('{"custom_id": "x", "url": 3, "body": {}}', "x"),
            ('{"custom_id": "\\u00fc\\"", "url": "/v1/completions"}', 'ü"'),
            ('{"url": "/v1/completions", "body": {}}', None),
            ('{"custom_id": 7, "url": "/v1/completions", "body": {}}', None),
            ("nonsense", None),
            ("[1, 2]", None),
            ("[" * 5000, None),
        ],
    )
    def test_a_bad_line_costs_that_line_only(
        self, line: str, custom_id: str | None, tmp_path: Path, output: Path
    ) -> None:
        run(write(tmp_path / "in", chat("a"), "", line, chat("b")), output)
        first, bad, last = records(output)
        assert first["response"]["status_code"] == last["response"]["status_code"] == 200
        assert bad["custom_id"] == custom_id and bad["response"]["body"] is None
        error = bad["error"]["error"]
        assert (error["line"], error["code"]) == (3, 400)
        assert error["message"].startswith("Line 3 of the input is not a request: ")

    def test_bytes_that_are_no_text_and_a_line_too_long(
        self, tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lines, "MAX_LINE_BYTES", 300)
        source = tmp_path / "in"
        good = json.dumps(chat("good")).encode()
        source.write_bytes(
            b"\xef\xbb\xbf" + good + b'\n{"custom_id": "\xff"}\r\n'
            b'{"custom_id": "long", "x": "' + b"x" * 2000 + b'"}\n' + good
        )
        run(source, output)
        found = records(output)
        assert [r["response"]["status_code"] for r in found] == [200, 400, 400, 200]
        assert found[2]["custom_id"] == "long"
        assert "longer than 300 bytes" in found[2]["error"]["error"]["message"]

    def test_options_of_replies_reach_them(self, tmp_path: Path, output: Path) -> None:
        server = ServerConfig(response_role="bot", enable_prompt_tokens_details=True)
        run(write(tmp_path / "in", chat("a")), output, server=server)
        body = records(output)[0]["response"]["body"]
        assert body["choices"][0]["message"]["role"] == "bot"
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 16

    def test_lines_for_a_model_that_pools(self, tmp_path: Path, output: Path) -> None:
        def line(url: str, **body: object) -> dict[str, Any]:
            return {"custom_id": url, "url": url, "body": {"model": "tiny", **body}}

        batch = [
            line("/v1/embeddings", input=["a", "b"]),
            line("/v1/score", queries="a", documents=["a", "b"]),
            line("/rerank", query="a", documents=["b", "a"], top_n=1),
            line("/v1/embeddings", input=""),
            line("/v1/embeddings", input="a", encoding_format="bytes"),
            line("/v1/chat/completions", messages=[]),
        ]
        engine = FakeEngineClient(pooling=PoolingFacts(size=8))
        run(write(tmp_path / "in", *batch), output, engine)
        found = [one["response"]["body"] for one in records(output)]
        assert [one["embedding"] for one in found[0]["data"]] == [
            pytest.approx(vector_of([ord(letter)], 8)) for letter in "ab"
        ]
        assert found[1]["data"][0]["score"] == pytest.approx(1)
        assert [one["index"] for one in found[2]["results"]] == [1]
        empty, raw, chats = [one["error"] for one in records(output)[3:]]
        assert empty["error"]["param"] == "input"
        assert "answered with JSON" in raw
        assert chats == "Model does not support endpoint: /v1/chat/completions"

    def test_no_lines_give_an_empty_output(self, tmp_path: Path, output: Path) -> None:
        run(write(tmp_path / "in", "", "  "), output)
        assert output.read_bytes() == b""


class Forgetful(FakeEngineClient):
    """Takes its time and remembers no request, but how many there were at once."""

    num_running = most_running = 0

    def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        outputs = super().generate(prompt, params, request_id, **options)
        self.seen.clear()
        self.options.clear()
        return self._later(outputs)

    async def _later(self, outputs: AsyncIterator[RequestOutput]) -> AsyncIterator[RequestOutput]:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(0.001)
        async for output in outputs:
            yield output
        self.num_running -= 1


def test_memory_does_not_grow_with_the_batch(tmp_path: Path, output: Path) -> None:
    run(many(tmp_path / "warm-up", 200), output, Forgetful())
    peaks = []
    for number in (400, 2000):
        source = many(tmp_path / "in", number)
        tracemalloc.start()
        client = run(source, output, Forgetful())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        found = records(output)
        assert [record["custom_id"] for record in found] == [str(i) for i in range(number)]
        assert sum(record["error"] is not None for record in found) == number // 100
        assert isinstance(client, Forgetful)
        limit = 2 * client.config.scheduler.max_num_seqs
        assert limit // 2 < client.most_running <= limit
    assert peaks[1] < peaks[0] * 1.1 + 100_000, peaks


def test_long_lines_wait_for_each_other(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_lite.batch.runner.MAX_BYTES_IN_FLIGHT", 10_000)
    client = Forgetful()
    run(many(tmp_path / "in", 60), output, client)
    assert client.most_running == 3  # of 4 KB each
    assert [record["custom_id"] for record in records(output)] == [str(i) for i in range(60)]
    # One that is longer than all that may be there at once still gets its turn.
    run(write(tmp_path / "in", completion("a", user="x" * 20_000), chat("b"), chat("c")), output)
    assert [record["response"]["status_code"] for record in records(output)] == [200] * 3


class Crowded(Forgetful):
    """Takes two requests at a time, and none that says no."""

    def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        text = prompt.get("prompt", "") if isinstance(prompt, dict) else ""
        if self.num_running >= 2 or text == "no":
            raise QueueFullError("too many wait")
        return super().generate(prompt, params, request_id, **options)


def test_a_full_queue_is_waited_for(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_lite.batch.runner.RETRY_INTERVAL", 0.001)
    requests = [completion(str(i)) for i in range(40)] + [completion("no", prompt="no")]
    run(write(tmp_path / "in", *requests), output, Crowded())
    statuses = [record["response"]["status_code"] for record in records(output)]
    assert statuses == [200] * 40 + [429]


async def test_metrics_are_served_while_the_batch_runs(tmp_path: Path) -> None:
    source, port = write(tmp_path / "in", chat("a")), free_port()
    client = FakeEngineClient()
    client.gate = asyncio.Event()
    batch = BatchConfig(enable_metrics=True, url="127.0.0.1", port=port)
    whole = lines.scan(source)
    with Journal(tmp_path / "journal", "", "tiny", whole.last_number, resume=False) as journal:
        work = asyncio.create_task(
            answer_lines(client, ServerConfig(), batch, source, whole, journal)
        )
        while not client.running:
            await asyncio.sleep(0.01)
        text = await asyncio.to_thread(read_text, f"http://127.0.0.1:{port}/metrics")
        assert "vllm:num_requests_running" in text
        with pytest.raises(UsageError, match=rf"metrics at 127.0.0.1:{port}: .*--port"):
            await answer_lines(FakeEngineClient(), ServerConfig(), batch, source, whole, journal)
        client.gate.set()
        await work
        assert journal.num_done == 1
    with pytest.raises(OSError):
        read_text(f"http://127.0.0.1:{port}/metrics")


def read_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        text: str = response.read().decode()
    return text
