"""The lines of a batch file, one at a time: what each asks for, or why it cannot be read.

Knows no engine. Invariant: no more of a file is in memory than the line in hand.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from vllm_lite.server.errors import MAX_BODY_BYTES

# A line holds a body and a few short fields around it.
MAX_LINE_BYTES = MAX_BODY_BYTES + (1 << 20)
# How far into a broken line its custom_id is looked for.
_SEARCHED_BYTES = 1 << 16
_CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*("(?:[^"\\]|\\.)*")')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Fields(msgspec.Struct):
    """The fields of a line; its method is ignored."""

    custom_id: str
    url: str
    body: msgspec.Raw


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line; where `fault` says what is wrong with it, `url` and `body` are empty."""

    number: int
    custom_id: str | None
    url: str = ""
    body: bytes = b""
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """A batch file as a whole. `last_number` counts blank lines too, `num_lines` does not."""

    num_lines: int
    last_number: int
    digest: str


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, its bytes) of every line that is not blank.

    Of a line longer than MAX_LINE_BYTES only the first MAX_LINE_BYTES + 1 bytes come.
    """
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            rest = raw
            while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE_BYTES + 1)
            if number == 1:
                raw = raw.removeprefix(_BYTE_ORDER_MARK)
            if not raw.isspace() and raw:
                yield number, raw


def scan(path: Path) -> Scan:
    """Read the file once, to know how much there is to do and to know it again."""
    digest = hashlib.blake2b(digest_size=16)
    num_lines = number = 0
    for number, raw in read_lines(path):
        num_lines += 1
        digest.update(b"%d:" % number)
        digest.update(raw)
    return Scan(num_lines, number, digest.hexdigest())


def parse_line(number: int, raw: bytes) -> BatchLine:
    """The request of a line; the endpoint parses its body."""
    if len(raw) > MAX_LINE_BYTES:
        return BatchLine(number, _readable_id(raw), fault=f"longer than {MAX_LINE_BYTES} bytes")
    try:
        fields = msgspec.json.decode(raw, type=_Fields)
    except RecursionError:
        return BatchLine(number, _readable_id(raw), fault="nested too deeply")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return BatchLine(number, _readable_id(raw), fault=str(error))
    return BatchLine(number, fields.custom_id, fields.url, bytes(fields.body))


def _readable_id(raw: bytes) -> str | None:
    match = _CUSTOM_ID.search(raw, 0, _SEARCHED_BYTES)
    try:
        return msgspec.json.decode(match[1], type=str) if match else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def faults_of(path: Path, endpoint: str, most_rows: int, most_faults: int) -> list[dict[str, Any]]:
    """The faults for which OpenAI rejects a whole file as a batch of `endpoint`."""
    found: list[dict[str, Any]] = []
    seen: set[str | None] = set()
    for number, raw in read_lines(path):
        line = parse_line(number, raw)
        param: str | None = None
        if line.fault is not None:
            code, message = "invalid_json_line", line.fault
        elif line.custom_id in seen:
            code, param = "duplicate_custom_id", "custom_id"
            message = f"{line.custom_id!r:.200} is there twice"
        elif line.url != endpoint:
            code, param = "invalid_url", "url"
            message = f"the batch is for {endpoint}, not {line.url!r:.200}"
        else:
            seen.add(line.custom_id)
            if len(seen) <= most_rows:
                continue
            code, message = "too_many_rows", f"a batch has at most {most_rows} rows"
        found.append({"code": code, "line": number, "message": message, "param": param})
        if len(found) == most_faults or code == "too_many_rows":
            break
    if not (found or seen):
        message = "the file has no rows"
        found.append({"code": "empty_file", "line": None, "message": message, "param": None})
    return found
