"""`vllm-lite chat`: a conversation with a chat model that a server serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vllm_lite.cli.chat_commands import ChatCommands
from vllm_lite.cli.conversation import Conversation, SamplingOptions
from vllm_lite.cli.openai_client import ClientOptions, OpenAIClient, ReplyOptions
from vllm_lite.cli.session import run_session
from vllm_lite.cli.terminal import Terminal
from vllm_lite.config.absent import rows
from vllm_lite.config.cli import OptionParser
from vllm_lite.config.option import Option, config, make, option, option_table


@config
class DialogueOptions(ReplyOptions, SamplingOptions):
    """Options of a conversation."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("chat")

    system_prompt: str = option("", "Instructions that come before the conversation.")


@config
class ChatOptions(ClientOptions, DialogueOptions):
    """The server to talk to, and how."""


def parser() -> OptionParser:
    """The parser of `vllm-lite chat`."""
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
    """Talk until the user leaves; returns the exit code."""
    (values,) = parser().parse_options(argv)
    return talk(make(ChatOptions, values))


def talk(options: ChatOptions) -> int:
    """Talk with the server that the options name; returns the exit code."""
    client = OpenAIClient(options)
    with Terminal(shows_markdown=True) as terminal:
        terminal.say(f"Using model: {client.model}")
        conversation = Conversation(client, options.system_prompt, _settings_of(options))
        return run_session(options, conversation, terminal, ChatCommands(conversation).run)


def _settings_of(options: ChatOptions) -> SamplingOptions:
    names = option_table(SamplingOptions)
    return SamplingOptions(**{name: getattr(options, name) for name in names})
