"""Logging set-up and the start-up timeline.

Owns the one handler of the `vllm_lite` logger and the format of its lines; a process names
itself once with `set_process_name`. Set up from the environment when the first logger is made,
and again by what an engine's options say.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from vllm_lite import envs
from vllm_lite.errors import UsageError

LogFormat = Literal["text", "json"]

_process_name = ""
# SGR color of each level on a terminal.
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


class LineFormatter(logging.Formatter):
    """`(APIServer pid=1) INFO 11-21 10:00:00 [file.py:1] text`; the prefix once it is named.

    The level has a colour where standard error is a terminal that wants any.
    """

    def __init__(self) -> None:
        super().__init__()
        has_colours = sys.stderr is not None and sys.stderr.isatty() and not envs.NO_COLOR
        self._colours = _COLOURS if has_colours else {}

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(record.created))
        where = f"[{record.filename}:{record.lineno}]"
        level = record.levelname
        if colour := self._colours.get(level):
            level = f"\x1b[{colour}m{level}\x1b[0m"
        text = f"{level} {stamp} {where} {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        prefix = f"({_process_name} pid={os.getpid()}) " if _process_name else ""
        return "\n".join(prefix + line for line in text.splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object a line, whose keys are Python's names of what a record holds."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "asctime": self.formatTime(record),
            "levelname": record.levelname,
            "name": record.name,
            "processName": _process_name or record.processName,
            "process": record.process,
            "filename": record.filename,
            "lineno": record.lineno,
            "message": record.getMessage(),
        }
        if (request_id := getattr(record, "request_id", None)) is not None:
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exc_info"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


_FORMATTERS: dict[LogFormat, type[logging.Formatter]] = {
    "text": LineFormatter,
    "json": JsonFormatter,
}


class _LossyStream(io.TextIOWrapper):
    """Standard error as logging treats it: what cannot be written is lost, and no more."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def make_stderr_lossy() -> None:
    """Ignore failed writes to standard error, to a full disk or a closed pipe."""
    try:
        os.fstat(2)
    except OSError:  # closed: the next file that is opened would take its place
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raw = io.FileIO(2, "w", closefd=False)
    sys.stderr = _LossyStream(raw, errors="backslashreplace", write_through=True)


def set_process_name(name: str) -> None:
    """Prefix this process's log lines with `name` and its pid."""
    global _process_name
    _process_name = name


def configure_logging() -> None:
    """Install the handler once, or apply VLLM_LOGGING_CONFIG_PATH where it is set."""
    root = logging.getLogger("vllm_lite")
    if root.handlers or not envs.VLLM_CONFIGURE_LOGGING:
        return
    if envs.VLLM_LOGGING_CONFIG_PATH:
        configure_logging_from(envs.VLLM_LOGGING_CONFIG_PATH, "VLLM_LOGGING_CONFIG_PATH")
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    root.addHandler(handler)
    root.setLevel(envs.VLLM_LOGGING_LEVEL.upper())
    root.propagate = False


def reconfigure_logging(
    *,
    level: str | None = None,
    form: LogFormat = "text",
    file: str | None = None,
    is_wanted: bool = True,
) -> None:
    """Configure this process's log; None keeps the environment's setting.

    `file` is a JSON file for dictConfig and overrides the rest. Without `is_wanted`,
    records go to the application's handlers. Raises UsageError.
    """
    root = logging.getLogger("vllm_lite")
    if file is not None:
        configure_logging_from(file, "--log-config-file")
        return
    if not is_wanted:
        for handler in [one for one in root.handlers if _is_ours(one)]:
            root.removeHandler(handler)
        root.setLevel(logging.NOTSET)
        root.propagate = True
        return
    if level is not None:
        root.setLevel(level)
    for handler in root.handlers:
        if _is_ours(handler):
            handler.setFormatter(_FORMATTERS[form]())


def _is_ours(handler: logging.Handler) -> bool:
    return isinstance(handler.formatter, tuple(_FORMATTERS.values()))


def configure_logging_from(path: str, source: str) -> None:
    """Apply a JSON file for dictConfig; raises UsageError that names `source`, who asked for it."""
    # Imported here: it brings servers, and a process that must start fast has a log, too.
    import logging.config

    try:
        logging.config.dictConfig(json.loads(Path(path).read_text()))
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        reason = str(error) or type(error).__name__
        raise UsageError(
            f"{source}: {path} is no logging configuration in JSON ({reason})"
        ) from None


def init_logger(name: str) -> logging.Logger:
    """The logger of a module; pass `__name__`."""
    configure_logging()
    return logging.getLogger(name)


class Timeline(threading.local):
    """The phases of a thread's start-up: seconds between named marks since the restart.

    That of the main thread began with the process.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin now, and forget what was marked."""
        self._last = time.monotonic()
        self._marks: dict[str, float] = {}

    def mark(self, name: str) -> None:
        """Close the phase `name`: it lasted since the previous mark. Parts of one add up."""
        now = time.monotonic()
        self._marks[name] = self._marks.get(name, 0.0) + now - self._last
        self._last = now

    def take(self) -> list[tuple[str, float]]:
        """The phases so far, (name, seconds), and forget them."""
        marks, self._marks = self._marks, {}
        return list(marks.items())

    def __str__(self) -> str:
        total = sum(self._marks.values())
        parts = " | ".join(f"{name} {seconds:.2f}" for name, seconds in self._marks.items())
        return f"{parts} | total {total:.2f} s"


timeline = Timeline()
