"""Storage of /v1/files and /v1/batches: a directory that the processes of one server share.

An object is a record, a small JSON file that is always replaced as a whole, and what belongs to
it lies beside it. Knows no engine. Invariants: an object is seen only by the key that made it; one
process alone changes a batch's record once it is there, and others leave it marks; whatever ends
a process, each record is whole and names content that is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from vllm_lite.errors import NotFoundError, QueueFullError, UsageError
from vllm_lite.server.errors import BodyTooLargeError

# OpenAI's limits.
MAX_FILE_BYTES = 200 << 20
MAX_ROWS = 50_000
COMPLETION_WINDOW = 24 * 3600
MIN_EXPIRY, MAX_EXPIRY = 3600, 30 * 24 * 3600
# Of each kind, everybody's together.
MAX_OBJECTS = 1000
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})

_PARTIAL = ".partial"
_ID = re.compile(r"(file-|batch_)[0-9a-f]{32}")


class FileRecord(msgspec.Struct, kw_only=True):
    """A file, whose content never changes."""

    id: str
    # The tenant of its API key; empty where the server asks for none.
    owner: str
    filename: str
    purpose: str
    bytes: int
    created: float
    expires_at: int

    def shown(self) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created),
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class BatchRecord(msgspec.Struct, kw_only=True):
    """A batch and how far it is."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    created: float
    expires_at: int
    # Seconds that its results are kept.
    keep: int = MAX_EXPIRY
    metadata: dict[str, str] | None = None
    status: str = "validating"
    # Status -> when the batch got it.
    times: dict[str, int] = msgspec.field(default_factory=dict)
    errors: list[dict[str, object]] = msgspec.field(default_factory=list)
    num_rows: int = 0
    num_done: int = 0
    num_failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None

    def turn(self, status: str) -> None:
        self.status = status
        self.times[status] = int(time.time())

    def shown(self) -> dict[str, object]:
        names = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling")
        times = {f"{name}_at": self.times.get(name) for name in (*names, "cancelled")}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": int(self.created),
            "expires_at": self.expires_at,
            **times,
            "request_counts": {
                "total": self.num_rows,
                "completed": self.num_done - self.num_failed,
                "failed": self.num_failed,
            },
            "metadata": self.metadata,
        }


Record = TypeVar("Record", FileRecord, BatchRecord)


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


