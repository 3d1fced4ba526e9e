"""Random numbers as a pure function of (seed, position): no state to keep, save or replay.

A request's stream is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, 2014), entered at any position at once. So a seeded request gets the same numbers
whatever shares its batch, and again after preemption or a restart. Keys are uint64, held as int64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

UInt64s = npt.NDArray[np.uint64]

GAMMA = 0x9E3779B97F4A7C15
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MUL_1, _MUL_2 = (np.uint64(multiplier) for multiplier in MULTIPLIERS)
_S30, _S27, _S31, _S11 = (np.uint64(shift) for shift in (30, 27, 31, 11))
_WORDS = 2**64


def _mix(x: UInt64s) -> UInt64s:
    x = (x ^ (x >> _S30)) * _MUL_1
    x = (x ^ (x >> _S27)) * _MUL_2
    return x ^ (x >> _S31)


def stream_key(seed: int, stream: int = 0, first: int = 0) -> int:
    """The 64-bit key of one request's stream, whose first number is that of the position `first`.

    `seed` is any int64; `stream` distinguishes requests that share an engine's seed.
    """
    words = np.array([seed % _WORDS, stream % _WORDS], dtype=np.uint64)
    mixed = _mix(words + np.uint64(GAMMA))
    # The rotation keeps (a, b) and (b, a) apart.
    turned = (mixed[1:] << np.uint64(17)) | (mixed[1:] >> np.uint64(47))
    return (int(_mix(mixed[:1] ^ turned)[0]) - first * GAMMA) % _WORDS


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """One number in [0, 1) with 53 random bits for each (key, position); all [R], on a CPU.

    Keys and positions are int64, results float64.
    """
    # By numpy, which has uint64.
    steps = positions.numpy().astype(np.uint64) + np.uint64(1)
    bits = _mix(keys.numpy().view(np.uint64) + steps * np.uint64(GAMMA)) >> _S11
    return torch.from_numpy(bits.astype(np.float64) * np.float64(2.0**-53))
