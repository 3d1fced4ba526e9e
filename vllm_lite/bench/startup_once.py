"""One start of an engine in a process of its own: options in on stdin, seconds out on stdout.

What the engine logs goes to stderr. The clock runs from before the engine is imported, as a
program that uses it would feel it, and not over the interpreter's own start.
"""

from __future__ import annotations

import sys
import time

import msgspec


def main() -> int:
    """Start, stop, and say how long the start took, or in one line why there was none."""
    given = msgspec.json.decode(sys.stdin.buffer.read())
    answer: dict[str, object]
    began = time.perf_counter()
    from vllm_lite.errors import VLLMLiteError
    from vllm_lite.llm import LLM

    try:
        with LLM(given.pop("model"), **given):
            answer = {"seconds": time.perf_counter() - began}
    except VLLMLiteError as error:
        answer = {"error": " ".join(str(error).split())}
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return int("error" in answer)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # of the terminal, which interrupts the benchmark too
        sys.exit(130)
