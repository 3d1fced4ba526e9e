"""/v1/files and /v1/batches: openai's client, bounds, keys, and batches that outlive servers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.browsing import Steps
from tests.server.fake_client import FakeEngineClient
from tests.server.harness import error_of, http
from tests.server.running import Running, running
from vllm_lite.batch import stored
from vllm_lite.batch.journal import Journal
from vllm_lite.errors import QueueFullError, UsageError
from vllm_lite.server.openai.batches import store as batch_store
from vllm_lite.server.openai.batches.store import BatchStore

URL = "/v1/completions"


def row(name: str, prompt: Any = "hi", url: str = URL) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 4}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def lines(rows: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in rows)


class Session:
    """openai's client at a server in this process."""

    def __init__(self, server: Running, key: str) -> None:
        self.server = server
        self.openai = openai.AsyncOpenAI(
            base_url=f"{server.listener.url}/v1", api_key=key, max_retries=0
        )

    async def upload(self, content: bytes, name: str = "rows.jsonl") -> str:
        made = await self.openai.files.create(file=(name, content), purpose="batch")
        return made.id

    async def begin(self, content: bytes, **options: Any) -> Any:
        return await self.openai.batches.create(
            input_file_id=await self.upload(content),
            endpoint=URL,
            completion_window="24h",
            **options,
        )

    async def ended(self, batch: Any) -> Any:
        """The batch, once it has ended."""
        for _ in range(500):
            batch = await self.openai.batches.retrieve(batch.id)
            if batch.status in batch_store.ENDED:
                return batch
            await asyncio.sleep(0.02)
        raise TimeoutError(batch.status)

    async def results(self, file_id: str) -> list[Any]:
        content = await self.openai.files.content(file_id)
        return [json.loads(line) for line in content.text.splitlines()]


@asynccontextmanager
async def serving(
    client: FakeEngineClient, folder: Path, key: str = "EMPTY", **options: Any
) -> AsyncIterator[Session]:
    async with running(client, batch_storage_dir=str(folder), **options) as server:
        session = Session(server, key)
        yield session
        await session.openai.close()


async def test_openai_s_client_runs_a_batch(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "store"
    rows = [row("a"), row("b", prompt=-1), row("c", prompt="ho")]
    async with serving(FakeEngineClient("Yes"), folder) as session:
        client = session.openai
        uploaded = await client.files.create(file=("rows.jsonl", lines(rows)), purpose="batch")
        assert (uploaded.filename, uploaded.bytes) == ("rows.jsonl", len(lines(rows)))
        assert (await client.files.content(uploaded.id)).content == lines(rows)
        batch = await client.batches.create(
            input_file_id=uploaded.id,
            endpoint=URL,
            completion_window="24h",
            metadata={"name": "first"},
        )
        assert batch.status == "validating" and batch.metadata == {"name": "first"}
        batch = await session.ended(batch)
        assert batch.status == "completed"
        assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at
        assert batch.completed_at <= batch.expires_at
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
        good = await session.results(batch.output_file_id)
        assert [one["custom_id"] for one in good] == ["a", "c"]
        assert good[0]["response"]["body"]["choices"][0]["text"] == "Yes"
        (bad,) = await session.results(batch.error_file_id)
        assert bad["custom_id"] == "b" and bad["error"]["error"]["param"] == "prompt"
        found = [one async for one in client.files.list()]
        assert {one.id for one in found} == {uploaded.id, batch.output_file_id, batch.error_file_id}
        mine = await client.files.list(purpose="batch")
        assert [one.id for one in mine.data] == [uploaded.id]
        assert (await client.files.retrieve(uploaded.id)).purpose == "batch"
        assert (await client.files.delete(uploaded.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(uploaded.id)
    assert folder.stat().st_mode & 0o777 == 0o700
    # Of a batch that has ended nothing is left but what clients can ask for.
    assert {path.suffix for path in (folder / "batches").iterdir()} == {".json"}


async def test_bad_rows_report_their_errors(tmp_path: Path) -> None:
    rows = lines([row("a"), row("a"), row("b", url="/v1/chat/completions"), {"custom_id": "c"}])
    async with serving(FakeEngineClient(), tmp_path) as session:
        batch = await session.ended(await session.begin(rows + b"{\n"))
        assert batch.status == "failed" and batch.output_file_id is None and batch.failed_at
        faults = [(one.line, one.code, one.param) for one in batch.errors.data]
        assert faults == [
            (2, "duplicate_custom_id", "custom_id"),
            (3, "invalid_url", "url"),
            (4, "invalid_json_line", None),
            (5, "invalid_json_line", None),
        ]
        batch = await session.ended(await session.begin(b"\n"))
        assert [one.code for one in batch.errors.data] == ["empty_file"]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"input_file_id": "file-" + "0" * 32}, 404, "input_file_id"),
        ({"input_file_id": "../../etc/passwd"}, 404, "input_file_id"),
        ({"metadata": {str(i): "" for i in range(17)}}, 400, "metadata"),
        ({"metadata": {"a": "b" * 513}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, None),
    ],
)
async def test_bad_batches_are_refused(
    tmp_path: Path, change: dict[str, Any], status: int, param: str | None
) -> None:
    async with serving(FakeEngineClient(), tmp_path) as session:
        body = {"input_file_id": await session.upload(b"{}"), "endpoint": URL}
        body |= {"completion_window": "24h", **change}
        answer = await session.server.http.post("/v1/batches", json=body)
        assert answer.status_code == status
        assert param in (None, error_of(answer)["param"])


