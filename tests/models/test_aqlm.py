"""AQLM's checkpoints compute what their books say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.quantized_checkpoints import Quantise, Stored, write_pair
from tests.models.runner import load
from tests.models.test_quantized_checkpoints import SIZES, logits
from vllm_lite.errors import CheckpointError

AQLM: dict[str, Any] = {
    "quant_method": "aqlm",
    "in_group_size": 8,
    "out_group_size": 1,
    "linear_weights_not_to_quantize": ["model.embed_tokens.weight", "lm_head.weight"],
}
FORMS = {
    "1x16": AQLM | {"num_codebooks": 1, "nbits_per_codebook": 16},
    "2x8": AQLM | {"num_codebooks": 2, "nbits_per_codebook": 8},
}


def written(num_books: int) -> Quantise:
    """Random codes and books, as AQLM's layers store them: indices have signs."""
    bits = 16 // num_books

    def quantise(name: str, weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
        outputs, inputs = weight.shape
        codes = torch.randint(2**bits, (outputs, inputs // 8, num_books))
        books = (torch.randn(num_books, 2**bits, 1, 8) / inputs**0.5).half()
        scales = torch.rand(outputs, 1, 1, 1).add(0.5).half()
        vectors = sum(books[b, codes[..., b], 0].float() for b in range(num_books))
        worth = vectors.reshape(outputs, inputs) * scales.view(-1, 1).float()
        narrow = codes.to(torch.int16 if bits > 8 else torch.int8)
        return {"codes": narrow, "codebooks": books, "scales": scales}, worth

    return quantise


@pytest.mark.parametrize("name", FORMS)
@torch.inference_mode()
def test_aqlm_computes_what_its_books_say(name: str, tmp_path: Path) -> None:
    num_books = FORMS[name]["num_codebooks"]
    stored, plain = write_pair(tmp_path, FORMS[name], written(num_books), **SIZES)
    want = logits(load(plain))
    for quantization in (None, "aqlm", "dequantize"):
        torch.testing.assert_close(
            logits(load(stored, quantization=quantization)), want, atol=1e-4, rtol=0
        )


@pytest.mark.parametrize(
    "changes", [{"in_group_size": 16}, {"out_group_size": 2}, {"nbits_per_codebook": 12}]
)
def test_other_books_are_refused(changes: dict[str, int], tmp_path: Path) -> None:
    stored, _ = write_pair(tmp_path, FORMS["2x8"] | changes, written(2), **SIZES)
    with pytest.raises(CheckpointError, match=next(iter(changes))):
        logits(load(stored))
