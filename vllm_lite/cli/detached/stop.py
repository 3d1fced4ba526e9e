"""`vllm-lite stop`: ends servers that `vllm-lite run` started, and no other process."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vllm_lite.cli.detached import servers
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.config.options.option import config, option
from vllm_lite.errors import UsageError, nearest


@config
class StopOptions:
    """Which servers to end, and how."""

    GROUP = "options"

    all: bool = option(False, "End every server that `vllm-lite ps` lists.")
    timeout: float = option(60.0, "Seconds for requests under way to be answered.", ge=0)
    force: bool = option(False, "End it at once; requests under way are lost.")


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite stop",
        "[MODEL or PID] [options]",
        "End a server that `vllm-lite run` started, once it has answered what it was asked.",
        (StopOptions,),
        examples=("vllm-lite stop demo", "vllm-lite stop --all"),
    )


def run(argv: Sequence[str]) -> int:
    reader = parser()
    words, (given,) = reader.parse_words(argv, 0, 1)
    options = StopOptions(**given)
    if bool(words) == options.all:
        reader.error("name one model or process of `vllm-lite ps`, or give --all")
    found = servers.running()
    chosen = [one for one in found if options.all or words[0] in (one.model, str(one.pid))]
    if words and not chosen:
        close = nearest(words[0], [server.model for server in found])
        hint = f"did you mean {close}?" if close else "`vllm-lite ps` lists those that do"
        raise UsageError(f"no server of {words[0]} runs ({hint})")
    for server in chosen:
        servers.stop(server, options.timeout, by_force=options.force)
        sys.stdout.write(f"stopped {server.model} (pid {server.pid})\n")
    return 0
