"""The engines that are compared: which weights, which interpreter, which command and environment.

Whatever differs between engines is said here, and the settings go into the results beside the
figures. Nothing is installed: `missing` tells what `make peers` would have to make.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.workloads import BF16, LARGE_CONFIG, LLAMACPP, Q4_1, VLLM, Step
from vllm_lite import envs
from vllm_lite.config.sources import resolve_model_source
from vllm_lite.errors import VLLMLiteError

CHILDREN = Path(__file__).parent / "children"
KV_SPACE_GIB = "2"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": KV_SPACE_GIB,
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
MAX_LENGTH, MAX_SEQS = 2048, 64
SEED = 0


@dataclass(frozen=True, slots=True)
class Peers:
    """The directory that `make peers` fills."""

    folder: Path

    @property
    def vllm_python(self) -> Path:
        """An interpreter that has vLLM for CPUs."""
        return self.folder / "vllm/bin/python"

    @property
    def llamacpp_python(self) -> Path:
        """An interpreter that has llama-cpp-python."""
        return self.folder / "llamacpp/bin/python"

    @property
    def st_python(self) -> Path:
        """An interpreter that has sentence-transformers, and clients that embed."""
        return self.folder / "st/bin/python"

    @property
    def formats_python(self) -> Path:
        """An interpreter that has the packages of quantised formats."""
        return self.folder / "formats/bin/python"

    @property
    def converter(self) -> Path:
        """llama.cpp's converter to GGUF files."""
        return self.folder / "convert"

    @property
    def bf16_model(self) -> Path:
        """The demo model as a Hugging Face directory."""
        return self.folder / "demo-bf16"


def default_peers() -> Peers:
    """In the user's cache folder."""
    return Peers(Path(envs.VLLM_CACHE_ROOT) / "peers")


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine with one kind of weights."""

    id: str
    title: str
    weights: str
    python: str
    model: str
    # Of its LLM class; None where it has none.
    module: str | None
    # The module that serves over HTTP; None where nothing serves several requests at a time.
    server: str | None
    num_threads: int

    @property
    def environment(self) -> dict[str, str]:
        """Variables that its processes get besides ours."""
        return {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "INFO" if self.is_ours else "ERROR"}

    @property
    def is_ours(self) -> bool:
        return self.module == "vllm_lite"

    @property
    def keeps_gguf(self) -> bool:
        """Whether weights are to stay as few bits as they are in the file."""
        return self.id == Q4_1

    @property
    def has_large(self) -> bool:
        """Whether made-up bfloat16 weights can be had."""
        return self.id in (BF16, VLLM)

    @property
    def settings(self) -> str:
        """A note beside a figure."""
        if self.module is None:
            return f"{self.weights}, {self.num_threads} threads, sampling not counted"
        return (
            f"{self.weights}{', --quantization gguf' if self.keeps_gguf else ''}, "
            f"bfloat16 activations and KV cache of {KV_SPACE_GIB} GiB, "
            f"at most {MAX_SEQS} sequences of {MAX_LENGTH} tokens"
        )

    def missing(self) -> str:
        """Requirements that this machine lacks; empty where the engine can run."""
        if not Path(self.python).exists():
            return f"there is no {self.id} environment; make one: make peers"
        if self.model != "demo" and not Path(self.model).exists():
            return "the demo model is not exported; do it: make peers"
        if self.is_ours and importlib.util.find_spec("vllm_lite._cpu") is None:
            return "the compiled kernels are missing; build them: make demo"
        return ""

    def weight_bytes(self) -> int:
        """Bytes of the weights of the demo model as they are stored, all of which a step reads."""
        try:
            path = Path(resolve_model_source(self.model))
        except VLLMLiteError:
            return 0
        files = [path] if path.is_file() else path.glob("*.safetensors")
        return sum(file.stat().st_size for file in files)

    def child_words(self, steps: list[Step], spawned: float, large: Path | None) -> list[str]:
        """The command of a process that does `steps`, with the demo model or the large one."""
        orders: dict[str, Any] = {"spawned": spawned, "seed": SEED, "steps": steps}
        if self.module is None:
            orders |= {"model": resolve_model_source(self.model), "num_threads": self.num_threads}
            return [self.python, str(CHILDREN / "llamacpp.py"), json.dumps(orders)]
        options: dict[str, Any] = {
            "dtype": "bfloat16",
            "max_model_len": MAX_LENGTH,
            "max_num_seqs": MAX_SEQS,
            "enable_prefix_caching": False,
            "seed": SEED,
            **({"quantization": "gguf"} if self.keeps_gguf else {}),
        }
        if large is not None:
            options |= {"load_format": "dummy", "skip_tokenizer_init": True}
        orders |= {"module": self.module, "model": str(large or self.model), "options": options}
        return [self.python, str(CHILDREN / "generate.py"), json.dumps(orders)]

    def server_words(self, port: int) -> list[str]:
        """The command of a server on the demo model."""
        assert self.server is not None
        words = [self.python, "-m", self.server, "serve", self.model, "--host", "127.0.0.1"]
        words += ["--port", str(port), "--dtype", "bfloat16", "--served-model-name", "demo"]
        words += ["--quantization", "gguf"] if self.keeps_gguf else []
        return [*words, "--max-model-len", str(MAX_LENGTH), "--max-num-seqs", str(MAX_SEQS)]


def engines(peers: Peers, num_threads: int) -> Iterator[Engine]:
    """Ours twice, each beside the peer that reads the same weights."""
    bf16, own = str(peers.bf16_model), "vllm_lite"
    vllm, serve = str(peers.vllm_python), "vllm.entrypoints.cli.main"
    llamacpp = str(peers.llamacpp_python)
    yield Engine(BF16, "ours", "bfloat16", sys.executable, bf16, own, own, num_threads)
    yield Engine(VLLM, "vLLM on CPU", "bfloat16", vllm, bf16, "vllm", serve, num_threads)
    yield Engine(Q4_1, "ours", "Q4_1 GGUF", sys.executable, "demo", own, own, num_threads)
    yield Engine(LLAMACPP, "llama.cpp", "Q4_1 GGUF", llamacpp, "demo", None, None, num_threads)


def write_large_model(folder: Path) -> Path:
    """A directory that describes the large model; its weights are made up at load."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LARGE_CONFIG, indent=1) + "\n")
    return folder
