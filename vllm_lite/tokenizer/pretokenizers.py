r"""How a byte-level BPE vocabulary of a GGUF file splits text, by its `tokenizer.ggml.pre`.

Pure data. Each entry lists regexes that cut the text one after the other; pieces and gaps are
both kept. The expressions are those of the models' own tokenizer.json files; the names are
llama.cpp's (src/llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass


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
