"""A block's hash stands for its tokens, all tokens before it and the salt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import request
from vllm_lite.core.block import BlockHasher

TOKENS = st.lists(st.integers(0, 3), max_size=24)
SALT = st.sampled_from([None, "", "a", "b"])


def hashes(hasher: BlockHasher, tokens: list[int], salt: str | None) -> list[bytes]:
    salted = request(tokens, cache_salt=salt)
    hasher.extend(salted)
    return salted.block_hashes


@given(TOKENS, TOKENS, SALT, SALT)
def test_hashes_are_equal_iff_the_prefix_and_the_salt_are(
    first: list[int], second: list[int], salt: str | None, other_salt: str | None
) -> None:
    hasher = BlockHasher(4)
    one, two = hashes(hasher, first, salt), hashes(hasher, second, other_salt)
    assert len(one) == len(first) // 4
    for i, (left, right) in enumerate(zip(one, two, strict=False)):
        end = 4 * (i + 1)
        assert (left == right) == (first[:end] == second[:end] and salt == other_salt)
    assert len(set(one)) == len(one)


@given(TOKENS, st.integers(0, 24), SALT)
def test_a_chain_may_be_extended_piece_by_piece(
    tokens: list[int], cut: int, salt: str | None
) -> None:
    hasher = BlockHasher(4)
    grown = request(tokens[:cut], cache_salt=salt)
    hasher.extend(grown)
    for token_id in tokens[cut:]:
        grown.append_token(token_id)
    hasher.extend(grown)
    assert grown.block_hashes == hashes(hasher, tokens, salt)


def test_two_processes_do_not_share_hashes() -> None:
    tokens = [1, 2, 3, 4]
    assert hashes(BlockHasher(4), tokens, None) != hashes(BlockHasher(4), tokens, None)
    assert hashes(BlockHasher(4, b"s"), tokens, "x") == hashes(BlockHasher(4, b"s"), tokens, "x")


def test_the_largest_token_id_has_a_hash() -> None:
    assert len(hashes(BlockHasher(1), [2**32 - 1], None)[0]) == 32
