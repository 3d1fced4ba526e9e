"""CacheConfig: how much memory the KV cache takes and how it is divided."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.option import config, option

_FLOAT32_STATES = "use auto or float32: rounded states would drift from those of one long step"
_NO_REPLAY = "leave it out: states are kept, not the inputs that led to them"


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
        "Bytes of KV cache, in place of a share of memory. 2G and the like are understood.",
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
        "Numbers that keys and values are stored in; auto: those of --dtype. fp8 is fp8_e4m3, "
        "without scales; int8 is int8_per_token_head, with a scale for each token and head.",
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
        True, "Reuse cached blocks between requests that begin alike."
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
        remedy="leave it at 0: weights are where they are computed",
    )
    calculate_kv_scales: bool = option(
        False,
        "Derive the scales of an fp8 cache while running.",
        level="absent",
        remedy="leave it out, and use --kv-cache-dtype fp8_per_token_head or int8 for scales that "
        "do not depend on which prompt came first",
    )
    kv_offloading_size: float | None = option(
        None,
        "GiB of host memory as a second tier of the cache.",
        ge=0,
        works=(0,),
        level="absent",
        remedy="leave it out: the cache has one tier",
    )
    kv_offloading_backend: Literal["native", "lmcache"] = option(
        "native",
        "What keeps the second tier.",
        level="absent",
        remedy="leave it out: the cache has one tier",
    )
    kv_sharing_fast_prefill: bool = option(
        False,
        "Skip the prefill of layers that share a cache.",
        level="absent",
        remedy="leave it out: every layer has a cache of its own",
    )
    mamba_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto",
        "Numbers of state-space layers' states.",
        works=("auto", "float32"),
        remedy=_FLOAT32_STATES,
    )
    mamba_ssm_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto",
        "Numbers of their recurrent part.",
        works=("auto", "float32"),
        remedy=_FLOAT32_STATES,
    )
    mamba_block_size: int | None = option(
        None,
        "Tokens between two states of a prompt that prefix caching keeps, a multiple of "
        "--block-size; default: the prompt's last full block alone.",
        ge=1,
    )
    mamba_cache_mode: Literal["align", "none"] = option(
        "none",
        "Which states are kept for later requests.",
        level="idle",
        why="prefix caching keeps states where blocks end, and nothing else does",
    )
    enable_mamba_shared_prefix_checkpoint: bool = option(
        False,
        "Keep the state where prompts part, too.",
        level="absent",
        remedy="use --mamba-block-size: states are kept every so many tokens",
    )
    use_replayssm: bool = option(
        False, "Keep inputs in place of states.", level="absent", remedy=_NO_REPLAY
    )
    replayssm_buffer_len: int = option(
        16, "How many inputs.", ge=1, level="absent", remedy=_NO_REPLAY
    )
    kv_cache_dtype_skip_layers: list[str] = option(
        [],
        "Layers whose cache keeps the numbers of --dtype.",
        level="absent",
        remedy="leave it out: the cache of all layers is of one kind",
    )
    prefix_match_unit: int | None = option(
        None,
        "Tokens after which a cached prefix may end.",
        ge=1,
        level="absent",
        remedy="use --block-size: a cached prefix ends where a block does",
    )
    prefix_cache_retention_interval: int | None = option(
        None,
        "Tokens between two places at which a cached prefix of sliding windows may end.",
        ge=0,
        works=(0,),
        level="absent",
        remedy="leave it out: every full block is kept until its memory is wanted",
    )
    swa_bounded_replay: bool = option(
        True,
        "Compute a hit's last window again instead of keeping it.",
        level="idle",
        why="windows are cached as they are",
    )
