"""A client of OpenAI-compatible servers: options, streamed replies, failures.

Invariant: any failure of a server is a ClientError of one line.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn
from urllib.parse import urlsplit

from vllm_lite import envs
from vllm_lite.config.options.option import config, option
from vllm_lite.errors import UsageError, VLLMLiteError

if TYPE_CHECKING:
    import openai

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_MAX_NAMES_SHOWN = 8


class ClientError(VLLMLiteError):
    """A server cannot be reached, refuses a request or breaks off its reply.

    `is_final`: asking again will not help.
    """

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


@config
class ReplyOptions:
    """Options of a reply."""

    GROUP: ClassVar[str] = "options"

    stats: bool = option(
        False, "After each reply, print the time to its first token and its tokens per second."
    )


@config
class ClientOptions(ReplyOptions):
    """The server to talk to, and how."""

    url: str = option("http://localhost:8000/v1", "Where the server's OpenAI API is.")
    model_name: str | None = option(
        None, "The model to talk to.", auto="the first that the server lists"
    )
    api_key: str | None = option(
        None, "Key to send to the server.", auto="OPENAI_API_KEY, else EMPTY", secret=True
    )
    quick: str = option("", "Send this one text, print the reply and leave.", aliases=("-q",))


class Piece(NamedTuple):
    """A part of a reply; reasoning is thought aloud and no part of the answer."""

    text: str
    is_reasoning: bool


class Reply:
    """One reply: iterate over its pieces once, as they arrive; then it knows how it went.

    Closing the iterator early stops the server's work. Raises ClientError.
    """

    def __init__(
        self,
        client: OpenAIClient,
        send: Callable[[], Any],
        pieces_of: Callable[[Any], Iterable[Piece]],
    ) -> None:
        self._client = client
        self._send = send
        self._pieces_of = pieces_of
        # Why the server ended the reply; None until it did.
        self.finish_reason: str | None = None
        # Tokens by the server's count; by the number of chunks where it gives none.
        self.num_tokens = 0
        # Seconds from the request to the first piece, and to the end.
        self.time_to_first: float | None = None
        self.seconds = 0.0

    def __iter__(self) -> Generator[Piece, None, None]:
        began = time.perf_counter()
        with self._client.failures(self), closing(self._send()) as stream:
            for chunk in stream:
                self.seconds = time.perf_counter() - began
                for choice in chunk.choices:
                    for piece in self._pieces_of(choice):
                        if self.time_to_first is None:
                            self.time_to_first = self.seconds
                        self.num_tokens += 1
                        yield piece
                    self.finish_reason = choice.finish_reason or self.finish_reason
                if chunk.usage is not None:
                    self.num_tokens = chunk.usage.completion_tokens
            if self.finish_reason is None:
                raise ClientError(f"the server at {self._client.url} broke off its reply")

    def stats(self) -> str:
        """Two lines: the time to the first token, and tokens per second over the whole reply."""
        first = "none" if self.time_to_first is None else f"{self.time_to_first * 1000:.2f} ms"
        rate = self.num_tokens / self.seconds if self.seconds else 0.0
        counted = f"{self.num_tokens} tokens in {self.seconds:.2f}s"
        return f"TTFT: {first}\nTPS:  {rate:.2f} tokens/s ({counted})"


class OpenAIClient:
    """A connection to one model of one server; making it asks the server for a model if need be."""

    def __init__(self, options: ClientOptions) -> None:
        _check_url(options.url)
        # Imported here: help and mistakes must not wait for it.
        import openai

        self.url = options.url
        key = _key_of(options)
        try:
            self._client = openai.OpenAI(
                base_url=options.url,
                api_key=key,
                max_retries=0,
                http_client=openai.DefaultHttpxClient(mounts=_unproxied(options.url)),
            )
        except Exception as error:
            # Proxies and certificates are read from the environment here.
            raise UsageError(
                f"a client cannot be made with the environment's proxy or certificate settings "
                f"({type(error).__name__}: {error}); check ALL_PROXY, HTTP_PROXY and SSL_CERT_FILE"
            ) from None
        self._extra: dict[str, Any] = {}
        if options.stats:
            self._extra["stream_options"] = {"include_usage": True}
        self.model = options.model_name or self._first_model()

    def chat(self, messages: list[dict[str, str]], fields: dict[str, Any]) -> Reply:
        """The reply to a conversation of {"role", "content"} messages, with further fields."""
        create: Any = self._client.chat.completions.create
        body = {"model": self.model, "messages": messages, "stream": True, **fields, **self._extra}
        return Reply(self, lambda: create(**body), _chat_pieces)

    def count_tokens(self, messages: list[dict[str, str]]) -> tuple[int, int]:
        """How many tokens a conversation has, and how many the model takes."""
        body = {"model": self.model, "messages": messages, "add_generation_prompt": False}
        with self.failures():
            url = self.url.rstrip("/").removesuffix("/v1") + "/tokenize"
            reply: Any = self._client.post(url, cast_to=object, body=body)
            return reply["count"], reply["max_model_len"]

    def complete(self, prompt: str, max_tokens: int | None) -> Reply:
        """The continuation of a text; the server's own limit where `max_tokens` is None."""
        create: Any = self._client.completions.create
        limit = {} if max_tokens is None else {"max_tokens": max_tokens}
        return Reply(
            self,
            lambda: create(model=self.model, prompt=prompt, stream=True, **limit, **self._extra),
            _text_pieces,
        )

    @contextmanager
    def failures(self, reply: Reply | None = None) -> Iterator[None]:
        """Turn what goes wrong with the server, while `reply` is read, into a ClientError."""
        import openai

        try:
            yield
        except ClientError:
            raise
        except openai.APIStatusError as error:
            self._raise_refusal(error)
        except openai.APIConnectionError as error:
            if reply is not None and reply.seconds:
                self._raise_broken_off(error)
            self._raise_unreachable(error)
        except openai.APIError as error:
            # An event of the stream says what went wrong.
            raise ClientError(f"the server failed: {_message_of(error)}") from None
        except Exception as error:
            # Releases of the client package differ in what they let through of a stream's errors.
            if reply is not None and reply.seconds:
                self._raise_broken_off(error)
            raise ClientError(
                f"the exchange with {self.url} failed ({type(error).__name__}: {error})"
            ) from None

    def _first_model(self) -> str:
        names = self.model_names()
        if not names:
            raise ClientError(f"{self.url} lists no models; give --model-name", is_final=True)
        return names[0]

    def model_names(self) -> list[str]:
        with self.failures():
            data = getattr(self._client.models.list(), "data", None)
            if not isinstance(data, list):
                raise self._no_api()
            return [model.id for model in data]

    def _raise_refusal(self, error: openai.APIStatusError) -> NoReturn:
        if error.status_code in (401, 403):
            raise ClientError(
                f"{self.url} refuses the API key; give --api-key or set OPENAI_API_KEY",
                is_final=True,
            ) from None
        if error.status_code == 404:
            self._raise_not_found(error)
        raise ClientError(_message_of(error)) from None

    def _raise_not_found(self, error: openai.APIStatusError) -> NoReturn:
        wanted = getattr(self, "model", None)
        if wanted is None:  # not even the list of models was found
            raise self._no_api() from None
        try:
            names = [model.id for model in self._client.models.list().data]
        except Exception:
            raise self._no_api() from None
        if wanted in names:
            raise ClientError(_message_of(error), is_final=True) from None
        shown = ", ".join(names[:_MAX_NAMES_SHOWN]) or "nothing"
        raise ClientError(
            f"{self.url} has no model {wanted!r}; --model-name may be {shown}", is_final=True
        ) from None

    def _no_api(self) -> ClientError:
        return ClientError(
            f"there is no OpenAI API at {self.url}; the address usually ends in /v1", is_final=True
        )

    def _raise_broken_off(self, error: Exception) -> NoReturn:
        cause = _cause_of(error)
        raise ClientError(f"the server at {self.url} broke off its reply ({cause})") from None

    def _raise_unreachable(self, error: Exception) -> NoReturn:
        parts = urlsplit(self.url)
        origin = _origin_of(error)
        if isinstance(origin, ssl.SSLError):
            cause = getattr(origin, "verify_message", "") or origin.reason or "TLS"
            raise ClientError(
                f"no secure connection to {self.url} ({cause}); check --url, which may have to "
                "begin with http://"
            ) from None
        remedy = "check --url"
        if parts.hostname in _LOCAL_HOSTS:
            port = "" if parts.port in (8000, None) else f" --port {parts.port}"
            remedy = f"start one with `vllm-lite serve demo{port}`, or give the --url of another"
        raise ClientError(
            f"no server answers at {self.url} ({_cause_of(error)}); {remedy}"
        ) from None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise UsageError(f"--url {url!r} is no address such as http://localhost:8000/v1")


