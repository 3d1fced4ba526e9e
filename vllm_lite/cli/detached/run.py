"""`vllm-lite run`: a chat with a model, whose server is started if need be and stays."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vllm_lite.cli import chat
from vllm_lite.cli.detached import servers
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.config.options.option import make


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite run",
        "MODEL [PROMPT] [options] [-- options of serve]",
        "Chat with MODEL, or have PROMPT answered. A server on the loopback is started for it\n"
        "unless one runs, and stays until `vllm-lite stop`.",
        (chat.DialogueOptions,),
        examples=(
            "vllm-lite run demo",
            'vllm-lite run demo "What is the capital of France?"',
            "vllm-lite run demo -- --max-model-len 2048",
        ),
    )


def run(argv: Sequence[str]) -> int:
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    arguments = words[end + 1 :]
    found, (given,) = parser().parse_words(words[:end], 1, 2)
    server = _server_of(found[0], arguments)
    options = make(chat.ChatOptions, given, url=server.url, quick="".join(found[1:]))
    return chat.talk(options)


def _server_of(model: str, arguments: list[str]) -> servers.Server:
    with servers.starting():
        same = [server for server in servers.running() if server.model == model]
        for server in same:
            if server.arguments == arguments or not arguments:
                servers.wait_ready(server)
                return server
        if same:
            raise servers.ServerError(
                f"a server of {model} runs with other options; run `vllm-lite stop {model}` first"
            )
        server = servers.start(model, arguments)
        try:
            sys.stderr.write(f"Starting a server of {model}; its log is {server.log}\n")
            servers.wait_ready(server)
        except KeyboardInterrupt:
            servers.stop(server, 30, by_force=True)
            raise
    sys.stderr.write(f"It answers at {server.url}; `vllm-lite stop {model}` ends it\n")
    return server
