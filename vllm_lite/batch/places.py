"""A batch's input and output: a file, a device such as a pipe, or a URL.

The input is always read from a regular file; the output appears whole or not at all where
its place allows that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from vllm_lite import envs
from vllm_lite.batch.transfer import HttpUrl, Reach, fetch, is_url, parse_url, upload
from vllm_lite.errors import UsageError


class Target:
    """The output's place; `name` is for messages.

    A regular file is replaced only once its successor is complete. For a pipe, a terminal or a
    device the journal is elsewhere, in `staging`.
    """

    def __init__(self, path: Path, source: str = "", staging: Path | None = None) -> None:
        self.name = str(path)
        # A link stays a link: its target is replaced.
        self._path = path.resolve() if staging is None else path
        self._is_replaced = staging is None
        if staging is not None:
            # Runs that share a device have different inputs.
            self.journal = staging / f"{_short_name(f'{path.absolute()} {source}')}.journal"
            return
        self.journal = self._path.with_name(self._path.name + ".journal")
        if not self._path.parent.is_dir():
            raise UsageError(f"--output-file: there is no directory {path.parent}")

    def store(self, records: Iterable[bytes]) -> None:
        """Write the records there, one a line; raises UsageError."""
        partial = self._path.with_name(self._path.name + ".partial")
        try:
            if not self._is_replaced:
                _write(records, self._path, sync=False)
                return
            _write(records, partial, sync=True)
            partial.replace(self._path)
        except OSError as error:
            raise _store_error(self.name, error, self.journal) from None
        finally:
            if self._is_replaced:
                partial.unlink(missing_ok=True)


class UrlTarget:
    """A URL that takes the output with PUT."""

    def __init__(self, url: HttpUrl, reach: Reach, staging: Path) -> None:
        self._url = url
        self._reach = reach
        self.name = url.name
        # A signed URL differs from run to run only in its query.
        self.journal = staging / f"{_short_name(self.name)}.journal"

    def store(self, records: Iterable[bytes]) -> None:
        """Upload the records, one a line; raises UsageError."""
        staged = self.journal.with_suffix(".jsonl")
        try:
            _write(records, staged, sync=False)
            upload(staged, self._url, self._reach)
        except OSError as error:
            raise _store_error(str(staged), error, self.journal) from None
        except UsageError as error:
            raise UsageError(f"{error}; {_safe_in(self.journal)}") from None
        finally:
            staged.unlink(missing_ok=True)


def _staging(chosen: str | None) -> Path:
    """The directory for temporary files; raises UsageError."""
    path = Path(chosen) if chosen else Path(envs.VLLM_CACHE_ROOT) / "batch"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output-tmp-dir {path}: {error.strerror}") from None
    return path


def target_of(location: str, source: str, tmp_dir: str | None, reach: Reach) -> Target | UrlTarget:
    """The target of --output-file for the input `source`; raises UsageError."""
    if is_url(location):
        return UrlTarget(_reachable("--output-file", location, reach), reach, _staging(tmp_dir))
    path = Path(location)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Target(path)
    except OSError as error:
        raise UsageError(f"--output-file {location}: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"--output-file {location} is a directory; name a file in it")
    if stat.S_ISREG(mode):
        if Path(source).exists() and path.samefile(source):
            raise UsageError(f"--output-file {location} is the input; name another file")
        return Target(path)
    return Target(path, source, _staging(tmp_dir))


@contextlib.contextmanager
def local_input(location: str, tmp_dir: str | None, reach: Reach) -> Iterator[Path]:
    """A regular file with the content of --input-file while the context lasts.

    Raises UsageError if there is none or a download fails.
    """
    path = Path(location)
    if not is_url(location) and path.is_file():
        yield path
        return
    if not is_url(location) and (path.is_dir() or not path.exists()):
        kind = "is a directory" if path.is_dir() else "does not exist"
        raise UsageError(f"--input-file {location} {kind}; give a file of JSON lines or a URL")
    url = _reachable("--input-file", location, reach) if is_url(location) else None
    # A URL or a pipe can be read only once.
    handle, name = tempfile.mkstemp(prefix="input-", suffix=".jsonl", dir=_staging(tmp_dir))
    os.close(handle)
    staged = Path(name)
    try:
        if url is not None:
            fetch(url, staged, reach)
        else:
            _drain(path, staged)
        yield staged
    finally:
        staged.unlink(missing_ok=True)


def _reachable(flag: str, location: str, reach: Reach) -> HttpUrl:
    """The parsed URL; raises UsageError if it is invalid or not allowed."""
    try:
        url = parse_url(location)
        reach.addresses(url)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None
    except OSError as error:
        raise UsageError(f"{flag} {url.name}: {error.strerror}") from None
    return url


def _drain(source: Path, staged: Path) -> None:
    try:
        with source.open("rb") as reader, staged.open("wb") as writer:
            shutil.copyfileobj(reader, writer)
    except OSError as error:
        raise UsageError(f"cannot copy {source} to {staged}: {error.strerror}") from None


def _write(records: Iterable[bytes], path: Path, *, sync: bool) -> None:
    with path.open("wb", buffering=1 << 20) as file:
        for record in records:
            file.write(record)
            file.write(b"\n")
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _store_error(name: str, error: OSError, journal: Path) -> UsageError:
    return UsageError(f"cannot write {name}: {error.strerror}; {_safe_in(journal)}")


def _safe_in(journal: Path) -> str:
    return f"the results are safe in {journal}: mend that and run again with --resume"


def _short_name(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
