"""A block of KV cache and the hash chain that names its content.

Knows no pool and no request. Invariant: two full blocks have one hash iff their tokens, all
tokens before them and the salt are equal (SHA-256; the chain starts from a secret that is
drawn for each process, so that nobody outside can aim at a collision or guess a key).
"""

from __future__ import annotations

import secrets
from array import array
from hashlib import sha256

# The block that nobody owns: padding and out-of-window table entries point to it.
NULL_BLOCK_ID = 0


class Block:
    """One block; `previous` and `next` link it into the free list while nobody holds it."""

    __slots__ = ("block_id", "content_hash", "next", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        # Set while the prefix map points here.
        self.content_hash: bytes | None = None
        self.previous: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return (
            f"Block({self.block_id}, refs={self.ref_count}, cached={self.content_hash is not None})"
        )


class BlockHasher:
    """Extends a request's chain of block hashes."""

    def __init__(self, block_size: int, seed: bytes | None = None) -> None:
        self._block_size = block_size
        self._seed = seed if seed is not None else secrets.token_bytes(32)

    def root(self, cache_salt: str | None) -> bytes:
        """What the first block's hash is chained to; differs for each salt."""
        if cache_salt is None:
            return self._seed
        return sha256(self._seed + b"salt" + cache_salt.encode()).digest()

    def extend(self, chain: list[bytes], token_ids: list[int], cache_salt: str | None) -> None:
        """Append the hashes of those full blocks of `token_ids` that `chain` lacks."""
        size = self._block_size
        start, stop = len(chain), len(token_ids) // size
        if start >= stop:
            return
        parent = chain[-1] if chain else self.root(cache_salt)
        content = array("I", token_ids[start * size : stop * size]).tobytes()
        width = len(content) // (stop - start)
        for offset in range(0, len(content), width):
            parent = sha256(parent + content[offset : offset + width]).digest()
            chain.append(parent)
