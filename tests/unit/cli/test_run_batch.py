"""run-batch over a scripted engine: records, order, memory, and what survives which end."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import resource
import socket
import threading
import tracemalloc
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from vllm_lite.batch import lines, transfer
from vllm_lite.batch.journal import Journal
from vllm_lite.batch.launch import answer_lines, process
from vllm_lite.cli.main import main
from vllm_lite.cli.run_batch import parse
from vllm_lite.config.batch import BatchConfig
from vllm_lite.config.server import ServerConfig
from vllm_lite.engine.client import Prompt
from vllm_lite.errors import EngineDeadError, QueueFullError, UsageError
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import SamplingParams

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(custom_id: str, **body: Any) -> dict[str, Any]:
    body.setdefault("messages", [{"role": "user", "content": "hi"}])
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def completion(custom_id: str, **body: Any) -> dict[str, Any]:
    body.setdefault("prompt", "hi")
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": body}


def write(path: Path, *requests: dict[str, Any] | str) -> Path:
    """A batch file; text stands for itself."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in requests]
    path.write_text("\n".join(texts) + "\n")
    return path


def run(
    source: Path | str,
    output: Path | str,
    client: FakeEngineClient | None = None,
    server: ServerConfig | None = None,
    model: str = "tiny",
    **options: Any,
) -> FakeEngineClient:
    """Answer a batch with the scripted engine, which is returned."""
    batch = BatchConfig(input_file=str(source), output_file=str(output), **options)
    engine = client or FakeEngineClient()

    def answer(path: Path, whole: lines.Scan, journal: Journal) -> None:
        asyncio.run(answer_lines(engine, server or ServerConfig(), batch, path, whole, journal))

    process(batch, model, answer)
    return engine


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steady(path: Path) -> list[dict[str, Any]]:
    """The records without what differs from run to run."""
    found = records(path)
    for record in found:
        record.pop("id")
        record["response"].pop("request_id")
        body = record["response"]["body"] or {}
        body.pop("id", None)
        body.pop("created", None)
    return found


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


class TestRecords:
    """What a line of the output says."""

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


def many(path: Path, number: int) -> Path:
    """`number` lines of 4 KB; every hundredth is broken."""
    padding = "x" * 4000
    return write(
        path,
        *(
            f'{{"custom_id": "{i}", "url": '
            if i % 100 == 99
            else completion(str(i), prompt=f"{i}", max_tokens=1 + i % 5, user=padding)
            for i in range(number)
        ),
    )


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


class Mortal(FakeEngineClient):
    """Dies as a killed engine does, once it has been given that many requests."""

    lives = 10

    def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        if len(self.seen) == self.lives:
            self.errored = True
        return super().generate(prompt, params, request_id, **options)


