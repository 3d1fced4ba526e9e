"""The parts of a tokenizer from any source: backend, special tokens, chat templates.

Plain data that the loaders fill and Tokenizer wraps; knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tokenizers import AddedToken


class Encoded(Protocol):
    """The one thing that is read of an encoded text."""

    @property
    def ids(self) -> list[int]: ...


class Backend(Protocol):
    """The methods used of `tokenizers.Tokenizer`, which an adapter of a slow tokenizer has too."""

    decoder: Any

    def encode_batch_fast(
        self, sequences: Sequence[str], *, add_special_tokens: bool = True
    ) -> Sequence[Encoded]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def id_to_token(self, id: int) -> str | None: ...
    def token_to_id(self, token: str) -> int | None: ...
    def get_vocab(self, *, with_added_tokens: bool = True) -> dict[str, int]: ...
    def get_vocab_size(self, *, with_added_tokens: bool = True) -> int: ...
    def get_added_tokens_decoder(self) -> dict[int, AddedToken]: ...


@dataclass(frozen=True)
class TokenizerParts:
    """`special_tokens` maps names such as "bos_token" to text; templates are by their names.

    `settings` is what tokenizer_config.json says, where there is one.
    """

    backend: Backend
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
