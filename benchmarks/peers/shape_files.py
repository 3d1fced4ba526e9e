"""Writes Q4_0 GGUF files of benchmarks/peers/shapes.py for llama.cpp and this engine alike.

    python benchmarks/peers/shape_files.py [SHAPE ...]

Random weights by transformers, through llama.cpp's own converter and quantizer; files go to
shapes/ in the peers' folder. What is there already is left alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gguf_oracle import PEERS, convert
from transformers import AutoConfig, AutoModelForCausalLM

from peers.shapes import SHAPES

QUANTIZE = """
import sys
import llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
params.pure = True
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""


def write(name: str, file: Path) -> None:
    """The shape `name` as a Q4_0 file."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        directory, whole = Path(folder) / "hf", Path(folder) / "f32.gguf"
        with torch.device("cpu"):
            config = AutoConfig.for_model(**SHAPES[name], torch_dtype="bfloat16")
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(directory)
        del model
        convert(directory, whole)
        words = [str(PEERS.llamacpp_python), "-c", QUANTIZE, str(whole), str(file)]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    folder = PEERS.folder / "shapes"
    folder.mkdir(exist_ok=True)
    for name in sys.argv[1:] or SHAPES:
        file = folder / f"{name}-q4_0.gguf"
        if not file.exists():
            print(file, flush=True)
            write(name, file)


if __name__ == "__main__":
    main()
