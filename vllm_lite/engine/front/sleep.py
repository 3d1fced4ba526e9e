"""What may sleep, and what wakes: vLLM's levels and tags, as far as they mean something here.

At level 0 the engine is paused; at level 1 the KV cache's memory goes back to the system as well.
Weights lie in the host's memory, where level 1 of vLLM moves them, and stay.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.client import PauseMode
from vllm_lite.errors import RequestError

TAGS = ("weights", "kv_cache")


def check_sleep(config: VllmConfig, level: object, mode: object = "abort") -> None:
    """Raise RequestError where an engine cannot sleep so."""
    if not config.model.enable_sleep_mode:
        raise RequestError("the engine was started without --enable-sleep-mode")
    if type(level) is not int or level not in (0, 1):
        raise RequestError("level must be 0 or 1: weights stay while it sleeps", "level")
    if mode not in get_args(PauseMode) or (level and mode == "keep"):
        raise RequestError("mode must be abort or wait, or keep at level 0", "mode")


def wakes_up(tags: Collection[str] | None) -> bool:
    """Whether `tags`, None for all, name memory that slept; raises RequestError."""
    unknown = [tag for tag in tags or () if tag not in TAGS]
    if unknown:
        raise RequestError(f"tags must be among {', '.join(TAGS)}, got {unknown[0]!r:.40}", "tags")
    return not tags or "kv_cache" in tags
