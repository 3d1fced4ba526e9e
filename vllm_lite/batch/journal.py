"""The journal of a run: the record of each finished line, appended at once.

A file of JSON lines; the first names input and model. Invariant: after any crash, each
complete line is a finished record; a partial last line is dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from vllm_lite.errors import UsageError

_NOT_DONE = -1


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    input: str
    model: str


class _Entry(msgspec.Struct):
    line: int
    failed: bool
    record: msgspec.Raw


class Journal:
    """The records of one batch file by line number: eight bytes a line in memory."""

    def __init__(
        self, path: Path, digest: str, model: str, last_number: int, *, resume: bool
    ) -> None:
        """Open or make the journal of that model's answers to the input with that digest.

        Raises UsageError where another run writes to it, where it belongs to another input or
        model, or where it holds results and `resume` is false.
        """
        self.path = path
        self._header = _Header(digest, model)
        self.num_done = self.num_failed = 0
        # Where each line's entry begins.
        self._offsets = array("q", [_NOT_DONE]) * (last_number + 1)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._write_error(error) from None
        try:
            self._lock()
            self._size = self._load()
            if self.num_done and not resume:
                raise UsageError(
                    f"{path} holds {self.num_done} results of an interrupted run: continue it "
                    "with --resume, or delete that file to begin again"
                )
            # Half a line that a crash left.
            os.ftruncate(self._fd, self._size)
            if not self._size:
                self._write(msgspec.json.encode(self._header) + b"\n")
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the journal unless it holds nothing."""
        if not self.num_done:
            self.remove()
        self._close()

    def has(self, number: int) -> bool:
        return self._offsets[number] != _NOT_DONE

    def append(self, number: int, record: bytes, *, failed: bool) -> None:
        """Write down the record of a line; raises UsageError where there is no room for it."""
        head = b'{"line":%d,"failed":%s,"record":' % (number, b"true" if failed else b"false")
        offset = self._size
        self._write(b"%b%b}\n" % (head, record))
        self._offsets[number] = offset
        self.num_done += 1
        self.num_failed += failed

    def records(self, failed: bool | None = None) -> Iterator[bytes]:
        """Every record, or those that `failed` or did not, in the order of the input's lines."""
        with self.path.open("rb") as file:
            for offset in self._offsets:
                if offset != _NOT_DONE:
                    file.seek(offset)
                    entry = msgspec.json.decode(file.readline(), type=_Entry)
                    if failed in (None, entry.failed):
                        yield bytes(entry.record)

    def remove(self) -> None:
        """Delete the file; its records are elsewhere now, or there are none."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{self.path} is in use: another run-batch writes to the same output"
            ) from None
        except OSError:
            # Some network file systems have no locks; the run is no less right without.
            pass

    def _load(self) -> int:
        """Note what is done; returns where the last whole line ends."""
        offset = 0
        with self.path.open("rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                if offset == 0:
                    self._check_header(raw)
                else:
                    self._note(raw, offset)
                offset += len(raw)
            else:
                return offset
        if offset == 0:
            self._check_header(raw)
        return offset

    def _check_header(self, raw: bytes) -> None:
        try:
            header = msgspec.json.decode(raw, type=_Header)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise UsageError(
                f"{self.path} is no journal of run-batch: move it away or choose another output"
            ) from None
        if header.input != self._header.input:
            raise UsageError(
                f"{self.path} holds results of another input: give the input that it began "
                "with, or delete that file to begin again"
            )
        if header.model != self._header.model:
            raise UsageError(
                f"{self.path} holds results of the model {header.model}: give --model "
                f"{header.model}, or delete that file to begin again"
            )

    def _note(self, raw: bytes, offset: int) -> None:
        try:
            entry = msgspec.json.decode(raw, type=_Entry)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # damaged by the machine's crash: the line is run again
        if 0 < entry.line < len(self._offsets) and not self.has(entry.line):
            self._offsets[entry.line] = offset
            self.num_done += 1
            self.num_failed += entry.failed

    def _write(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise self._write_error(error) from None
        self._size += len(data)

    def _write_error(self, error: OSError) -> UsageError:
        text = f"cannot write {self.path}: {error.strerror}"
        if self.num_done:
            text += f"; it holds {self.num_done} results: make room and continue with --resume"
        return UsageError(text)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
