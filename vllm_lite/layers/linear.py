"""Linear layers, split over the ranks of a tensor-parallel group.

Column-parallel layers split their outputs, row-parallel ones their inputs. A LinearMethod stores
and multiplies weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard, head_shards, tp_group
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.quantization.method import LinearKernel, LinearMethod, StoredTensor


def _unready(x: Tensor) -> Tensor:
    raise RuntimeError("the layer's weights are not loaded yet")


def slot_of(
    stored: StoredTensor, output: Shard, *, inputs: Shard | None = None, offset: int = 0
) -> WeightSlot:
    """The slot of the outputs `output`, `offset` outputs behind the beginning of `stored`.

    Without `inputs` every rank has all of them. Raises CheckpointError where packed ones are cut.
    """
    part = stored.data
    full_shape = list(part.shape)
    starts = [0] * part.dim()
    if stored.output_dim is not None:
        per_item = stored.outputs_per_item
        if offset % per_item:
            raise CheckpointError(f"a fused layer has parts of no whole {per_item} outputs")
        items = output.in_items(per_item)
        part = part.narrow(stored.output_dim, offset // per_item, items.size)
        full_shape[stored.output_dim] = items.full_size
        starts[stored.output_dim] = items.start
    if inputs is not None and stored.input_dim is not None:
        items = inputs.in_items(stored.inputs_per_item)
        full_shape[stored.input_dim] = items.full_size
        starts[stored.input_dim] = items.start
    if stored.is_one_number:
        return WeightSlot(part, (1,), (0,), output_dim=None)
    keep = None if stored.rows is None else partial(stored.rows.__setitem__, offset)
    return WeightSlot(
        part,
        tuple(full_shape),
        tuple(starts),
        keep,
        stored.output_dim,
        stored.outputs_per_item,
        stored.unpacking,
        stored.is_optional,
        stored.packing,
        offset,
    )


class ParallelLinear(nn.Module):
    """This rank's part of y = x W^T + b, with one or more shards of outputs side by side."""

    kernel: LinearKernel

    def __init__(
        self,
        method: LinearMethod,
        inputs: Shard,
        outputs: Mapping[str, Shard],
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.kernel = _unready
        self._method = method
        self._inputs = inputs
        self._outputs = dict(outputs)
        output_size = sum(shard.size for shard in outputs.values())
        # Of the outputs; by default the activations' type.
        self._out_dtype: torch.dtype | None = None
        self._weights = method.create_weights(inputs.size, output_size)
        # Of other parts than the first, by suffix: what all parts have to share.
        self._of_parts: dict[tuple[str, str], Tensor] = {}
        self._bias = method.create_bias(output_size) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[T, input_size] -> [T, output_size], both of this rank."""
        return self.kernel(x)

    def weight_slots(self) -> Iterator[NamedSlot]:
        stored = dict(self._weights)
        if self._bias is not None:
            stored["bias"] = StoredTensor(self._bias, output_dim=0, input_dim=None)
        offset = 0
        for name, output in self._outputs.items():
            for suffix, tensor in stored.items():
                if offset and tensor.output_dim is None:
                    if (name, suffix) not in self._of_parts:
                        self._of_parts[name, suffix] = tensor.data.clone()
                    tensor = replace(tensor, data=self._of_parts[name, suffix])
                slot = slot_of(tensor, output, inputs=self._inputs, offset=offset)
                yield NamedSlot(name, suffix, slot)
            offset += output.size

    def process_weights_after_loading(self) -> None:
        for (_, suffix), data in self._of_parts.items():
            if not torch.equal(data, self._weights[suffix].data):
                raise CheckpointError(
                    f"parts of a fused layer have unlike {suffix}, but the same inputs; use the "
                    "unquantised checkpoint or a GGUF file"
                )
        self._of_parts.clear()
        # The kernel alone keeps what it needs.
        weights, self._weights = self._weights, {}
        self.kernel = self._method.process_weights_after_loading(
            weights, self._bias, self._out_dtype
        )


class ColumnParallelLinear(ParallelLinear):
    """A linear layer of which each rank computes an equal part of the outputs."""

    def __init__(
        self, method: LinearMethod, input_size: int, output_size: int, *, bias: bool = False
    ) -> None:
        outputs = {"": Shard.even(output_size, "features")}
        super().__init__(method, Shard.whole(input_size), outputs, bias=bias)


class MergedColumnParallelLinear(ParallelLinear):
    """Several column-parallel layers of one input in one GEMM; shards are "0", "1", ..."""

    def __init__(
        self,
        method: LinearMethod,
        input_size: int,
        output_sizes: Sequence[int],
        *,
        bias: bool = False,
    ) -> None:
        outputs = {str(i): Shard.even(n, "features") for i, n in enumerate(output_sizes)}
        super().__init__(method, Shard.whole(input_size), outputs, bias=bias)


class QKVParallelLinear(ParallelLinear):
    """Queries, keys and values in one GEMM, split by heads; shards are "q", "k", "v"."""

    def __init__(
        self,
        method: LinearMethod,
        hidden_size: int,
        head_sizes: tuple[int, int],
        num_heads: int,
        num_kv_heads: int,
        *,
        bias: bool = False,
        has_gate: bool = False,
    ) -> None:
        """Sizes are keys' and values'; `has_gate` adds a gate "g", a value for each head."""
        heads, kv_heads = head_shards(num_heads, num_kv_heads)
        size, value_size = head_sizes
        outputs = {"q": heads.scaled(size), "k": kv_heads.scaled(size)}
        outputs["v"] = kv_heads.scaled(value_size)
        if has_gate:
            outputs["g"] = heads.scaled(value_size)
        super().__init__(method, Shard.whole(hidden_size), outputs, bias=bias)
        self._counts = [heads.size, kv_heads.size, kv_heads.size]
        self._sizes = [size, size, value_size]
        self._shape = (-1, sum(self._counts), size)
        if value_size != size:
            self.heads = self._uneven_heads  # type: ignore[method-assign]

    def heads(self, projected: Tensor) -> Sequence[Tensor]:
        """This rank's queries, keys and values, [T, heads, D] each, of what `kernel` returned."""
        return projected.view(self._shape).split_with_sizes(self._counts, 1)

    def all_heads(self, projected: Tensor) -> Tensor:
        """The same as one tensor [T, heads, D], if values are as wide as keys."""
        return projected.view(self._shape)

    def _uneven_heads(self, projected: Tensor) -> Sequence[Tensor]:
        shapes = list(zip(self._counts, self._sizes, strict=True))
        parts = projected.split_with_sizes([count * size for count, size in shapes], 1)
        return [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


class RowParallelLinear(ParallelLinear):
    """A linear layer of which each rank multiplies a part of the inputs; the ranks sum."""

    def __init__(
        self, method: LinearMethod, input_size: int, output_size: int, *, bias: bool = False
    ) -> None:
        outputs = {"": Shard.whole(output_size)}
        super().__init__(method, Shard.even(input_size, "features"), outputs, bias=bias)
        self._group = tp_group()

    def process_weights_after_loading(self) -> None:
        group = self._group
        if group.rank > 0 and self._bias is not None:
            self._bias.zero_()  # the sum over ranks must contain it once
        if group.size == 1:
            return super().process_weights_after_loading()
        self._out_dtype = torch.float32  # rounded once, after the sum over ranks
        super().process_weights_after_loading()
        part = self.kernel
        self.kernel = lambda x: group.all_reduce(part(x), x.dtype)
