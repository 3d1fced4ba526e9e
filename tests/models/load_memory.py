"""How much memory a load takes, measured in a process of its own.

A test worker of thousands of tests hands its pages back when it likes; a new process has none
to hand back. It is forked from one that has imported all this and loaded nothing.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from tests.forked import SERVER
from tests.models.runner import load
from vllm_lite.layers.linear import ParallelLinear
from vllm_lite.quantization.storage import stored_weights

# Each holds a layer at a time.
THREADS = 2
# The C library keeps the freed end of a thread's heap, several megabytes after a load, and
# malloc_trim skips it. Tensors that are mapped each by itself go back as they are freed; naming a
# limit keeps the library from raising it.
_MAPPED_FROM = 64 << 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def memory_of_loading(path: Path, quantization: str | None) -> tuple[int, int, int]:
    """Load in bfloat16 by THREADS; the most bytes held above those before, stored, readings."""
    with ProcessPoolExecutor(1, SERVER) as pool:
        return pool.submit(_measure, path, quantization).result(300)


def own_bytes() -> int:
    """Memory in use that no file is behind; what is kept of freed small blocks is handed back."""
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def _measure(path: Path, quantization: str | None) -> tuple[int, int, int]:
    library = ctypes.CDLL(None)
    for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        assert library.mallopt(parameter, _MAPPED_FROM)
    torch.set_num_threads(THREADS)
    held: list[int] = []
    finish = ParallelLinear.process_weights_after_loading

    def watched(layer: ParallelLinear) -> None:
        held.append(own_bytes())  # filled
        finish(layer)
        held.append(own_bytes())  # packed too

    ParallelLinear.process_weights_after_loading = watched  # type: ignore[method-assign]
    load(path, "bfloat16", quantization=quantization)  # what is made once is made now
    held.clear()
    before = own_bytes()
    model = load(path, "bfloat16", quantization=quantization)
    stored = sum(weight.num_bytes for weight in stored_weights(model))
    return max(held) - before, stored, len(held)
