"""The models that are kept on this machine: those of the hub's cache, and the demo.

Reads what huggingface_hub finds there; changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vllm_lite.config.checkpoints.gguf_header import GGML_TYPES, read_gguf
from vllm_lite.config.demo import DEMO_NAME, demo_path
from vllm_lite.config.json_file import read_json
from vllm_lite.config.options.option import config, option
from vllm_lite.errors import CheckpointError


@config
class CacheOptions:
    """The directory of cached models."""

    GROUP = "options"

    download_dir: str | None = option(
        None, "Directory that hub downloads are kept in; default: the hub cache under HF_HOME."
    )


class CachedModel(NamedTuple):
    """One model; `commits` are the hub's revisions of it that are here, none for the demo."""

    name: str
    # The newest revision's directory, or a .gguf file.
    path: Path
    size: int
    # Seconds since 1970.
    last_used: float
    commits: tuple[str, ...]


def cached_models(download_dir: str | None) -> list[CachedModel]:
    """Every cached model, the last used first."""
    # Imported here: help and mistakes must not wait for it.
    from huggingface_hub import CacheNotFound, scan_cache_dir

    found = []
    demo = demo_path()
    if demo.is_file():
        state = demo.stat()
        found.append(CachedModel(DEMO_NAME, demo, state.st_size, state.st_atime, ()))
    try:
        repos = scan_cache_dir(download_dir).repos
    except (CacheNotFound, ValueError):  # nothing was ever downloaded, or a file is in its place
        repos = frozenset()
    for repo in repos:
        revisions = sorted(repo.revisions, key=lambda one: ("main" in one.refs, one.last_modified))
        if repo.repo_type == "model" and revisions:
            newest, commits = revisions[-1].snapshot_path, [one.commit_hash for one in revisions]
            found.append(
                CachedModel(
                    repo.repo_id, newest, repo.size_on_disk, repo.last_accessed, tuple(commits)
                )
            )
    return sorted(found, key=lambda model: -model.last_used)


def stored_as(path: Path) -> tuple[str, str]:
    """A model's format and what it is quantised with; "-" for what its files do not say."""
    files = [path] if path.is_file() else sorted(path.glob("*.gguf"))
    try:
        if files and not (path / "config.json").is_file():
            return "gguf", gguf_type(files[0])
        quantized = read_json(path / "config.json").get("quantization_config")
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    except CheckpointError:
        return "-", "-"
    return "safetensors" if any(path.glob("*.safetensors")) else "-", str(method or "-")


def gguf_type(path: Path) -> str:
    """The type that most bytes of a .gguf file's tensors are of."""
    sizes: Counter[str] = Counter()
    for tensor in read_gguf(path).tensors.values():
        sizes[GGML_TYPES[tensor.ggml_type].name] += tensor.nbytes
    return sizes.most_common(1)[0][0] if sizes else "-"


def shown_size(size: float) -> str:
    """Bytes as people read them, in powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 1000 else f"{size:,.0f} GB"


def shown_age(seconds: float) -> str:
    """How long ago, in the largest unit that is full."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows, the first of them the heads, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"