@pytest.mark.parametrize(
    ("form", "file", "param"),
    [
        ({"purpose": "assistants"}, b"x", "purpose"),
        ({}, b"x", "purpose"),
        ({"purpose": "batch"}, None, "file"),
        ({"purpose": "batch"}, b"", "file"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, b"x", "expires_after"),
        (
            {
                "purpose": "batch",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": "9",
            },
            b"x",
            "expires_after",
        ),
        ({"purpose": "b" * 5000}, b"x", None),
        ({str(i): "" for i in range(40)}, b"x", None),
    ],
)
async def test_bad_uploads_are_refused(
    tmp_path: Path, form: dict[str, str], file: bytes | None, param: str | None
) -> None:
    async with serving(FakeEngineClient(), tmp_path) as session:
        # A form without a file would not be one of several parts.
        files = {"other": b"x"} if file is None else {"file": ("rows.jsonl", file)}
        answer = await session.server.http.post("/v1/files", data=form, files=files)
        assert answer.status_code == 400 and error_of(answer)["param"] == param
        answer = await session.server.http.post("/v1/files", content=b"--x\r\n")
        assert answer.status_code == 400 and "multipart/form-data" in error_of(answer)["message"]
        broken = {"content-type": "multipart/form-data; boundary=x"}
        answer = await session.server.http.post("/v1/files", content=b"--y\r\n", headers=broken)
        assert answer.status_code == 400
    assert list((tmp_path / "files").iterdir()) == []


async def test_storage_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_store, "MAX_FILE_BYTES", 1 << 18)
    async with serving(FakeEngineClient(), tmp_path, batch_storage_limit=1 << 19) as session:
        for size in ((1 << 18) + 1, 1 << 20):
            with pytest.raises(openai.APIStatusError) as refused:
                await session.upload(b"x" * size)
            assert refused.value.status_code == 413
        for _ in range(2):
            await session.upload(b"x" * ((1 << 18) - 512))
        with pytest.raises(openai.APIStatusError, match="larger than the"):
            await session.upload(b"x" * 2048)
        found = (await session.openai.files.list()).data
        assert len(found) == 2
        monkeypatch.setattr(batch_store, "MAX_OBJECTS", 2)
        await session.openai.files.delete(found[0].id)
        await session.upload(b"x")
        with pytest.raises(openai.APIStatusError, match="storage is full"):
            await session.upload(b"x")
    assert not list((tmp_path / "files").glob("*.partial"))


async def test_lists_come_in_pages(tmp_path: Path) -> None:
    async with serving(FakeEngineClient(), tmp_path) as session:
        client = session.openai
        batches = [await session.begin(b"{}") for _ in range(5)]
        ids = [one.id for one in reversed(batches)]
        page = await client.batches.list(limit=2)
        assert [one.id for one in page.data] == ids[:2] and page.has_more
        assert [one.id async for one in client.batches.list(limit=2)] == ids
        last = await client.batches.list(after=ids[3], limit=2)
        assert [one.id for one in last.data] == ids[4:] and not last.has_more
        files = (await client.files.list(order="asc", limit=3)).data
        assert [one.id for one in files] == [one.input_file_id for one in batches[:3]]
        for query in ({"limit": "0"}, {"limit": "x"}, {"after": "batch_x"}):
            answer = await session.server.http.get("/v1/batches", params=query)
            assert error_of(answer)["param"] == next(iter(query))


