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
    Compiled,
    GrammarEngines,
    Job,
    Tokenize,
    backend_of,
)
from vllm_lite.structured_output.grammar import ReasoningTokens, Refusal, TokenizerFacts, Vocabulary
from vllm_lite.tokenizer.tokenizer import Tokenizer, load_tokenizer

# Beyond what the process holds before its first job.
MAX_COMPILE_BYTES = 1 << 30
# A lower scheduling priority than the engine's.
_NICENESS = 5


def read_tokenizer(config: VllmConfig, tokenizer: Tokenizer) -> TokenizerFacts:
    """Every token's bytes, as wide as the model's logits, and what ends and marks its text."""
    size = config.facts.vocab_size
    eos = set(config.facts.eos_token_ids)
    if tokenizer.eos_token_id is not None:
        eos.add(tokenizer.eos_token_id)
    vocabulary = Vocabulary(
        [tokenizer.token_bytes(token_id) for token_id in range(size)],
        frozenset(i for i in tokenizer.all_special_ids if i < size),
        tuple(sorted(i for i in eos if i < size)),
    )
    options = config.structured_outputs
    bind_parsers(config)
    found = reasoning_markers(options.reasoning_parser) if options.reasoning_parser else None
    if found is None:
        return TokenizerFacts(vocabulary)
    start = config.reasoning.reasoning_start_str or found.start
    forced = config.reasoning.reasoning_end_str or found.end
    ids = [tuple(tokenizer.marker_ids(one)) for one in (start, forced)]
    return TokenizerFacts(vocabulary, ReasoningTokens(start.encode(), found.end.encode(), *ids))


def compile_one(engines: GrammarEngines, job: Job) -> Compiled | Refusal:
    """One job's answer; any failure inside an engine is that job's refusal."""
    try:
        return engines.compile(job.params, by_guidance=job.by_guidance)
    except MemoryError:
        return Refusal.of(job.params.constraint, " needs too much memory; simplify it")
    except BaseException as error:  # a Rust panic is not an Exception
        return Refusal.of(job.params.constraint, f" cannot be compiled ({type(error).__name__})")


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
    tokenizer = load_tokenizer(config)
    facts = read_tokenizer(config, tokenizer)
    pool.send_bytes(msgspec.msgpack.encode(facts))
    engines = GrammarEngines(facts.vocabulary, backend_of(config))
    engines.load()
    # Engines warn about what clients send.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    limit_memory(MAX_COMPILE_BYTES)
    while True:
        job = msgspec.msgpack.decode(pool.recv_bytes(), type=Job | Tokenize)
        if isinstance(job, Tokenize):
            ids = tokenizer.encode(job.text, add_special_tokens=False)
            pool.send_bytes(msgspec.msgpack.encode(ids))
            continue
        signal.setitimer(signal.ITIMER_PROF, MAX_COMPILE_SECONDS)
        answer = compile_one(engines, job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pool.send_bytes(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
