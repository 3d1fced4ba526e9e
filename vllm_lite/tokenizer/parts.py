"""The parts of a tokenizer from any source: backend, special tokens, chat templates.

Plain data that the loaders fill and Tokenizer wraps; knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tokenizers import Tokenizer


class ChatEncoder(Protocol):
    """Code that writes conversations in place of a chat template."""

    @property
    def encode(self) -> Callable[..., list[int]]:
        """The prompt for messages, with the options of render_chat; raises RequestError."""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: itself, or the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet.update({chr(0x100 + rank): byte for rank, byte in enumerate(hidden)})
    return alphabet


BYTE_OF = _byte_alphabet()


class Ids(NamedTuple):
    """A text's ids, as the tokenizers package gives them."""

    ids: list[int]


class NamedTokens:
    """The part of a backend that its vocabulary, token to id, answers."""

    _vocab: dict[str, int]

    def token_to_id(self, token: str) -> int | None:
        return self._vocab.get(token)

    def get_vocab(self, *, with_added_tokens: bool = True) -> dict[str, int]:
        return self._vocab


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
    chat: ChatEncoder | None = None
