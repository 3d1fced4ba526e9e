"""`vllm-lite --print-completion SHELL`: a script that completes commands, options and their values.

Made by shtab from every command's own options; those that this build does not have are left out.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping

from vllm_lite.cli.bench import BENCHMARKS, SWEEPS, benchmark_parser, sweep_parser
from vllm_lite.config.options.cli import OptionParser, add_option
from vllm_lite.config.options.help import is_at_work
from vllm_lite.errors import UsageError, nearest

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, commands: Mapping[str, tuple[str, str]]) -> str:
    """The script for `shell` (bash, zsh or fish); raises UsageError for others."""
    if shell not in SHELLS:
        close = nearest(shell, SHELLS)
        hint = f"did you mean {close}?" if close else f"choose from {', '.join(SHELLS)}"
        raise UsageError(f"--print-completion {shell}: unknown shell ({hint})")
    # Imported here: no other command needs it.
    import shtab

    root = argparse.ArgumentParser("vllm-lite")
    root.add_argument("-v", "--version", action="store_true", help="print the version")
    below = root.add_subparsers()
    for name, (module, about) in commands.items():
        if name == "bench":
            _add_benchmarks(below.add_parser(name, help=about))
        else:
            own = importlib.import_module(module).parser()
            _fill(below.add_parser(name, help=about), own)
    return str(shtab.complete(root, shell))


def _add_benchmarks(bench: argparse.ArgumentParser) -> None:
    below = bench.add_subparsers()
    for name, about in BENCHMARKS.items():
        parser = below.add_parser(name, help=about)
        if name != "sweep":
            _fill(parser, benchmark_parser(name))
            continue
        sweeps = parser.add_subparsers()
        _fill(sweeps.add_parser("serve", help=SWEEPS["serve"]), sweep_parser())


def _fill(parser: argparse.ArgumentParser, own: OptionParser) -> None:
    """Add the options of a command that have an effect."""
    import shtab

    parser.add_argument("--config", help="YAML file of options", metavar="FILE")
    for entry in own.entries:
        if is_at_work(entry):
            add_option(parser, entry)
    for action in parser._actions:
        found = own.option_of(action.option_strings)
        if found is not None:
            action.help = found.help.replace("%", "%%")
            works = found.rules.get("works")
            chosen = [one for one in found.choices if works is None or one in works]
            action.choices = [str(one) for one in chosen if one is not None] or None
    words = parser.add_argument("words", nargs="*", help="a model, directory or file")
    words.complete = shtab.FILE  # type: ignore[attr-defined]
