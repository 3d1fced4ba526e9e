"""Types of GGUF files that llama.cpp writes and the gguf package does not know yet."""

from enum import IntEnum

from gguf import GGML_QUANT_SIZES


class Newer(IntEnum):
    """By their numbers in files."""

    Q2_0 = 42


GGML_QUANT_SIZES.setdefault(Newer.Q2_0, (64, 18))
