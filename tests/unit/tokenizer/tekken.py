"""Small files of Mistral's tokenizer tekken, cut from the one that mistral-common ships."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

# Special tokens that later versions list, after those of all versions.
LATER = ("[/SYSTEM_PROMPT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[MODEL_SETTINGS]")


@cache
def first_tokens() -> str:
    """The package's own tekken.json, which is large, with its first tokens alone."""
    common = pytest.importorskip("mistral_common")
    told = json.loads(Path(common.__path__[0], "data", "tekken_240718.json").read_bytes())
    told["vocab"] = told["vocab"][:3000]
    told["config"] |= {"default_vocab_size": 3100, "default_num_special_tokens": 100}
    return json.dumps(told)


def write_tekken(path: Path, version: str) -> None:
    """A tekken.json of 3,000 tokens and 100 special ones, as one of `version`."""
    told = json.loads(first_tokens())
    told["config"]["version"] = version
    if version != "v3":
        tekken = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
        first = [dict(token) for token in tekken.Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
        names = [token["token_str"] for token in first]
        names += [name for name in LATER if name not in names]
        told["special_tokens"] = [
            {"rank": i, "token_str": str(name), "is_control": True} for i, name in enumerate(names)
        ]
    path.write_text(json.dumps(told))
