"""Settings of AQLM's checkpoints: sums of vectors of eight inputs, from one book or from two."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import Codebooks, Scheme, Settings


def read(settings: Settings) -> Scheme:
    """The scheme of a checkpoint with these settings; raises CheckpointError."""
    settings.choice("in_group_size", (8,))
    settings.choice("out_group_size", (1,))
    num_books: int = settings.choice("num_codebooks", (1, 2))
    bits = 16 // num_books
    settings.choice("nbits_per_codebook", (bits,))
    kept = settings.left_plain("linear_weights_not_to_quantize")
    return Scheme(Codebooks(num_books, bits), patterns=kept)
