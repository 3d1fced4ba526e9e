"""CacheConfig: size and layout of the KV cache."""

from __future__ import annotations

from typing import Literal

from vllm_lite import envs
from vllm_lite.config.options.option import config, option
from vllm_lite.errors import UsageError

_FLOAT32_STATES = "use auto or float32: rounded states would drift from those of one long step"
_GIB = 1 << 30


def cpu_cache_bytes() -> int | None:
    """VLLM_CPU_KVCACHE_SPACE in bytes; None where it is not set. Raises UsageError."""
    space = envs.VLLM_CPU_KVCACHE_SPACE
    if space is not None and not 0 < space < 2**24:
        raise UsageError(
            f"VLLM_CPU_KVCACHE_SPACE={space:g} is not a positive number of GiB; "
            "set it to one or unset it"
        )
    return None if space is None else int(space * _GIB)


@config
class CacheConfig:
    """The KV cache and the reuse of its blocks."""

    block_size: int = option(
        16, "Tokens in one cache block; 256 with --attention-backend FLASH_ATTN.", ge=8, le=256
    )
    gpu_memory_utilization: float = option(
        0.5,
        "Share of the device's memory to use; on CPU, of the memory that is free.",
        auto="0.9 on a GPU, 0.5 on CPU",
        aliases=("--device-memory-utilization",),
        gt=0,
        le=1,
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        "Bytes of KV cache, such as 2G, in place of a share of memory.",
        ge=1,
        human=True,
    )
    num_gpu_blocks_override: int | None = option(None, "Use exactly this many cache blocks.", ge=1)
    kv_cache_dtype: Literal[
        "auto",
        "float32",
        "float16",
        "bfloat16",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_per_token_head",
        "int8",
        "int8_per_token_head",
        "int4_per_token_head",
        "fp8_ds_mla",
        "fp8_inc",
        "nvfp4",
        "nvfp4_4over6",
        "nvfp4_ds_mla",
        "turboquant_3bit_nc",
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_k8v4",
        "ultraquant_4bit",
    ] = option(
        "auto",
        "Data type of cached keys and values; auto: --dtype. fp8 is fp8_e4m3, with the "
        "checkpoint's scales if it has any; int8 is int8_per_token_head, with a scale for each "
        "token and head.",
        works=(
            "auto",
            "float32",
            "bfloat16",
            "fp8",
            "fp8_e4m3",
            "fp8_e5m2",
            "fp8_per_token_head",
            "int8",
            "int8_per_token_head",
        ),
        remedy="use auto, bfloat16, fp8 or int8",
    )
    enable_prefix_caching: bool = option(
        True, "Reuse cached blocks between requests with a common prefix."
    )
    prefix_caching_hash_algo: Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"] = option(
        "sha256",
        "Hash that identifies a cached block.",
        works=("sha256",),
        remedy="use sha256",
    )
    cpu_offload_gb: float = option(
        0.0,
        "GiB of weights kept in host memory.",
        ge=0,
        works=(0,),
        remedy="leave it at 0: weights stay on the device",
    )
    mamba_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto",
        "Data type of state-space layers' states.",
        works=("auto", "float32"),
        remedy=_FLOAT32_STATES,
    )
    mamba_ssm_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto",
        "Data type of their recurrent part.",
        works=("auto", "float32"),
        remedy=_FLOAT32_STATES,
    )
    mamba_block_size: int | None = option(
        None,
        "Tokens between the states of a prompt that prefix caching keeps, a multiple of "
        "--block-size; default: only the prompt's last full block.",
        ge=1,
    )
