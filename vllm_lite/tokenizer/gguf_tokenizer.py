"""Build a tokenizer from the `tokenizer.*` metadata of a GGUF file.

Owns the two kinds of vocabulary that decoders use: byte-level BPE ("gpt2") and SentencePiece
BPE ("llama"); those of encoders are gguf_encoders'. Reads metadata only; the ids are the positions
in `tokenizer.ggml.tokens`.
Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from vllm_lite.tokenizer.gguf_encoders import scores_of, surrounded, unigrams, word_pieces
from vllm_lite.tokenizer.parts import TokenizerParts

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


@dataclass(frozen=True)
class PreTokenizer:
    """One way to split. `ignore_merges`: a piece that is a token is that token, unmerged.

    `add_bos` holds where the file does not say.
    """

    regexes: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
# Words cut where case changes: UPPERLower and UPPER.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_CASED_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_TAIL}"
_GPT4O = rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
# The same of letters that are not Han's, whose runs are words.
_OTHER_CASED = "|".join(
    part.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]") + f"{_CONTRACTIONS}?" for part in _CASED
)
_KIMI = rf"\p{{Han}}+|{_OTHER_CASED}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_KANA_AND_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
# The letters of cased scripts, as DeepSeek-LLM's tokenizer.json spells them out;
# escaped where a Unicode normal form would change them.
_CASED_SCRIPTS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷ"
    "ᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇ"
    "ℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚ"  # noqa: RUF001
    "ａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"  # noqa: RUF001
)
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"  # noqa: RUF001
_FAMILIES: dict[PreTokenizer, str] = {
    PreTokenizer((_GPT2,)): (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat mellum exaone4 modern-bert "
        "jina-es jina-de jina-v2-es jina-v2-de a.x-4.0"
    ),
    PreTokenizer((r"\p{N}", _GPT2)): (
        "smollm starcoder refact command-r codeshell exaone minerva-7b"
    ),
    PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"
    ),
    PreTokenizer((_LLAMA3,)): "dbrx smaug-bpe glm4 chatglm-bpe",
    PreTokenizer((_QWEN2,)): (
        "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan grok-2 f2llmv2"
    ),
    PreTokenizer((_QWEN35,)): "qwen35",
    PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True): "tekken",
    PreTokenizer((_GPT4O,)): "gpt-4o llama4 minimax-m2 kanana2",
    PreTokenizer((_KIMI,), ignore_merges=True): "kimi-k2",
    PreTokenizer((r"\p{N}{1,3}", _KANA_AND_HAN, _DEEPSEEK3)): "deepseek-v3 hunyuan-dense",
    PreTokenizer(
        (
            "[\r\n]",
            rf"\s?[{_CASED_SCRIPTS}]+",
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",  # noqa: RUF001
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ): "deepseek-llm",
    PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")): "deepseek-coder",
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    PreTokenizer((_BLOOM,)): "bloom gpt3-finnish poro-chat",
    PreTokenizer((_BLOOM, r"\p{N}")): "viking",
    PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")): "superbpe",
    PreTokenizer(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ): "bailingmoe bailingmoe2 llada-moe",
    PreTokenizer(
        (rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ): "seed-coder",
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
}
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: pre for pre, names in _FAMILIES.items() for name in names.split()
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """The tokenizer that `metadata` describes; raises CheckpointError if it is not known."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if kind == "gpt2":
        pre = _pre_tokenizer(metadata)
        backend, add_bos = _byte_level(metadata, tokens, pre), pre.add_bos
    elif kind == "llama":
        backend, add_bos = _sentencepiece(metadata, tokens), True
    elif kind in _ENCODERS:
        return _of_encoder(metadata, tokens, kind)
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


_ENCODERS = {"bert": word_pieces, "t5": unigrams}


def _of_encoder(metadata: Mapping[str, Any], tokens: Sequence[str], kind: str) -> TokenizerParts:
    types, special = _types(metadata, tokens), _special_tokens(metadata, tokens)
    backend = _ENCODERS[kind](metadata, tokens, types)
    _add_tokens(backend, tokens, types, special)
    first = special.get("bos_token")
    last = special.get("sep_token") or special.get("eos_token")
    if first is not None and last is not None:
        backend.post_processor = surrounded(backend, first, last, has_types=kind == "bert")
    return TokenizerParts(backend, special)


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
    scores = scores_of(metadata, tokens)
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
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    if has_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = sentencepiece_decoder(has_prefix=has_prefix)
    return tokenizer


def sentencepiece_decoder(*, has_prefix: bool = True) -> decoders.Decoder:
    """The decoder of SentencePiece's pieces; `has_prefix`: a text's first space is not its own."""
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)


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
