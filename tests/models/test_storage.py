"""The start-up log of a model's weights."""

from __future__ import annotations

import pytest
import torch

from vllm_lite.kernels import dispatch
from vllm_lite.layers.linear import ColumnParallelLinear
from vllm_lite.quantization import storage
from vllm_lite.quantization.storage import StoredWeight, describe_weights, stored_weights
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod


def layer(dtype: torch.dtype) -> ColumnParallelLinear:
    """A product of 64 x 256."""
    made = ColumnParallelLinear(UnquantizedLinearMethod(dtype), 256, 64)
    made.process_weights_after_loading()
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layer_s_weight_is_counted_with_its_format(dtype: torch.dtype) -> None:
    found = stored_weights(torch.nn.Sequential(layer(dtype), torch.nn.Identity(), layer(dtype)))
    assert [weight.num_bytes for weight in found] == [64 * 256 * dtype.itemsize] * 2
    assert all(weight.format.startswith(str(dtype).removeprefix("torch.")) for weight in found)
    assert stored_weights(object()) == []


def test_formats_are_distinguished_and_their_bytes_summed() -> None:
    data = torch.empty(0, dtype=torch.uint8)
    weights = [StoredWeight("Q4_1", 10**9, data), StoredWeight("Q8_0", 2 * 10**9, data)] * 2
    assert describe_weights(weights) == "weights 2.00 GB Q4_1 + 4.00 GB Q8_0"
    assert describe_weights([]) == "weights of unknown size"


def test_the_time_to_read_them_follows_from_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.zeros(3 * dispatch.READ_PIECE, dtype=torch.uint8)
    weights = [StoredWeight("bfloat16", 10**9, data)]
    monkeypatch.setattr(storage, "read_bandwidth", lambda tensors, seconds: 50e9)
    assert describe_weights(weights) == "weights 1.00 GB bfloat16"  # a cache might hold them
    monkeypatch.setattr(storage, "MIN_BYTES_READ", 1)
    assert describe_weights(weights) == "weights 1.00 GB bfloat16, read in 20.0 ms at 50 GB/s"
