"""BatchConfig: input, output and metrics of `run-batch`."""

from __future__ import annotations

from typing import ClassVar

from vllm_lite.config.options.absent import rows
from vllm_lite.config.options.option import Option, config, option


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
        "Output: a path, or an http(s) URL to PUT it to. Until it is complete, "
        "answers are in a journal, FILE.journal beside a path.",
        aliases=("-o",),
    )
    output_tmp_dir: str | None = option(
        None,
        "Directory of temporary files: an input fetched from a URL, and the journal "
        "and answers to upload to one.",
        auto="batch in the cache directory",
    )
    allowed_url_domains: list[str] = option(
        [],
        "Hosts that --input-file and --output-file may name, private addresses included.",
        auto="any host with public addresses",
    )
    resume: bool = option(
        False, "Continue an interrupted run: lines in its journal are not repeated."
    )
    enable_metrics: bool = option(False, "Serve Prometheus metrics while the batch runs.")
    url: str = option(
        "0.0.0.0", "Address of the metrics; used with --enable-metrics.", aliases=("--host",)
    )
    port: int = option(8000, "TCP port of the metrics; used with --enable-metrics.", ge=0, le=65535)
