"""Build a tokenizer from the `tokenizer.*` metadata of a GGUF file.

Owns the two kinds of vocabulary that decoders use: byte-level BPE ("gpt2") and SentencePiece
BPE ("llama"). Reads metadata only; the ids are the positions in `tokenizer.ggml.tokens`.
Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from vllm_lite.errors import CheckpointError
from vllm_lite.tokenizer.parts import TokenizerParts
from vllm_lite.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"
_SPECIAL_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # the format's own spelling
}
_TEMPLATE = "tokenizer.chat_template"


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """The tokenizer that `metadata` describes; raises CheckpointError if it is not known."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if kind == "gpt2":
        pre = _pre_tokenizer(metadata)
        backend, add_bos = _byte_level(metadata, tokens, pre), pre.add_bos
    elif kind == "llama":
        backend, add_bos = _sentencepiece(metadata, tokens), True
    else:
        raise CheckpointError(
            f"it holds a tokenizer of the kind {kind!r}, which is not supported; "
            "pass --tokenizer with the model's Hugging Face repository"
        )
    special_tokens = _special_tokens(metadata, tokens)
    _add_tokens(backend, tokens, _types(metadata, tokens), special_tokens)
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", add_bos)
    add_eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    backend.post_processor = _surround_with(
        backend,
        special_tokens.get("bos_token") if add_bos else None,
        special_tokens.get("eos_token") if add_eos else None,
    )
    return TokenizerParts(backend, special_tokens, _chat_templates(metadata))


def _strings(metadata: Mapping[str, Any], key: str) -> Sequence[str]:
    values = metadata.get(key)
    if values is None or isinstance(values, str):
        raise CheckpointError(
            f"it has no {key}; pass --tokenizer with the model's Hugging Face repository"
        )
    # The loops below are fastest on a list.
    return values if isinstance(values, list) else list(values)


def _types(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Sequence[int]:
    types = list(metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise CheckpointError(
            f"it has {len(tokens)} tokens but {len(types)} token types; fetch it again"
        )
    return types


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise CheckpointError(
            f"it names the pre-tokenizer {name!r}, which is not known; "
            "pass --tokenizer with the model's Hugging Face repository"
        )
    return pre


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], pre: PreTokenizer) -> Tokenizer:
    merges = _strings(metadata, "tokenizer.ggml.merges")
    # A literal space in a part of a merge is written as U+0120, so one space always separates.
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(_bpe(tokens, pairs, ignore_merges=pre.ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(regex), "isolated") for regex in pre.regexes),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe(tokens: Sequence[str], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(
            f"its vocabulary does not fit its merges ({error}); fetch it again"
        ) from None


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    types = _types(metadata, tokens)
    scores = list(metadata.get("tokenizer.ggml.scores") or ())
    if len(scores) != len(tokens):
        raise CheckpointError(
            f"it has {len(tokens)} tokens but {len(scores)} scores; fetch it again"
        )
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    model = _bpe(
        tokens,
        _merges_from_scores(tokens, scores, types),
        unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """The merges that rebuild SentencePiece's BPE: the better a piece's score, the earlier."""
    normal = [kind == _NORMAL for kind in types]
    pieces = set(compress(tokens, normal))
    # sorted() is stable: pieces of one score keep the order of the file.
    ranked = sorted(compress(zip(scores, tokens, strict=True), normal), key=lambda item: -item[0])
    merges = []
    for _, piece in ranked:
        for cut in range(len(piece) - 1, 0, -1):
            if piece[:cut] in pieces and piece[cut:] in pieces:
                merges.append((piece[:cut], piece[cut:]))
    return merges


def _special_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    special = {}
    for name, key in _SPECIAL_IDS.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            special[name] = tokens[token_id]
    return special


def _add_tokens(
    backend: Tokenizer,
    tokens: Sequence[str],
    types: Sequence[int],
    special_tokens: Mapping[str, str],
) -> None:
    """Mark the tokens that are matched whole in a text; control tokens are special too."""
    named = set(special_tokens.values()) - {special_tokens.get("unk_token")}
    control, plain = [], []
    for token, kind in zip(tokens, types, strict=True):
        if kind in (_CONTROL, _UNKNOWN) or token in named:
            control.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    backend.add_special_tokens(control)
    backend.add_tokens(plain)


def _surround_with(
    backend: Tokenizer, bos: str | None, eos: str | None
) -> processors.TemplateProcessing:
    """A post-processor that puts `bos` before and `eos` after a text, where they are given."""
    before, after = [bos] if bos else [], [eos] if eos else []
    single = [*before, "$A", *after]
    known = [(token, backend.token_to_id(token)) for token in (*before, *after)]
    return processors.TemplateProcessing(
        single=single, pair=[*single, *before, "$B", *after], special_tokens=known
    )


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    templates = {}
    for key, value in metadata.items():
        if key == _TEMPLATE:
            templates["default"] = value
        elif key.startswith(_TEMPLATE + "."):
            templates[key.removeprefix(_TEMPLATE + ".")] = value
    return {name: text for name, text in templates.items() if isinstance(text, str)}
