"""`vllm-lite chat`: a conversation with a chat model that a server serves."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.cli.openai_client import ClientOptions, OpenAIClient, Reply, ReplyOptions
from vllm_lite.cli.session import run_session
from vllm_lite.cli.terminal import Terminal
from vllm_lite.config.cli import OptionParser
from vllm_lite.config.option import config, option


@config
class DialogueOptions(ReplyOptions):
    """How to talk, whatever the server."""

    system_prompt: str = option("", "Instructions that come before the conversation.")


@config
class ChatOptions(ClientOptions, DialogueOptions):
    """The server to talk to, and how."""


class Conversation:
    """Turns that build on each other, after the system prompt where there is one."""

    banner = "Please enter a message for the chat model:"

    def __init__(self, client: OpenAIClient, system_prompt: str) -> None:
        self._client = client
        self.messages: list[dict[str, str]] = []
        if system_prompt:
            self.messages.append({"role": "system", "content": system_prompt})

    def ask(self, text: str) -> Reply:
        """Send the conversation so far with `text` as its last message."""
        return self._client.chat([*self.messages, {"role": "user", "content": text}])

    def keep(self, text: str, answer: str) -> None:
        """Add a turn."""
        self.messages.append({"role": "user", "content": text})
        self.messages.append({"role": "assistant", "content": answer})


def parser() -> OptionParser:
    """The parser of `vllm-lite chat`."""
    return OptionParser(
        "vllm-lite chat",
        "[options]",
        "Chat with a model over an OpenAI-compatible server. Ctrl-C stops a reply, Ctrl-D leaves.\n"
        "What comes through a pipe is taken line by line.",
        (ChatOptions,),
        examples=(
            "vllm-lite chat",
            'vllm-lite chat -q "What is the capital of France?" --stats',
            "vllm-lite chat --url http://gpu-box:8000/v1 --api-key KEY",
        ),
    )


def run(argv: Sequence[str]) -> int:
    """Talk until the user leaves; returns the exit code."""
    (values,) = parser().parse_options(argv)
    return talk(ChatOptions(**values))


def talk(options: ChatOptions) -> int:
    """Talk with the server that the options name; returns the exit code."""
    client = OpenAIClient(options)
    with Terminal() as terminal:
        terminal.say(f"Using model: {client.model}")
        return run_session(options, Conversation(client, options.system_prompt), terminal)
