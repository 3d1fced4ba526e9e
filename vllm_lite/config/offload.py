"""OffloadConfig: weights kept elsewhere than they are used; here they are where they are used."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.option import config, option

_IN_PLACE = "leave it out: weights are where they are computed"


@config
class OffloadConfig:
    """Weights kept in host memory."""

    offload_backend: Literal["auto", "prefetch", "uva"] = option(
        "auto", "How weights come to the device.", level="absent", remedy=_IN_PLACE
    )
    cpu_offload_params: list[str] = option(
        [],
        "Parts of the names of weights that --cpu-offload-gb may move.",
        level="absent",
        remedy=_IN_PLACE,
    )
    offload_group_size: int = option(
        0, "Layers in a group whose last ones are moved.", ge=0, level="absent", remedy=_IN_PLACE
    )
    offload_num_in_group: int = option(
        1, "Layers of each group that are moved.", ge=1, level="absent", remedy=_IN_PLACE
    )
    offload_prefetch_step: int = option(
        1, "Layers that are fetched ahead.", ge=0, level="absent", remedy=_IN_PLACE
    )
    offload_params: list[str] = option(
        [],
        "Parts of the names of weights to move in those layers.",
        level="absent",
        remedy=_IN_PLACE,
    )
