"""Lines of the log have colours for people and none for files."""

from __future__ import annotations

import io
import logging

import pytest

from vllm_lite.log import LineFormatter


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Screen, io.StringIO])
@pytest.mark.parametrize("no_color", ["", "1"])
def test_levels_are_coloured_on_terminals_that_want_it(
    stream: type[io.StringIO], no_color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stderr", stream())
    monkeypatch.setattr("vllm_lite.log._process_name", "")  # an earlier test may have set it
    record = logging.makeLogRecord({"levelname": "WARNING", "msg": "late", "filename": "f.py"})
    line = LineFormatter().format(record)
    has_colours = stream is Screen and not no_color
    assert line.startswith("\x1b[33mWARNING\x1b[0m " if has_colours else "WARNING ")
    assert line.endswith("late")
