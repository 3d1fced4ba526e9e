"""`vllm-lite complete`: texts continued by a model that a server serves."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.cli.openai_client import ClientOptions, OpenAIClient, Reply
from vllm_lite.cli.session import run_session
from vllm_lite.cli.terminal import Terminal
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.config.options.option import config, option


@config
class CompleteOptions(ClientOptions):
    """The server to talk to, and how."""

    max_tokens: int | None = option(
        None, "Most tokens of a completion.", ge=1, auto="the server's own limit"
    )


class Completion:
    """A completion of each text on its own."""

    banner = "Please enter prompt to complete:"

    def __init__(self, client: OpenAIClient, max_tokens: int | None) -> None:
        self._client = client
        self._max_tokens = max_tokens

    def ask(self, text: str) -> Reply:
        return self._client.complete(text, self._max_tokens)

    def keep(self, text: str, answer: str) -> None:
        """Nothing: the next text knows nothing of this one."""


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite complete",
        "[options]",
        "Continue texts with a model over an OpenAI-compatible server. Ctrl-C stops a reply,\n"
        "Ctrl-D leaves. What comes through a pipe is taken line by line.",
        (CompleteOptions,),
        examples=('vllm-lite complete -q "The capital of France is" --max-tokens 8',),
    )


def run(argv: Sequence[str]) -> int:
    (values,) = parser().parse_options(argv)
    options = CompleteOptions(**values)
    client = OpenAIClient(options)
    with Terminal() as terminal:
        terminal.say(f"Using model: {client.model}")
        return run_session(options, Completion(client, options.max_tokens), terminal)