def _key_of(options: ClientOptions) -> str:
    key = options.api_key or envs.OPENAI_API_KEY or "EMPTY"
    if not (key.isascii() and key.isprintable()):
        name = "--api-key" if options.api_key else "OPENAI_API_KEY"
        raise UsageError(f"{name} holds characters that no HTTP header can carry")
    return key


def _unproxied(url: str) -> dict[str, None]:
    """This machine's own servers are not behind the proxy that HTTP_PROXY may name."""
    host = urlsplit(url).hostname
    return {f"all://{host}": None} if host in _LOCAL_HOSTS and ":" not in host else {}


def _chat_pieces(choice: Any) -> Iterator[Piece]:
    delta = choice.delta
    reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
    if reasoning:
        yield Piece(reasoning, is_reasoning=True)
    if delta.content:
        yield Piece(delta.content, is_reasoning=False)


def _text_pieces(choice: Any) -> Iterator[Piece]:
    if choice.text:
        yield Piece(choice.text, is_reasoning=False)


def _message_of(error: openai.APIError) -> str:
    """The server's message, without the client package's own words."""
    body = error.body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return str(body["message"])
    return error.message


def _cause_of(error: BaseException) -> str:
    """The innermost reason: `Connection refused` rather than `Connection error.`"""
    error = _origin_of(error)
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def _origin_of(error: BaseException) -> BaseException:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error