async def test_key_sees_only_its_own_objects(tmp_path: Path) -> None:
    client = FakeEngineClient()
    async with serving(client, tmp_path, key="one", api_key=["one", "two"]) as session:
        batch = await session.ended(await session.begin(lines([row("a")])))
        other = openai.AsyncOpenAI(base_url=session.openai.base_url, api_key="two", max_retries=0)
        assert (await other.files.list()).data == [] == (await other.batches.list()).data
        for asked in (
            other.files.retrieve(batch.output_file_id),
            other.files.content(batch.output_file_id),
            other.files.delete(batch.input_file_id),
            other.batches.retrieve(batch.id),
            other.batches.cancel(batch.id),
            other.batches.create(
                input_file_id=batch.input_file_id, endpoint=URL, completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                await asked
        assert len(await session.results(batch.output_file_id)) == 1
        # Rows take no share of their owner's other requests.
        (origin,) = client.origins
        assert origin.tenant and all(key not in repr(origin) for key in ("one", "two"))
        await session.openai.completions.create(model="tiny", prompt="hi")
        assert client.origins[1].tenant not in ("", origin.tenant)
        assert client.options[0]["priority"] > client.options[1]["priority"]
        await other.close()


async def test_cancelled_batch_keeps_finished_rows(tmp_path: Path) -> None:
    client = FakeEngineClient("Yes")
    gate = Steps()
    client.gate = gate  # type: ignore[assignment]
    async with serving(client, tmp_path) as session:
        batch = await session.begin(lines(row(f"r{i}") for i in range(100)))
        gate.allow(200)
        while (await session.openai.batches.retrieve(batch.id)).request_counts.completed == 0:
            await asyncio.sleep(0.05)
        assert (await session.openai.batches.cancel(batch.id)).status == "cancelling"
        batch = await session.ended(batch)
        assert batch.status == "cancelled" and batch.cancelled_at >= batch.cancelling_at
        done = await session.results(batch.output_file_id)
        assert 0 < len(done) == batch.request_counts.completed < 100
        assert client.running == set() and batch.error_file_id is None
        with pytest.raises(openai.BadRequestError, match="cancelled already"):
            await session.openai.batches.cancel(batch.id)


async def test_a_restart_runs_no_row_twice(tmp_path: Path) -> None:
    rows = lines(row(f"r{i}", prompt=f"p{i}") for i in range(60))
    first = FakeEngineClient("Yes")
    gate = Steps()
    first.gate = gate  # type: ignore[assignment]
    async with serving(first, tmp_path) as session:
        batch = await session.begin(rows)
        # Whoever deletes the file does not stop its batch.
        await session.openai.files.delete(batch.input_file_id)
        gate.allow(200)
        while (await session.openai.batches.retrieve(batch.id)).request_counts.completed < 5:
            await asyncio.sleep(0.05)
    second = FakeEngineClient("Yes")
    async with serving(second, tmp_path) as session:
        batch = await session.ended(batch)
        assert (batch.status, batch.request_counts.completed) == ("completed", 60)
        done = await session.results(batch.output_file_id)
        assert [one["custom_id"] for one in done] == [f"r{i}" for i in range(60)]
        texts = [one["response"]["body"]["choices"][0] for one in done]
        assert all((one["text"], one["finish_reason"]) == ("Yes", "stop") for one in texts)
    finished = {one[0]["prompt"] for one in first.seen if one[2] not in first.aborted}
    again = {one[0]["prompt"] for one in second.seen}
    assert len(finished) >= 5 and not finished & again
    assert finished | again == {f"p{i}" for i in range(60)}


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A disk with room for so many more results."""
    append, room = Journal.append, [5]

    def append_some(journal: Journal, number: int, record: bytes, *, failed: bool) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise UsageError("no space left on device")
        append(journal, number, record, failed=failed)

    monkeypatch.setattr(Journal, "append", append_some)
    return room


@pytest.mark.parametrize("is_same_model", [True, False])
async def test_a_full_disk_costs_no_results(
    tmp_path: Path, room: list[int], is_same_model: bool
) -> None:
    async with serving(FakeEngineClient("Yes"), tmp_path) as session:
        batch = await session.begin(lines(row(f"r{i}") for i in range(10)))
        while room[0] >= 0:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        assert (await session.openai.batches.retrieve(batch.id)).status == "in_progress"
    room[0] = 5
    client = FakeEngineClient("Yes")
    if not is_same_model:
        client.config = replace(client.config, model=replace(client.config.model, model="other"))
    async with serving(client, tmp_path) as session:
        batch = await session.ended(batch)
    if is_same_model:
        assert batch.request_counts.completed == 10 and len(client.seen) == 5
    else:
        assert [one.code for one in batch.errors.data] == ["model_changed"]


async def test_late_rows_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeEngineClient("Yes")
    gate = Steps()
    client.gate = gate  # type: ignore[assignment]
    monkeypatch.setattr("vllm_lite.server.openai.batches.service.COMPLETION_WINDOW", 2)
    async with serving(client, tmp_path) as session:
        batch = await session.begin(lines(row(f"r{i}") for i in range(40)))
        gate.allow(140)
        batch = await session.ended(batch)
        assert batch.status == "expired" and batch.expired_at
        done = await session.results(batch.output_file_id)
        late = await session.results(batch.error_file_id)
        assert {one["error"]["code"] for one in late} == {"batch_expired"}
        names = [one["custom_id"] for one in done + late]
        assert done and sorted(names) == sorted(f"r{i}" for i in range(40))
        # Files and batches end with their time too.
        monkeypatch.setattr(time, "time", lambda: time.monotonic() + 2 * batch.created_at)
        assert (await session.openai.files.list()).data == []
        store = BatchStore(tmp_path, 1 << 20)
        store.drop_expired()
        assert store.batches() == [] and list((tmp_path / "files").iterdir()) == []


async def test_rows_wait_while_the_queue_is_full(tmp_path: Path) -> None:
    client = FakeEngineClient("Yes")
    client.refusal = QueueFullError("full")
    client.num_unfinished_elsewhere = 1
    async with serving(client, tmp_path) as session:
        batch = await session.begin(lines([row("a"), row("b")]))
        await asyncio.sleep(0.3)
        client.refusal = None
        batch = await session.ended(batch)
        assert batch.request_counts.completed == 2


async def test_rows_yield_to_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_lite.batch.runner.LINGER", 0.1)
    client = FakeEngineClient("Yes")
    client.gate = asyncio.Event()
    limit = client.config.scheduler.active_seqs
    async with serving(client, tmp_path) as session:
        chat = asyncio.create_task(session.openai.completions.create(model="tiny", prompt="me"))
        while not client.running:
            await asyncio.sleep(0.01)
        batch = await session.begin(lines(row(f"r{i}") for i in range(limit)))
        await asyncio.sleep(0.4)
        beside = max(1, limit // stored._SHARE_BESIDE)
        assert len(client.running) == 1 + beside
        chat.cancel()
        await asyncio.gather(chat, return_exceptions=True)
        await asyncio.sleep(0.6)
        assert len(client.running) == limit // stored._SHARE
        client.gate.set()
        assert (await session.ended(batch)).status == "completed"


async def test_keys_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MAX_RUNNING", 2)
    client = FakeEngineClient("Yes")
    gate = Steps()
    client.gate = gate  # type: ignore[assignment]
    keys = {"api_key": ["one", "two"]}
    async with serving(client, tmp_path, key="one", **keys) as session:
        mine = [await session.begin(lines([row(f"mine{i}")])) for i in range(2)]
        while len(client.running) < 2:
            await asyncio.sleep(0.02)
        mine.append(await session.begin(lines([row("mine2")])))
        other = Session(session.server, "two")
        theirs = await other.begin(lines([row("theirs")]))
        # One of the two ends.
        while len(client.seen) < 3:
            gate.allow(1)
            await asyncio.sleep(0.02)
        gate.set()
        for batch in mine:
            await session.ended(batch)
        await other.ended(theirs)
        await other.openai.close()
    tenants = [one.tenant for one in client.origins]
    assert tenants[2] not in tenants[:2] and tenants[3] == tenants[0]


async def test_a_directory_belongs_to_one_server(tmp_path: Path) -> None:
    async with serving(FakeEngineClient(), tmp_path):
        with pytest.raises(UsageError, match="in use by another server"):
            async with serving(FakeEngineClient(), tmp_path):
                pass
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="--batch-storage-dir"):
        BatchStore(file, 1)


async def test_without_a_directory_the_routes_say_so() -> None:
    async with http() as session:
        for path in ("/v1/files", "/v1/files/file-1/content", "/v1/batches/batch_1/cancel"):
            answer = await session.post(path)
            assert answer.status_code == 501
            assert "--batch-storage-dir" in error_of(answer)["message"]
