"""Rotary position embedding (Su et al., 2021) and its scaling methods.

Owns the table of cosines and sines, one row a position, made once after loading. Frequencies
equal those of transformers' modeling_rope_utils for the same `rope_parameters`. A row depends on
its position alone, so results do not depend on how a prompt is split into steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.weights import NamedSlot, WeightSlot


@dataclass(frozen=True, slots=True)
class RotarySettings:
    """Settings of a rotary embedding; `parameters` is a config's `rope_parameters`."""

    head_size: int
    max_position_embeddings: int
    parameters: Mapping[str, Any]
    # The checkpoint has divisors of the frequencies (GGUF's rope_freqs).
    has_frequency_factors: bool = False
    # Rotated pairs are neighbours (GPT-J), not half the rotary size apart.
    is_interleaved: bool = False

    @property
    def rotary_size(self) -> int:
        """Number of a head's first elements that are rotated."""
        told = self.parameters.get("rotary_dim")
        share = 1.0 if self.parameters.get("rope_type") == "proportional" else self.rotary_share
        size = int(self.head_size * share) if told is None else told
        if not isinstance(size, int) or size < 2 or size % 2 or size > self.head_size:
            raise CheckpointError(
                f"the rotary size is {size!r}; it must be even, positive and at most a head's size "
                f"({self.head_size}); rotary_dim, partial_rotary_factor or head_dim is wrong"
            )
        return size

    @property
    def rotary_share(self) -> float:
        share = self.number("partial_rotary_factor", 0) or 1.0
        if not 0 < share <= 1:
            raise CheckpointError(f"partial_rotary_factor is {share}, not between 0 and 1")
        return share

    def number(self, key: str, default: float | None = None) -> float:
        """The parameter `key`; raises CheckpointError if it is required and missing."""
        value = self.parameters.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            kind = self.parameters.get("rope_type")
            raise CheckpointError(
                f"rope_parameters of type {kind!r} need the number {key!r}, not {value!r}"
            )
        return value

    @property
    def original_length(self) -> float:
        return self.number("original_max_position_embeddings", self.max_position_embeddings)


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Queries at position p are multiplied by 1 + strength * log(1 + floor((p + shift) / period)).

    Keeps attention sharp in long contexts (Nakanishi, 2025).
    """

    strength: float
    period: float
    shift: int = 0


class RotaryTables(nn.Module):
    """Tables by position, one for each distinct setting of a model's layers."""

    def __init__(self, num_positions: int) -> None:
        """`num_positions` is the most positions of a request."""
        super().__init__()
        self._num_positions = num_positions
        self._rotations: list[tuple[RotarySettings, RotaryEmbedding]] = []
        self._scales: dict[tuple[QueryScaling, int], QueryScale] = {}

    def of(self, settings: RotarySettings) -> RotaryEmbedding:
        for known, table in self._rotations:
            if known == settings:
                return table
        table = RotaryEmbedding(settings, self._num_positions)
        self.add_module(str(len(self._rotations)), table)
        self._rotations.append((settings, table))
        return table

    def scale_of(self, scaling: QueryScaling, head_size: int) -> QueryScale:
        key = scaling, head_size
        if key not in self._scales:
            self._scales[key] = QueryScale(scaling, head_size, self._num_positions)
            self.add_module(f"scale_{len(self._scales)}", self._scales[key])
        return self._scales[key]


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys by their positions."""

    def __init__(self, settings: RotarySettings, num_positions: int) -> None:
        super().__init__()
        rotary_size = settings.rotary_size
        self._settings = settings
        self._num_positions = num_positions
        self.table = torch.empty(num_positions, rotary_size, dtype=torch.float32)
        self._factors = torch.ones(rotary_size // 2, dtype=torch.float32)
        self.is_neox = not settings.is_interleaved
        self._rotate = ops().rotary_embedding

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> None:
        """Rotate query [T, H, D] and key [T, K, D] in place; positions [T] int64."""
        self._rotate(positions, query, key, self.table, self.is_neox)

    def weight_slots(self) -> Iterator[NamedSlot]:
        if self._settings.has_frequency_factors:
            yield NamedSlot("", "frequency_factors", WeightSlot.whole(self._factors))

    def process_weights_after_loading(self) -> None:
        with self.table.device:
            positions = torch.arange(self._num_positions, dtype=torch.float32)
            frequencies, magnitude = compute_frequencies(self._settings, positions)
        angles = positions[:, None] * (frequencies / self._factors)
        half = angles.shape[1]
        torch.cos(angles, out=self.table[:, :half])
        torch.sin(angles, out=self.table[:, half:])
        if magnitude != 1.0:
            self.table.mul_(magnitude)


class QueryScale(nn.Module):
    """Scales queries by their positions: a rotation by no angle, of short pieces of heads."""

    def __init__(self, scaling: QueryScaling, head_size: int, num_positions: int) -> None:
        super().__init__()
        self._scaling = scaling
        # At least two pieces, since an operation rotates two tensors; at most a wide vector each.
        self._size = 2 * math.gcd(head_size // 4, 16) if head_size % 4 == 0 else 2
        self._table = torch.zeros(num_positions, self._size, dtype=torch.float32)
        self._rotate = ops().rotary_embedding

    def forward(self, positions: Tensor, query: Tensor) -> None:
        """Scale query [T, H, D] in place; positions [T] int64."""
        pieces = query.view(len(query), -1, self._size)
        self._rotate(positions, pieces[:, :1], pieces[:, 1:], self._table)

    def weight_slots(self) -> Iterator[NamedSlot]:
        return iter(())

    def process_weights_after_loading(self) -> None:
        told = self._scaling
        positions = torch.arange(len(self._table), device=self._table.device, dtype=torch.float32)
        steps = ((positions + told.shift) / told.period).floor()
        self._table[:, : self._size // 2] = (1.0 + told.strength * steps.log1p()).unsqueeze(1)


def compute_frequencies(settings: RotarySettings, positions: Tensor) -> tuple[Tensor, float]:
    """Return frequencies, [rotary_size / 2] or one row for each of `positions`, and a magnitude.

    The magnitude multiplies cosines and sines (yarn's attention factor).
    """
    kind = settings.parameters.get("rope_type", "default")
    if kind == "dynamic":
        return _dynamic(settings, positions), 1.0
    if kind == "yarn":
        return _yarn(settings), _yarn_magnitude(settings)
    if kind == "longrope":
        length = len(positions)
        return _longrope(settings, length), _longrope_magnitude(settings, length)
    if kind not in _SCALINGS:
        known = ", ".join((*_SCALINGS, "dynamic", "yarn", "longrope"))
        raise CheckpointError(f"rope_type {kind!r} is not supported; known: {known}")
    return _SCALINGS[kind](settings), 1.0


def _exponents(settings: RotarySettings) -> Tensor:
    size = settings.rotary_size
    return torch.arange(0, size, 2, dtype=torch.float32) / size


def _default(settings: RotarySettings) -> Tensor:
    return 1.0 / settings.number("rope_theta") ** _exponents(settings)


def _linear(settings: RotarySettings) -> Tensor:
    """Linear position interpolation by `factor` (Chen et al., 2023)."""
    return _default(settings) / settings.number("factor")


def _ntk(settings: RotarySettings) -> Tensor:
    """A larger base, and all frequencies lower by one factor (Su, 2023)."""
    if settings.parameters.get("mixed_b") is not None:
        raise CheckpointError("rope_type 'ntk' has a mixed_b, which is not supported")
    factor, exponents = settings.number("factor"), _exponents(settings)
    base = settings.number("rope_theta") * factor
    lower: float = factor ** (2 / settings.rotary_size)
    return 1.0 / base**exponents / lower


def _proportional(settings: RotarySettings) -> Tensor:
    """Pairs of the whole head, of which only the first turn, at the whole head's frequencies."""
    turning = int(settings.rotary_share * settings.head_size // 2)
    frequencies = _default(settings) / settings.number("factor", 1.0)
    frequencies[turning:] = 0.0
    return frequencies


def _llama3(settings: RotarySettings) -> Tensor:
    """Llama 3.1's scaling: long waves are stretched, short ones kept, others interpolated."""
    frequencies = _default(settings)
    factor = settings.number("factor")
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    waves_in_context = settings.original_length * frequencies / (2 * math.pi)
    kept = ((waves_in_context - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / factor)


def _dynamic(settings: RotarySettings, positions: Tensor) -> Tensor:
    """Dynamic NTK scaling: the base grows with the length beyond the trained length.

    transformers uses the length of the current pass; here it is the token's own, which is the
    same when tokens come one by one, and does not depend on batching.
    """
    size = settings.rotary_size
    if size <= 2:
        raise CheckpointError("dynamic rotary scaling needs a rotary size above 2")
    trained, factor = settings.max_position_embeddings, settings.number("factor")
    lengths = (positions + 1).clamp(min=trained)
    growth = (factor * lengths / trained - (factor - 1)) ** (size / (size - 2))
    base = settings.number("rope_theta") * growth
    return 1.0 / base[:, None] ** _exponents(settings)


def _yarn(settings: RotarySettings) -> Tensor:
    """YaRN (Peng et al., 2023): high frequencies are kept, low ones interpolated."""
    size, base = settings.rotary_size, settings.number("rope_theta")

    def dimension_of(turns: float) -> float:
        """The dimension whose wave makes this many turns in the trained context."""
        return (
            size * math.log(settings.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))
        )

    # Like transformers, treat 0 as absent.
    low = dimension_of(settings.number("beta_fast", 0) or 32)
    high = dimension_of(settings.number("beta_slow", 0) or 1)
    if settings.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = _default(settings)
    return frequencies * (1.0 - stretched) + frequencies / _yarn_factor(settings) * stretched


def _yarn_factor(settings: RotarySettings) -> float:
    return settings.number("factor", settings.max_position_embeddings / settings.original_length)


def _yarn_magnitude(settings: RotarySettings) -> float:
    if settings.parameters.get("attention_factor") is not None:
        return settings.number("attention_factor")
    factor = _yarn_factor(settings)
    mscale, all_dims = settings.number("mscale", 0), settings.number("mscale_all_dim", 0)
    if mscale and all_dims:
        return yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dims)
    return yarn_magnitude(factor)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """How much sharper YaRN makes attention over positions stretched by `factor`."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(settings: RotarySettings, num_positions: int) -> Tensor:
    """LongRoPE (Ding et al., 2024): a divisor for each frequency, in a short and a long set.

    transformers changes sets when a sequence outgrows the trained length, and then cached keys
    no longer fit. Here the longest possible sequence decides.
    """
    kind = "long_factor" if num_positions > settings.original_length else "short_factor"
    factors = torch.tensor(settings.parameters[kind], dtype=torch.float32)
    if len(factors) != settings.rotary_size // 2:
        raise CheckpointError(
            f"{kind} has {len(factors)} numbers for a rotary size of {settings.rotary_size}"
        )
    return _default(settings) / factors


def _longrope_magnitude(settings: RotarySettings, num_positions: int) -> float:
    trained = settings.original_length
    for key in ("long_mscale" if num_positions > trained else "short_mscale", "attention_factor"):
        if settings.parameters.get(key) is not None:
            return settings.number(key)
    factor = settings.number("factor", settings.max_position_embeddings / trained)
    return math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0


_SCALINGS: dict[str, Callable[[RotarySettings], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "ntk": _ntk,
    "llama3": _llama3,
    "proportional": _proportional,
}
