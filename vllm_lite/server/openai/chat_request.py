"""A body of another API as the chat request it stands for; its errors name that API's fields.

Knows neither API's meaning, only names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from vllm_lite.errors import RequestError
from vllm_lite.server.body import parse
from vllm_lite.server.openai.chat_protocol import CHAT_HARMLESS, ChatCompletionRequest


def chat_request(fields: dict[str, object]) -> ChatCompletionRequest:
    """The chat request with these fields; raises RequestError."""
    return parse(ChatCompletionRequest, fields, CHAT_HARMLESS)


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Rename chat's fields in refusals to those of the client's API, by `names`."""
    try:
        yield
    except RequestError as error:
        if error.param is not None:
            field, dot, rest = error.param.partition(".")
            if field in names:
                error.message = error.message.replace(field, names[field])
                error.param = names[field] + dot + rest
        raise
