"""Pairs of texts: how they are cut and joined, and what vectors say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from tests.server.fake_client import fake_config
from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.errors import RequestError
from vllm_lite.scoring import PairEncoder, check_counts, maxsim, score_vectors, similarity
from vllm_lite.tokenizer.fitting import PairLimits, encode_fitted
from vllm_lite.tokenizer.parts import TokenizerParts
from vllm_lite.tokenizer.tokenizer import Tokenizer

_WORDS = ["[CLS]", "[SEP]", *"abcdefghij"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bert_tokenizer()


def bert_tokenizer() -> Tokenizer:
    """Words of a letter, and what BERT puts around texts."""
    backend = Backend(WordLevel({word: i for i, word in enumerate(_WORDS)}, unk_token="[SEP]"))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 1)],
    )
    return Tokenizer(TokenizerParts(backend, {}, {}))


def _facts(**pooling: object) -> ModelFacts:
    facts = PoolingFacts(**{"num_token_types": 2, **pooling})  # type: ignore[arg-type]
    return replace(fake_config().facts, pooling=facts)


def _words(ids: list[int]) -> str:
    return " ".join(_WORDS[i].strip("[]") for i in ids)


@pytest.mark.parametrize(
    ("limits", "wanted", "start"),
    [
        (PairLimits(), "CLS a b c SEP d e f g SEP", 5),
        (PairLimits(first=1, second=2), "CLS a SEP d e SEP", 3),
        (PairLimits(prompt=9), "CLS a b c SEP d e f SEP", 5),
        (PairLimits(prompt=7), "CLS a b SEP d e SEP", 4),
        (PairLimits(prompt=8), "CLS a b SEP d e f SEP", 4),
        (PairLimits(prompt=4, side="right"), "CLS a b c", None),
        (PairLimits(prompt=4, side="left"), "e f g SEP", 0),
    ],
)
def test_a_pair_is_cut_between_its_special_tokens(
    tokenizer: Tokenizer, limits: PairLimits, wanted: str, start: int | None
) -> None:
    encoder = PairEncoder(tokenizer, _facts())
    ids, found = encoder.encode("a b c", "d e f g", limits)
    assert (_words(ids), found) == (wanted, start)


def test_pairs_are_joined_as_the_model_wants(tokenizer: Tokenizer) -> None:
    plain = PairEncoder(tokenizer, _facts(num_token_types=0))
    assert plain.encode("a", "b", PairLimits())[1] is None
    made = PairEncoder(tokenizer, _facts(method="from_2_way_softmax"))
    ids, start = made.encode("a b x", " c d", PairLimits(first=2, second=1))
    assert (_words(ids), start) == ("CLS a b c SEP", None)


def test_texts_are_cut_between_their_special_tokens(tokenizer: Tokenizer) -> None:
    def fitted(text: str, most: int, *, special: bool = True) -> str:
        return _words(encode_fitted(tokenizer, text, most, special=special))

    assert fitted("a", 4) == "CLS a SEP"
    assert fitted("a b c d", 4) == "CLS a b SEP"
    assert fitted("a b c d", 3, special=False) == "a b c"


def test_counts_of_texts_that_make_pairs() -> None:
    for counts in ((1, 1), (1, 3), (3, 3)):
        check_counts(*counts, ("queries", "items"))
    with pytest.raises(RequestError, match="1:1, 1:N or N:N, not 2:3"):
        check_counts(2, 3, ("queries", "items"))
    with pytest.raises(RequestError) as empty:
        check_counts(1, 0, ("queries", "items"))
    assert empty.value.param == "items"


def test_scores_of_vectors() -> None:
    one, two = np.array([3, 4], np.float32), np.array([4, 3], np.float32)
    assert similarity("cosine", one, two) == pytest.approx(0.96)
    assert similarity("dot", one, two) == 24
    assert similarity("euclidean", one, two) == pytest.approx(-np.sqrt(2))
    assert similarity("manhattan", one, two) == -2
    assert similarity("cosine", one, 0 * two) == 0
    tokens = np.stack([one, two])
    assert maxsim(tokens, two[None]) == 24 + 25
    assert score_vectors([one, one, two], 1, _facts()) == pytest.approx([1, 0.96])
    assert score_vectors([one, two, one, one], 2, _facts()) == pytest.approx([1, 0.96])
    late = _facts(tasks=("token_embed",))
    assert score_vectors([tokens, two[None]], 1, late) == [49]


def test_a_tokenizer_of_transformers_joins_no_texts(tmp_path: Path) -> None:
    class Python:
        decoder = None

        def get_added_tokens_decoder(self) -> dict[int, object]:
            return {}

        def get_vocab_size(self, **_: object) -> int:
            return 1

    python = Tokenizer(TokenizerParts(Python(), {}, {}))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="joins no texts"):
        PairEncoder(python, _facts()).encode("a", "b", PairLimits())
