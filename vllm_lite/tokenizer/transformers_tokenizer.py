"""The slow road: let transformers read what is not a tokenizer.json (SentencePiece, tiktoken, ...).

Importing this module is cheap; transformers itself is imported when a tokenizer is made. A
tokenizer written in Python is dressed up as a `tokenizers` backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken

from vllm_lite.errors import CheckpointError
from vllm_lite.tokenizer.parts import TokenizerParts


def tokenizer_from_transformers(
    path: Path, chat_templates: Mapping[str, str], *, trust_remote_code: bool
) -> TokenizerParts:
    """The tokenizer that AutoTokenizer loads from `path`; raises CheckpointError if it refuses."""
    from transformers import AutoTokenizer

    try:
        made: Any = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises many types for one cause: no usable files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path} holds no tokenizer that can be read ({reason}); "
            "add its tokenizer.json, or pass --tokenizer"
        ) from None
    special = {
        name: str(token)
        for name, token in made.special_tokens_map.items()
        if isinstance(token, str)
    }
    backend = getattr(made, "backend_tokenizer", None) or _PythonBackend(made)
    return TokenizerParts(backend, special, chat_templates)


class _Ids(NamedTuple):
    ids: list[int]


class _PythonBackend:
    """A transformers tokenizer without a Rust backend, seen as if it had one."""

    decoder = None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._vocab: dict[str, int] = dict(tokenizer.get_vocab())

    def encode_batch_fast(
        self, sequences: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[_Ids]:
        encode = self._tokenizer.encode
        return [_Ids(encode(one, add_special_tokens=add_special_tokens)) for one in sequences]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return str(text)

    def id_to_token(self, id: int) -> str | None:
        token = self._tokenizer.convert_ids_to_tokens(id)
        return token.decode("utf-8", "replace") if isinstance(token, bytes) else token

    def token_to_id(self, token: str) -> int | None:
        return self._vocab.get(token)

    def get_vocab(self, *, with_added_tokens: bool = True) -> dict[str, int]:
        return self._vocab

    def get_vocab_size(self, *, with_added_tokens: bool = True) -> int:
        return len(self._vocab)

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        special = set(self._tokenizer.all_special_ids)
        return {
            token_id: AddedToken(str(token), special=token_id in special)
            for token_id, token in self._tokenizer.added_tokens_decoder.items()
        }
