"""The state that all services of a server share: the engine, the options, the model's names.

Owns request ids, the check of a request's model, and the processes that render chat templates: a
checkpoint's template is as little to be trusted as its other files, and even a sound one takes
long over long messages, so neither may hold the event loop. They know nothing between jobs, so
that all pools of this process share them. Knows no route.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import msgspec
from starlette.requests import Request

from vllm_lite import __version__, envs
from vllm_lite.config.model import MAX_CHARACTERS_PER_TOKEN
from vllm_lite.config.server import ServerConfig
from vllm_lite.core.step import Task
from vllm_lite.engine.client import EngineClient
from vllm_lite.errors import NotFoundError, RequestError, UnavailableError, UsageError
from vllm_lite.io_processor import load_io_processor
from vllm_lite.log import init_logger
from vllm_lite.metrics.exposition import families, to_wire
from vllm_lite.metrics.front_end import FrontEndMetrics, RequestType
from vllm_lite.server.errors import log_stacks
from vllm_lite.server.generation import Generations, note_request_id
from vllm_lite.server.process.peers import Peers, Snapshot
from vllm_lite.server.replies import LargeReplies
from vllm_lite.server.startup_checks import choose_parsers
from vllm_lite.tokenizer.chat_template import choose_template, load_chat_template, shows_tools

if TYPE_CHECKING:
    from vllm_lite.tokenizer.tokenizer import Tokenizer

logger = init_logger(__name__)

NUM_PROCESSES = 2
# Of the clock: a process that is stopped or starved is lost, too.
MAX_RENDER_SECONDS = 10.0
_START_SECONDS = 60.0
COMMAND = [sys.executable, "-P", "-m", "vllm_lite.server.template_process"]
_READ_BYTES = 1 << 18
MAX_REQUEST_ID = 256
# Shorter texts are tokenised faster than a thread is woken.
_THREADED_ENCODE = 8192
_FREED_A_TURN = 1 << 18
SHOWS_NO_TOOLS = (
    "the chat template shows the model no tools; start the server with a --chat-template that does"
)
# Most characters of a text that is truncated.
_MAX_CUT_CHARACTERS = 1 << 22


class _Answer(TypedDict, total=False):
    text: str
    # Shown to the client, and the field at fault.
    error: str
    param: str | None
    # For the log.
    cause: str


class _Process:
    """One template process; belongs to one job at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._socket.setblocking(False)
            self._process = subprocess.Popen(
                [*COMMAND, str(os.getpid())],
                stdin=theirs.fileno(),
                # What it prints belongs to the log; standard output is the user's.
                stdout=2,
                process_group=0,
                env=envs.module_environment(),
            )
        self._is_ready = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def call(self, job: bytes) -> bytes:
        """The answer; b"" where the process was lost over the job. Raises TimeoutError."""
        if not self._is_ready:
            async with asyncio.timeout(_START_SECONDS):
                self._is_ready = bool(await self._line())
        async with asyncio.timeout(MAX_RENDER_SECONDS):
            return await self._line(job)

    async def _line(self, job: bytes | None = None) -> bytes:
        loop = asyncio.get_running_loop()
        parts = []
        try:
            if job is not None:
                await loop.sock_sendall(self._socket, job + b"\n")
            while part := await loop.sock_recv(self._socket, _READ_BYTES):
                parts.append(part)
                if part.endswith(b"\n"):
                    return b"".join(parts)
        except ConnectionError:
            pass  # it ended in the middle, which is what the empty answer says
        return b""

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.close()


_idle: list[_Process] = []


