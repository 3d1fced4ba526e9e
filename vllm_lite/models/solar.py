"""Solar Pro: Llama, some of whose layers read a mean of their stream and an earlier one."""

from __future__ import annotations

from torch import Tensor

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.dispatch import ops
from vllm_lite.models.decoder import DecoderLayer
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.options import BuildOptions

# The lists of layers that keep a stream, and of those that take it up again.
_PAIRS = (("bskcn_1", "bskcn_3"), ("bskcn_2", "bskcn_4"))


class SolarForCausalLM(LlamaForCausalLM):
    """Upstage, 2024."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        hf = facts.hf_config
        shares = hf.get("bskcn_tv")
        if not isinstance(shares, list) or len(shares) != 2:
            raise facts.error(f"bskcn_tv is {shares!r}, not two numbers")
        kept: dict[str, Tensor] = {}
        for i, layer in enumerate(self.model.layers):
            keeps = [taker for keeper, taker in _PAIRS if i in (hf.get(keeper) or ())]
            takes = [taker for _, taker in _PAIRS if i in (hf.get(taker) or ())]
            if keeps or takes:
                assert isinstance(layer, DecoderLayer)
                around = _Around(layer, kept, keeps, takes, shares[1])
                layer.forward = around.forward  # type: ignore[method-assign]


class _Around:
    """A layer's forward pass, before which streams are kept and taken up."""

    def __init__(
        self,
        layer: DecoderLayer,
        kept: dict[str, Tensor],
        keeps: list[str],
        takes: list[str],
        share: float,
    ) -> None:
        self._inner = layer.forward
        self._kept, self._keeps, self._takes, self._share = kept, keeps, takes, share
        self._add = ops().scaled_add

    def forward(
        self, positions: Tensor, hidden: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As DecoderLayer."""
        if residual is not None:
            hidden = self._add(hidden, residual, out=residual)
        for name in self._keeps:
            self._kept[name] = self._add(hidden)
        for name in self._takes:
            hidden = self._add(hidden, self._kept[name], 1 - self._share, self._share, out=hidden)
        return self._inner(positions, hidden, None)
