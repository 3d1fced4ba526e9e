"""`vllm-lite list`: the models that are cached on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from vllm_lite.cli.models.cache import (
    CacheOptions,
    cached_models,
    shown_age,
    shown_size,
    stored_as,
    table,
)
from vllm_lite.config.options.cli import OptionParser


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite list",
        "[options]",
        "List the models that are cached on this machine, the last used first.",
        (CacheOptions,),
        examples=("vllm-lite list",),
    )


def run(argv: Sequence[str]) -> int:
    (given,) = parser().parse_options(argv)
    rows = [("MODEL", "SIZE", "FORMAT", "QUANTISATION", "LAST USED")]
    for model in cached_models(CacheOptions(**given).download_dir):
        age = shown_age(time.time() - model.last_used)
        rows.append((model.name, shown_size(model.size), *stored_as(model.path), age))
    sys.stdout.write(table(rows))
    return 0
