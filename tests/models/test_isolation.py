"""A request reads only the blocks that it holds: others' numbers, sound or not, never reach it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.checkpoints import TINY, make_model, save
from vllm_lite import LLM, SamplingParams
from vllm_lite.engine.link.inproc_client import InprocClient
from vllm_lite.layers.attention import Attention

PROMPTS = [list(range(3, 3 + length)) for length in (5, 30, 61)]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("llama", {}),
    "window": ("mistral", {"sliding_window": 9}),
    "wide window": ("mistral", {"sliding_window": 40}),
}


def spoil_unheld_blocks(llm: LLM) -> None:
    """After every step, make what nobody holds NaN, as an unsound request would leave it."""
    client = llm.llm_engine._core
    assert isinstance(client, InprocClient)
    core = client.core
    pool, run = core._scheduler.kv_manager.pool, core.step
    model: torch.nn.Module = core._executor._worker._models.target  # type: ignore[attr-defined]
    layers = [module for module in model.modules() if isinstance(module, Attention)]

    def step() -> Any:
        outputs = run()
        unheld = [block.block_id for block in pool.blocks if not block.ref_count]
        for layer in layers:
            layer._key_cache[unheld] = layer._value_cache[unheld] = torch.nan
        return outputs

    core.step = step  # type: ignore[method-assign]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("chunk", [7, 64])
def test_unused_blocks_are_never_read(tmp_path: Path, name: str, chunk: int) -> None:
    family, changes = CASES[name]
    path = save(make_model(family, **changes), tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    found = []
    for is_spoiled in (False, True):
        with LLM(
            str(path),
            dtype="float32",
            max_model_len=TINY["max_position_embeddings"],
            block_size=8,
            num_gpu_blocks_override=60,
            max_num_batched_tokens=chunk,
            max_num_seqs=4,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            disable_frontend_multiprocessing=True,
        ) as llm:
            if is_spoiled:
                spoil_unheld_blocks(llm)
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        found.append([(o.outputs[0].finish_reason, o.outputs[0].token_ids) for o in outputs])
    assert found[0] == found[1]
    assert all(reason == "length" for reason, _ in found[0])
