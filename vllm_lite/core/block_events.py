"""Events of the prefix cache for listeners outside: blocks stored, removed, all cleared.

In the form of vLLM's KV events, which cache-aware routers read: a block has the hash of its content
and of all before it. Told are the blocks of the first group, without which nothing is hit.
"""

from __future__ import annotations

import msgspec

_HASH_BYTES = 32
# The memory that the engine computes from, by vLLM's name for it on every device.
MEDIUM = "GPU"


class BlockStored(msgspec.Struct, tag=True, array_like=True, omit_defaults=True):
    """Consecutive full blocks can be hit from now on."""

    block_hashes: list[int]
    # None: they begin a prompt.
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    # Adapters are not served.
    lora_id: int | None
    medium: str | None


class BlockRemoved(msgspec.Struct, tag=True, array_like=True, omit_defaults=True):
    """Blocks can be hit no longer."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, array_like=True, omit_defaults=True):
    """No block can be hit any more."""


BlockEvent = BlockStored | BlockRemoved | AllBlocksCleared


class BlockEvents:
    """Collects the events between two calls of `take`, in order."""

    def __init__(self) -> None:
        self._events: list[BlockEvent] = []

    def stored(
        self, chain: list[bytes], start: int, stop: int, token_ids: list[int], block_size: int
    ) -> None:
        """Blocks `start` to `stop` - 1 of a request with these hashes and tokens."""
        self._events.append(
            BlockStored(
                [_number(content) for content in chain[start:stop]],
                _number(chain[start - 1]) if start else None,
                token_ids[start * block_size : stop * block_size],
                block_size,
                None,
                MEDIUM,
            )
        )

    def removed(self, key: bytes) -> None:
        """The block under `key` in the prefix map; those of further groups are passed over."""
        if len(key) == _HASH_BYTES:
            self._events.append(BlockRemoved([_number(key)], MEDIUM))

    def cleared(self) -> None:
        self._events.append(AllBlocksCleared())

    def take(self) -> list[BlockEvent]:
        events, self._events = self._events, []
        return events


def _number(content_hash: bytes) -> int:
    """A hash of 64 bits, as vLLM publishes it."""
    return int.from_bytes(content_hash[-8:], "big")
