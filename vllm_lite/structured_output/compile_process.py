"""A process that compiles constraints: `python -m vllm_lite.structured_output.compile_process`.

Bad or huge constraints end this process and nothing else: it arms a limit on its own processor
time before each job and runs under a limit on memory. Messages are msgpack
on the socket that is its standard input, and it ends with that.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.lifeline import die_with_parent, limit_memory
from vllm_lite.parsers.registry import bind_parsers, reasoning_markers
from vllm_lite.structured_output.compiler import (
    MAX_COMPILE_SECONDS,
    Answer,
    GrammarEngines,
    Hello,
    Job,
    backend_of,
)
from vllm_lite.structured_output.grammar import Refusal, Vocabulary
from vllm_lite.tokenizer.tokenizer import load_tokenizer

# Beyond what the process holds before its first job.
MAX_COMPILE_BYTES = 1 << 30
# A lower scheduling priority than the engine's.
_NICENESS = 5


def read_tokenizer(config: VllmConfig) -> Hello:
    """Every token's bytes, as wide as the model's logits, and what ends and marks its text."""
    tokenizer = load_tokenizer(config)
    size = config.facts.vocab_size
    eos = set(config.facts.eos_token_ids)
    if tokenizer.eos_token_id is not None:
        eos.add(tokenizer.eos_token_id)
    hello = Hello(
        tokens=[tokenizer.token_bytes(token_id) for token_id in range(size)],
        special_ids=sorted(i for i in tokenizer.all_special_ids if i < size),
        eos_ids=sorted(i for i in eos if i < size),
    )
    options = config.structured_outputs
    bind_parsers(config)
    found = reasoning_markers(options.reasoning_parser) if options.reasoning_parser else None
    if found is not None:
        start = config.reasoning.reasoning_start_str or found.start
        forced = config.reasoning.reasoning_end_str or found.end
        hello.markers = start.encode(), found.end.encode()
        hello.marker_ids = (
            tokenizer.encode(start, add_special_tokens=False),
            tokenizer.encode(forced, add_special_tokens=False),
        )
    return hello


def compile_one(engines: GrammarEngines, job: Job) -> Answer:
    """One job's answer; any failure inside an engine is that job's refusal."""
    field = f"structured_outputs.{job.params.constraint}"
    try:
        found = engines.compile(job.params, by_guidance=job.by_guidance)
    except MemoryError:
        return Answer(refusal=Refusal(f"{field} needs too much memory; simplify it", field))
    except BaseException as error:  # a Rust panic is not an Exception
        kind = type(error).__name__
        return Answer(refusal=Refusal(f"{field} cannot be compiled ({kind})", field))
    if isinstance(found, Refusal):
        return Answer(refusal=found)
    return Answer(found.engine, found.payload)


def main(arguments: list[str]) -> int:
    """Serve jobs until the other end is closed; the argument is the parent's process."""
    die_with_parent(int(arguments[0]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    # The other end may be gone at any time.
    with suppress(EOFError, OSError), Connection(0) as pool:
        _serve(pool)
    return 0


def _serve(pool: Connection) -> None:
    config = msgspec.msgpack.decode(pool.recv_bytes(), type=VllmConfig)
    hello = read_tokenizer(config)
    pool.send_bytes(msgspec.msgpack.encode(hello))
    vocabulary = Vocabulary(hello.tokens, frozenset(hello.special_ids), tuple(hello.eos_ids))
    engines = GrammarEngines(vocabulary, backend_of(config))
    engines.load()
    # Engines warn about what clients send.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    limit_memory(MAX_COMPILE_BYTES)
    while True:
        job = msgspec.msgpack.decode(pool.recv_bytes(), type=Job)
        signal.setitimer(signal.ITIMER_PROF, MAX_COMPILE_SECONDS)
        answer = compile_one(engines, job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pool.send_bytes(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
