"""uvicorn's own lines: without those that nobody needs, and each request's with its id.

Knows uvicorn's logger by name and its records by their arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from vllm_lite.server.generation import current_request_id

ACCESS_LOGGER = "uvicorn.access"
# Of its start, "Application startup complete." is what programs wait for.
_START = ("Started server process", "Waiting for application startup")


class PathFilter(logging.Filter):
    """Drops the lines of requests to certain paths, whatever their query."""

    def __init__(self, paths: Collection[str]) -> None:
        super().__init__()
        self._paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line; its arguments are client, method, path, version, status."""
        arguments = record.args
        if not isinstance(arguments, tuple) or len(arguments) < 3:
            return True
        return str(arguments[2]).partition("?")[0] not in self._paths


def silence_paths(paths: str | None) -> None:
    """Write no line for requests to `paths`, which commas separate."""
    chosen = [path.strip() for path in (paths or "").split(",") if path.strip()]
    if chosen:
        logging.getLogger(ACCESS_LOGGER).addFilter(PathFilter(chosen))


def add_request_ids() -> None:
    """Give each line of a request its id, which --log-format json writes."""
    logging.getLogger(ACCESS_LOGGER).addFilter(_with_request_id)


def silence_start() -> None:
    """Write only the last of the lines that tell of a start."""
    logging.getLogger("uvicorn.error").addFilter(_is_needed)


def _with_request_id(record: logging.LogRecord) -> bool:
    record.request_id = current_request_id() or None
    return True


def _is_needed(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_START)
