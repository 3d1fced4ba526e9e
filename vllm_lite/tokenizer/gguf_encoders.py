"""Tokenizers of encoders in GGUF files: WordPiece ("bert") and SentencePiece's unigrams ("t5").

The files write a word piece as SentencePiece would: what begins a word has the mark of a space, and
what goes on has none. Reads metadata only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from vllm_lite.errors import CheckpointError

_SPACE = "\u2581"
_CONTROL = 3


def word_pieces(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> Tokenizer:
    vocab: dict[str, int] = {}
    for i, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        begins = token.startswith(_SPACE)
        own = token if kind == _CONTROL else token[1:] if begins else f"##{token}"
        vocab.setdefault(own, i)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", -1)
    if not 0 <= unknown < len(tokens):
        raise CheckpointError("its tokenizer has no token for unknown words; fetch it again")
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token=tokens[unknown]))
    lowercase = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", True))
    accents = metadata.get("tokenizer.ggml.normalizer.strip_accents")
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def scores_of(metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[float]:
    """The score of each token; raises CheckpointError."""
    scores = list(metadata.get("tokenizer.ggml.scores") or ())
    if len(scores) != len(tokens):
        raise CheckpointError(
            f"it has {len(tokens)} tokens but {len(scores)} scores; fetch it again"
        )
    return scores


def unigrams(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    pieces = list(zip(tokens, scores_of(metadata, tokens), strict=True))
    tokenizer = Tokenizer(models.Unigram(pieces, unknown, byte_fallback=False))
    steps: list[normalizers.Normalizer] = []
    if charsmap := metadata.get("tokenizer.ggml.precompiled_charsmap"):
        steps.append(normalizers.Precompiled(bytes(byte & 255 for byte in charsmap)))
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces", True):
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if metadata.get("tokenizer.ggml.add_space_prefix", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(_SPACE, prepend_scheme=scheme)
    return tokenizer


def surrounded(
    tokenizer: Tokenizer, first: str, last: str, *, has_types: bool
) -> processors.PostProcessor:
    """Put texts between `first` and `last`, a second one behind the first.

    With has_types the second text is marked by another token type, without by one more `last`.
    """
    before = [last] if not has_types else []
    second = [*before, *(f"{part}:1" if has_types else part for part in ("$B", last))]
    known = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    return processors.TemplateProcessing(
        single=[first, "$A", last], pair=[first, "$A", last, *second], special_tokens=known
    )
