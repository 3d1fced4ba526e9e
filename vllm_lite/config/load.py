"""LoadConfig: how weights come from disk."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.option import config, option


@config
class LoadConfig:
    """The place and format of weights."""

    load_format: Literal[
        "auto",
        "safetensors",
        "gguf",
        "dummy",
        "pt",
        "npcache",
        "tensorizer",
        "sharded_state",
        "bitsandbytes",
        "mistral",
        "runai_streamer",
    ] = option(
        "auto",
        "Format of the weights; dummy makes random ones.",
        works=("auto", "safetensors", "gguf", "dummy"),
        remedy="use auto with safetensors or GGUF weights",
    )
    safetensors_load_strategy: Literal["lazy", "eager"] = option(
        "lazy",
        "Map weight files into memory, or read them whole.",
        works=("lazy",),
        remedy="use lazy: mapped files are read on use",
    )
    download_dir: str | None = option(
        None, "Directory that hub downloads are kept in; default: the hub cache under HF_HOME."
    )
    ignore_patterns: list[str] = option(
        ["original/**/*", "consolidated*"],
        "Files of a hub repository not to download, as glob patterns.",
    )
    use_tqdm_on_load: bool = option(
        True, "Show a progress bar on a terminal while weights are read."
    )
