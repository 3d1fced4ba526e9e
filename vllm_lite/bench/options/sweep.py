"""What `bench sweep` can be told: combinations to run, and how to draw what came of them."""

from __future__ import annotations

import shlex
from dataclasses import field
from typing import ClassVar, Literal

from vllm_lite.config.option import config, option
from vllm_lite.errors import UsageError

SCALES = ("linear", "log", "symlog", "sqrt")


@config
class ExperimentOptions:
    """Where results go, and how often each combination runs."""

    GROUP: ClassVar[str] = "experiment"

    output_dir: str = option("results", "Directory of all experiments.", aliases=("-o",))
    experiment_name: str | None = option(
        None, "Name of this experiment's directory.", aliases=("-e",), auto="date and time"
    )
    serve_params: str | None = option(
        None,
        "JSON file of option combinations for the engine: a list of objects, or names to them.",
    )
    show_stdout: bool = option(False, "Show what the commands print.")
    dry_run: bool = option(False, "Print the commands and run none.")
    resume: bool = option(False, "Go on with an experiment: run what it has no results of.")


@config
class SweepServeOptions:
    """Which servers to start and which loads to put on them."""

    GROUP: ClassVar[str] = "options"

    experiment: ExperimentOptions = field(default_factory=ExperimentOptions)
    serve_cmd: str | None = option(None, "Command that starts the server.", auto="required")
    bench_cmd: str | None = option(None, "Command that puts a load on it.", auto="required")
    after_bench_cmd: str | None = option(
        None, "Command to run after each load.", auto="reset the server's caches over HTTP"
    )
    bench_params: str | None = option(
        None, "JSON file of option combinations for --bench-cmd, in the form of --serve-params."
    )
    link_vars: str = option(
        "", "Run only where these are equal: pairs such as max_num_seqs=max_concurrency."
    )
    server_ready_timeout: int = option(300, "Seconds to wait for a server to be ready.", ge=1)
    num_runs: int = option(3, "Loads for each combination.", ge=1)
    warmup_num_prompts: int = option(
        0, "Requests in a load before each combination that does not count.", ge=0
    )
    continue_on_error: bool = option(False, "Note a failure in a file and go on.")

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
        """--serve-cmd, word for word."""
        return split("--serve-cmd", self.serve_cmd or "")

    @property
    def bench_words(self) -> list[str]:
        """--bench-cmd, word for word."""
        return split("--bench-cmd", self.bench_cmd or "")

    @property
    def after_bench_words(self) -> list[str]:
        """--after-bench-cmd, word for word; empty where there is none."""
        return split("--after-bench-cmd", self.after_bench_cmd or "")

    @property
    def links(self) -> list[tuple[str, str]]:
        """Pairs of an engine's option and a load's that must be equal."""
        pairs = []
        for word in filter(None, self.link_vars.split(",")):
            ours, equals, theirs = (part.strip() for part in word.partition("="))
            if not (ours and equals and theirs):
                raise UsageError(
                    f"--link-vars {word!r} is not such as max_num_seqs=max_concurrency"
                )
            pairs.append((ours, theirs))
        return pairs


@config
class SweepWorkloadOptions:
    """How the levels of the load are found."""

    GROUP: ClassVar[str] = "workload"

    sweep: SweepServeOptions = field(default_factory=SweepServeOptions)
    workload_var: Literal["request_rate", "max_concurrency"] = option(
        "request_rate", "What grows from one request at a time to all at once."
    )
    workload_iters: int = option(10, "Levels of the load, both ends among them.", ge=2)


@config
class SweepStartupOptions:
    """Which engines to start."""

    GROUP: ClassVar[str] = "options"

    experiment: ExperimentOptions = field(default_factory=ExperimentOptions)
    startup_cmd: str = option("vllm-lite bench startup", "Command that times the starts.")
    startup_params: str | None = option(
        None, "JSON file of option combinations for --startup-cmd, in the form of --serve-params."
    )
    strict_params: bool = option(
        False, "Refuse parameters that bench startup does not know instead of leaving them out."
    )
    num_runs: int = option(1, "Runs of each combination.", ge=1)

    def __post_init__(self) -> None:
        if not self.startup_words:
            raise UsageError("--startup-cmd must not be empty")

    @property
    def startup_words(self) -> list[str]:
        """--startup-cmd, word for word."""
        return split("--startup-cmd", self.startup_cmd)


@config
class SweepPlotOptions:
    """What is drawn against what."""

    GROUP: ClassVar[str] = "options"

    fig_dir: str = option("", "Directory of the figures, below the experiment's.")
    fig_name: str = option("FIGURE", "What the figures' names begin with.")
    fig_by: str = option("", "Variables, comma-separated: a figure for each value.")
    row_by: str = option("", "Variables: a row of panels for each value.")
    col_by: str = option("", "Variables: a column of panels for each value.")
    curve_by: str | None = option(None, "Variables: a curve for each value.")
    var_x: str = option("total_token_throughput", "Variable of the horizontal axis.")
    var_y: str = option("median_ttft_ms", "Variable of the vertical axis.")
    filter_by: str = option("", "Take only runs such as max_concurrency<100,num_prompts==50.")
    bin_by: str = option("", "Join values this close, such as request_throughput%1.")
    scale_x: str | None = option(None, "Scale of the horizontal axis.", choices=SCALES)
    scale_y: str | None = option(None, "Scale of the vertical axis.", choices=SCALES)
    error_bars: bool = option(True, "Show how far runs of a combination differ.")
    fig_height: float = option(6.4, "Height of a panel in inches.", gt=0)
    fig_dpi: int = option(300, "Dots per inch.", ge=10)
    dry_run: bool = option(False, "Name the figures and draw none.")


@config
class SweepParetoOptions:
    """What counts as a user and as a device."""

    GROUP: ClassVar[str] = "options"

    user_count_var: str = option(
        "max_concurrency", "Variable with the number of users; else the most requests in flight."
    )
    gpu_count_var: str | None = option(
        None, "Variable with the number of devices.", auto="the product of the parallel sizes"
    )
    label_by: str = option(
        "max_concurrency,gpu_count", "Variables to write beside the points of the frontier."
    )
    dry_run: bool = option(False, "Name the figure and draw none.")


def split(flag: str, command: str) -> list[str]:
    """The words of a command line as a shell reads it; raises UsageError."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{flag} {command!r} is no command line: {error}") from None
