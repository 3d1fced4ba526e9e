"""Options of `bench sweep serve`: combinations to run and where results go."""

from __future__ import annotations

import shlex
from typing import ClassVar

from vllm_lite.config.options.option import config, option
from vllm_lite.errors import UsageError


@config
class SweepOptions:
    """Which servers to start, which loads to put on them, and where results go."""

    GROUP: ClassVar[str] = "options"

    serve_cmd: str | None = option(None, "Command that starts the server.", auto="required")
    bench_cmd: str | None = option(None, "Command that puts a load on it.", auto="required")
    after_bench_cmd: str | None = option(
        None, "Command to run after each load.", auto="reset the server's caches over HTTP"
    )
    serve_params: str | None = option(
        None, "JSON file of options of --serve-cmd: a list of objects, or an object of named ones."
    )
    bench_params: str | None = option(
        None, "JSON file of options of --bench-cmd, in the form of --serve-params."
    )
    link_vars: str = option(
        "", "Run only where these are equal: pairs such as max_num_seqs=max_concurrency."
    )
    server_ready_timeout: int = option(300, "Seconds to wait for a server to be ready.", ge=1)
    num_runs: int = option(3, "Runs of each combination.", ge=1)
    warmup_num_prompts: int = option(
        0, "Requests of an uncounted load before each combination.", ge=0
    )
    output_dir: str = option("results", "Directory of all experiments.", aliases=("-o",))
    experiment_name: str | None = option(
        None, "Name of this experiment's directory.", aliases=("-e",), auto="date and time"
    )
    show_stdout: bool = option(False, "Show what the commands print.")
    dry_run: bool = option(False, "Print the commands without running them.")
    resume: bool = option(False, "Continue an experiment: run what has no results yet.")
    continue_on_error: bool = option(False, "Write a failure to a file and go on.")

    def __post_init__(self) -> None:
        if self.serve_cmd is None or self.bench_cmd is None:
            raise UsageError(
                "bench sweep needs --serve-cmd and --bench-cmd, such as 'vllm-lite serve demo' "
                "and 'vllm-lite bench serve --num-prompts 100'"
            )
        for words in (self.serve_words, self.bench_words):
            if not words:
                raise UsageError("--serve-cmd and --bench-cmd must not be empty")
        _ = self.after_bench_words, self.links

    @property
    def serve_words(self) -> list[str]:
        return _split("--serve-cmd", self.serve_cmd or "")

    @property
    def bench_words(self) -> list[str]:
        return _split("--bench-cmd", self.bench_cmd or "")

    @property
    def after_bench_words(self) -> list[str]:
        return _split("--after-bench-cmd", self.after_bench_cmd or "")

    @property
    def links(self) -> list[tuple[str, str]]:
        """Pairs of a server's option and a load's that must be equal."""
        pairs = []
        for word in filter(None, self.link_vars.split(",")):
            ours, equals, theirs = (part.strip() for part in word.partition("="))
            if not (ours and equals and theirs):
                raise UsageError(
                    f"--link-vars {word!r} is not such as max_num_seqs=max_concurrency"
                )
            pairs.append((ours, theirs))
        return pairs


def _split(flag: str, command: str) -> list[str]:
    """The words of a command line, as a shell splits it; raises UsageError."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{flag} {command!r} is not a command line: {error}") from None
