"""Tokenizers built from GGUF metadata."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tests.unit.tokenizer.conftest import sentencepiece_metadata
from tests.unit.tokenizer.texts import TEXTS
from vllm_lite.errors import CheckpointError, RequestError
from vllm_lite.tokenizer.gguf_tokenizer import PRE_TOKENIZERS, tokenizer_from_gguf
from vllm_lite.tokenizer.tokenizer import Tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_encoding_then_decoding_is_the_identity(demo: Tokenizer, text: str) -> None:
    assert demo.decode(demo.encode(text)) == text


@given(text=st.text())
def test_any_text_survives_a_sentencepiece_vocabulary(sentencepiece: Tokenizer, text: str) -> None:
    ids = sentencepiece.encode(text, add_special_tokens=False)
    # U+2581 is SentencePiece's own spelling of a space.
    assert sentencepiece.decode(ids) == text.replace("\u2581", " ")


def test_the_demo_names_its_tokens(demo: Tokenizer) -> None:
    assert (demo.bos_token_id, demo.eos_token_id) == (1, 2)
    assert demo.token_to_id("<|im_end|>") == 2
    assert demo.convert_ids_to_tokens([2, 216, 10**6]) == ["<|im_end|>", "Ġ", ""]
    assert demo.vocab_size == 49152 and demo.max_token_id == 49151
    assert demo.all_special_ids == frozenset(range(17))
    assert demo.chat_template is not None and "<|im_start|>" in demo.chat_template


def test_building_is_part_of_a_fast_start(demo_metadata: dict[str, Any]) -> None:
    best = 10.0
    for _ in range(3):
        start = time.perf_counter()
        tokenizer_from_gguf(demo_metadata)
        best = min(best, time.perf_counter() - start)
    assert best < 0.25


def test_special_tokens_are_added_as_the_file_says(sentencepiece: Tokenizer) -> None:
    cat = sentencepiece.token_to_id("▁cat")
    assert sentencepiece.encode("cat") == [1, cat]
    assert sentencepiece.encode("cat", add_special_tokens=False) == [cat]
    flags = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    other = Tokenizer(tokenizer_from_gguf(sentencepiece_metadata(**flags)))
    assert other.encode("cat") == [cat, 2]


def test_better_scores_merge_first(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("the cat is in", add_special_tokens=False)
    assert sentencepiece.convert_ids_to_tokens(ids) == ["▁the", "▁cat", "▁is", "▁", "in"]


def test_no_space_is_put_first_where_the_file_says_so() -> None:
    extra = {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = Tokenizer(tokenizer_from_gguf(sentencepiece_metadata(**extra)))
    ids = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == ["t", "he"]
    assert tokenizer.decode(tokenizer.encode(" the", add_special_tokens=False)) == " the"


def test_user_defined_tokens_are_whole_but_not_special(sentencepiece: Tokenizer) -> None:
    tool = sentencepiece.token_to_id("<tool>")
    ids = sentencepiece.encode("a<tool>b", add_special_tokens=False)
    assert tool in ids and tool not in sentencepiece.all_special_ids
    assert "<tool>" in sentencepiece.decode(ids, skip_special_tokens=True)


def test_special_tokens_can_be_left_out(demo: Tokenizer) -> None:
    ids = demo.encode("<|im_start|>user\nHi<|im_end|>")
    assert demo.decode(ids, skip_special_tokens=True) == "user\nHi"


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_compiles_and_loses_nothing(name: str) -> None:
    for text in TEXTS:
        pieces = [text] if text else []
        for regex in PRE_TOKENIZERS[name].regexes:
            split = pre_tokenizers.Split(Regex(regex), "isolated")
            pieces = [part for piece in pieces for part, _ in split.pre_tokenize_str(piece)]
        assert "".join(pieces) == text


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "it's 1234  x", ["it", "'s", " 1234", " ", " x"]),
        ("smollm", "it's 12", ["it", "'s", " ", "1", "2"]),
        ("llama-bpe", "IT'S 12345\n\nx", ["IT", "'S", " ", "123", "45", "\n\n", "x"]),
        ("qwen2", "x=12;\n y", ["x", "=", "1", "2", ";\n", " y"]),
        ("tekken", "helloWorld 12", ["hello", "World", " ", "1", "2"]),
        ("gpt-4o", "HTTPServer's 1234", ["HTTPServer's", " ", "123", "4"]),
        (
            "kimi-k2",
            "It's好的ok 1234 HTTPServer",
            ["It's", "好的", "ok", " ", "123", "4", " HTTPServer"],
        ),
        ("deepseek-v3", "1234好的 ok", ["123", "4", "好的", " ok"]),
    ],
)
def test_pre_tokenizers_split_as_their_models_do(name: str, text: str, pieces: list[str]) -> None:
    found = [text]
    for regex in PRE_TOKENIZERS[name].regexes:
        split = pre_tokenizers.Split(Regex(regex), "isolated")
        found = [part for piece in found for part, _ in split.pre_tokenize_str(piece)]
    assert found == pieces


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv'"),
        ({"tokenizer.ggml.model": None}, "--tokenizer"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.scores": [0.0]}, "1 scores"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 token types"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "unheard-of"}, "'unheard-of'"),
        ({"tokenizer.ggml.model": "gpt2"}, "tokenizer.ggml.merges"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["nosuch piece"]},
            "does not fit its merges",
        ),
    ],
)
def test_missing_or_unknown_names_are_reported(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        tokenizer_from_gguf(sentencepiece_metadata(**change))
    assert "\n" not in str(caught.value)


def test_half_a_surrogate_pair_is_a_request_error(demo: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        demo.encode("a\ud83d")


def test_named_templates_are_read() -> None:
    extra = {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T"}
    parts = tokenizer_from_gguf(sentencepiece_metadata(**extra))
    assert parts.chat_templates == {"default": "D", "tool_use": "T"}


def test_other_threads_run_while_a_long_text_is_encoded(demo: Tokenizer) -> None:
    ticks: list[float] = []
    encoding = threading.Event()

    def encode() -> None:
        encoding.wait()
        time.sleep(0.01)
        demo.encode("some words " * 50_000)

    thread = threading.Thread(target=encode)
    thread.start()
    encoding.set()
    start = time.monotonic()
    while thread.is_alive():
        ticks.append(time.monotonic())
        time.sleep(0.001)
    longest = max(b - a for a, b in itertools.pairwise([*ticks, time.monotonic()]))
    assert longest < (time.monotonic() - start) / 2
