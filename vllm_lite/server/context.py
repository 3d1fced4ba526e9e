"""The state that all services of a server share: the engine, the options, the model's names.

Owns request ids and the check of a request's model. Knows no route.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request

from vllm_lite import __version__
from vllm_lite.config.model import MAX_CHARACTERS_PER_TOKEN
from vllm_lite.config.server import ServerConfig
from vllm_lite.engine.client import EngineClient
from vllm_lite.errors import NotFoundError, RequestError, UsageError
from vllm_lite.log import init_logger
from vllm_lite.metrics.exposition import families, to_wire
from vllm_lite.metrics.front_end import FrontEndMetrics, RequestType
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.errors import log_stacks
from vllm_lite.server.generation import Generations, note_request_id
from vllm_lite.server.large_replies import LargeReplies
from vllm_lite.server.parser_choice import choose_parsers
from vllm_lite.server.process.peers import NoPeers, Peers, Snapshot
from vllm_lite.server.template_pool import TemplatePool
from vllm_lite.tokenizer.chat_template import choose_template, load_chat_template, shows_tools

if TYPE_CHECKING:
    from vllm_lite.tokenizer.tokenizer import Tokenizer

logger = init_logger(__name__)

MAX_REQUEST_ID = 256
# Shorter texts are tokenised faster than a thread is woken.
_THREADED_ENCODE = 8192
_FREED_A_TURN = 1 << 18
SHOWS_NO_TOOLS = (
    "the chat template shows the model no tools; start the server with a --chat-template that does"
)
# Most characters of a text that is truncated.
_MAX_CUT_CHARACTERS = 1 << 22


class ServingContext:
    """The engine behind the routes and what is known of it from the start."""

    def __init__(self, client: EngineClient, server_config: ServerConfig) -> None:
        """Raises UsageError where --chat-template or a parser cannot be used."""
        self.client = client
        self.server_config = server_config
        log_stacks(is_wanted=server_config.log_error_stack)
        self.generations = Generations(client, tells_of_aborts=server_config.enable_log_requests)
        # build_app gives others where the server has more than one process.
        self.peers: Peers | NoPeers = NoPeers()
        model = client.config.model
        self.model_names = list(model.served_model_name) or [model.model]
        self.parsers = choose_parsers(client.config, server_config)
        self.metrics = FrontEndMetrics(
            self.model_names[0], has_tool_parser=self.parsers.tool is not None
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
        self._tokenizer = _tokenizer_of(client)
        self._templates = TemplatePool()

    def start(self) -> None:
        """Answer other processes from now on; the event loop runs."""
        self.peers.start(self.snapshot)
        if self._tokenizer is not None and (self.chat_template or self._tokenizer.chat_templates):
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
    def model_name(self) -> str:
        """The name that replies report."""
        return self.model_names[0]

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; raises RequestError with --skip-tokenizer-init."""
        if self._tokenizer is None:
            raise RequestError(
                "This server has no tokenizer (--skip-tokenizer-init); send token ids to "
                "/v1/completions"
            )
        return self._tokenizer

    @property
    def maybe_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, None with --skip-tokenizer-init."""
        return self._tokenizer

    def check_model(self, name: str | None) -> None:
        """Raise NotFoundError unless `name` is absent or one of the served names."""
        if name is not None and name not in self.model_names:
            served = ", ".join(self.model_names)
            raise NotFoundError(
                f"The model {name!r:.200} does not exist; served: {served}", "model"
            )

    def request_id(self, prefix: str, request: Request, own: str | None) -> str:
        """`prefix` and the client's id (X-Request-Id, then the body's) or a random one."""
        given = request.headers.get("x-request-id") or own or uuid.uuid4().hex
        if len(given) > MAX_REQUEST_ID or not given.isprintable():
            raise RequestError(
                f"request_id must be at most {MAX_REQUEST_ID} printable characters", "request_id"
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
        longest = self.max_model_len * MAX_CHARACTERS_PER_TOKEN
        if cut and len(text) > max(longest, _MAX_CUT_CHARACTERS):
            raise RequestError(
                f"{param} has {len(text)} characters, more than the "
                f"{max(longest, _MAX_CUT_CHARACTERS)} that are read",
                param,
            )
        if not cut and len(text) > longest:
            raise RequestError(
                f"{param} has {len(text)} characters, more than fit into this model's context "
                f"of {self.max_model_len} tokens",
                param,
            )
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

    async def count_tokens(self, text: str) -> int:
        """How many tokens a generated text has."""
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
        self,
        kind: RequestType,
        outcomes: Sequence[bool],
        *,
        is_streamed: bool,
    ) -> None:
        """Count texts in which tool calls were looked for, each with whether it had one."""
        for found in outcomes:
            self.metrics.count_tool_parsing(kind, is_streaming=is_streamed, found=found)

    def log_request(self, request_id: str, prompt: str | None, params: SamplingParams) -> None:
        """One line for a request, with --enable-log-requests."""
        if self.server_config.enable_log_requests:
            shown = (prompt or "")[: self.server_config.max_log_len]
            line = "Received request %s: prompt: %r, params: %s"
            logger.info(line, request_id, shown, params, extra={"request_id": request_id})

    def log_delta(self, request_id: str, text: str) -> None:
        """One line for a part of a streamed choice, with --enable-log-outputs."""
        shown = text[: self.server_config.max_log_len]
        own = {"request_id": request_id}
        logger.info("Streamed for %s: %r", request_id, shown, extra=own)

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