class TestResume:
    """What an interrupted run leaves, and what comes of it."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        return many(tmp_path / "in", 1500)

    @pytest.fixture
    def journal(self, source: Path, output: Path, caplog: pytest.LogCaptureFixture) -> Path:
        """That of a run whose engine died half-way."""
        client = Mortal()
        client.lives = 1000
        with pytest.raises(EngineDeadError, match="killed by signal 9"):
            run(source, output, client)
        assert not output.exists() and "continue with --resume" in caplog.text
        return output.with_name("out.jsonl.journal")

    def test_a_resumed_run_gives_the_same_output(
        self, source: Path, output: Path, journal: Path, tmp_path: Path
    ) -> None:
        num_done = journal.read_bytes().count(b"\n") - 1
        assert 400 < num_done < 1010
        client = run(source, output, resume=True)
        assert len(client.seen) < 1500 - num_done + 15
        assert not journal.exists()
        run(source, tmp_path / "whole")
        assert steady(output) == steady(tmp_path / "whole")

    def test_half_a_line_at_the_journal_s_end_is_dropped(
        self, source: Path, output: Path, journal: Path, tmp_path: Path
    ) -> None:
        os.truncate(journal, journal.stat().st_size - 37)
        run(source, output, resume=True)
        run(source, tmp_path / "whole")
        assert steady(output) == steady(tmp_path / "whole")

    def test_damage_in_the_middle_costs_those_lines_only(
        self, source: Path, output: Path, journal: Path, tmp_path: Path
    ) -> None:
        raw = bytearray(journal.read_bytes())
        raw[5000:5400] = b"\0" * 400
        journal.write_bytes(raw)
        run(source, output, resume=True)
        run(source, tmp_path / "whole")
        assert steady(output) == steady(tmp_path / "whole")

    def test_a_finished_journal_needs_no_engine(self, source: Path, output: Path) -> None:
        with pytest.raises(UsageError, match=r"cannot write /dev/full: No space left.*--resume"):
            run(source, "/dev/full", output_tmp_dir=str(output.parent / "tmp"))
        (journal,) = (output.parent / "tmp").glob("*.journal")
        assert journal.read_bytes().count(b"\n") == 1501
        journal.rename(output.with_name("out.jsonl.journal"))
        dead = FakeEngineClient()
        dead.errored = True
        run(source, output, dead, resume=True)
        assert len(records(output)) == 1500 and not dead.seen

    def test_results_are_not_thrown_away_unasked(
        self, source: Path, output: Path, journal: Path
    ) -> None:
        before = journal.read_bytes()
        with pytest.raises(UsageError, match="continue it with --resume, or delete"):
            run(source, output)
        assert journal.read_bytes() == before

    def test_another_input_is_refused(self, output: Path, journal: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="results of another input"):
            run(write(tmp_path / "other", chat("a")), output, resume=True)

    def test_another_model_is_refused(self, source: Path, output: Path, journal: Path) -> None:
        with pytest.raises(UsageError, match="results of the model tiny: give --model tiny"):
            run(source, output, model="other", resume=True)

    def test_another_s_file_is_not_overwritten(self, source: Path, output: Path) -> None:
        other = write(output.with_name("out.jsonl.journal"), "dear diary")
        with pytest.raises(UsageError, match="is no journal of run-batch"):
            run(source, output, resume=True)
        assert other.read_text() == "dear diary\n"

    def test_two_runs_do_not_share_an_output(self, tmp_path: Path, output: Path) -> None:
        with (
            Journal(output.with_name("out.jsonl.journal"), "", "tiny", 1, resume=False),
            pytest.raises(UsageError, match="another run-batch writes to the same output"),
        ):
            run(write(tmp_path / "in", chat("a")), output)

    def test_a_run_that_did_nothing_leaves_nothing(self, tmp_path: Path, output: Path) -> None:
        client = FakeEngineClient()
        client.errored = True
        with pytest.raises(EngineDeadError):
            run(write(tmp_path / "in", chat("a")), output, client)
        assert [path.name for path in tmp_path.iterdir()] == ["in"]

    def test_resume_without_a_journal_begins_at_the_beginning(
        self, tmp_path: Path, output: Path
    ) -> None:
        run(write(tmp_path / "in", chat("a")), output, resume=True)
        assert len(records(output)) == 1

    def test_a_full_disk_leaves_a_journal_that_can_be_continued(
        self, source: Path, output: Path
    ) -> None:
        with (
            file_size_limit(200_000),
            pytest.raises(UsageError, match=r"cannot write .*journal: .* --resume") as caught,
        ):
            run(source, output)
        assert "\n" not in str(caught.value)
        journal = output.with_name("out.jsonl.journal")
        assert journal.read_bytes().endswith(b"}\n")
        run(source, output, resume=True)
        assert len(records(output)) == 1500

    def test_a_disk_that_fills_at_the_end_keeps_the_old_output(
        self, tmp_path: Path, output: Path
    ) -> None:
        output.write_text("old")
        source = many(tmp_path / "in", 100)
        (tmp_path / "out.jsonl.partial").symlink_to("/dev/full")
        with pytest.raises(UsageError, match="the results are safe in"):
            run(source, output)
        assert output.read_text() == "old"
        run(source, output, resume=True)
        assert len(records(output)) == 100


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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


class Store(http.server.BaseHTTPRequestHandler):
    """Gives `content`, takes what is put, and fails as often as told."""

    content = b""
    failures: list[int]
    redirects: list[str]
    put: list[bytes]

    def do_GET(self) -> None:
        if not self._fails():
            self._answer(200, self.content)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._fails():
            self.put.append(body)
            self._answer(201, b"")

    def _fails(self) -> bool:
        if self.redirects:
            self.send_response(307)
            self.send_header("Location", self.redirects.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return True
        if self.failures:
            self._answer(self.failures.pop(0), b"")
            return True
        return False

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


LOOPBACK = {"allowed_url_domains": ["127.0.0.1"]}


class TestUrls:
    """Input and output over HTTP."""

    @pytest.fixture
    def url(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        monkeypatch.setattr(transfer, "DELAY", 0.0)
        Store.content = (json.dumps(chat("a")) + "\n").encode()
        Store.failures, Store.redirects, Store.put = [], [], []
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/file?signature=secret"
            server.shutdown()

    def test_both_ways_with_patience(self, url: str, tmp_path: Path) -> None:
        Store.failures = [503, 500, 429]
        run(url, tmp_path / "out", **LOOPBACK)
        Store.failures = [503, 502, 503, 500]
        run(tmp_path / "out", url, output_tmp_dir=str(tmp_path / "tmp"), **LOOPBACK)
        (body,) = Store.put
        # An output is no input, and is refused line by line.
        assert json.loads(body)["error"]["error"]["line"] == 1
        assert list((tmp_path / "tmp").iterdir()) == []

    def test_a_refused_upload_can_be_repeated(
        self, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        source, tmp = write(tmp_path / "in", chat("a")), str(tmp_path / "tmp")
        Store.failures = [403]
        with pytest.raises(UsageError, match=r"PUT http://127\S+/file failed: HTTP 403") as caught:
            run(source, url, output_tmp_dir=tmp, **LOOPBACK)
        assert "--resume" in str(caught.value)
        assert "secret" not in str(caught.value) + caplog.text
        again = url.replace("secret", "another")
        assert not run(source, again, output_tmp_dir=tmp, resume=True, **LOOPBACK).seen
        assert json.loads(Store.put[0])["custom_id"] == "a"

    def test_five_tries_and_no_more(self, url: str, output: Path) -> None:
        Store.failures = [500] * 6
        with pytest.raises(UsageError, match=r"GET .* failed: HTTP 500 .*\(try 5 of 5\)"):
            run(url, output, **LOOPBACK)
        assert len(Store.failures) == 1

    def test_nobody_there(self, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfer, "DELAY", 0.0)
        with pytest.raises(UsageError, match=r"GET http://127.0.0.1:\d+/x failed: .*refused"):
            run(f"http://127.0.0.1:{free_port()}/x", output, **LOOPBACK)
        with pytest.raises(UsageError, match="names no host"):
            run("http:///x", output)

    def test_both_ends_are_checked_before_anything_is_done(
        self, url: str, tmp_path: Path, output: Path
    ) -> None:
        Store.failures = [500]
        for source, target, flag in ((url, output, "--input-file"), ("in", url, "--output-file")):
            with pytest.raises(UsageError, match=f"{flag}: 127.0.0.1 has the private address"):
                run(source, target, output_tmp_dir=str(tmp_path / "tmp"))
        assert Store.failures == [500]

    def test_a_redirect_is_followed_within_reach(self, url: str, output: Path) -> None:
        Store.redirects = ["/elsewhere?b=1", "file"]
        run(url, output, **LOOPBACK)
        assert records(output)[0]["custom_id"] == "a"
        Store.redirects = ["https://user:secret@other.example/file?secret"]
        with pytest.raises(UsageError, match=r"redirects to other\.example; .*--allowed") as caught:
            run(url, output, **LOOPBACK)
        assert "secret" not in str(caught.value)
        Store.redirects = ["/again"] * 9
        with pytest.raises(UsageError, match="redirects in a circle"):
            run(url, output, **LOOPBACK)

    def test_an_upload_is_repeated_where_it_is_told_to_go(self, url: str, tmp_path: Path) -> None:
        Store.redirects = ["/there"]
        run(write(tmp_path / "in", chat("a")), url, output_tmp_dir=str(tmp_path), **LOOPBACK)
        assert [json.loads(put)["custom_id"] for put in Store.put] == ["a"]

    def test_an_endless_input_is_cut_off(
        self, url: str, output: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transfer, "MAX_INPUT_BYTES", 10)
        with pytest.raises(UsageError, match="the input is longer than"):
            run(url, output, **LOOPBACK)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


class TestCommandLine:
    """Options and mistakes."""

    def test_options_reach_their_configs(self) -> None:
        line = (
            "-i in.jsonl -o out.jsonl --model demo --max-num-seqs 4 --response-role bot "
            "--max-log-len 10 --enable-prompt-tokens-details --enable-metrics --host ::1 "
            "--port 9"
        )
        engine, server, batch = parse(line.split())
        assert (engine.model, engine.max_num_seqs, engine.disable_log_stats) == ("demo", 4, False)
        assert (server.response_role, server.max_log_len) == ("bot", 10)
        assert server.enable_prompt_tokens_details
        assert batch == BatchConfig(
            input_file="in.jsonl", output_file="out.jsonl", enable_metrics=True, url="::1", port=9
        )
        assert parse(["-i", "a", "-o", "b"])[0].disable_log_stats

    @pytest.mark.parametrize(
        ("line", "cause"),
        [
            ("-o b", "the following arguments are required: -i/--input-file"),
            ("", "required: -i/--input-file, -o/--output-file"),
            ("demo -i a -o b", "unrecognized arguments: demo (give the model as --model MODEL)"),
            ("-i a -o b --ssl-keyfile x", "unrecognized arguments: --ssl-keyfile"),
            ("-i a -o b --enable-metrics --disable-log-stats", "--enable-metrics has nothing"),
        ],
    )
    def test_words_that_cannot_be_read(
        self, line: str, cause: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            parse(line.split())
        text = capsys.readouterr().err
        assert ended.value.code == 2 and text.startswith("usage: vllm-lite run-batch")
        assert cause in text

    def test_files_are_looked_at_before_the_model(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = write(tmp_path / "in", chat("a"))
        for words, cause in (
            (("-i", "nothing", "-o", "out"), "--input-file nothing does not exist"),
            (("-i", str(tmp_path), "-o", "out"), "is a directory; give"),
            (("-i", str(source), "-o", str(tmp_path)), "is a directory; name a file in it"),
            (("-i", str(source), "-o", str(source)), "is the input; name another file"),
            (("-i", str(source), "-o", "no/where"), "there is no directory no"),
        ):
            assert main(["run-batch", *words, "--model", "/no/model"]) == 1
            text = capsys.readouterr().err.splitlines()[-1]
            assert text.startswith("vllm-lite run-batch: error: ") and cause in text

    def test_help_names_its_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["run-batch", "--help=run-batch"])
        text = capsys.readouterr().out
        for flag in (
            "-i TEXT",
            "--input-file",
            "-o TEXT",
            "--resume",
            "--enable-metrics",
            "--host",
        ):
            assert flag in text
