"""A block of KV cache and the hash chain that names its content.

Knows no pool. Invariant: two full blocks have one hash iff their tokens, all tokens before them and
the extra keys of both are equal (SHA-256; the chain starts from a secret that is
drawn for each process, so that nobody outside can aim at a collision or guess a key).
"""

from __future__ import annotations

import secrets
from array import array
from hashlib import sha256

from vllm_lite.core.request import Request

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

    def extend(self, request: Request) -> None:
        """Append the hashes of those full blocks of its known tokens that its chain lacks."""
        size, chain, token_ids = self._block_size, request.block_hashes, request.token_ids
        start, stop = len(chain), len(token_ids) // size
        if start >= stop:
            return
        parent = chain[-1] if chain else self._seed
        extra = extra_keys(request, start, stop)
        content = array("I", token_ids[start * size : stop * size]).tobytes()
        width = len(content) // (stop - start)
        for index, offset in enumerate(range(0, len(content), width), start):
            if index in extra:
                parent += extra[index]
            parent = sha256(parent + content[offset : offset + width]).digest()
            chain.append(parent)


def extra_keys(request: Request, start: int, stop: int) -> dict[int, bytes]:
    """What the blocks `start` to `stop` - 1 of a request hold of beside tokens, by their indices.

    Whatever changes the keys and values of a token belongs here: blocks that follow depend on it
    through the chain.
    """
    if start == 0 and request.cache_salt is not None:
        return {0: b"salt" + request.cache_salt.encode()}
    return {}
