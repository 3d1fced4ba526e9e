"""The floor of each row of the table: what this machine's memory and arithmetic allow at best.

A step is held against its bytes and operations (kernels/roofline.py), and so is a whole batch. What
batching needs beside (steps that are not full, waiting, HTTP) is no part of a floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.limits import Limits
from kernels.roofline import Decoder, Load, decode, generate, prefill

from peers.shapes import SHAPES
from peers.workloads import (
    CHAT_OUTPUT,
    CHATS,
    LARGE_CONFIG,
    LONG_PROMPT,
    NUM_OFFLINE,
    OUTPUT,
    PROMPT,
    Q4_1,
    SYSTEM_PROMPT,
    Row,
    large_steps,
    small_steps,
)

# Tokens of a decode measurement's shorter run, as children/generate.py has it.
SHORT_OUTPUT = 8


def decoder(config: Mapping[str, Any]) -> Decoder:
    """A Llama in bfloat16, and a cache of the same."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = hidden // heads
    attention = hidden * (2 * heads + 2 * kv_heads) * size
    return Decoder(
        layers=layers * (attention + 3 * hidden * config["intermediate_size"]),
        head=hidden * config["vocab_size"],
        cache_bytes=2 * 2 * layers * kv_heads * size,
        pair_operations=2 * 2 * layers * heads * size,
    )


# The demo model's shape, and that of h.
_DEMO, _LARGE = decoder(SHAPES["dense"]), decoder(LARGE_CONFIG)


@dataclass(frozen=True, slots=True)
class Floor:
    """The least work of a row."""

    decoder: Decoder
    load: Load
    # That a rate counts.
    tokens: int = 1


def _floors() -> dict[str, Floor]:
    found = {
        "prefill.tokens_per_s": Floor(_DEMO, prefill(LONG_PROMPT), LONG_PROMPT),
        "chat-1.ttft_ms": Floor(_DEMO, prefill(PROMPT)),
        "prefix.first_ms": Floor(_DEMO, prefill(SYSTEM_PROMPT)),
    }
    for n in CHATS:
        load = generate(n, PROMPT, CHAT_OUTPUT)
        found[f"chat-{n}.tokens_per_s"] = Floor(_DEMO, load, n * CHAT_OUTPUT)
    for prefix, model, steps in (
        ("", _DEMO, small_steps("c")),
        ("large-", _LARGE, large_steps()),
    ):
        load = generate(NUM_OFFLINE, PROMPT, OUTPUT)
        found[f"{prefix}offline.tokens_per_s"] = Floor(model, load, NUM_OFFLINE * OUTPUT)
        for step in steps:
            if step["kind"] == "decode":
                # The mean of the steps between the shorter run's length and the longer one's.
                context = PROMPT + SHORT_OUTPUT + step["num_steps"] // 2
                load = decode(step["num_seqs"], context)
                found[f"{step['work']}.step_ms"] = Floor(model, load)
    return found


_FLOORS = _floors()


def floor_share(
    row: Row, engine: str, value: float, weight_bytes: int, limits: Limits
) -> float | None:
    """The least time of a row's work as a share of a measured one; None for rows without a floor.

    `weight_bytes` are those of the demo model as `engine` stores it; 0 where they are unknown.
    """
    floor = _FLOORS.get(row.name)
    if floor is None or value <= 0 or limits.read_gb_s <= 0:
        return None
    decoder = floor.decoder
    if decoder is _DEMO:
        if not weight_bytes:
            return None
        each = weight_bytes / (decoder.layers + decoder.head)
        decoder = replace(decoder, bytes_per_weight=each)
    if engine == Q4_1:
        decoder = replace(decoder, arithmetic="int8")
    seconds = decoder.seconds(floor.load, limits)
    return 1000 * seconds / value if row.unit == "ms" else seconds * value / floor.tokens
