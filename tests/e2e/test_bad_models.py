"""A model that cannot be served: one line that names the file and the way out, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.checkpoints import LLAMA_GGUF, gguf_bytes
from tests.e2e.conftest import Command
from tests.models.checkpoints import TINY, make_model, save
from vllm_lite.config.demo import fetch_demo
from vllm_lite.server.process.launch import BANNER_DELAY

SHARD = "model-00001-of-00007.safetensors"
WEIGHTS = "model.safetensors"
TIMEOUT = 60.0


def process(*words: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of `vllm-lite WORDS`, which leaves no process."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_lite", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        start_new_session=True,
    )
    try:
        printed, said = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    if time.monotonic() - began > BANNER_DELAY:  # it has said that it is loading
        said = "".join(line for line in said.splitlines(True) if " INFO " not in line)
    return process.returncode, printed, said


def refusal(run: Command, model: str | Path, *arguments: str) -> str:
    """The line that `vllm-lite serve` says for `model`, and all that it says."""
    code, printed, said = run("serve", str(model), *arguments, "--host", "127.0.0.1", "--port", "0")
    assert (code, printed) == (1, ""), said
    (line,) = said.splitlines()
    assert line.startswith("vllm-lite serve: error: "), said
    return line


@pytest.fixture
def in_thread(command: Command) -> Command:
    """The command in this process, with the engine core as a thread of it."""
    return lambda *words: command(*words, "--disable-frontend-multiprocessing")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint in several shards, with all that it needs."""
    folder = save(make_model("llama"), tmp_path_factory.mktemp("sound"), max_shard_size="40KB")
    vocabulary = {f"t{i}": i for i in range(TINY["vocab_size"])}
    Tokenizer(WordLevel(vocabulary, unk_token="t0")).save(str(folder / "tokenizer.json"))
    assert (folder / SHARD).is_file()
    return folder


Damage = Callable[[Path], object]


def write(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str, count: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-count])


def drop(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def configure(**changes: Any) -> Damage:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **changes}))

    return change


# What is done to a sound checkpoint -> what the line says beside the checkpoint's path.
DAMAGES: dict[str, tuple[Damage, list[str]]] = {
    "config missing": (drop("config.json"), ["config.json", "complete"]),
    "config no JSON": (write("config.json", b'{"architectures": ['), ["config.json", "fetch"]),
    "config no text": (write("config.json", bytes(range(256))), ["config.json", "fetch"]),
    "architecture": (
        configure(architectures=["NoSuchForCausalLM"]),
        ["NoSuchForCausalLM", "no such model"],
    ),
    "another kind": (configure(architectures=["VitsModel"]), ["VitsModel", "cannot run here"]),
    "size": (configure(hidden_size="48"), ["hidden_size", "'48'"]),
    "epsilon": (configure(rms_norm_eps="tiny"), ["rms_norm_eps", "'tiny'"]),
    "rotary": (configure(rope_parameters="llama3"), ["rope_parameters", "'llama3'"]),
    "rotary part": (
        configure(rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8}),
        ["low_freq_factor"],
    ),
    "window": (
        configure(architectures=["MistralForCausalLM"], sliding_window="wide"),
        ["sliding_window", "'wide'"],
    ),
    "quantised": (configure(quantization_config={"quant_method": "gptq"}), ["gptq", "GGUF"]),
    "sizes made up": (configure(vocab_size=10**9), ["1000000000", "its files hold"]),
    "size beyond bounds": (configure(hidden_size=2**63), ["hidden_size", "2147483647"]),
    "config nested": (write("config.json", b"[" * 10**5), ["config.json", "too deeply"]),
    "tokenizer missing": (drop("tokenizer.json"), ["tokenizer.json", "--tokenizer"]),
    "tokenizer damaged": (cut("tokenizer.json", 100), ["tokenizer.json", "fetch"]),
    "tokenizer config": (
        write("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {"content": "y"}}}'),
        ["tokenizer", "fetch"],
    ),
    "generation config": (
        write("generation_config.json", b'{"temperature": "hot"}'),
        ["temperature", "--generation-config vllm"],
    ),
    "shard missing": (drop(SHARD), [SHARD, "fetch"]),
    "shard cut": (cut(SHARD, 1000), [SHARD, "fetch"]),
    "shard garbage": (write(SHARD, bytes(range(256)) * 9), [SHARD, "fetch"]),
    "index": (write(WEIGHTS + ".index.json", b"{}"), ["index.json", "fetch"]),
    "tensor missing": (configure(num_hidden_layers=3), ["model.layers.2.", "complete"]),
    "tensor unexpected": (configure(num_hidden_layers=1), ["model.layers.1.", "no place"]),
    "shape": (configure(intermediate_size=96), ["gate_proj", "[80, 48]", "[96, 48]"]),
}


