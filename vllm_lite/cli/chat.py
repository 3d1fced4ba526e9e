"""`vllm-lite chat`: a conversation with a chat model that a server serves, and its slash commands.

A command returns the text to show; a mistake in one is a UsageError.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from vllm_lite.cli.openai_client import ClientOptions, OpenAIClient, Reply, ReplyOptions
from vllm_lite.cli.session import Leave, run_session
from vllm_lite.cli.terminal import Terminal
from vllm_lite.config.options.absent import rows
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.config.options.option import Option, config, make, option, option_table
from vllm_lite.errors import UsageError, nearest

_ROLES = ("system", "user", "assistant")


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
        messages = [*self.messages, {"role": "user", "content": text}]
        return self.client.chat(messages, self.settings.fields())

    def keep(self, text: str, answer: str) -> None:
        self.messages.append({"role": "user", "content": text})
        self.messages.append({"role": "assistant", "content": answer})

    def set_system(self, text: str) -> None:
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


class ChatCommands:
    """The commands over one conversation; `run` takes a line."""

    def __init__(self, conversation: Conversation) -> None:
        self._talk = conversation
        self._table: dict[str, tuple[str, str, Callable[[str], str]]] = {
            "help": ("", "show this", self._help),
            "clear": ("", "forget the conversation, but the instructions", self._clear),
            "system": ("[TEXT]", "instructions from here on; without TEXT none", self._system),
            "set": ("[NAME [VALUE]]", f"set {', '.join(_settings())}", self._set),
            "save": ("FILE", "write the conversation to FILE, as JSON", self._save),
            "load": ("FILE", "go on with the conversation in FILE", self._load),
            "model": ("[NAME]", "talk to another model; without NAME show them", self._model),
            "tokens": ("", "count the conversation's tokens", self._tokens),
            "retry": ("", "ask the last question again", self._retry),
            "bye": ("", "leave, as Ctrl-D does", self._bye),
        }
        self._question: str | None = None

    def run(self, line: str) -> tuple[str, str | None]:
        """The text to show and any message to send; raises UsageError, ClientError or Leave."""
        name, _, rest = line[1:].strip().partition(" ")
        if name not in self._table:
            close = nearest(name, self._table)
            hint = f"; did you mean /{close}?" if close else "; /help shows all commands"
            raise UsageError(f"there is no command /{name}{hint}")
        self._question = None
        said = self._table[name][2](rest.strip())
        return said, self._question

    def _help(self, _: str) -> str:
        rows = [(f"/{name} {words}", text) for name, (words, text, _) in self._table.items()]
        rows += [
            ('"""', "begin and end a message of several lines; Alt-Enter breaks one too"),
            ("Ctrl-C", "clear the line, or stop a reply; on an empty line leave"),
        ]
        width = max(len(left) for left, _ in rows)
        return "\n".join(f"{left:{width}}  {right}" for left, right in rows)

    def _clear(self, _: str) -> str:
        self._talk.clear()
        return "(the conversation is empty)"

    def _system(self, text: str) -> str:
        self._talk.set_system(text)
        return "(the instructions are set)" if text else "(there are no instructions)"

    def _set(self, rest: str) -> str:
        words = _split(rest)
        settings = self._talk.settings
        if words:
            name = words[0].lstrip("-").replace("-", "_")
            if name not in _settings():
                raise UsageError(f"/set knows {', '.join(_settings())}, not {words[0]}")
            flag = "--" + name.replace("_", "-")
            given = {name: None}
            if len(words) > 1:
                (given,) = _SettingParser().parse_options([flag, *words[1:]])
            self._talk.settings = settings = replace(settings, **given)
        shown = ((name, getattr(settings, name)) for name in _settings())
        return ", ".join(f"{n} {'(default)' if value is None else value}" for n, value in shown)

    def _save(self, rest: str) -> str:
        path = _one_path("save", rest)
        try:
            path.write_text(json.dumps({"messages": self._talk.messages}, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"cannot write {path} ({error.strerror})") from None
        return f"({len(self._talk.messages)} messages are in {path})"

    def _load(self, rest: str) -> str:
        path = _one_path("load", rest)
        try:
            saved: Any = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"cannot read {path} ({error})") from None
        messages = saved.get("messages") if isinstance(saved, dict) else None
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise UsageError(f"{path} holds no conversation that /save wrote")
        self._talk.messages = messages
        return f"(the conversation has {len(messages)} messages)"

    def _model(self, name: str) -> str:
        client = self._talk.client
        names = client.model_names()
        if not name:
            return "\n".join(f"{'*' if one == client.model else ' '} {one}" for one in names)
        if name not in names:
            raise UsageError(f"{client.url} serves {', '.join(names)}, not {name}")
        client.model = name
        return f"Using model: {name}"

    def _tokens(self, _: str) -> str:
        if not self._talk.messages:
            return "(the conversation is empty)"
        count, most = self._talk.client.count_tokens(self._talk.messages)
        return f"({count:,} of {most:,} tokens)"

    def _retry(self, _: str) -> str:
        self._question = self._talk.take_back()
        return ""

    def _bye(self, _: str) -> NoReturn:
        raise Leave


class _SettingParser(OptionParser):
    """Reads one setting as the command line does, without ending the program."""

    def __init__(self) -> None:
        super().__init__("/set", "NAME VALUE", "", (SamplingOptions,))

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _settings() -> list[str]:
    return list(option_table(SamplingOptions))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text}: {error}") from None


def _one_path(command: str, rest: str) -> Path:
    words = _split(rest)
    if len(words) != 1:
        raise UsageError(f"/{command} takes one FILE")
    return Path(words[0]).expanduser()


def _is_message(one: object) -> bool:
    return (
        isinstance(one, dict)
        and one.keys() == {"role", "content"}
        and one["role"] in _ROLES
        and isinstance(one["content"], str)
    )


@config
class DialogueOptions(ReplyOptions, SamplingOptions):
    """Options of a conversation."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("chat")

    system_prompt: str = option("", "Instructions that come before the conversation.")


@config
class ChatOptions(ClientOptions, DialogueOptions):
    """The server to talk to, and how."""


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite chat",
        "[options]",
        "Chat with a model over an OpenAI-compatible server. Ctrl-C stops a reply, Ctrl-D leaves,\n"
        "/help shows the commands. What comes through a pipe is taken line by line.",
        (ChatOptions,),
        examples=(
            "vllm-lite chat",
            'vllm-lite chat -q "What is the capital of France?" --stats',
            "vllm-lite chat --temperature 0.3 --json-schema reply.json",
            "vllm-lite chat --url http://gpu-box:8000/v1 --api-key KEY",
        ),
    )


def run(argv: Sequence[str]) -> int:
    (values,) = parser().parse_options(argv)
    return talk(make(ChatOptions, values))


def talk(options: ChatOptions) -> int:
    """Talk with the server that the options name; returns the exit code."""
    client = OpenAIClient(options)
    with Terminal(shows_markdown=True) as terminal:
        terminal.say(f"Using model: {client.model}")
        conversation = Conversation(client, options.system_prompt, options)
        return run_session(options, conversation, terminal, ChatCommands(conversation).run)
