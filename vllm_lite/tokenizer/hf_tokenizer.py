"""Read a tokenizer from a Hugging Face model directory, without transformers where possible.

Owns tokenizer.json, tokenizer_config.json, special_tokens_map.json and the chat template files.
A directory without tokenizer.json is left to transformers, imported only then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from vllm_lite.config.json_file import read_json
from vllm_lite.errors import CheckpointError
from vllm_lite.tokenizer.parts import Ids, NamedTokens, TokenizerParts

_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def tokenizer_from_directory(path: Path, *, trust_remote_code: bool = False) -> TokenizerParts:
    """The tokenizer in the directory `path`; raises CheckpointError if there is none."""
    config = _read_json(path / "tokenizer_config.json")
    templates = _chat_templates(path, config)
    if not (path / "tokenizer.json").is_file():
        return tokenizer_from_transformers(path, templates, trust_remote_code=trust_remote_code)
    try:
        backend = Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(
            f"Cannot read {path / 'tokenizer.json'}: {error}; fetch it again"
        ) from None
    # A file made for training may cut or pad every text.
    backend.no_truncation()
    backend.no_padding()
    special_tokens = _special_tokens(config, _read_json(path / "special_tokens_map.json"))
    _add_missing(backend, config, special_tokens)
    # What is put around a text is tokenizer.json's own affair: like transformers 5, this passes
    # over the flags add_bos_token and add_eos_token beside it.
    return TokenizerParts(backend, special_tokens, templates, config)


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _text(token: Any) -> str | None:
    """A token is written as its text or as an object with `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _special_tokens(config: Mapping[str, Any], legacy: Mapping[str, Any]) -> dict[str, str]:
    special = {}
    for name in _NAMES:
        token = _text(config.get(name)) or _text(legacy.get(name))
        if token is not None:
            special[name] = token
    return special


def _add_missing(
    backend: Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """Add the tokens that the configuration names and tokenizer.json does not know as such."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    for _, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        if isinstance(entry, Mapping) and (content := _text(entry)) and content not in known:
            flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
            options = {flag: bool(entry[flag]) for flag in flags if flag in entry}
            backend.add_tokens([AddedToken(content, **options)])
    special = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    named = [*special_tokens.values(), *_extra_special(config)]
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token in dict.fromkeys(named)
            if token not in special
        ]
    )


def _extra_special(config: Mapping[str, Any]) -> Iterable[str]:
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(key) or ()
        for token in tokens.values() if isinstance(tokens, Mapping) else tokens:
            if (text := _text(token)) is not None:
                yield text


def _chat_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; files of their own win over the configuration."""
    try:
        files = {
            file.stem: file.read_text(encoding="utf-8")
            for file in sorted((path / "additional_chat_templates").glob("*.jinja"))
        }
        main = path / "chat_template.jinja"
        if main.is_file():
            files["default"] = main.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read the chat template in {path}: {error}") from None
    if files:
        return files
    stated = config.get("chat_template")
    if stated is None:
        stated = _read_json(path / "chat_template.json").get("chat_template")
    if isinstance(stated, str):
        return {"default": stated}
    if isinstance(stated, list):
        return {entry["name"]: entry["template"] for entry in stated if isinstance(entry, Mapping)}
    return {}


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
    backend: Any = getattr(made, "backend_tokenizer", None) or _PythonBackend(made)
    return TokenizerParts(backend, special, chat_templates)


class _PythonBackend(NamedTokens):
    """A transformers tokenizer without a Rust backend, seen as if it had one."""

    decoder = None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._vocab: dict[str, int] = dict(tokenizer.get_vocab())

    def encode_batch_fast(
        self, sequences: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[Ids]:
        encode = self._tokenizer.encode
        return [Ids(encode(one, add_special_tokens=add_special_tokens)) for one in sequences]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return str(text)

    def id_to_token(self, id: int) -> str | None:
        token = self._tokenizer.convert_ids_to_tokens(id)
        return token.decode("utf-8", "replace") if isinstance(token, bytes) else token

    def get_vocab_size(self, *, with_added_tokens: bool = True) -> int:
        return len(self._vocab)

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        special = set(self._tokenizer.all_special_ids)
        return {
            token_id: AddedToken(str(token), special=token_id in special)
            for token_id, token in self._tokenizer.added_tokens_decoder.items()
        }
