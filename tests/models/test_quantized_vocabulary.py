"""Embeddings and heads that a checkpoint quantises are kept and multiplied as they are stored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import integer_layouts as layouts
from tests.models.quantized_checkpoints import Quantise, awq, gptq, scaled, write_pair
from tests.models.runner import PagedRunner, load
from tests.models.stored_codes import (
    E4M3,
    Round,
    compressed,
    mx,
    nvfp4,
    round_tokens,
    sparse,
    words,
)
from tests.models.test_aqlm import FORMS as AQLM
from tests.models.test_aqlm import written
from tests.models.test_gguf import IDS
from tests.models.test_integer_checkpoints import hqq, torchao
from tests.models.test_quantized_checkpoints import AWQ, GPTQ, SQUARE
from tests.models.test_stored_codes import (
    AS_MXFP4,
    AS_NVFP4,
    FLOAT4,
    FLOAT8,
    GROUPS,
    INT,
    INT_TOKENS,
    MX4,
)
from tests.models.test_tensor_parallel import Meeting, ThreadRank
from vllm_lite.distributed.groups import tensor_parallel
from vllm_lite.quantization.grouped import GroupedKernel, GroupedTable

ROWS = 136


def vocabulary(weights: dict[str, Any], inputs: Any = None, **settings: Any) -> dict[str, Any]:
    """compressed-tensors' settings whose targets are embeddings and the head."""
    whole = compressed(weights, inputs, **settings)
    whole["config_groups"]["group_0"]["targets"] = ["re:.*lm_head"]
    whole["config_groups"]["group_1"] = {"targets": ["Embedding"], "weights": weights}
    return whole | {"ignore": []}


# Settings, what is stored, how the head's inputs are rounded.
CASES: dict[str, tuple[dict[str, Any], Quantise, Round | None]] = {
    "W4A16": (vocabulary(GROUPS), words(4, 32, True), None),
    "W4A16 asymmetric": (vocabulary(GROUPS | {"symmetric": False}), words(4, 32, False), None),
    "W8A16 float": (vocabulary(FLOAT8), scaled(E4M3, "channel", False), None),
    "W8A16 float tensor": (
        vocabulary(FLOAT8 | {"strategy": "tensor"}),
        scaled(E4M3, "tensor", False),
        None,
    ),
    "W8A8 int": (
        vocabulary(INT, INT_TOKENS, format="int-quantized"),
        scaled(torch.int8, "channel", False),
        round_tokens(127.0),
    ),
    "NVFP4A16": (vocabulary(FLOAT4, **AS_NVFP4), nvfp4(True, False), None),
    "MXFP4A16": (vocabulary(MX4, **AS_MXFP4), mx("fp4", "weight_packed"), None),
    "awq": (AWQ | {"lm_head": True}, awq(32), None),
    "gptq": (GPTQ | {"lm_head": True}, gptq(32, 4, True, True), None),
    "hqq": (hqq(4, 32) | {"skip_modules": []}, layouts.hqq(32, 4), None),
    "torchao int8": (
        torchao("Int8WeightOnlyConfig") | {"include_input_output_embeddings": True},
        layouts.torchao_int8,
        None,
    ),
    "2:4 float": (
        vocabulary(FLOAT8, sparsity_config={"format": "sparse-24-bitmask"}),
        sparse(scaled(E4M3, "channel", False)),
        None,
    ),
    **{
        f"aqlm {name}": (
            AQLM[name] | {"linear_weights_not_to_quantize": []},
            written(AQLM[name]["num_codebooks"]),
            None,
        )
        for name in AQLM
    },
}


def _pair(name: str, directory: Path, is_tied: bool) -> tuple[Path, Path]:
    settings, quantise, _ = CASES[name]

    def only_vocabulary(path: str, weight: torch.Tensor) -> Any:
        if "embed_tokens" in path or "lm_head" in path:
            return quantise(path, weight)
        return {"weight": weight}, weight

    return write_pair(
        directory,
        settings,
        only_vocabulary,
        heads=True,
        embeddings=True,
        vocab_size=ROWS,
        tie_word_embeddings=is_tied,
        **SQUARE,
    )


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_rows_are_decoded_and_multiplied_as_stored(
    name: str, is_tied: bool, tmp_path: Path
) -> None:
    packed, plain = _pair(name, tmp_path, is_tied)
    exact, model = load(plain), load(packed)
    rounded = None if is_tied else CASES[name][2]
    assert isinstance(model.model.embed_tokens.table, GroupedTable)
    assert isinstance(model.lm_head.kernel, GroupedKernel)
    ids = torch.tensor(IDS)
    assert torch.equal(model.model.embed_tokens(ids), exact.model.embed_tokens(ids))
    x = torch.randn(9, SQUARE["hidden_size"])
    want = exact.lm_head.kernel(x if rounded is None else rounded(x))
    torch.testing.assert_close(model.compute_logits(x), want, rtol=1e-4, atol=1e-4)
    tokens, largest = model.greedy_tokens(x)
    assert torch.equal(tokens, want.argmax(1))
    torch.testing.assert_close(largest, want.amax(1), rtol=1e-4, atol=1e-4)
    if rounded is None:
        have, want = (PagedRunner(each).step({"a": IDS})["a"] for each in (model, exact))
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    "name", ["W4A16 asymmetric", "W8A16 float tensor", "awq", "gptq", "hqq", "aqlm 2x8"]
)
def test_ranks_share_quantised_rows(name: str, is_tied: bool, tmp_path: Path) -> None:
    packed, plain = _pair(name, tmp_path, is_tied)
    want = PagedRunner(load(plain)).step({"a": IDS})["a"]
    meeting, models = Meeting(2), []
    for rank in range(2):
        with tensor_parallel(ThreadRank(rank, 2, meeting)):
            models.append(load(packed))
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(lambda m: PagedRunner(m).step({"a": IDS})["a"], models):
            torch.testing.assert_close(result, want, atol=1e-4, rtol=1e-4)
