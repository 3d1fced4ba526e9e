"""The `vllm-lite` command: finds the subcommand and turns errors into exit codes.

0 done, 1 a user's mistake or a failed engine (one line says which), 2 an unreadable command
line, 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import vllm_lite
from vllm_lite.errors import VLLMLiteError, nearest
from vllm_lite.log import make_stderr_lossy

# Command -> the module whose run(argv) does it, and what it is for.
COMMANDS = {
    "run": ("vllm_lite.cli.detached.run", "Chat with a model; starts its server if none runs."),
    "serve": ("vllm_lite.cli.serve", "Serve a model over an OpenAI-compatible HTTP API."),
    "chat": ("vllm_lite.cli.chat", "Chat with a served model."),
    "complete": ("vllm_lite.cli.complete", "Continue texts with a served model."),
    "ps": ("vllm_lite.cli.detached.ps", "List the servers that run started."),
    "stop": ("vllm_lite.cli.detached.stop", "Stop a server that run started."),
    "pull": ("vllm_lite.cli.models.pull", "Fetch a model from the hub."),
    "list": ("vllm_lite.cli.models.list", "List the models that are cached here."),
    "show": ("vllm_lite.cli.models.show", "Describe a model, and whether it fits this machine."),
    "rm": ("vllm_lite.cli.models.rm", "Remove cached models."),
    "run-batch": ("vllm_lite.cli.run_batch", "Answer a file of requests without a server."),
    "bench": ("vllm_lite.cli.bench", "Measure latency, throughput or a running server."),
    "collect-env": ("vllm_lite.cli.collect_env", "Print what a report of a problem should say."),
}
_EXAMPLES = """
Examples:
  vllm-lite run demo "What is the capital of France?"
  vllm-lite serve demo
  vllm-lite serve --help
"""
# A disk that is full, over its quota or limited.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def call(function: str, *values: Any) -> Any:
    """Import the module of `function` in this package and call it."""
    module, _, name = function.rpartition(".")
    return getattr(importlib.import_module(f"vllm_lite.{module}"), name)(*values)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        make_stderr_lossy()
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(_help())
        return 0
    if words[0] in ("-v", "--version"):
        sys.stdout.write(f"{vllm_lite.__version__}\n")
        return 0
    if words[0].partition("=")[0] == "--print-completion":
        return _print_completion(words)
    if words[0] not in COMMANDS:
        kind = "option" if words[0].startswith("-") else "command"
        options = ("--help", "--version", "--print-completion")
        close = nearest(words[0], options if kind == "option" else COMMANDS)
        hint = f"did you mean {close}?" if close else f"choose from {', '.join(COMMANDS)}"
        sys.stderr.write(f"{_usage()}vllm-lite: error: unknown {kind} {words[0]!r} ({hint})\n")
        return 2
    try:
        if words[0] == "serve" and not any(word.startswith(("-h", "--help")) for word in words):
            # Its engine core imports while this process does, and reads the options.
            call("engine.link.spawn.spawn_ahead")
        module = COMMANDS[words[0]][0].removeprefix("vllm_lite.")
        code = int(call(f"{module}.run", words[1:]))
    except VLLMLiteError as error:
        sys.stderr.write(f"vllm-lite {words[0]}: error: {' '.join(str(error).split())}\n")
        return 1
    except KeyboardInterrupt:
        if argv is None:
            # The process ends here: what it still has to clear away takes no second one.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain at its own exit.
        _drop_output()
        return 1
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _drop_output()
        sys.stderr.write(f"vllm-lite {words[0]}: error: cannot write: {error.strerror}\n")
        return 1
    return code


def _print_completion(words: Sequence[str]) -> int:
    """Print a shell's script for --print-completion; returns the exit code."""
    shell = words[0].partition("=")[2] or "".join(words[1:2])
    try:
        sys.stdout.write(call("cli.completion.script", shell, COMMANDS))
    except VLLMLiteError as error:
        sys.stderr.write(f"{_usage()}vllm-lite: error: {error}\n")
        return 2
    return 0


def _drop_output() -> None:
    """Let what is still to be written to standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage() -> str:
    return "usage: vllm-lite [-h] [-v] {" + ",".join(COMMANDS) + "} ...\n"


def _help() -> str:
    lines = [f"  {name:<14}{about}" for name, (_, about) in COMMANDS.items()]
    lines += ["", "  -h, --help      this text; after a command, the command's own"]
    lines += ["  -v, --version   the version"]
    lines += ["  --print-completion {bash,zsh,fish}  a script that completes commands and options"]
    return _usage() + "\nRun language models.\n\n" + "\n".join(lines) + "\n" + _EXAMPLES
