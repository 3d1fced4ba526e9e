"""From the model's name to files on this machine: the demo, a path, or a hub repository.

Owns downloads from the hub and their error messages; knows nothing of what the files hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_lite import envs
from vllm_lite.config.checkpoints.gguf_header import first_parts
from vllm_lite.config.demo import DEMO_NAME, fetch_demo
from vllm_lite.errors import CheckpointError
from vllm_lite.progress import on_terminal

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# What describes a model, as opposed to its weights.
DESCRIPTION_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.model.v*", "*.tiktoken"]
# One of these tells that a directory holds a model, or a tokenizer.
_DESCRIBED_BY = (
    *("config.json", "params.json", "tokenizer.json", "tokenizer_config.json"),
    *("tekken.json", "tokenizer.model", "tokenizer.model.v*"),
)
WEIGHT_FILES = ["*.safetensors"]
_PICKLED = ["*.bin", "*.pt"]
# Of Mistral's layout, which repositories often hold beside the other one.
_CONSOLIDATED = ["consolidated*.safetensors"]
_CONSOLIDATED_NAMES = ("consolidated*", *_CONSOLIDATED)
# Layers of BGE-M3, whatever the format of the others.
_HEADS = ["*_linear.pt"]
# The files of a load format, by preference; of others WEIGHT_FILES.
_FILES_OF = {
    "auto": [WEIGHT_FILES, _CONSOLIDATED, _PICKLED],
    "mistral": [_CONSOLIDATED],
    "hf": [WEIGHT_FILES, _PICKLED],
    "bitsandbytes": [WEIGHT_FILES, _PICKLED],
    "pt": [_PICKLED],
    "npcache": [_PICKLED],
}


def resolve_model_source(
    model: str,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    hf_token: str | bool | None = None,
    ignore_patterns: list[str] | None = None,
    trust_remote_code: bool = False,
    weights: bool = True,
    load_format: str = "auto",
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
    described = [*DESCRIPTION_FILES, *(["*.py"] if trust_remote_code else [])]
    for patterns in _FILES_OF.get(load_format, [WEIGHT_FILES]) if weights else [[]]:
        folder = fetch_from_hub(
            model,
            revision=revision,
            cache_dir=download_dir,
            token=hf_token,
            allow_patterns=described + patterns + (_HEADS if weights else []),
            ignore_patterns=_ignored(ignore_patterns or [], patterns),
        )
        if not weights or any(next(Path(folder).glob(pattern), None) for pattern in patterns):
            return folder
    raise CheckpointError(
        f"{model} has no weights for --load-format {load_format} on the hub; for a GGUF "
        "repository, download one of its files and give its path"
    )


def _ignored(ignore_patterns: list[str], patterns: list[str]) -> list[str]:
    """`ignore_patterns` but that of Mistral's layout, where its files are those asked for."""
    is_asked_for = patterns is _CONSOLIDATED
    return [name for name in ignore_patterns if not (is_asked_for and name in _CONSOLIDATED_NAMES)]


def tokenizer_path(config: VllmConfig) -> Path:
    """The path of the model's tokenizer, or of the one that --tokenizer names."""
    model = config.model
    if model.tokenizer in (model.model, config.facts.path):
        return Path(config.facts.path)
    source = resolve_model_source(
        model.tokenizer,
        revision=model.tokenizer_revision,
        download_dir=config.load.download_dir,
        hf_token=model.hf_token,
        weights=False,
    )
    return Path(source)


def _model_in_directory(path: Path) -> str:
    """The directory itself, or its only .gguf file where it describes nothing else.

    Of a file in several parts, the first.
    """
    for entry in (*path.iterdir(), *path.glob("additional_chat_templates/*")):
        # Reading a pipe would wait for ever, and some devices never end.
        if entry.exists() and not (entry.is_file() or entry.is_dir()):
            raise CheckpointError(f"{entry} is not a regular file; put the checkpoint's own there")
    if any(file.is_file() for name in _DESCRIBED_BY for file in path.glob(name)):
        return str(path)
    files = first_parts(sorted(path.glob("*.gguf")))
    if len(files) == 1:
        return str(files[0])
    if files:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{path} holds several .gguf files; give one of them: {names}")
    raise CheckpointError(f"{path} holds no config.json, no params.json and no .gguf file")


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
        raise CheckpointError(
            f"{where} is not in the local cache and {cause}; `vllm-lite list` names the models "
            f"that are here, and `vllm-lite serve {DEMO_NAME}` needs no hub"
        ) from None
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise CheckpointError(f"Cannot fetch {where}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    lines = str(error.__cause__ or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
