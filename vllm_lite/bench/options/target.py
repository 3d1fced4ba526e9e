"""Options of a load's server, API and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vllm_lite.config.options.option import config, option, options
from vllm_lite.errors import UsageError


def pairs(flag: str, words: Sequence[str]) -> dict[str, str]:
    """The KEY=VALUE `words` of `flag`; raises UsageError."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"{flag} {word!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def numbers(flag: str, text: str, example: str) -> tuple[float, ...]:
    """The numbers of a comma-separated `text`; raises UsageError."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} {text!r} is not a list such as {example}") from None


@dataclass(frozen=True, slots=True)
class Backend:
    """An API: its path, and whether it takes chats or returns vectors."""

    path: str
    is_chat: bool = False
    is_pooling: bool = False

    @property
    def ending(self) -> str:
        """The ending of every path of this API."""
        return self.path.removeprefix("/v1")


BACKENDS = {
    "openai": Backend("/v1/completions"),
    "vllm": Backend("/v1/completions"),
    "openai-chat": Backend("/v1/chat/completions", is_chat=True),
    "openai-responses": Backend("/v1/responses", is_chat=True),
    "openai-embeddings": Backend("/v1/embeddings", is_pooling=True),
    "infinity-embeddings": Backend("/embeddings", is_pooling=True),
    "vllm-pooling": Backend("/pooling", is_pooling=True),
    "vllm-rerank": Backend("/rerank", is_pooling=True),
}
_ALL_BACKENDS = (
    *BACKENDS,
    *("openai-audio", "openai-embeddings-chat", "openai-embeddings-clip"),
    *("openai-embeddings-vlm2vec", "infinity-embeddings-clip"),
)


@config
class SamplingOptions:
    """Sampling parameters; unset ones are the server's defaults."""

    GROUP: ClassVar[str] = "sampling"

    temperature: float | None = option(None, "Sampling temperature.", ge=0)
    top_p: float | None = option(None, "Sampling top-p.", gt=0, le=1)
    top_k: int | None = option(None, "Sampling top-k.", ge=-1)
    min_p: float | None = option(None, "Sampling min-p.", ge=0, le=1)
    frequency_penalty: float | None = option(None, "Frequency penalty.", ge=-2, le=2)
    presence_penalty: float | None = option(None, "Presence penalty.", ge=-2, le=2)
    repetition_penalty: float | None = option(None, "Repetition penalty.", gt=0)

    @property
    def body(self) -> dict[str, float | int]:
        """The fields of a request that were set."""
        return {
            entry.name: value
            for entry in options(SamplingOptions)
            if (value := getattr(self, entry.name)) is not None
        }


@config
class TargetOptions:
    """The server to load and its requests."""

    GROUP: ClassVar[str] = "server"

    backend: str = option(
        "openai",
        "Which API to speak: completions (openai, vllm), chat (openai-chat), responses "
        "(openai-responses), embeddings (openai-embeddings, infinity-embeddings), vLLM's pooling "
        "(vllm-pooling) or reranking (vllm-rerank).",
        choices=_ALL_BACKENDS,
        works=tuple(BACKENDS),
        remedy="use one of " + ", ".join(BACKENDS),
    )
    base_url: str | None = option(None, "URL of the server, instead of --host and --port.")
    host: str = option("127.0.0.1", "Host of the server.")
    port: int = option(8000, "Port of the server.", ge=1, le=65535)
    endpoint: str | None = option(None, "Path to post to.", auto="the one of --backend")
    header: list[str] = option([], "Further HTTP headers, each as KEY=VALUE.")
    insecure: bool = option(False, "Accept any TLS certificate.")
    model: str | None = option(
        None, "Name of the model, and of its tokenizer.", auto="the first that the server lists"
    )
    served_model_name: str | None = option(
        None, "Name to send in requests, where it is not --model."
    )
    lora_modules: list[str] = option(
        [], "Names of adapters that the server has; requests ask for them instead of the model."
    )
    lora_assignment: str = option(
        "random", "How --lora-modules are dealt to requests.", choices=("random", "round-robin")
    )
    tokenizer: str | None = option(
        None,
        "Tokenizer to make and count prompts with: demo, a directory, a .gguf file or a hub id.",
        auto="the model's",
    )
    tokenizer_mode: str = option(
        "auto",
        "Which tokenizer implementation to load.",
        choices=("auto", "hf", "slow", "mistral", "custom", "deepseek_v32"),
        works=("auto", "hf", "mistral"),
        remedy="use auto",
    )
    skip_tokenizer_init: bool = option(
        False, "Load no tokenizer: the server's counts are all that is known of prompts."
    )
    trust_remote_code: bool = option(
        False, "Allow Python code that comes with a tokenizer to run here."
    )
    extra_body: dict[str, Any] = option({}, "JSON whose keys are added to every request.")
    logprobs: int | None = option(None, "Log-probabilities to ask for, per token.", ge=0)
    use_beam_search: bool = option(
        False,
        "Ask for beam search, of servers that know vLLM's use_beam_search. It cannot be streamed: "
        "the first token is the last.",
    )
    ignore_eos: bool = option(
        False,
        "Ask for all tokens whatever the model says; always so with --dataset-name random and "
        "timed_trace.",
    )
    request_id_prefix: str = option(
        "", "What request ids begin with.", auto="bench- and eight random hex digits"
    )

    def __post_init__(self) -> None:
        if not self.path.endswith(self.api.ending):
            raise UsageError(
                f"--endpoint {self.endpoint} does not fit --backend {self.backend}; "
                f"use one such as {self.api.path}"
            )
        pairs("--header", self.header)
        if self.use_beam_search and self.backend == "openai-responses":
            raise UsageError("--use-beam-search is for completions and chats, not for responses")
        if self.api.is_pooling:
            for name in ("logprobs", "use_beam_search", "ignore_eos"):
                if getattr(self, name) not in (None, False):
                    flag = "--" + name.replace("_", "-")
                    raise UsageError(f"{flag} makes no sense with --backend {self.backend}")

    @property
    def api(self) -> Backend:
        return BACKENDS[self.backend]

    @property
    def streams(self) -> bool:
        """Whether answers come token by token."""
        return not (self.api.is_pooling or self.use_beam_search)

    @property
    def path(self) -> str:
        return self.endpoint or self.api.path

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        return pairs("--header", self.header)
