"""Types of GGUF files that llama.cpp writes and the gguf package does not know yet."""

from enum import IntEnum
from pathlib import Path

from gguf import GGML_QUANT_SIZES


class Newer(IntEnum):
    """By their numbers in files."""

    Q2_0 = 42


# Blocks of every type and their numbers: benchmarks/peers/ggml_blocks.py had llama.cpp write them.
GGML_BLOCKS = Path(__file__).parent / "data/ggml_blocks.npz"
GGML_QUANT_SIZES.setdefault(Newer.Q2_0, (64, 18))
