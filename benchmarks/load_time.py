"""Times loads of a large checkpoint from a cold cache, and the anonymous memory that they take.

    python benchmarks/load_time.py                     2 GiB in one file, on a machine that is quiet
    python benchmarks/load_time.py --gib 0.1 --rounds 1 --formats lazy,gguf
    python benchmarks/load_time.py --gib 0.2 --rounds 1 --formats all

A plain bfloat16 checkpoint in Llama's shape is written once to --folder (kept for the next run if
named) and loaded by each --safetensors-load-strategy, and by each load format whose package is
there, in a fresh process each time: the file is dropped from the page cache, read from end to end,
dropped again, and loaded as a worker loads it. Imports come before. Memory is that of the process
which is neither a file's nor another process's, looked at every 2 ms. The goals: 1.3 times the
seconds of reading, and 1.05 times the weights and 64 MB. The exit code is 1 where one is missed.
--formats asks for other forms of the checkpoint too, which are written from the plain one and held
against the bytes of their own files; AWQ stands for those that are quantised.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peers.machine import describe_machine
from safetensors.torch import load_file, save_file

from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.model import LoadConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.loader.formats import open_tensors
from vllm_lite.loader.load import save_sharded_state
from vllm_lite.loader.pickled import open_cached
from vllm_lite.loader.sharded_state import PATTERN
from vllm_lite.worker.worker import Worker

sys.path.insert(1, str(Path(__file__).parents[1]))

STRATEGIES = ("lazy", "eager", "prefetch")
PACKAGES = {
    "runai_streamer": "runai_model_streamer",
    "fastsafetensors": "fastsafetensors",
}
TIME_GOAL, MEMORY_GOAL, MEMORY_MORE = 1.3, 1.05, 64_000_000
BLOCK = 16 << 20
# TinyLlama's layers.
SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}


@dataclass(frozen=True, slots=True)
class Load:
    """One load: seconds of reading the file alone and of loading it, and bytes of memory.

    Of a package also the seconds in which it reads all tensors by itself.
    """

    read_seconds: float
    load_seconds: float
    memory: int
    package_seconds: float | None


def write_checkpoint(folder: Path, gib: float) -> int:
    """Write the checkpoint unless it is there; the bytes of its weights."""
    hidden, wide = SIZES["hidden_size"], SIZES["intermediate_size"]
    keys = hidden // SIZES["num_attention_heads"] * SIZES["num_key_value_heads"]
    matrices = {
        **{f"self_attn.{name}_proj": (hidden, hidden) for name in "qo"},
        **{f"self_attn.{name}_proj": (keys, hidden) for name in "kv"},
        **{f"mlp.{name}_proj": (wide, hidden) for name in ("gate", "up")},
        "mlp.down_proj": (hidden, wide),
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    vocabulary = 2 * SIZES["vocab_size"] * hidden
    layer = sum(rows * columns for rows, columns in matrices.values()) + 2 * hidden
    count = max(1, round((gib * (1 << 30) / 2 - vocabulary) / layer))
    path = folder / "model.safetensors"
    num_bytes = 2 * (vocabulary + count * layer + hidden)
    if path.exists() and path.stat().st_size > num_bytes:
        return num_bytes
    torch.manual_seed(0)
    state = {"model.norm.weight": torch.ones(hidden)}
    for name in ("model.embed_tokens", "lm_head"):
        state[f"{name}.weight"] = torch.randn(SIZES["vocab_size"], hidden) * 0.02
    for i in range(count):
        for name, shape in matrices.items():
            state[f"model.layers.{i}.{name}.weight"] = torch.randn(shape) * 0.02
        state |= {f"model.layers.{i}.{name}.weight": torch.ones(hidden) for name in norms}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.bfloat16() for name, tensor in state.items()}, path, {"format": "pt"})
    config = {
        **SIZES,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": count,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return num_bytes


# The tests' writers are imported where they are called: processes that load do without them.
def write_pickled(plain: Path, folder: Path) -> None:
    torch.save(load_file(plain / "model.safetensors"), folder / "pytorch_model.bin")


def write_cached(plain: Path, folder: Path) -> None:
    """NumPy's files, which the first load would make."""
    write_pickled(plain, folder)
    open_cached(folder / "pytorch_model.bin", LoadConfig())


