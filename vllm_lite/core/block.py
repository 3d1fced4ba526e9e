"""A block of KV cache and the hash chain that names its content.

Invariant: two full blocks have one hash iff their tokens, all tokens before them and the extra
keys of both are equal. The SHA-256 chain starts from a random secret of the process, so that
nobody outside can aim at a collision or guess a key.
"""

from __future__ import annotations

import secrets
from array import array
from hashlib import sha256

from vllm_lite.core.request import Request

# Padding and out-of-window table entries point to this block, which no request owns.
NULL_BLOCK_ID = 0


class Block:
    """One block; `previous` and `next` link it into the free list while it is unused."""

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
        """Append the hashes of full blocks of known tokens that the chain lacks."""
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
    """Extra hash keys of the blocks `start` to `stop` - 1 of a request, by index.

    Whatever changes the keys and values of a token, beside the tokens, belongs here: later blocks
    depend on it through the chain.
    """
    if start == 0 and request.cache_salt is not None:
        return {0: b"salt" + request.cache_salt.encode()}
    return {}
