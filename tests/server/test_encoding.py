"""Vectors as bytes and bits: torch's casts, in either order of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_lite.errors import RequestError
from vllm_lite.server.pooling.encoding import as_bytes, packed_bits

TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
# Around zero, the smallest and the largest numbers of the types, and halves between numbers.
EDGES = [0.0, -0.0, 2.0**-10, 2.0**-17, 448.0, 464.0, 57344.0, 61440.0, 65520.0, 1.0625, -1.1875]


@pytest.mark.parametrize("name", TYPES)
def test_casts_are_torch_s(name: str) -> None:
    rng = np.random.default_rng(1)
    scales = (1e-7, 1e-3, 1.0, 100.0)
    values = np.concatenate([EDGES, *(rng.standard_normal(2000) * s for s in scales)])
    values = values.astype(np.float32)
    wanted = torch.from_numpy(values).to(TYPES[name])
    size = wanted.element_size()
    raw = wanted.view(torch.uint8).numpy().tobytes()
    assert as_bytes(values, name, "little") == raw
    swapped = np.frombuffer(raw, np.uint8).reshape(-1, size)[:, ::-1].tobytes()
    assert as_bytes(values, name, "big") == swapped


def test_a_bit_says_whether_a_number_is_negative() -> None:
    vector = np.array([1, -1, 0.5, -2, 0, -0.1, 3, 4, -1, -1, -1, -1, -1, -1, -1, 1], np.float32)
    assert packed_bits(vector, signed=False) == [0b10101011, 1]
    assert packed_bits(vector, signed=True) == [0b10101011 - 128, 1 - 128]
    with pytest.raises(RequestError, match="multiple of 8 numbers, not 3"):
        packed_bits(vector[:3], signed=True)
