"""`vllm-lite pull`: a model's files from the hub into its cache, whole and compared with the hub's.

Owns no download: huggingface_hub keeps the files that are complete and goes on after a lost
connection.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vllm_lite import envs
from vllm_lite.cli.models.cache import CacheOptions
from vllm_lite.config.checkpoints.gguf_header import first_parts
from vllm_lite.config.demo import DEMO_NAME, fetch_demo
from vllm_lite.config.model import LoadConfig
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.config.options.option import config, option, option_table
from vllm_lite.config.sources import (
    DESCRIPTION_FILES,
    HUB_ID,
    WEIGHT_FILES,
    fetch_from_hub,
    hub_errors,
)
from vllm_lite.errors import CheckpointError, UsageError


@config
class PullOptions(CacheOptions):
    """The files of a hub repository to fetch, and where to."""

    revision: str | None = option(None, "Branch, tag or commit to fetch; default: main.")
    allow_patterns: list[str] = option(
        [],
        "Files to fetch, as glob patterns, such as '*Q4_K_M.gguf'.",
        auto="configuration, tokenizer and safetensors weights",
    )
    ignore_patterns: list[str] = option(
        option_table(LoadConfig)["ignore_patterns"].default, "Files not to fetch, as glob patterns."
    )
    hf_token: str | bool | None = option(
        None, "Hub access token; given bare, the stored login.", secret=True, bare=True
    )
    verify: bool = option(True, "Compare the checksums of all files with the hub's.")


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite pull",
        "MODEL [options]",
        "Fetch MODEL, the id of a hub repository or demo, and print where it is. What is here\n"
        "already is not fetched again.",
        (PullOptions,),
        examples=(
            "vllm-lite pull Qwen/Qwen3-0.6B",
            "vllm-lite pull bartowski/SmolLM2-135M-Instruct-GGUF --allow-patterns '*Q8_0.gguf'",
        ),
    )


def run(argv: Sequence[str]) -> int:
    words, (given,) = parser().parse_words(argv, 1, 1)
    sys.stdout.write(f"{pull(words[0], PullOptions(**given))}\n")
    return 0


def pull(model: str, options: PullOptions) -> str:
    """Fetch `model` and return its directory or file; raises CheckpointError."""
    if model == DEMO_NAME:
        return str(fetch_demo())
    if Path(model).expanduser().exists():
        raise UsageError(f"{model} is on this machine already; pull fetches from the hub")
    if not HUB_ID.fullmatch(model):
        raise UsageError(f"{model!r} is no hub id such as org/name")
    token = envs.HF_TOKEN if options.hf_token is None else options.hf_token
    folder = fetch_from_hub(
        model,
        revision=options.revision,
        cache_dir=options.download_dir,
        token=token,
        allow_patterns=options.allow_patterns or [*DESCRIPTION_FILES, *WEIGHT_FILES],
        ignore_patterns=options.ignore_patterns,
    )
    if not any(Path(folder).rglob("*")):
        wanted = " ".join(options.allow_patterns) or "a model"
        raise CheckpointError(f"{model} holds nothing that is {wanted}; see --allow-patterns")
    if options.verify:
        _verify(model, options, token)
    files = first_parts(sorted(Path(folder).rglob("*.gguf")))
    is_one = len(files) == 1 and not (Path(folder) / "config.json").is_file()
    return str(files[0]) if is_one else folder


def _verify(model: str, options: PullOptions, token: str | bool | None) -> None:
    """Raise CheckpointError where a file is not the hub's, and drop it so that it is fetched."""
    from huggingface_hub import HfApi

    with hub_errors(model, options.revision):
        found = HfApi().verify_repo_checksums(
            model, revision=options.revision, cache_dir=options.download_dir, token=token
        )
    if not found.mismatches:
        return
    names = [one["path"] for one in found.mismatches]
    for name in names:
        path = found.verified_path / name
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    raise CheckpointError(
        f"the checksums of {', '.join(names)} are not the hub's: the download was damaged or "
        "changed, and is removed; pull it again"
    )