def write_shards(plain: Path, folder: Path) -> None:
    if failure := save_sharded_state(config_of(plain, {}), str(folder), PATTERN, 5 << 30):
        raise SystemExit(failure)


def write_mistral(plain: Path, folder: Path) -> None:
    from tests.models import test_mistral_layout

    test_mistral_layout.write_mistral(plain, folder)


def write_awq(plain: Path, folder: Path) -> None:
    from tests.models.quantized_checkpoints import awq

    quantise = awq(128)
    state: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        parts = {"weight": tensor}
        if "_proj." in name:
            parts, _ = quantise(name, tensor.float())
        layer = name.removesuffix("weight")
        state |= {f"{layer}{suffix}": part.contiguous() for suffix, part in parts.items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    settings = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    config = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))


def write_gguf(plain: Path, folder: Path) -> None:
    """A file of bfloat16; queries and keys keep their rows, whose order no time depends on."""
    import gguf

    config = json.loads((plain / "config.json").read_text())
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(plain / "model.safetensors").items():
        own = f"{names.get_name(name.removesuffix('.weight'))}.weight"
        if tensor.dim() == 1:
            writer.add_tensor(own, tensor.float().numpy())
        else:
            values = tensor.view(torch.uint8).numpy()
            writer.add_tensor(own, values, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass(frozen=True, slots=True)
class Form:
    """Another form of the checkpoint: its writer, the files that are read, and options."""

    write: Callable[[Path, Path], None]
    files: str
    options: dict[str, Any]


FORMS = {
    "pt": Form(write_pickled, "*.bin", {"load_format": "pt"}),
    "npcache": Form(write_cached, "np/*/*.npy", {"load_format": "npcache"}),
    "gguf": Form(write_gguf, "*.gguf", {}),
    "sharded_state": Form(write_shards, "*.safetensors", {"load_format": "sharded_state"}),
    "mistral": Form(
        write_mistral, "*.safetensors", {"load_format": "mistral", "config_format": "mistral"}
    ),
    "awq": Form(write_awq, "*.safetensors", {}),
}


def write_form(name: str, plain: Path) -> Path:
    """Write one of FORMS unless it is there; its folder."""
    folder, begun = plain / name, plain / f"{name}.part"
    if not folder.exists():
        begun.mkdir(exist_ok=True)
        shutil.copy(plain / "config.json", begun)
        FORMS[name].write(plain, begun)
        begun.rename(folder)
    return folder


def weight_files(folder: Path, name: str) -> list[Path]:
    """The files that a way to load reads."""
    return sorted(folder.glob(FORMS[name].files if name in FORMS else "model.safetensors"))


def config_of(model: Path, options: dict[str, Any]) -> VllmConfig:
    return EngineArgs(
        model=str(model), dtype="bfloat16", device="cpu", skip_tokenizer_init=True, **options
    ).create_engine_config()


def drop(path: Path) -> None:
    """Drop a file from the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_cold(paths: list[Path]) -> float:
    """Seconds to read files from end to end; they are dropped before and after."""
    for path in paths:
        drop(path)
    block = bytearray(BLOCK)
    begin = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(block):
                pass
    seconds = time.perf_counter() - begin
    for path in paths:
        drop(path)
    return seconds


def read_by_package(folder: Path, config: VllmConfig) -> float:
    """Seconds in which the package of a load format reads the file, cold as before."""
    begin = time.perf_counter()
    for tensor in open_tensors(folder, config.load, lambda name: torch.bfloat16):
        tensor.read()
    seconds = time.perf_counter() - begin
    drop(folder / "model.safetensors")
    return seconds


class MemoryWatch:
    """The most anonymous memory of this process beyond what it had before."""

    def __init__(self) -> None:
        self._before = self.most = self._now()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def rise(self) -> int:
        """Stop watching; bytes."""
        self._is_over.set()
        self._thread.join()
        return self.most - self._before

    def _run(self) -> None:
        while not self._is_over.wait(0.002):
            self.most = max(self.most, self._now())

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines)
        return sum(int(found[name].split()[0]) for name in ("RssAnon", "RssShmem")) << 10


def load_once(folder: Path, name: str) -> Load:
    """Read, then load; in a process of its own."""
    options, paths = ways()[name], weight_files(folder, name)
    config = config_of(paths[0] if name == "gguf" else folder, options)
    # What a first product and a first thread need is not the load's.
    torch.randn(64, 64) @ torch.randn(64, 64)
    for package in PACKAGES.values():
        if options.get("load_format") in PACKAGES and importlib.util.find_spec(package):
            __import__(package)
    read_seconds = read_cold(paths)
    package_seconds = read_by_package(folder, config) if name in PACKAGES else None
    watch = MemoryWatch()
    begin = time.perf_counter()
    worker = Worker(config)
    seconds = time.perf_counter() - begin
    del worker
    return Load(read_seconds, seconds, watch.rise(), package_seconds)


def ways() -> dict[str, dict[str, Any]]:
    """Names of ways to load, and their options."""
    found = {name: {"safetensors_load_strategy": name} for name in STRATEGIES}
    for name, package in PACKAGES.items():
        if importlib.util.find_spec(package):
            found[name] = {"load_format": name}
    return found | {name: form.options for name, form in FORMS.items()}


def measure(folder: Path, name: str, rounds: int) -> list[Load]:
    """Loads of one way."""
    command = [sys.executable, __file__, "--folder", str(folder), "--child", name]
    loads = []
    for _ in range(rounds):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        loads.append(Load(**json.loads(done.stdout.splitlines()[-1])))
    return loads


def record(name: str, loads: list[Load], num_bytes: int) -> dict[str, Any]:
    """The medians of one way, and whether they meet the goals."""
    ratio = statistics.median(load.load_seconds / load.read_seconds for load in loads)
    memory = statistics.median(load.memory for load in loads)
    alone = [load.package_seconds for load in loads if load.package_seconds is not None]
    return {
        "way": name,
        "read_seconds": round(statistics.median(load.read_seconds for load in loads), 3),
        "load_seconds": round(statistics.median(load.load_seconds for load in loads), 3),
        "of_reading": round(ratio, 3),
        "package_seconds": round(statistics.median(alone), 3) if alone else None,
        "memory_mb": round(memory / 1e6, 1),
        "of_weights": round((memory - MEMORY_MORE) / num_bytes, 3),
        "meets": ratio <= TIME_GOAL and memory - MEMORY_MORE <= MEMORY_GOAL * num_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=2.0, help="size of the file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--formats",
        default=",".join(name for name in ways() if name not in FORMS),
        metavar="WAY,...",
    )
    parser.add_argument("--folder", type=Path, help="of the checkpoint")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(asdict(load_once(args.folder, args.child))))
        return
    if args.gib <= 0 or args.rounds < 1:
        parser.error("--gib takes a number above 0, and --rounds one from 1 on")
    names = list(ways()) if args.formats == "all" else args.formats.split(",")
    if unknown := set(names).difference(ways()):
        parser.error(f"--formats: {', '.join(unknown)} is none of {', '.join(ways())}, or all")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        num_bytes = write_checkpoint(folder, args.gib)
        print(f"{num_bytes / 1e6:.0f} MB of weights; read and load in s, memory in MB")
        print(
            "| way | read | load | of reading | package alone | memory | less 64 MB, of weights |"
            "\n|" + " --- |" * 7
        )
        results = []
        for name in names:
            held, weights = folder, num_bytes
            if name in FORMS:
                held = write_form(name, folder)
                weights = sum(path.stat().st_size for path in weight_files(held, name))
            found = record(name, measure(held, name, args.rounds), weights)
            if held != folder and not args.folder:
                shutil.rmtree(held)
            results.append(found)
            shown = [str(value) for key, value in found.items() if key != "meets"]
            print(f"| {' | '.join(shown)} |", "" if found["meets"] else "missed", flush=True)
    if args.output_json:
        content = {"machine": describe_machine(), "num_bytes": num_bytes, "ways": results}
        args.output_json.write_text(json.dumps(content, indent=1) + "\n")
    if not all(found["meets"] for found in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
