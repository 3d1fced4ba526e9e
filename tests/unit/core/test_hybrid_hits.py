"""Windows cost no prefix hits: conversations find what full attention alone would let them find."""

from __future__ import annotations

import random

import pytest

from tests.builders import core_config, request
from vllm_lite.core.kv_manager import KVCacheManager
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.kv_spec import KVCacheSpec, LayerCacheSpec

SIZE, CONTEXT, WINDOW, STEP = 16, 8192, 512, 2048
# Of Gemma 3's shape: every sixth layer sees all.
HYBRID = KVCacheSpec(
    tuple(LayerCacheSpec(1, 64, "bfloat16", None if i % 6 == 5 else WINDOW) for i in range(24))
)
FULL = KVCacheSpec((LayerCacheSpec(1, 64, "bfloat16"),) * 24)


def hits_of(spec: KVCacheSpec, num_bytes: int, conversations: int) -> int:
    """Prompt tokens found in a cache of `num_bytes`, over the turns of some conversations."""
    config = core_config(
        max_model_len=CONTEXT, max_num_batched_tokens=STEP, max_num_seqs=64, block_size=SIZE
    )
    plan = plan_kv_cache(config, spec, num_bytes)
    manager = KVCacheManager(plan, max_step_tokens=STEP)
    choose = random.Random(1)
    system = [7] * 300
    texts = [[*system, 1000 + i] for i in range(conversations)]
    found = 0
    for _ in range(8):
        for index in choose.sample(range(conversations), conversations):
            text = texts[index]
            text += [choose.randrange(100, 900) for _ in range(choose.randint(20, 300))]
            one = request(list(text), max_tokens=None)
            hits = manager.get_computed_blocks(one)
            found += hits.num_tokens
            chunk = min(STEP, one.num_tokens - hits.num_tokens)
            assert manager.try_admit(one, hits, chunk)
            one.num_computed_tokens = hits.num_tokens
            for _token in range(choose.randint(20, 200)):
                while one.num_computed_tokens < one.num_tokens:
                    count = min(STEP, one.num_tokens - one.num_computed_tokens)
                    assert manager.try_allocate_slots(one, count) is not None
                    one.num_computed_tokens += count
                    manager.publish_computed(one)
                one.append_token(choose.randrange(100, 900))
            texts[index] = list(one.token_ids)
            manager.free(one)
    return found


@pytest.mark.parametrize("conversations", [4, 12, 40])
def test_hybrid_finds_the_hits_of_full_attention(conversations: int) -> None:
    # Room for some twelve conversations of full layers.
    num_bytes = 12 * 2500 * FULL.bytes_per_token
    full = hits_of(FULL, num_bytes, conversations)
    hybrid = hits_of(HYBRID, num_bytes, conversations)
    assert full and hybrid >= 0.95 * full