class BatchStore:
    """One storage directory; several may be open to the same."""

    def __init__(self, folder: Path, limit: int) -> None:
        """Create the directory if it is missing; raises UsageError."""
        self._files, self._batches = folder / "files", folder / "batches"
        self._wake, self._lock = folder / "wake", folder / "lock"
        self._limit = limit
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self._files.mkdir(exist_ok=True)
            self._batches.mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"--batch-storage-dir {folder}: {error.strerror}") from None
        self._folder = folder

    def own(self) -> tuple[int, int]:
        """Take the directory for this server: the descriptors of its lock and of what wakes it.

        Raises UsageError where another server has it.
        """
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise UsageError(
                f"--batch-storage-dir {self._folder} is in use by another server; give each its own"
            ) from None
        for place in (self._files, self._batches):
            for path in place.glob(f"*{_PARTIAL}"):
                path.unlink()
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._wake, 0o600)
        # Open for writing too, so that it never ends.
        return lock, os.open(self._wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def room(self) -> int:
        """Bytes that an upload may have; raises BodyTooLargeError where there is none."""
        paths = [*self._files.iterdir(), *self._batches.iterdir()]
        room = self._limit - sum(_size(path) for path in paths)
        if room <= 0 or sum(path.suffix == ".json" for path in paths) >= MAX_OBJECTS:
            raise BodyTooLargeError(
                f"The server's storage is full: delete files that are not needed any more; it "
                f"takes {self._limit} bytes (--batch-storage-limit) and {MAX_OBJECTS} objects"
            )
        return min(room, MAX_FILE_BYTES)

    def add_file(self, record: FileRecord, source: Iterable[bytes]) -> FileRecord:
        path = self.content(record)
        partial = path.with_name(path.name + _PARTIAL)
        try:
            with partial.open("wb", buffering=1 << 20) as file:
                file.writelines(source)
                file.flush()
                os.fsync(file.fileno())
                record.bytes = file.tell()
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        _write(self._files, record)
        return record

    def file(self, file_id: str, owner: str, param: str = "file_id") -> FileRecord:
        """The file; raises NotFoundError, for another's too."""
        found = _read(self._files, file_id, FileRecord)
        if found is None or found.owner != owner or found.expires_at <= time.time():
            raise NotFoundError(f"There is no file with the id {file_id!r:.200}", param)
        return found

    def files(self, owner: str) -> list[FileRecord]:
        """Everything of this owner, the oldest first."""
        now = time.time()
        found = _all(self._files, FileRecord)
        return [one for one in found if one.owner == owner and one.expires_at > now]

    def content(self, record: FileRecord) -> Path:
        return self._files / f"{record.id}.data"

    def remove_file(self, record: FileRecord) -> None:
        """Delete it; a batch that has begun keeps what it reads."""
        (self._files / f"{record.id}.json").unlink(missing_ok=True)
        self.content(record).unlink(missing_ok=True)

    def add_batch(self, record: BatchRecord, source: FileRecord) -> None:
        """Keep a batch of the rows of `source`, and have it run."""
        if sum(path.suffix == ".json" for path in self._batches.iterdir()) >= MAX_OBJECTS:
            raise QueueFullError(f"The server keeps {MAX_OBJECTS} batches already; try later")
        try:
            os.link(self.content(source), self.input_of(record))
        except FileNotFoundError:
            raise NotFoundError("The input file was deleted", "input_file_id") from None
        _write(self._batches, record)
        self._notify()

    def batch(self, batch_id: str, owner: str) -> BatchRecord:
        """The batch; raises NotFoundError, for another's too."""
        found = _read(self._batches, batch_id, BatchRecord)
        if found is None or found.owner != owner:
            raise NotFoundError(f"There is no batch with the id {batch_id!r:.200}", "batch_id")
        return self._marked(found)

    def batches(self, owner: str | None = None) -> list[BatchRecord]:
        """Everything of this owner, or of all, the oldest first."""
        found = _all(self._batches, BatchRecord)
        return [self._marked(one) for one in found if owner in (None, one.owner)]

    def save(self, record: BatchRecord) -> None:
        """Replace the record; only the process that owns the directory does."""
        _write(self._batches, record)

    def ask_to_cancel(self, record: BatchRecord) -> None:
        """Ask the process that runs the batch to end it early."""
        self._mark_of(record).touch()
        self._notify()

    def input_of(self, record: BatchRecord) -> Path:
        """The batch's own link to its rows."""
        return self._batches / f"{record.id}.input"

    def journal_of(self, record: BatchRecord) -> Path:
        return self._batches / f"{record.id}.journal"

    def settle(self, record: BatchRecord) -> None:
        """Save a batch that has ended, and drop what only a running one needs."""
        self.save(record)
        for path in (self.input_of(record), self.journal_of(record), self._mark_of(record)):
            path.unlink(missing_ok=True)

    def drop_expired(self) -> None:
        """Delete files past their time, and batches that ended as long ago as files are kept."""
        now = time.time()
        for file in _all(self._files, FileRecord):
            if file.expires_at <= now:
                self.remove_file(file)
        for batch in _all(self._batches, BatchRecord):
            if batch.status in ENDED and max(batch.times.values()) + MAX_EXPIRY <= now:
                for path in self._batches.glob(f"{batch.id}.*"):
                    path.unlink(missing_ok=True)

    def _mark_of(self, record: BatchRecord) -> Path:
        return self._batches / f"{record.id}.cancel"

    def _marked(self, record: BatchRecord) -> BatchRecord:
        """The record with what its mark says."""
        if record.status not in ENDED:
            with contextlib.suppress(FileNotFoundError):
                record.times["cancelling"] = int(self._mark_of(record).stat().st_mtime)
                record.status = "cancelling"
        return record

    def _notify(self) -> None:
        """Wake the process that runs batches; one that is not there will look by itself."""
        with contextlib.suppress(OSError):
            writer = os.open(self._wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(writer, b"w")
            finally:
                os.close(writer)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _write(folder: Path, record: FileRecord | BatchRecord) -> None:
    path = folder / f"{record.id}.json"
    partial = path.with_name(f"{path.name}.{os.getpid()}{_PARTIAL}")
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _read(folder: Path, name: str, kind: type[Record]) -> Record | None:
    """The record of that id; None if it is missing or unreadable."""
    if not _ID.fullmatch(name):
        return None
    try:
        return msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def _all(folder: Path, kind: type[Record]) -> list[Record]:
    names = [path.stem for path in folder.glob("*.json")]
    found = [one for name in names if (one := _read(folder, name, kind)) is not None]
    return sorted(found, key=lambda one: (one.created, one.id))
