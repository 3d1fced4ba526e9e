"""The bodies of the routes for embeddings, classes and scores, checked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, WithJsonSchema

from vllm_lite.errors import RequestError
from vllm_lite.server.errors import UnsupportedError
from vllm_lite.server.openai.chat_protocol import MAX_TEMPLATE
from vllm_lite.server.openai.completion_protocol import prompts_of, prompts_schema
from vllm_lite.server.openai.sampling_protocol import MAX_CACHE_SALT, RequestBody, accepted

# Inputs or documents of one request; OpenAI takes as many.
MAX_INPUTS = 2048
_INPUT = prompts_schema(MAX_INPUTS)
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "maxItems": MAX_INPUTS}]}
# What vLLM's requests once had, and what took its place.
_REMOVED_TASKS = {"encode": "token_embed or token_classify", "score": "classify"}
Texts = Annotated[object, WithJsonSchema(_TEXTS)]


class PoolingBody(RequestBody):
    """Fields of all routes here."""

    model: str | None = None
    """One of the served names; without it, the model that is served."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """Keep so many tokens of each input; -1: as many as fit. Its end is cut, not what the
    tokenizer adds to it."""
    truncation_side: Literal["left", "right"] | None = None
    """Cut this side instead, whatever stands there."""
    padding: Literal["max_length", "do_not_pad"] | None = None
    """Only do_not_pad."""
    request_id: str | None = None
    """Becomes part of the reply's id; the header X-Request-Id goes before it."""
    priority: int = 0
    """Smaller runs earlier, under --scheduling-policy priority."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    """Share cached prefixes only with requests of the same salt."""
    use_activation: bool | None = None
    """Divide vectors by their length, or make scores of logits; unless the model says, true."""

    @property
    @abstractmethod
    def texts_field(self) -> str:
        """The field that prompts are made of, for errors about them."""

    def check(self) -> None:
        """Raise RequestError for what the types alone do not refuse."""
        if self.padding == "max_length":
            raise UnsupportedError.about(
                "padding", "max_length is not supported: an input is as long as its tokens"
            )
        if self.cache_salt is not None and set(self.cache_salt) & set("@/\\\0"):
            raise RequestError.about("cache_salt", "must not hold @, /, \\ or NUL")


class InputBody(PoolingBody):
    """Fields of routes that take inputs one by one, as texts, ids or conversations."""

    # Read by `prompts` and `conversations`, whose errors are clearer than those of a union.
    input: Annotated[object, WithJsonSchema(_INPUT)] = None
    """A text, token ids, or a list of either; up to 2048. Or messages."""
    messages: Annotated[object, WithJsonSchema({"type": "array"})] = None
    """In place of input: a conversation, or a list of them."""
    add_special_tokens: bool | None = None
    """Let the tokenizer add what it puts around a text; without it, to input alone."""
    add_generation_prompt: bool = False
    """Let a conversation end where the assistant's reply begins."""
    continue_final_message: bool = False
    """Let it end inside the last message."""
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE)] | None = None
    """Jinja, in place of the model's own; needs --trust-request-chat-template."""
    chat_template_kwargs: dict[str, object] | None = None
    """Variables of the template."""

    @property
    def texts_field(self) -> str:
        return "input" if self.messages is None else "messages"

    def check(self) -> None:
        super().check()
        if (self.input is None) == (self.messages is None):
            raise RequestError("The body needs either input or messages", "input")
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError.about(
                "continue_final_message", "needs add_generation_prompt to be false"
            )

    def prompts(self) -> list[str | list[int]]:
        """The inputs that are no conversations; raises RequestError."""
        return prompts_of(self.input, "input", MAX_INPUTS)

    def conversations(self) -> tuple[str, list[object]]:
        """The field that holds conversations, and them; none where inputs are texts or ids."""
        name = "input" if self.messages is None else "messages"
        given = getattr(self, name)
        if name == "messages" and not (isinstance(given, list) and given):
            raise RequestError.about(name, "must be a list of messages that is not empty")
        if not isinstance(given, list) or not given:
            return name, []
        if isinstance(given[0], dict):
            return name, [given]
        if name == "messages" or (isinstance(given[0], list) and _holds_messages(given[0])):
            if len(given) > MAX_INPUTS:
                raise RequestError.about(
                    name, f"must have at most {MAX_INPUTS} conversations, got {len(given)}"
                )
            return name, given
        return name, []


def _holds_messages(given: list[object]) -> bool:
    return bool(given) and isinstance(given[0], dict)


class VectorBody(InputBody):
    """Fields of routes that give vectors."""

    dimensions: int | None = None
    """Numbers of a vector, of models whose vectors can be cut."""
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    """How vectors are written. bytes: as the reply's body, described in the header metadata;
    bytes_only: without it."""
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] = "float32"
    """Of what is not written as float."""
    endianness: Literal["native", "big", "little"] = "native"
    """Of what is not written as float."""


class EmbeddingRequest(VectorBody):
    """POST /v1/embeddings."""


class PoolingRequest(VectorBody):
    """POST /pooling."""

    task: str | None = None
    """One of the model's tasks; without it, its first."""
    data: Annotated[object, WithJsonSchema({})] = None
    """In place of input: what the plugin of --io-processor-plugin reads."""

    @property
    def texts_field(self) -> str:
        return super().texts_field if self.data is None else "data"

    def check(self) -> None:
        if self.data is None:
            super().check()
            return
        PoolingBody.check(self)
        if self.input is not None or self.messages is not None:
            raise RequestError("The body needs data or input, not both", "data")


