"""The weights that a model's linear layers read in every step, for the log line at start.

Knows no format: kernels report their weights by `stored`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from vllm_lite.kernels.dispatch import read_bandwidth
from vllm_lite.quantization.method import LinearKernel

# Less than this may fit a cache, whose speed says nothing.
MIN_BYTES_READ = 96 << 20
# Short compared with a start, and enough for a few hundred megabytes.
MAX_SECONDS = 0.015


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight in memory."""

    format: str
    num_bytes: int
    data: Tensor


@dataclass(frozen=True, slots=True)
class StoringKernel:
    """A kernel that reports the weights it reads."""

    product: LinearKernel
    stored: tuple[StoredWeight, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x)


def stored_weights(model: object) -> list[StoredWeight]:
    """The weights reported by all kernels of a module."""
    layers = model.modules() if isinstance(model, nn.Module) else ()
    kernels = [getattr(layer, "kernel", None) for layer in layers]
    return [weight for kernel in kernels for weight in getattr(kernel, "stored", ())]


def describe_weights(weights: Sequence[StoredWeight]) -> str:
    """Describe formats, bytes and the time to read them, for the log.

    The speed of reading is measured on the weights themselves and left out if they are too
    few.
    """
    sizes: dict[str, int] = {}
    for weight in weights:
        sizes[weight.format] = sizes.get(weight.format, 0) + weight.num_bytes
    total = sum(sizes.values())
    listed = " + ".join(f"{size / 1e9:.2f} GB {name}" for name, size in sizes.items())
    text = f"weights {listed or 'of unknown size'}"
    speed = _speed(weights)
    if speed is None:
        return text
    return f"{text}, read in {total / speed * 1000:.1f} ms at {speed / 1e9:.0f} GB/s"


def _speed(weights: Iterable[StoredWeight]) -> float | None:
    """Bytes per second."""
    known = [weight.data for weight in weights]
    if sum(data.nbytes for data in known) < MIN_BYTES_READ:
        return None
    return read_bandwidth(known, MAX_SECONDS)
