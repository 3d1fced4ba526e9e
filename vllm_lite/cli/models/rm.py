"""`vllm-lite rm`: cached models removed from this machine, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vllm_lite.cli.models.cache import CachedModel, CacheOptions, cached_models, shown_size
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.errors import UsageError, nearest


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite rm",
        "MODEL [MODEL ...] [options]",
        "Remove cached models, by the names that `vllm-lite list` shows.",
        (CacheOptions,),
        examples=("vllm-lite rm Qwen/Qwen3-0.6B",),
    )


def run(argv: Sequence[str]) -> int:
    """Remove the models that are named, all or none; returns the exit code."""
    words, (given,) = parser().parse_words(argv, 1, None)
    options = CacheOptions(**given)
    cached = {model.name: model for model in cached_models(options.download_dir)}
    for name in words:
        if name not in cached:
            close = nearest(name, cached)
            hint = f"did you mean {close}?" if close else "`vllm-lite list` shows what is"
            raise UsageError(f"{name} is not a cached model ({hint})")
    for name in dict.fromkeys(words):
        _remove(cached[name], options.download_dir)
        sys.stdout.write(f"removed {name} ({shown_size(cached[name].size)})\n")
    return 0


def _remove(model: CachedModel, download_dir: str | None) -> None:
    from huggingface_hub import scan_cache_dir

    if model.commits:
        scan_cache_dir(download_dir).delete_revisions(*model.commits).execute()
    else:
        model.path.unlink()