class TemplatePool:
    """Renders as `render_chat` does, some at a time."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(NUM_PROCESSES)

    def start(self) -> None:
        """Start a process for the first request."""
        if not _idle:
            _idle.append(_Process())

    async def render(self, job: dict[str, object]) -> str:
        """The prompt of a job of `render_chat`'s arguments, with `model` for the tokenizer.

        Raises RequestError if the template refuses, or its process dies.
        """
        line = _encoded(job)
        async with self._places:
            answer = await self._answer(line)
        if (cause := answer.get("cause")) is not None:
            logger.warning("The chat template failed: %s", cause)
        if "error" in answer:
            raise RequestError(answer["error"], answer["param"])
        return answer["text"]

    async def _answer(self, line: bytes) -> _Answer:
        process = _take()
        try:
            found = await process.call(line)
        except TimeoutError:
            process.kill()
            raise RequestError(
                f"The chat template takes more than {MAX_RENDER_SECONDS:g} seconds to render "
                "these messages",
                "messages",
            ) from None
        except BaseException:
            process.kill()
            raise
        if not found:
            process.kill()
            raise RequestError(
                "The chat template needs too much memory to render these messages", "messages"
            )
        _idle.append(process)
        answer: _Answer = json.loads(found)
        return answer


def _take() -> _Process:
    while _idle:
        process = _idle.pop()
        if process.is_alive:
            return process
        process.kill()
    try:
        return _Process()
    except OSError as error:
        logger.error("A template process cannot be started: %s", error)
        raise UnavailableError("The server cannot render chat templates just now") from None


def _encoded(job: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(job)
    except (OverflowError, ValueError):
        # Numbers beyond 64 bits, or halves of surrogate pairs.
        return json.dumps(job).encode()


class ServingContext:
    """The engine behind the routes and what is known of it from the start."""

    def __init__(self, client: EngineClient, server_config: ServerConfig) -> None:
        """Raises UsageError where --chat-template, a parser or a plugin cannot be used."""
        self.client = client
        self.server_config = server_config
        log_stacks(is_wanted=server_config.log_error_stack)
        self.generations = Generations(client, tells_of_aborts=server_config.enable_log_requests)
        # build_app gives others where the server has more than one process.
        self.peers = Peers()
        model = client.config.model
        self.model_names = list(model.served_model_name) or [model.model]
        # What replies report.
        self.model_name = self.model_names[0]
        self.parsers = choose_parsers(client.config, server_config)
        self.metrics = FrontEndMetrics(
            self.model_name, has_tool_parser=self.parsers.tool is not None
        )
        self.max_model_len = model.max_model_len
        self.max_logprobs = model.max_logprobs
        self.vocab_size = client.config.facts.vocab_size
        self.sampling_defaults = client.get_default_sampling_params()
        self.max_tokens_cap = client.config.max_tokens_cap
        self.chat_template = load_chat_template(server_config.chat_template)
        self.fingerprint = _fingerprint(client, server_config)
        self.started = int(time.time())
        self.large_replies = LargeReplies()
        # None with --skip-tokenizer-init.
        self.maybe_tokenizer = _tokenizer_of(client)
        if self.chat_template and self.maybe_tokenizer and self.maybe_tokenizer.chat:
            raise UsageError(
                "--chat-template has no effect with --tokenizer-mode mistral, whose package writes "
                "chats; leave it out, or use --tokenizer-mode hf"
            )
        self.io_processor = load_io_processor(client.config, self.maybe_tokenizer)
        self._templates = TemplatePool()

    def start(self) -> None:
        """Answer other processes from now on; the event loop runs."""
        self.peers.start(self.snapshot)
        if self.maybe_tokenizer is not None and (
            self.chat_template or self.maybe_tokenizer.chat_templates
        ):
            self._templates.start()
            is_auto = self.peers.index == 0 and self.server_config.enable_auto_tool_choice
            if is_auto and not self.shows_tools():
                logger.warning("--enable-auto-tool-choice has no effect: %s", SHOWS_NO_TOOLS)

    def apart(self) -> ServingContext:
        """The same for work that no client waits for: what it generates is counted by itself."""
        other = copy.copy(self)
        other.generations = Generations(self.client)
        return other

    def snapshot(self) -> Snapshot:
        """This process's index, load and metrics, for its peers."""
        registries = [self.client.registry, self.metrics.registry]
        index = self.peers.index
        return Snapshot(index, len(self.generations), to_wire(families(registries)))

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; raises RequestError with --skip-tokenizer-init."""
        if self.maybe_tokenizer is None:
            raise RequestError(
                "This server has no tokenizer (--skip-tokenizer-init); send token ids to "
                "/v1/completions"
            )
        return self.maybe_tokenizer

    def check_model(self, name: str | None, param: str | None = "model") -> None:
        """Raise NotFoundError about `param` unless `name` is absent or one of the served names."""
        if name is not None and name not in self.model_names:
            served = ", ".join(self.model_names)
            raise NotFoundError(f"The model {name!r:.200} does not exist; served: {served}", param)

    def request_id(self, prefix: str, request: Request, own: str | None) -> str:
        """`prefix` and the client's id (X-Request-Id, then the body's) or a random one."""
        given = request.headers.get("x-request-id") or own or uuid.uuid4().hex
        if len(given) > MAX_REQUEST_ID or not given.isprintable():
            raise RequestError.about(
                "request_id", f"must be at most {MAX_REQUEST_ID} printable characters"
            )
        note_request_id(prefix + given)
        return prefix + given

    def priority(self, request: Request, own: int) -> int:
        """The request's priority: the header X-Vllm-Priority, then the body's own."""
        given = request.headers.get("x-vllm-priority")
        if given is None:
            return own
        try:
            return int(given)
        except ValueError:
            raise RequestError("X-Vllm-Priority must be a whole number", "priority") from None

    def shows_tools(self, chosen: str | None = None) -> bool:
        """Whether the template, or the one a request has `chosen`, shows the model its tools."""
        try:
            source = choose_template(self.tokenizer, chosen or self.chat_template, True)
        except RequestError:  # rendering says what is missing
            return True
        return shows_tools(source)

    async def render(self, **job: object) -> str:
        """`render_chat` of the model's tokenizer, off the event loop and within limits."""
        tokenizer = self.tokenizer
        model = {
            "chat_templates": tokenizer.chat_templates,
            "special_tokens": tokenizer.special_tokens,
        }
        return await self._templates.render({"model": model, **job})

    async def encode(
        self, text: str, param: str, *, special: bool, cut: bool, whole: bool = False
    ) -> list[int]:
        """Token ids of `text`; with `cut` the prompt is truncated afterwards.

        With `cut` only both ends of a long prompt are returned, unless `whole` is set.
        Raises RequestError, naming `param`, for a text that cannot fit into the context.
        """
        self.check_characters(text, param, cut=cut)
        if len(text) < _THREADED_ENCODE:
            return self.tokenizer.encode(text, add_special_tokens=special)
        ids = await asyncio.to_thread(self.tokenizer.encode, text, special)
        if cut and not whole and len(ids) > 2 * self.max_model_len:
            tail = ids[-self.max_model_len :]
            while len(ids) > self.max_model_len:  # to free millions takes its time
                del ids[max(self.max_model_len, len(ids) - _FREED_A_TURN) :]
                await asyncio.sleep(0)
            ids += tail
        return ids

    def check_characters(self, text: str, param: str, *, cut: bool) -> None:
        """Raise RequestError, naming `param`, for a text that is too long to tokenise."""
        longest = self.max_model_len * MAX_CHARACTERS_PER_TOKEN
        if cut and len(text) > max(longest, _MAX_CUT_CHARACTERS):
            raise RequestError.about(
                param,
                f"has {len(text)} characters, more than the {max(longest, _MAX_CUT_CHARACTERS)} "
                "that are read",
            )
        if not cut and len(text) > longest:
            raise RequestError.about(
                param,
                f"has {len(text)} characters, more than fit into this model's context of "
                f"{self.max_model_len} tokens",
            )

    async def count_tokens(self, text: str) -> int:
        return len(await self.encode(text, "text", special=False, cut=False))

    def identity(self, request_id: str, kind: str) -> dict[str, object]:
        """The keys that each reply and chunk of a request begins with."""
        return {
            "id": request_id,
            "object": kind,
            "created": int(time.time()),
            "model": self.model_name,
        }

    def count_calls(
        self, kind: RequestType, outcomes: Sequence[bool], *, is_streamed: bool
    ) -> None:
        """Count texts in which tool calls were looked for, each with whether it had one."""
        for found in outcomes:
            self.metrics.count_tool_parsing(kind, is_streaming=is_streamed, found=found)

    def log_request(self, request_id: str, prompt: str | None, params: Task) -> None:
        """One line for a request, with --enable-log-requests."""
        if self.server_config.enable_log_requests:
            shown = (prompt or "")[: self.server_config.max_log_len]
            line = "Received request %s: prompt: %r, params: %s"
            logger.info(line, request_id, shown, params, extra={"request_id": request_id})

    def log_output(self, request_id: str, text: str, finish_reason: str | None) -> None:
        """One line for a finished choice, with --enable-log-outputs."""
        if self.server_config.enable_log_outputs:
            shown = text[: self.server_config.max_log_len]
            line = "Generated for %s: %r, finish_reason: %s"
            own = {"request_id": request_id}
            logger.info(line, request_id, shown, finish_reason, extra=own)


def _tokenizer_of(client: EngineClient) -> Tokenizer | None:
    try:
        return client.tokenizer
    except UsageError:
        return None


def _fingerprint(client: EngineClient, config: ServerConfig) -> str | None:
    """A name that changes with the version and with anything that may change a seeded reply."""
    if config.fingerprint_mode in ("custom", "none"):
        return config.fingerprint_value if config.fingerprint_mode == "custom" else None
    model = client.config.model
    facts = [model.model, model.revision, model.dtype, model.max_model_len, model.seed]
    digest = hashlib.sha256(msgspec.json.encode(facts)).hexdigest()
    prefix = "" if config.fingerprint_mode == "hash" else f"vllm-lite-{__version__}-"
    return prefix + digest[:8]
