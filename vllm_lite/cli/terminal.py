"""Input of messages and output of replies.

On a terminal: line editing, a history and colours. Otherwise plain
lines in and the reply's bytes out, for pipes. Knows no server.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from vllm_lite import envs
from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    from vllm_lite.cli.markdown import MarkdownReply

# Delimits a message of several lines.
_QUOTES = '"""'
# Longest delay in seconds before a Ctrl-C is noticed.
_LOOK_EVERY = 0.2
# Index in the list of tcgetattr.
_LOCAL_MODES = 3
_DIM, _RED, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[0m"
# A model's text must not move the cursor or set the title or the clipboard.
_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@contextmanager
def interruptible() -> Iterator[None]:
    """Have Ctrl-C end a wait for the server, even one that begins the instant it is pressed.

    A signal that comes between Python's last look at signals and a blocking read is not seen
    until the read ends. A timer ends it, and Python looks again. Someone else's timer stays.
    """
    if signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_EVERY, _LOOK_EVERY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


class Terminal:
    """Reads messages and shows replies; `is_interactive` where a person sits at both ends.

    Use it as a context manager: a terminal gets its settings back at the end, SIGTERM included.
    """

    def __init__(self, *, shows_markdown: bool = False) -> None:
        """Raises UsageError where there is no standard output.

        `shows_markdown`: replies are Markdown, which a terminal with colours shows as such.
        """
        # A stream that was closed from the start is None.
        if not sys.stdout:
            raise UsageError("standard output is closed; redirect it to a file or /dev/null")
        self.is_interactive = _is_terminal(sys.stdin) and _is_terminal(sys.stdout)
        self._session: Any = None
        self._has_colours = False
        self._is_line_open = False
        self._shows_markdown = shows_markdown
        self._reply: MarkdownReply | None = None
        for stream in (sys.stdin, sys.stdout):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        self._settings: list[Any] | None = None
        if self.is_interactive:
            self._open_session()

    def __enter__(self) -> Terminal:
        if self.is_interactive:
            self._settings = termios.tcgetattr(sys.stdin)
            # Keys pressed during a reply wait for the next prompt, unseen; Ctrl-C still works.
            quiet = termios.tcgetattr(sys.stdin)
            quiet[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        return self

    def __exit__(self, *_: object) -> None:
        if self._settings is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._settings)

    def _open_session(self) -> None:
        # Imported here: a pipe needs none of it.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.output import ColorDepth
        from prompt_toolkit.output.vt100 import Vt100_Output
        from prompt_toolkit.utils import is_dumb_terminal

        output = Vt100_Output.from_pty(sys.stdout)
        # A terminal's late answer to a cursor position request would end up in the next message.
        output.enable_cpr = False
        self._session = PromptSession(
            output=output,
            history=_history(),
            multiline=Condition(_is_open),
            key_bindings=_keys(),
            prompt_continuation="... ",
        )
        is_plain = ColorDepth.from_env() == ColorDepth.DEPTH_1_BIT
        self._has_colours = not is_plain and not is_dumb_terminal()

    def read(self) -> str | None:
        if self._session is not None:
            try:
                return self._edit_line()
            except EOFError:
                return None
        if not sys.stdin:
            return None
        if _is_terminal(sys.stdin):  # and the replies go elsewhere
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None

    def _edit_line(self) -> str:
        """A line from the editor, or several between quotes.

        A Ctrl-C while the editor still starts counts as typed into it: raised in its midst,
        KeyboardInterrupt would leave its event loop half-made.
        """
        from prompt_toolkit.application import get_app

        pressed: list[int] = []

        def leave_if_pressed() -> None:
            if pressed:
                get_app().exit(exception=KeyboardInterrupt())

        previous = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
        try:
            text = self._session.prompt([("bold ansigreen", "> ")], pre_run=leave_if_pressed)
            return str(text).removeprefix(_QUOTES).removesuffix(_QUOTES)
        finally:
            signal.signal(signal.SIGINT, previous)

    def say(self, line: str) -> None:
        self._write(self._coloured(_DIM, line) + "\n")

    def write(self, text: str, *, is_aside: bool = False) -> None:
        """A part of a reply, at once; what is thought aside is dim where there are colours."""
        self._is_line_open = self._is_line_open if not text else not text.endswith("\n")
        text = text.translate(_CONTROL) if self.is_interactive else text
        if self._shows_markdown and self._has_colours and not is_aside:
            self._write_markdown(text)
        else:
            self._write(self._coloured(_DIM, text) if is_aside else text)

    def _write_markdown(self, text: str) -> None:
        # Imported here: a pipe needs none of it.
        from vllm_lite.cli.markdown import MarkdownReply

        self._reply = self._reply or MarkdownReply(sys.stdout)
        self._reply.write(text)

    def end_line(self) -> None:
        """End what was written, and go to the next line unless it is a fresh one."""
        if self._reply is not None:
            self._reply.close()
            self._reply = None
        elif self._is_line_open:
            self._write("\n")
        self._is_line_open = False

    def complain(self, line: str) -> None:
        sys.stderr.write(self._coloured(_RED, line) + "\n")
        sys.stderr.flush()

    def _coloured(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._has_colours else text

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _is_open() -> bool:
    """Whether Enter breaks the line: quotes were opened, and are not closed."""
    from prompt_toolkit.application import get_app

    text = get_app().current_buffer.text.strip()
    return text.startswith(_QUOTES) and (len(text) < 6 or not text.endswith(_QUOTES))


def _keys() -> Any:
    """Ctrl-C clears a line that is begun, Alt-Enter breaks it."""
    from prompt_toolkit.application import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    is_begun = Condition(lambda: bool(get_app().current_buffer.text))
    keys.add("c-c", filter=is_begun)(lambda event: event.current_buffer.reset())
    for enter in ("enter", "c-j"):  # the latter where it was typed before there was a prompt
        keys.add("escape", enter)(lambda event: event.current_buffer.insert_text("\n"))
    return keys


def _history() -> Any:
    """The history of former sessions, if it can be stored."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = Path(envs.VLLM_CACHE_ROOT) / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
