"""Writes tests/data/ggml_blocks.npz: blocks of every type by llama.cpp's own quantiser.

    python benchmarks/peers/ggml_blocks.py [--library FILE]

Beside the blocks of each type are the numbers that llama.cpp takes them for. `make peers` installs
it; FILE is another libggml-base, as `cmake --build . --target ggml-base` leaves it.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import numpy as np
from gguf import GGMLQuantizationType

from peers.engines import default_peers
from tests.ggml_types import GGML_BLOCKS, Newer


class Traits(ctypes.Structure):
    """The beginning of ggml_type_traits."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("elements", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


@cache
def ggml(file: Path | None = None) -> ctypes.CDLL | None:
    """llama.cpp's quantiser, by default of the peers' environment; None where there is none."""
    site = default_peers().llamacpp_python.parent.parent
    found = sorted(site.glob("lib/python*/site-packages/llama_cpp/lib/libggml-base.so*"))
    if file is None and not found:
        return None
    library = ctypes.CDLL(str(file or found[0]))
    library.ggml_row_size.restype = ctypes.c_size_t
    library.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    library.ggml_get_type_traits.argtypes = [ctypes.c_int]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
    ]
    return library


def quantised(
    library: ctypes.CDLL, values: Any, kind: GGMLQuantizationType, importance: Any
) -> Any:
    """Blocks of rows, uint8, by llama.cpp; each column counts as much as its importance."""
    rows, columns = values.shape
    values = np.ascontiguousarray(values, dtype=np.float32)
    blocks = np.empty((rows, library.ggml_row_size(int(kind), columns)), dtype=np.uint8)
    importance = np.ascontiguousarray(importance, dtype=np.float32)
    places = (values.ctypes.data, blocks.ctypes.data)
    library.ggml_quantize_chunk(int(kind), *places, 0, rows, columns, importance.ctypes.data)
    return blocks


def weight_types() -> Iterator[GGMLQuantizationType]:
    """Types of quantised weights in files."""
    for kind in (*GGMLQuantizationType, *Newer):
        is_wide = kind.name.startswith(("F", "I8", "I16", "I32", "I64"))
        if not is_wide and kind.name not in ("Q8_1", "Q8_K", "BF16"):
            yield kind


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--library", type=Path, metavar="FILE")
    try:
        library = ggml(parser.parse_args().library)
    except OSError as error:
        parser.error(str(error))
    if library is None:
        parser.error("llama.cpp is not there: `make peers`, or give --library")
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((3, 512)).astype(np.float32) * 0.02
    weights[1, ::37] *= 20
    weights[2] = 0
    importance = generator.random(512) + 0.1
    stored = {}
    for kind in weight_types():
        blocks = quantised(library, weights, kind, importance)
        values = np.empty_like(weights)
        traits = library.ggml_get_type_traits(int(kind)).contents
        traits.to_float(blocks.ctypes.data, values.ctypes.data, values.size)
        stored |= {f"{kind.name} blocks": blocks, f"{kind.name} values": values}
    np.savez_compressed(GGML_BLOCKS, **stored)


if __name__ == "__main__":
    main()
