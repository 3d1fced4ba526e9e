"""The parts of a tokenizer from any source: backend, special tokens, chat templates.

Plain data that the loaders fill and Tokenizer wraps; knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer


@dataclass(frozen=True)
class TokenizerParts:
    """`special_tokens` maps names such as "bos_token" to text; templates are by their names.

    `settings` is what tokenizer_config.json says, where there is one.
    """

    # Or what has the methods of one that are used here, over a tokenizer without a Rust backend.
    backend: Tokenizer
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
