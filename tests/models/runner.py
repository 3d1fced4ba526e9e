"""Runs a loaded model through a paged cache, step by step, as the model runner would."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.core.kv_group import cache_groups
from vllm_lite.kernels.metadata import AttentionMetadata, StateIndices, attention_metadata
from vllm_lite.layers.attention import LayerCache
from vllm_lite.loader.load import load_model
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.worker.recorded_forward import recorded_forward


def load(path: Path | str, dtype: str = "float32", **options: Any) -> CausalLM:
    """The model at `path`, loaded as an engine would load it; blocks of a .gguf file are expanded,
    unless `options` say otherwise.
    """
    if str(path).endswith(".gguf"):
        options.setdefault("quantization", "dequantize")
    args = EngineArgs(
        model=str(path), dtype=dtype, device="cpu", skip_tokenizer_init=True, **options
    )
    return load_model(args.create_engine_config(), "cpu")


def unwritten(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A cache full of NaN, as numbers or as their scales: to read what nobody wrote spoils all."""
    size = math.prod(shape) * dtype.itemsize
    return torch.full((size,), 0xFF, dtype=torch.uint8).view(dtype).view(shape)


class PagedRunner:
    """Feeds tokens of several sequences to a model; blocks are handed out in a mixed order."""

    def __init__(
        self,
        model: CausalLM,
        block_size: int = 8,
        num_blocks: int = 64,
        is_recorded: bool = False,
    ) -> None:
        spec = model.kv_cache_spec()
        numbers = {i: n for n, g in enumerate(cache_groups(spec)) for i in g.layers}
        self._num_groups = len(set(numbers.values()))
        caches = []
        for i, layer in enumerate(spec.layers):
            shape = (num_blocks, layer.num_kv_heads, block_size)
            dtype = getattr(torch, layer.dtype)
            keys, values = (unwritten((*shape, width), dtype) for width in layer.row_sizes)
            if layer.latent_size is not None:
                values = keys[..., : layer.latent_size]
            caches.append(LayerCache(keys, values, numbers[i]))
        self._has_states = bool(spec.states)
        states = [
            tuple(unwritten((num_blocks, *shape), torch.float32) for shape in state.shapes)
            for state in spec.states
        ]
        model.bind_kv_cache(caches, states)
        order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(3)) + 1
        self._free = order.tolist()
        self._model = model
        self._forward = model.forward
        if is_recorded:
            self._forward = recorded_forward(model, max_tokens=128, num_groups=self._num_groups)
            assert self._forward != model.forward
        self._block_size = block_size
        self._blocks: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}
        self._states: dict[str, int] = {}

    def step(self, tokens: dict[str, Sequence[int]]) -> dict[str, torch.Tensor]:
        """Compute each sequence's next tokens; the logits [len, V] of every one of them."""
        ids, positions, slots, lengths, counts = [], [], [], [], []
        for name, new in tokens.items():
            start = self._lengths.get(name, 0)
            end = start + len(new)
            blocks = self._blocks.setdefault(name, [])
            while len(blocks) * self._block_size < end:
                blocks.append(self._free.pop())
            ids += new
            positions += range(start, end)
            size = self._block_size
            slots += [blocks[p // size] * size + p % size for p in range(start, end)]
            self._lengths[name] = end
            lengths.append(end)
            counts.append(len(new))
        logits = self._run(list(tokens), ids, positions, slots, lengths, counts)
        return dict(zip(tokens, logits.split(counts), strict=True))

    def _run(
        self,
        names: list[str],
        ids: list[int],
        positions: list[int],
        slots: list[int],
        lengths: list[int],
        counts: list[int],
    ) -> torch.Tensor:
        width = max(len(self._blocks[name]) for name in names)
        table = [self._blocks[name] + [0] * (width - len(self._blocks[name])) for name in names]
        starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
        states = None
        if self._has_states:
            # Each step leaves its states in other slots than those it began with.
            ends = [start - 1 for start in starts[1:]]
            written = [self._free.pop() for _ in names]
            state_out = [-1] * len(ids)
            for end, slot in zip(ends, written, strict=True):
                state_out[end] = slot
            state_in = [self._states.get(name, -1) for name in names]
            self._free += [slot for slot in state_in if slot >= 0]
            self._states.update(zip(names, written, strict=True))
            states = StateIndices(*(torch.tensor(x).int() for x in (state_in, state_out)))
        metadata = AttentionMetadata(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_tables=(torch.tensor(table, dtype=torch.int32),) * self._num_groups,
            slot_mappings=(torch.tensor(slots, dtype=torch.int64),) * self._num_groups,
            num_tokens=len(ids),
            num_requests=len(names),
            max_query_len=max(counts),
            max_seq_len=max(lengths),
            states=states,
        )
        with attention_metadata(metadata):
            hidden = self._forward(torch.tensor(ids), torch.tensor(positions))
        # Their memory is the next step's too.
        return self._model.compute_logits(hidden).clone()
