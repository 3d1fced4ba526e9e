"""Bytes become blocks; too few are an error whose numbers work."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TINY_SPEC, alike_layers, core_config
from vllm_lite.core.kv_group import cache_groups
from vllm_lite.core.kv_plan import blocks_per_request, describe_plan, page_bytes, plan_kv_cache
from vllm_lite.core.kv_spec import KVCacheSpec, LayerCacheSpec
from vllm_lite.errors import UsageError

BLOCK_BYTES = 8 * TINY_SPEC.bytes_per_token


def test_a_token_takes_keys_and_values_of_all_layers() -> None:
    assert alike_layers(30, 3, 64, "bfloat16").bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert alike_layers(30, 3, 64, "float8_e5m2").bytes_per_token == 2 * 30 * 3 * 64
    scaled = alike_layers(30, 3, 64, "int8", has_row_scales=True)
    assert scaled.bytes_per_token == 2 * 30 * 3 * (64 + 4)


def test_cache_is_no_larger_than_all_requests_need() -> None:
    config = core_config(max_model_len=64, max_num_seqs=4)
    assert plan_kv_cache(config, TINY_SPEC, 20 * BLOCK_BYTES + 1).num_blocks == 20
    plan = plan_kv_cache(config, TINY_SPEC, 1 << 40)
    assert plan.num_blocks == 4 * 8 + 1
    assert plan.total_bytes == plan.num_blocks * BLOCK_BYTES
    assert (plan.num_blocks - 1) * plan.block_size == 4 * 64


def test_the_users_numbers_go_before_the_machines() -> None:
    given = {"max_model_len": 64, "kv_cache_memory_bytes": 12 * BLOCK_BYTES}
    assert plan_kv_cache(core_config(**given), TINY_SPEC, 0).num_blocks == 12
    config = core_config(**given, num_gpu_blocks_override=1000)
    assert plan_kv_cache(config, TINY_SPEC, 0).num_blocks == 1000


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"num_gpu_blocks_override": 5}, "num_gpu_blocks_override"),
        ({"kv_cache_memory_bytes": 5 * BLOCK_BYTES}, "kv_cache_memory_bytes"),
    ],
)
def test_too_little_names_both_ways_out_and_both_work(options: dict[str, int], flag: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_kv_cache(core_config(max_model_len=64, **options), TINY_SPEC, 0)
    text = str(caught.value)
    assert "\n" not in text and "--" + flag.replace("_", "-") in text
    (length,) = re.findall(r"--max-model-len to (\d+)", text)
    (more,) = re.findall(r"set it to (\d+)", text)
    plan_kv_cache(core_config(max_model_len=int(length), **options), TINY_SPEC, 0)
    plan_kv_cache(core_config(max_model_len=64, **{flag: int(more)}), TINY_SPEC, 0)
    with pytest.raises(UsageError):
        plan_kv_cache(core_config(max_model_len=int(length) + 1, **options), TINY_SPEC, 0)


def test_too_little_free_memory_names_the_share() -> None:
    with pytest.raises(UsageError, match=r"--max-model-len to 32 .*--gpu-memory-utilization"):
        plan_kv_cache(core_config(max_model_len=64), TINY_SPEC, 5 * BLOCK_BYTES)
    with pytest.raises(UsageError, match="--gpu-memory-utilization") as caught:
        plan_kv_cache(core_config(max_model_len=64), TINY_SPEC, -1)
    assert "--max-model-len" not in str(caught.value)


def test_a_window_needs_room_for_itself_and_one_step() -> None:
    spec = alike_layers(1, 1, 8, "float32", sliding_window=17)
    options = {"max_model_len": 1024, "max_num_seqs": 2, "max_num_batched_tokens": 16}
    plan = plan_kv_cache(core_config(**options), spec, 1 << 40)
    assert plan.num_blocks == 2 * 5 + 1


def test_the_plan_describes_itself_in_one_line() -> None:
    config = core_config(max_model_len=64, num_gpu_blocks_override=13)
    text = describe_plan(config, plan_kv_cache(config, TINY_SPEC, 0))
    assert text == (
        "KV cache: 0.00 GiB of float32, 96 tokens, 1.50x concurrency at 64 tokens per request"
    )


def gemma(num_layers: int, window: int) -> KVCacheSpec:
    """Five windows, then a layer that attends to everything."""
    windows = (None if i % 6 == 5 else window for i in range(num_layers))
    return KVCacheSpec(tuple(LayerCacheSpec(4, 256, "bfloat16", window) for window in windows))


@pytest.mark.parametrize(
    ("num_layers", "sizes"),
    [(26, [4, 4, 4, 4, 4, 4, 2]), (34, [5, 5, 5, 5, 5, 5, 4]), (18, [3] * 6)],
)
def test_layers_of_several_rules_share_pages_of_one_size(num_layers: int, sizes: list[int]) -> None:
    groups = cache_groups(gemma(num_layers, 1024))
    assert sorted((len(group.layers) for group in groups), reverse=True) == sizes
    assert groups[0].sliding_window is None
    assert sorted(i for group in groups for i in group.layers) == list(range(num_layers))


@given(st.lists(st.tuples(st.sampled_from([None, 64, 512]), st.integers(1, 8)), min_size=1))
def test_groups_hold_every_layer_once_and_idle_little(layers: list[tuple[int | None, int]]) -> None:
    spec = KVCacheSpec(tuple(LayerCacheSpec(heads, 8, "float32", w) for w, heads in layers))
    groups = cache_groups(spec)
    assert sorted(i for group in groups for i in group.layers) == list(range(len(layers)))
    for group in groups:
        assert {spec.layers[i].sliding_window for i in group.layers} == {group.sliding_window}
    assert (len(groups) == 1) == (len({w for w, _ in layers}) == 1)


def test_windows_give_memory_back() -> None:
    """At 32k tokens and steps of 2,048, a quarter at most of what full layers alone would take."""
    config = core_config(max_model_len=32768, max_num_batched_tokens=2048, block_size=16)

    def least_bytes(spec: KVCacheSpec) -> int:
        return blocks_per_request(config, spec) * page_bytes(cache_groups(spec), 16)

    windows = gemma(34, 1024)
    full = KVCacheSpec(tuple(replace(layer, sliding_window=None) for layer in windows.layers))
    assert least_bytes(windows) <= 0.25 * least_bytes(full)


def test_the_log_names_each_rule_and_what_it_takes_of_a_request() -> None:
    config = core_config(max_model_len=64, max_num_batched_tokens=16)
    plan = plan_kv_cache(config, gemma(26, 8), 1 << 40)
    line = describe_plan(config, plan)
    # 8 and 4 blocks of 8 tokens, each of 4 layers; of windows, in every group.
    page = 8 * 4 * (2 * 4 * 256 * 2)
    full, windows = (blocks * page / 2**20 for blocks in (8, 6 * 4))
    assert f"4 full layers ({full:.2f} MiB a request), " in line
    assert f"22 layers of window 8 in 6 groups ({windows:.2f} MiB a request), " in line
    assert full + windows == blocks_per_request(config, plan.spec) * plan.page_bytes / 2**20
