"""A process that renders chat templates: `python -m vllm_lite.server.template_process PARENT`.

A template may loop for ever or make endless text: it ends this process and nothing else. Jobs and
answers are lines of JSON on the socket that is its standard input; each job says all it needs.
Its memory is limited here, its time by the other end.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

from vllm_lite.errors import RequestError
from vllm_lite.lifeline import die_with_parent, limit_memory
from vllm_lite.tokenizer.chat_template import render_chat

# Beyond what the process holds before its first job.
MAX_RENDER_BYTES = 1 << 29
# More than any context has room for.
MAX_PROMPT_CHARACTERS = 1 << 26


@dataclass(frozen=True, slots=True)
class _Model:
    """The tokenizer's templates and special tokens, as a job carries them."""

    chat_templates: dict[str, str]
    special_tokens: dict[str, str]


def answer_to(job: dict[str, Any]) -> dict[str, Any]:
    """`text`, or an `error`, the `param` at fault, and the `cause` that only the log may have."""
    model = _Model(**job.pop("model"))
    try:
        text = render_chat(model, job.pop("messages"), **job)
    except RequestError as error:
        cause = error.__cause__
        said = None if cause is None else f"{type(cause).__name__}: {cause}"
        return {"error": error.message, "param": error.param, "cause": said}
    if len(text) > MAX_PROMPT_CHARACTERS:
        return {"error": "The chat template makes too long a prompt", "param": "messages"}
    return {"text": text}


def _answer_line(line: bytes) -> bytes:
    try:
        return json.dumps(answer_to(json.loads(line))).encode()
    except MemoryError:
        refusal = "The chat template needs too much memory to render these messages"
        return json.dumps({"error": refusal, "param": "messages"}).encode()


def main(arguments: list[str]) -> int:
    """Answer jobs until the other end is closed; the argument is the parent's process."""
    die_with_parent(int(arguments[0]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    limit_memory(MAX_RENDER_BYTES)
    # Closed before everything was read, the other end counts as reset.
    gone = contextlib.suppress(ConnectionError)
    with gone, socket.socket(fileno=0) as channel, channel.makefile("rb") as jobs:
        channel.sendall(b"\n")  # ready: the first job's time begins
        for line in jobs:
            channel.sendall(_answer_line(line) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
