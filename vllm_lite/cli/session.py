"""The loop that `chat` and `complete` share: a text in, its reply out as it arrives.

Knows neither HTTP nor what a text means to the model. On a terminal a failed or stopped reply
costs only itself; in a pipe and with -q the first failure ends the command.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Protocol

from vllm_lite.cli.openai_client import ClientError, ClientOptions, Reply
from vllm_lite.cli.terminal import Terminal, interruptible
from vllm_lite.errors import UsageError


class Leave(Exception):
    """The user wants to go."""


class Dialogue(Protocol):
    """One exchange: a turn of a conversation, or a separate text."""

    # Shown once, above the first prompt.
    banner: str

    def ask(self, text: str) -> Reply:
        """Send what the user typed."""

    def keep(self, text: str, answer: str) -> None:
        """Remember an exchange; the answer may have been stopped half-way, and is not empty."""


# What a line with a slash says, and a text to send after all.
Command = Callable[[str], tuple[str, str | None]]


def run_session(
    options: ClientOptions, dialogue: Dialogue, terminal: Terminal, command: Command | None = None
) -> int:
    """Exchange texts until the user leaves; returns the exit code, raises ClientError.

    On a terminal, `command` runs lines that begin with a slash.
    """
    if options.quick:
        _exchange(options.quick, options, dialogue, terminal)
        return 0
    if terminal.is_interactive:
        if command is not None:
            terminal.say("/help shows the commands.")
        terminal.say(dialogue.banner)
    while True:
        try:
            text = terminal.read()
        except KeyboardInterrupt:
            if not terminal.is_interactive:
                raise
            return 0
        if text is None:
            return 0
        try:
            if command is not None and terminal.is_interactive and text.startswith("/"):
                said, text = command(text)
                if said:
                    terminal.say(said)
                if text is None:
                    continue
            _exchange(text, options, dialogue, terminal)
        except Leave:
            return 0
        except KeyboardInterrupt:
            if not terminal.is_interactive:
                raise
            terminal.say("(stopped; Ctrl-C again leaves)")
        except (ClientError, UsageError) as error:
            is_final = isinstance(error, ClientError) and error.is_final
            if is_final or not terminal.is_interactive:
                raise
            terminal.complain(f"error: {' '.join(str(error).split())}")


def _exchange(text: str, options: ClientOptions, dialogue: Dialogue, terminal: Terminal) -> None:
    # Bytes that are no text to this terminal's encoding cannot be sent.
    text = text.encode(errors="replace").decode()
    reply = dialogue.ask(text)
    answer: list[str] = []
    try:
        with interruptible():
            _show(reply, answer, terminal)
    except KeyboardInterrupt:
        if options.stats:
            terminal.say(reply.stats())
        raise
    finally:
        # What the user has read is what the model will be told.
        if any(answer):
            dialogue.keep(text, "".join(answer))
    if terminal.is_interactive and reply.finish_reason == "length":
        terminal.say("(the token limit was reached)")
    if options.stats:
        terminal.say(reply.stats())


def _show(reply: Reply, answer: list[str], terminal: Terminal) -> None:
    """Print the reply's pieces, reasoning between marks; what belongs to `answer` goes there."""
    is_thinking = False
    try:
        with closing(iter(reply)) as pieces:
            for piece in pieces:
                if piece.is_reasoning != is_thinking:
                    is_thinking = piece.is_reasoning
                    terminal.end_line()
                    terminal.write("<think>\n" if is_thinking else "</think>\n", is_aside=True)
                if not piece.is_reasoning:
                    answer.append(piece.text)  # first: a Ctrl-C may follow what is read at once
                terminal.write(piece.text, is_aside=is_thinking)
    finally:
        terminal.end_line()
        if is_thinking:
            terminal.write("</think>\n", is_aside=True)
