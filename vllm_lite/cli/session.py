"""The loop that `chat` and `complete` share: a text in, its reply out as it arrives.

Knows neither HTTP nor what a text means to the model. On a terminal a failed or stopped reply
costs only itself; in a pipe and with -q the first failure ends the command.
"""

from __future__ import annotations

from contextlib import closing
from typing import Protocol

from vllm_lite.cli.openai_client import ClientError, ClientOptions, Reply
from vllm_lite.cli.terminal import Terminal, interruptible


class Dialogue(Protocol):
    """What one exchange means: a turn of a conversation, or a text of its own."""

    # Shown once, above the first prompt.
    banner: str

    def ask(self, text: str) -> Reply:
        """Send what the user typed."""

    def keep(self, text: str, answer: str) -> None:
        """Remember an exchange; the answer may have been stopped half-way, and is not empty."""


def run_session(options: ClientOptions, dialogue: Dialogue, terminal: Terminal) -> int:
    """Exchange texts until the user leaves; returns the exit code, raises ClientError."""
    if options.quick:
        _exchange(options.quick, options, dialogue, terminal)
        return 0
    if terminal.is_interactive:
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
            _exchange(text, options, dialogue, terminal)
        except KeyboardInterrupt:
            if not terminal.is_interactive:
                raise
            terminal.say("(stopped; Ctrl-C again leaves)")
        except ClientError as error:
            if error.is_final or not terminal.is_interactive:
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
