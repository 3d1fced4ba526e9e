"""Tokenizers for the tests: the demo model's own, and two small ones made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_lite.config.checkpoints.gguf_header import read_gguf
from vllm_lite.config.demo import fetch_demo
from vllm_lite.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from vllm_lite.tokenizer.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


@pytest.fixture(scope="session")
def demo_metadata() -> dict[str, Any]:
    return read_gguf(fetch_demo()).metadata


@pytest.fixture(scope="session")
def demo(demo_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer(tokenizer_from_gguf(demo_metadata))


def sentencepiece_metadata(**extra: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary as a GGUF file would hold it: bytes, letters, some words."""
    entries: list[tuple[str, float, int]] = [
        ("<unk>", 0.0, UNKNOWN),
        ("<s>", 0.0, CONTROL),
        ("</s>", 0.0, CONTROL),
        *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
    ]
    merged = ["▁t", "he", "▁the", "in", "▁c", "at", "▁cat", "▁▁", "is", "▁is", "er"]
    entries += [(piece, -float(rank), NORMAL) for rank, piece in enumerate(merged)]
    letters = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?é世"
    entries += [(letter, -100.0 - rank, NORMAL) for rank, letter in enumerate(letters)]
    entries += [("<tool>", 0.0, USER_DEFINED)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece for piece, _, _ in entries],
        "tokenizer.ggml.scores": [score for _, score, _ in entries],
        "tokenizer.ggml.token_type": [kind for _, _, kind in entries],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **extra,
    }


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return Tokenizer(tokenizer_from_gguf(sentencepiece_metadata()))


@pytest.fixture(scope="session")
def words() -> Tokenizer:
    """A vocabulary whose decoder puts a space between tokens: nothing spells bytes here."""
    from tokenizers import AddedToken, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    from vllm_lite.tokenizer.parts import TokenizerParts

    vocab = {word: i for i, word in enumerate(["[UNK]", "one", "two", "three", "."])}
    backend = Backend(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken("<a>", special=True), AddedToken("<b>", special=True)])
    return Tokenizer(TokenizerParts(backend))
