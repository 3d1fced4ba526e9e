"""One start of an engine in a process of its own: options in on stdin, seconds out on stdout."""

from __future__ import annotations

import sys
import time

import msgspec

from vllm_lite.errors import VLLMLiteError
from vllm_lite.llm import LLM


def main(began: float) -> None:
    """Start an engine and stop it; answer the seconds since `began`, or why it failed."""
    given = msgspec.json.decode(sys.stdin.buffer.read())
    answer: dict[str, object]
    try:
        with LLM(given.pop("model"), **given):
            answer = {"seconds": time.perf_counter() - began}
    except VLLMLiteError as error:
        answer = {"error": " ".join(str(error).split())}
    except KeyboardInterrupt:  # from the terminal, which interrupts the benchmark too
        sys.exit(130)
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.exit("error" in answer)