# Of what the config, the tokenizer and the engine core find; the rest is refused in this process.
AS_PROCESSES = ["config missing", "tokenizer missing", "shard cut", "tensor missing"]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_directory(sound: Path, tmp_path: Path, name: str, in_thread: Command) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(sound, folder)
    damage, words = DAMAGES[name]
    damage(folder)
    line = refusal(process if name in AS_PROCESSES else in_thread, folder)
    for word in (str(folder), *words):
        assert word in line


def demo_part(size: int) -> bytes:
    with fetch_demo().open("rb") as file:
        return file.read(size)


EMBEDDING = {"token_embd.weight": (100, 64)}
GGUF_FILES: dict[str, tuple[Callable[[], bytes], list[str]]] = {
    "empty": (lambda: b"", ["fetch"]),
    "garbage": (lambda: bytes(range(256)) * 99, ["GGUF", "fetch"]),
    "header garbage": (lambda: b"GGUF\x03\0\0\0" + b"\xff" * 4096, ["fetch"]),
    "header cut": (lambda: demo_part(300_000), ["tokenizer.ggml", "fetch"]),
    "tensor data cut": (lambda: demo_part(50_000_000), ["tensor 'blk.", "fetch"]),
    "architecture": (
        lambda: gguf_bytes({**LLAMA_GGUF, "general.architecture": "rwkv6"}),
        ["'rwkv6'", "llama"],
    ),
    "metadata": (lambda: gguf_bytes({**LLAMA_GGUF, "llama.block_count": "x"}), ["'x'"]),
    "metadata type": (
        lambda: gguf_bytes({**LLAMA_GGUF, "llama.attention.head_count": 1.5}),
        ["metadata", "convert"],
    ),
    "tensor type": (
        lambda: gguf_bytes(None, EMBEDDING, ggml_type=24),
        ["token_embd.weight", "I8", "Q4_K"],
    ),
    "unknown tensor type": (lambda: gguf_bytes(ggml_type=99), ["token_embd.weight", "99", "Q4_K"]),
    "no tokenizer": (
        lambda: gguf_bytes({k: v for k, v in LLAMA_GGUF.items() if "tokenizer" not in k}),
        ["tokenizer", "--tokenizer"],
    ),
    "tokenizer kind": (
        lambda: gguf_bytes({**LLAMA_GGUF, "tokenizer.ggml.model": "rwkv"}),
        ["'rwkv'", "--tokenizer"],
    ),
}


@pytest.mark.parametrize("name", GGUF_FILES)
def test_a_gguf_file_that_cannot_be_loaded(tmp_path: Path, name: str, in_thread: Command) -> None:
    content, words = GGUF_FILES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content())
    line = refusal(process if name == "tensor data cut" else in_thread, path)
    for word in (str(path), *words):
        assert word in line


def test_a_gguf_file_without_its_tensors(tmp_path: Path, in_thread: Command) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({**LLAMA_GGUF, "tokenizer.ggml.model": "llama"}))
    line = refusal(in_thread, path)
    assert str(path) in line and "blk.0." in line


def test_a_model_that_no_memory_can_hold(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "huge"
    shutil.copytree(sound, folder)
    configure(vocab_size=2**31 - 1)(folder)
    line = refusal(process, folder, "--load-format", "dummy")
    assert str(folder) in line and "memory" in line and "smaller" in line


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("/nowhere/at-all", "no such file"),
        ("/nowhere/model.gguf", "no such file"),
        ("nobody/no-such-model", "HF_HUB_OFFLINE"),
        (__file__, "not a .gguf file"),
        (str(Path(__file__).parent), "config.json"),
    ],
)
def test_a_name_that_leads_nowhere(model: str, word: str, in_thread: Command) -> None:
    # huggingface_hub reads its variable as it is imported.
    line = refusal(process if "HF_HUB" in word else in_thread, model)
    assert model in line and word in line
