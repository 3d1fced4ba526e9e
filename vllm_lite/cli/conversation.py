"""A conversation with a model: its messages, and how its replies are sampled. No screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from vllm_lite.cli.openai_client import OpenAIClient, Reply
from vllm_lite.config.option import config, option
from vllm_lite.errors import UsageError


@config
class SamplingOptions:
    """Sampling of a reply; unset options are the server's defaults."""

    GROUP: ClassVar[str] = "options"

    temperature: float | None = option(None, "0 for the likeliest tokens.", ge=0)
    top_p: float | None = option(None, "Draw from this share of the likeliest.", gt=0, le=1)
    max_tokens: int | None = option(None, "Most tokens of a reply.", ge=1)
    seed: int | None = option(None, "Draw the same again.")
    json_schema: str | None = option(None, "File of a JSON schema that replies follow.")

    def fields(self) -> dict[str, Any]:
        """The request fields; raises UsageError if the schema cannot be read."""
        names = ("temperature", "top_p", "max_tokens", "seed")
        fields = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.json_schema is not None:
            schema = {"name": "reply", "schema": _read_schema(self.json_schema)}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return fields


def _read_schema(path: str) -> dict[str, Any]:
    try:
        schema = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema {path} cannot be read ({error})") from None
    if not isinstance(schema, dict):
        raise UsageError(f"{path} holds no JSON schema: it is not an object")
    return schema


class Conversation:
    """Turns that build on each other, after the system prompt where there is one."""

    banner = "Please enter a message for the chat model:"

    def __init__(self, client: OpenAIClient, system_prompt: str, settings: SamplingOptions) -> None:
        self.client = client
        self.settings = settings
        self.messages: list[dict[str, str]] = []
        self.set_system(system_prompt)
        settings.fields()  # a schema that cannot be read shows now

    def ask(self, text: str) -> Reply:
        """Send the conversation so far with `text` as its last message."""
        messages = [*self.messages, {"role": "user", "content": text}]
        return self.client.chat(messages, self.settings.fields())

    def keep(self, text: str, answer: str) -> None:
        """Add a turn."""
        self.messages.append({"role": "user", "content": text})
        self.messages.append({"role": "assistant", "content": answer})

    def set_system(self, text: str) -> None:
        """Begin with `text` as the system prompt, or with none."""
        said = [message for message in self.messages if message["role"] != "system"]
        self.messages = [{"role": "system", "content": text}] * bool(text) + said

    def clear(self) -> None:
        """Forget all but the system prompt."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def take_back(self) -> str:
        """Forget the last turn; what the user said in it. Raises UsageError without one."""
        last = next(
            (i for i, one in reversed([*enumerate(self.messages)]) if one["role"] == "user"), None
        )
        if last is None:
            raise UsageError("nothing was asked yet")
        text = self.messages[last]["content"]
        del self.messages[last:]
        return text
