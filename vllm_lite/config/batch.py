"""BatchConfig: what `run-batch` reads, where it writes, and who may watch."""

from __future__ import annotations

from typing import ClassVar

from vllm_lite.config.absent import rows
from vllm_lite.config.option import Option, config, option


@config
class BatchConfig:
    """Input, output and metrics of a batch."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("run-batch")

    GROUP: ClassVar[str] = "run-batch"

    input_file: str = option(
        "", "OpenAI batch file to answer: a path or an http(s) URL.", aliases=("-i",)
    )
    output_file: str = option(
        "",
        "Where the answers go: a path, or an http(s) URL to PUT them to. Until all are there, "
        "they are in a journal, FILE.journal beside a path.",
        aliases=("-o",),
    )
    output_tmp_dir: str | None = option(
        None,
        "Directory for what has no place of its own: an input fetched from a URL, and the journal "
        "and the answers on their way to one.",
        auto="batch in the cache directory",
    )
    allowed_url_domains: list[str] = option(
        [],
        "Hosts that --input-file and --output-file may name, private addresses included.",
        auto="any host with public addresses",
    )
    resume: bool = option(
        False, "Continue an interrupted run: lines that its journal holds are not run again."
    )
    enable_metrics: bool = option(False, "Serve Prometheus metrics while the batch runs.")
    url: str = option(
        "0.0.0.0", "Address of the metrics; used with --enable-metrics.", aliases=("--host",)
    )
    port: int = option(8000, "TCP port of the metrics; used with --enable-metrics.", ge=0, le=65535)
