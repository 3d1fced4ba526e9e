"""Norms of rows, in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """Scale rows of x to unit root mean square, then by weight [N] (arXiv:1910.07467).

    x is [T, N], or [T, H, N]: then each head is a row, with a weight of its own if the weight is
    [H, N]. `out` may be x itself. A weight of x's own type multiplies rounded rows; a float32
    weight multiplies before the one rounding.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = (wide.to(weight.dtype) * weight).to(x.dtype)
    return normed if out is None else out.copy_(normed)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual), both [T, N], written over x and residual."""
    residual.add_(x)
    return rms_norm(residual, weight, eps, out=x), residual


@dataclass(frozen=True, slots=True)
class InputNorm:
    """RMSNorm by `weight` [N] of a product's inputs [T, N], to which `residual` is added if given.

    The residual is [T, N], and the weight of the inputs' type.
    """

    residual: Tensor | None
    weight: Tensor
    eps: float

    def apply(
        self,
        x: Tensor,
        alone: Callable[[Tensor, Tensor, float], Tensor],
        added: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Return (normalised sum, sum) of x [T, N] by an implementation's two operations.

        Both inputs may be overwritten.
        """
        if self.residual is None:
            return alone(x, self.weight, self.eps), x
        return added(x, self.residual, self.weight, self.eps)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None
) -> Tensor:
    """Normalise rows to zero mean and unit variance, then multiply by weight and add bias, both [N]
    (arXiv:1607.06450). Computed in float32 and rounded once; otherwise as `rms_norm`."""
    wide = x.float()
    wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    normed = (wide if bias is None else wide + bias.float()).to(x.dtype)
    return normed if out is None else out.copy_(normed)


def fused_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (layer_norm(x + residual), x + residual), both [T, N], written over x and residual."""
    residual.add_(x)
    return layer_norm(residual, weight, bias, eps, out=x), residual


def match_rms(x: Tensor, like: Tensor, least: float, out: Tensor | None = None) -> Tensor:
    """Scale rows of x [T, N] to the root mean square of those of `like` [T, N].

    The mean square of x's row counts as at least the positive `least`. `out` may be x itself.
    """
    told, own = (rows.float().square().mean(-1, keepdim=True) for rows in (like, x))
    scaled = (x.float() * (told.sqrt() / own.clamp(min=least).sqrt())).to(x.dtype)
    return scaled if out is None else out.copy_(scaled)


def keep_outliers(x: Tensor, deviations: float, out: Tensor | None = None) -> Tensor:
    """Return what numbers of x [T, N] are above a cut, or 0, as Gemma 3n's sparse gates are.

    A row's cut is its mean plus so many of its standard deviations. `out` may be x itself.
    """
    apart = x.float() - x.float().mean(-1, keepdim=True)
    cut = deviations * apart.square().mean(-1, keepdim=True).sqrt()
    kept = (apart - cut).relu().to(x.dtype)
    return kept if out is None else out.copy_(kept)
