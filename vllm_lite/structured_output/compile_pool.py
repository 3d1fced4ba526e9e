"""Compiles constraints in processes that may be lost, and opens what they made.

Owns at most two compile processes, started with the first constraint, and the engines that open
their grammars here. Invariant: a submitted constraint ends as a grammar or a refusal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from typing import TypeVar

import msgspec

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.log import init_logger
from vllm_lite.structured_output.compiler import (
    MAX_COMPILE_SECONDS,
    Compiled,
    GrammarEngines,
    Job,
    Tokenize,
    backend_of,
)
from vllm_lite.structured_output.grammar import (
    CompiledGrammar,
    GrammarError,
    Refusal,
    TokenizerFacts,
)
from vllm_lite.structured_outputs_params import StructuredOutputsParams

logger = init_logger(__name__)

Reply = TypeVar("Reply")

NUM_PROCESSES = 2
# Wall-clock time: a stopped or starved process uses no processor time.
MAX_WAIT_SECONDS = 120.0
# To read the tokenizer; and for its first job, which loads an engine.
MAX_START_SECONDS = 240.0
_IDS = msgspec.msgpack.Decoder(list[int])
_FACTS = msgspec.msgpack.Decoder(TokenizerFacts)
_ANSWERS: msgspec.msgpack.Decoder[Compiled | Refusal] = msgspec.msgpack.Decoder(Compiled | Refusal)
COMMAND = [sys.executable, "-P", "-m", "vllm_lite.structured_output.compile_process"]


class _Process:
    """One compile process; belongs to one thread at a time."""

    def __init__(self) -> None:
        self.is_late = False  # killed for taking too long
        self._is_loaded = False
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [*COMMAND, str(os.getpid())],
                stdin=theirs.fileno(),
                # What it prints belongs to the log; standard output is the user's.
                stdout=2,
                process_group=0,
                # One thread each: their processor time is limited.
                env=envs.module_environment(OMP_NUM_THREADS="1"),
            )

    def begin(self, config: VllmConfig) -> TokenizerFacts | None:
        """Give it its configuration; None where the process was lost over it."""
        return self._call(config, _FACTS, MAX_START_SECONDS)

    def compile(self, job: Job) -> Compiled | Refusal | None:
        """The answer; None where the process was lost over it."""
        is_first, self._is_loaded = not self._is_loaded, True
        return self._call(job, _ANSWERS, MAX_START_SECONDS if is_first else MAX_WAIT_SECONDS)

    def tokenize(self, text: str) -> list[int] | None:
        """The token ids of `text`; None where the process was lost over it."""
        return self._call(Tokenize(text), _IDS, MAX_WAIT_SECONDS)

    def exit_code(self) -> int:
        """Wait for its end; negative for a signal."""
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill it and close its pipe; no call may be waiting."""
        self.kill()
        self._pipe.close()

    def _call(
        self, message: object, replies: msgspec.msgpack.Decoder[Reply], seconds: float
    ) -> Reply | None:
        watch = threading.Timer(seconds, self._end_late)
        watch.daemon = True
        watch.start()
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(message))
            return replies.decode(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        finally:
            watch.cancel()

    def _end_late(self) -> None:
        self.is_late = True
        self._process.kill()


class CompilePool:
    """Turns canonical constraints into grammars, some at a time; all methods are thread-safe."""

    def __init__(self, config: VllmConfig) -> None:
        self._config = config
        self._executor = ThreadPoolExecutor(NUM_PROCESSES, "compile-grammar")
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._idle: list[_Process] = []
        self._is_open = True
        self._facts: TokenizerFacts | None = None
        self._engines: GrammarEngines | None = None

    def submit(self, params: StructuredOutputsParams) -> Future[CompiledGrammar | Refusal]:
        return self._executor.submit(self._compile, params)

    def tokenize(self, text: str) -> Future[list[int]]:
        """The token ids of `text`, without special tokens; none where that failed."""
        return self._executor.submit(self._tokenize, text)

    def read_facts(self) -> Future[TokenizerFacts]:
        """Learn what a compile process knows of the tokenizer, where nothing is compiled."""
        return self._executor.submit(self._read_facts)

    @property
    def facts(self) -> TokenizerFacts:
        """Facts of the tokenizer, known once anything was compiled or read."""
        if self._facts is None:
            raise RuntimeError("no compile process has described the tokenizer yet")
        return self._facts

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            processes = list(self._processes)
        for process in processes:
            process.kill()
        self._executor.shutdown(cancel_futures=True)
        for process in processes:
            process.close()

    def _read_facts(self) -> TokenizerFacts:
        if self._facts is None:
            self._give_back(self._take())
        return self.facts

    def _tokenize(self, text: str) -> list[int]:
        process = self._take()
        ids = process.tokenize(text)
        if ids is None:
            self._bury(process)
            return []
        self._give_back(process)
        return ids

    def _compile(self, params: StructuredOutputsParams) -> CompiledGrammar | Refusal:
        process = self._take()
        answer = process.compile(Job(params))
        is_lost = answer is None and self._is_open and not process.is_late
        if is_lost and backend_of(self._config) == "auto":
            self._bury(process)
            process = self._take()
            answer = process.compile(Job(params, by_guidance=True))
        if answer is None:
            return self._lost(process, params)
        self._give_back(process)
        if isinstance(answer, Refusal):
            return answer
        if self._engines is None:
            raise RuntimeError("a grammar without a vocabulary")
        try:
            return self._engines.open(answer)
        except GrammarError as error:
            return Refusal.of(params.constraint, f": {error}")

    def _take(self) -> _Process:
        with self._lock:
            if not self._is_open:
                raise RuntimeError("the compile pool is closed")
            if self._idle:
                return self._idle.pop()
            process = _Process()
            self._processes.append(process)
        facts = process.begin(self._config)
        if facts is None:
            code = self._bury(process)
            raise RuntimeError(f"a compile process ended before it was ready, exit code {code}")
        with self._lock:
            if self._facts is None:
                self._facts = facts
                self._engines = GrammarEngines(facts.vocabulary, backend_of(self._config))
        return process

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            self._idle.append(process)

    def _lost(self, process: _Process, params: StructuredOutputsParams) -> Refusal:
        code = self._bury(process)
        if not self._is_open:
            field = f"structured_outputs.{params.constraint}"
            return Refusal("the engine is shutting down", field, 503)
        if process.is_late:
            logger.warning("A compile process gave no answer in time: replaced")
            return Refusal.of(params.constraint, " was not compiled in time; try again later", 503)
        if code == -signal.SIGPROF:
            limit = f"{MAX_COMPILE_SECONDS:g} seconds"
            return Refusal.of(
                params.constraint, f" takes more than {limit} to compile; simplify it"
            )
        logger.warning("A compile process was lost over a constraint (exit code %d)", code)
        return Refusal.of(params.constraint, " needs too much memory to compile; simplify it")

    def _bury(self, process: _Process) -> int:
        """Forget a process that ended; its exit code."""
        code = process.exit_code()
        with self._lock:
            if self._is_open:
                self._processes.remove(process)
                process.close()
        return code