class ClassifyRequest(InputBody):
    """POST /classify."""


class ScoringBody(PoolingBody):
    """Fields of routes that score pairs of texts."""

    max_tokens_per_query: Annotated[int, Field(ge=0)] = 0
    """Cut a query to so many tokens; 0: leave it."""
    max_tokens_per_doc: Annotated[int, Field(ge=0)] = 0
    """Cut a document to so many tokens; 0: leave it."""
    instruction: str | None = None
    """Shown by a --chat-template as its variable instruction."""
    chat_template_kwargs: dict[str, object] | None = None
    """Variables of the --chat-template."""

    @property
    def template_kwargs(self) -> dict[str, object]:
        given = dict(self.chat_template_kwargs or {})
        if self.instruction is not None:
            given.setdefault("instruction", self.instruction)
        return given


class ScoreRequest(ScoringBody):
    """POST /score: pairs 1:1, 1:N or N:N, under any of four pairs of names."""

    NAMES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("queries", "documents"),
        ("queries", "items"),
        ("data_1", "data_2"),
        ("text_1", "text_2"),
    )

    text_1: Texts = None
    """A text, or up to 2048."""
    text_2: Texts = None
    """A text, or up to 2048, for one text_1 or one each."""
    queries: Texts = None
    """The same as text_1."""
    documents: Texts = None
    """The same as text_2."""
    items: Texts = None
    """The same as text_2."""
    data_1: Texts = None
    """The same as text_1."""
    data_2: Texts = None
    """The same as text_2."""

    @property
    def texts_field(self) -> str:
        return self.names[1]

    @property
    def names(self) -> tuple[str, str]:
        """The two fields that hold the texts; raises RequestError."""
        given = {name for pair in self.NAMES for name in pair if getattr(self, name) is not None}
        for pair in self.NAMES:
            if set(pair) == given:
                return pair
        raise RequestError(
            "The body needs text_1 and text_2 (or queries and documents, queries and items, "
            "data_1 and data_2), and no others of these",
            "text_1",
        )


class RerankRequest(ScoringBody):
    """POST /rerank, as Jina's and Cohere's clients send it."""

    query: Texts
    """A text."""
    documents: Texts
    """Up to 2048 texts, or objects with a text."""
    top_n: Annotated[int, Field(ge=0)] | None = None
    """Give so many of the best; all without it, or with 0."""
    return_documents: bool = True
    """Give the documents, too."""

    @property
    def texts_field(self) -> str:
        return "documents"


class CohereEmbedRequest(PoolingBody):
    """POST /v2/embed, as Cohere's client sends it."""

    LATER: ClassVar[Mapping[str, str]] = {"images": "media input"}

    input_type: Annotated[str, Field(max_length=256)] | None = None
    """The name of a prompt of the model's, or one of Cohere's types."""
    texts: Annotated[list[str], Field(max_length=MAX_INPUTS, fail_fast=True)] | None = None
    """Texts to embed."""
    inputs: Annotated[list[dict[str, Any]], Field(max_length=MAX_INPUTS)] | None = None
    """In place of texts: objects whose content is a list of text parts."""
    output_dimension: int | None = None
    """Numbers of a vector, of models whose vectors can be cut."""
    embedding_types: (
        Annotated[list[Literal["float", "binary", "ubinary", "base64"]], Field(max_length=4)] | None
    ) = None
    """How vectors are written: numbers, a bit each, or both."""
    truncate: Literal["NONE", "START", "END"] = "END"
    """Which side of a text that is too long is cut."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of a text, if fewer than the model takes."""

    @property
    def texts_field(self) -> str:
        return "texts" if self.inputs is None else "inputs"


B = TypeVar("B", bound=PoolingBody)


def read(model: type[B], raw: dict[str, object]) -> B:
    """`raw` as a body that can be answered; raises RequestError."""
    if "normalize" in raw:
        raise RequestError.about("normalize", "was replaced: send use_activation")
    task = raw.get("task")
    if isinstance(task, str) and task in _REMOVED_TASKS:
        raise RequestError.about("task", f"{task} was replaced: use {_REMOVED_TASKS[task]}")
    body = accepted(model, raw)
    body.check()
    return body


def texts_of(given: object, name: str) -> list[str]:
    """The texts of a field for scores: one, or a list of texts or of objects that hold one.

    Raises RequestError.
    """
    listed = given if isinstance(given, list) else [given]
    if len(listed) > MAX_INPUTS:
        raise RequestError.about(name, f"must have at most {MAX_INPUTS} entries, got {len(listed)}")
    is_list = isinstance(given, list)
    return [_text(one, f"{name}.{i}" if is_list else name) for i, one in enumerate(listed)]


def _text(given: object, path: str) -> str:
    if isinstance(given, dict):
        content = given.get("content")
        given = given.get("text") if content is None else parts_text(content, path)
    if not isinstance(given, str):
        raise RequestError.about(path, "must be a string, or an object with a text")
    if not given:
        raise RequestError.about(path, "must not be empty")
    return given


def parts_text(content: object, path: str) -> str:
    """The text of a list of text parts; raises RequestError."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type", "text") == "text"
        text = part.get("text") if is_text else None
        if not isinstance(text, str):
            raise RequestError.about(path, "must hold text parts: this model takes text only")
        texts.append(text)
    return "".join(texts)
