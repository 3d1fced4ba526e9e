"""ObservabilityConfig: what the engine tells of itself."""

from __future__ import annotations

from vllm_lite.config.option import config, option


@config
class ObservabilityConfig:
    """Statistics of the engine."""

    disable_log_stats: bool = option(
        False,
        "Collect no engine statistics and print no throughput lines.",
        auto="false for a server, true offline",
        group="options",
    )
