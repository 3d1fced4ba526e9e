"""Settings of AQLM's checkpoints: sums of vectors of eight inputs, from one book or from two."""

from __future__ import annotations

from vllm_lite.config.quantized.schemes import Codebooks, Scheme, Settings
from vllm_lite.config.values import Json


def read(path: str, values: Json) -> Scheme:
    """The scheme of the checkpoint at `path`; raises CheckpointError."""
    settings = Settings(path, values)
    settings.one_of("in_group_size", values.get("in_group_size"), (8,))
    settings.one_of("out_group_size", values.get("out_group_size"), (1,))
    num_books: int = settings.one_of("num_codebooks", values.get("num_codebooks"), (1, 2))
    bits = 16 // num_books
    settings.one_of("nbits_per_codebook", values.get("nbits_per_codebook"), (bits,))
    kept = settings.left_plain("linear_weights_not_to_quantize")
    return Scheme(Codebooks(num_books, bits), patterns=kept)
