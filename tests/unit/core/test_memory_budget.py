"""The parts of a GPU's memory budget add up; too little is an error whose advice works."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.builders import TINY_SPEC, core_config
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.memory_budget import (
    DeviceMemory,
    MemoryUse,
    cache_bytes,
    describe_memory,
    granted_bytes,
    graph_bytes,
    measured_use,
)
from vllm_lite.errors import UsageError

MIB = 1 << 20
BLOCK_BYTES = 8 * TINY_SPEC.bytes_per_token
# Somebody else holds 100 MiB, and the driver 24 of ours.
START = DeviceMemory(total=1024 * MIB, free=900 * MIB, reserved=0, peak=0)
USE = MemoryUse(weights=300 * MIB, activations=50 * MIB, graphs=20 * MIB, libraries=4 * MIB)


def refusal(share: float, use: MemoryUse = USE, **options: Any) -> str:
    config = core_config(gpu_memory_utilization=share, **options)
    with pytest.raises(UsageError) as caught:
        cache_bytes(config, TINY_SPEC, use, START)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_memory_use_is_the_difference_of_readings() -> None:
    loaded = replace(START, free=580 * MIB, reserved=300 * MIB, peak=300 * MIB)
    stepped = replace(START, free=520 * MIB, reserved=340 * MIB, peak=350 * MIB)
    use = measured_use(START, loaded, stepped, 20 * MIB)
    # 124 MiB were held elsewhere before, 164 are now.
    assert use == MemoryUse(300 * MIB, 50 * MIB, 20 * MIB, 40 * MIB)


def test_graphs_are_estimated_from_two() -> None:
    assert graph_bytes([900], 0) == 0
    assert graph_bytes([900, 880], 1) == 20
    assert graph_bytes([900, 880, 878], 35) == 20 + 34 * 2
    # Somebody else gave memory back meanwhile.
    assert graph_bytes([900, 950, 940], 3) == 20


def test_cache_gets_the_rest_of_the_memory_share() -> None:
    config = core_config(gpu_memory_utilization=0.5)
    assert granted_bytes(config, START) == 512 * MIB
    assert cache_bytes(config, TINY_SPEC, USE, START) == (512 - 374) * MIB
    given = core_config(kv_cache_memory_bytes=100 * MIB, gpu_memory_utilization=1.0)
    assert granted_bytes(given, START) == START.free
    assert cache_bytes(given, TINY_SPEC, USE, START) == (900 - 374) * MIB


def test_a_share_that_others_hold_is_refused_with_the_largest_that_is_free() -> None:
    with pytest.raises(UsageError, match=r"--gpu-memory-utilization 0\.9 asks") as caught:
        granted_bytes(core_config(gpu_memory_utilization=0.9), START)
    (most,) = re.findall(r"set it to ([\d.]+) or less", str(caught.value))
    assert float(most) == 0.87
    granted_bytes(core_config(gpu_memory_utilization=float(most)), START)
    full = replace(START, free=MIB)
    with pytest.raises(UsageError, match="--device cpu"):
        granted_bytes(core_config(gpu_memory_utilization=0.5), full)


def test_too_little_names_numbers_that_work() -> None:
    # Room for 4 blocks of 8 tokens beside the null block; a request of 128 tokens takes 16.
    use = replace(USE, libraries=512 * MIB - 370 * MIB - 5 * BLOCK_BYTES)
    text = refusal(0.5, use)
    (share,) = re.findall(r"set --gpu-memory-utilization to ([\d.]+)", text)
    (length,) = re.findall(r"set --max-model-len to (\d+)", text)
    better = core_config(gpu_memory_utilization=float(share))
    plan_kv_cache(better, TINY_SPEC, cache_bytes(better, TINY_SPEC, use, START))
    shorter = core_config(gpu_memory_utilization=0.5, max_model_len=int(length))
    assert cache_bytes(shorter, TINY_SPEC, use, START) == 5 * BLOCK_BYTES
    plan = plan_kv_cache(shorter, TINY_SPEC, 5 * BLOCK_BYTES)
    assert (plan.num_blocks - 1) * plan.block_size == int(length) == 32


def test_a_share_that_is_not_free_is_not_offered() -> None:
    # One request would take all that the others leave.
    text = refusal(0.87, replace(USE, weights=START.free))
    assert "set --gpu-memory-utilization" not in text and "set --max-model-len" not in text
    assert "smaller or a quantised model" in text
    steps = refusal(0.5, replace(USE, activations=500 * MIB), max_num_batched_tokens=64)
    assert "set --max-num-batched-tokens to 32" in steps


def test_cache_of_the_users_size_must_fit_free_memory() -> None:
    (most,) = re.findall(r"set it to (\d+) or less", refusal(0.5, kv_cache_memory_bytes=1 << 40))
    config = core_config(kv_cache_memory_bytes=int(most))
    assert cache_bytes(config, TINY_SPEC, USE, START) == int(most) == 526 * MIB
    text = refusal(0.5, num_gpu_blocks_override=1 << 30)
    (blocks,) = re.findall(r"set it to (\d+) or less", text)
    assert cache_bytes(core_config(num_gpu_blocks_override=int(blocks)), TINY_SPEC, USE, START)


def test_the_table_adds_up_to_all_there_is() -> None:
    now = replace(START, free=300 * MIB, reserved=500 * MIB)
    _, *rows = describe_memory(USE, 200 * MIB, now).splitlines()
    *parts, whole = [float(row.split()[-1]) for row in rows]
    assert whole == 1.0 and abs(sum(parts) - whole) < 0.03
    # Beside the largest step 250 MiB stay free.
    assert "free" in rows[-2] and parts[-1] == 0.24
