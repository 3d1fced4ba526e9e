"""Text to token ids and back: one Tokenizer over any tokenizer files.

Owns loading and look-ups; knows no requests and no chat. Ids without a token (padding rows of
an embedding) decode to nothing, so no id that a model samples can fail here.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tokenizers import normalizers

from vllm_lite.config.checkpoints.gguf_header import read_gguf
from vllm_lite.config.demo import DEMO_TOOL_TEMPLATE, is_demo
from vllm_lite.config.sources import tokenizer_path
from vllm_lite.errors import CheckpointError, RequestError, VLLMLiteError
from vllm_lite.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from vllm_lite.tokenizer.hf_tokenizer import tokenizer_from_directory
from vllm_lite.tokenizer.mistral import is_mistral, tokenizer_from_mistral
from vllm_lite.tokenizer.parts import BYTE_OF, TokenizerParts

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

    from vllm_lite.config.vllm import VllmConfig

_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")
# The class in transformers for the tokenizers package's own files.
_CLASS = "PreTrainedTokenizerFast"
# Letters, digits, accents, ligatures, other scripts and a character beyond 16 bits.
_TRIAL = (
    "A text, with 123 words:\n  \u00e9e\u0301 \ufb01 \u4e2d\u6587 \u0915\u094d\u0937 \U0001f600"
)
_PATHS = ("vocab_file", "merges_file", "tokenizer_file", "name_or_path", "auto_map")
_STDERR = 2


@dataclass(frozen=True)
class Spelling:
    """`to_bytes` gives a piece's bytes; `strips_first_space`: at a text's start one is dropped."""

    to_bytes: Callable[[str], bytes]
    strips_first_space: bool = False


def spelling_of(backend: Backend) -> Spelling | None:
    """The spelling of `backend`, or None where a token's text depends on its neighbours."""
    if backend.decoder is None:
        return None
    state = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return Spelling(_from_byte_alphabet)
    names = [_sentencepiece_step(step) for step in steps]
    if names == ["space", "bytes", "fuse"]:
        return Spelling(_from_sentencepiece)
    if names == ["space", "bytes", "fuse", "strip"]:
        return Spelling(_from_sentencepiece, strips_first_space=True)
    return None


def _sentencepiece_step(step: dict[str, Any]) -> str:
    match step:
        case {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}:
            return "space"
        case {"type": "ByteFallback"}:
            return "bytes"
        case {"type": "Fuse"}:
            return "fuse"
        case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
            return "strip"
    return ""


def _from_byte_alphabet(piece: str) -> bytes:
    try:
        return bytes([BYTE_OF[char] for char in piece])
    except KeyError:  # an added token, written as plain text
        return piece.encode()


def _from_sentencepiece(piece: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace("\u2581", " ").encode()


class TokenizerPanic(VLLMLiteError):
    """The tokenizers package gave up in the middle of its work."""


class PanicGuard:
    """Raises TokenizerPanic for a panic of the Rust code in its body, which is no Exception."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        # The class cannot be imported.
        if kind is not None and kind.__name__ == "PanicException":
            lines = str(error).splitlines()
            raise TokenizerPanic(lines[0] if lines else "no reason given") from None


@contextmanager
def quiet_panics() -> Iterator[None]:
    """A PanicGuard that also drops what a panic prints; other output is printed afterwards."""
    try:
        saved = os.dup(_STDERR)
    except OSError:  # closed: nothing is printed there
        with PanicGuard():
            yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), _STDERR)
        try:
            with PanicGuard():
                yield
        except TokenizerPanic:
            held.truncate(0)
            raise
        finally:
            os.dup2(saved, _STDERR)
            os.close(saved)
            held.seek(0)
            with suppress(OSError):
                os.write(_STDERR, held.read())


_GUARD = PanicGuard()


class Tokenizer:
    """Encodes and decodes. Safe to use from several threads."""

    def __init__(self, parts: TokenizerParts) -> None:
        self.backend = parts.backend
        # Names such as "bos_token" to their text, as chat templates use them.
        self.special_tokens = dict(parts.special_tokens)
        self.chat_templates = dict(parts.chat_templates)
        # In place of a template; None: there may be one.
        self.chat = parts.chat
        self._settings = dict(parts.settings)
        # None: a token's text depends on its neighbours (see detokenizer.py).
        self.spelling = spelling_of(parts.backend)
        added = parts.backend.get_added_tokens_decoder()
        self.added_token_ids = frozenset(added)
        self.all_special_ids = frozenset(i for i, token in added.items() if token.special)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self.pad_token_id = self._named_id("pad_token")
        self.vocab_size = parts.backend.get_vocab_size(with_added_tokens=True)
        self._bytes: dict[int, bytes] = {}

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    @property
    def has_encodings(self) -> bool:
        """Whether encoding() works; not of a tokenizer that transformers runs."""
        return hasattr(self.backend, "post_process")

    @cached_property
    def max_token_id(self) -> int:
        """The largest id; more than vocab_size - 1 where ids are skipped."""
        return max(self.get_vocab().values(), default=-1)

    def describe(self) -> dict[str, Any]:
        """The content of a tokenizer_config.json for this tokenizer, without paths."""
        added = self.backend.get_added_tokens_decoder()
        described = {name: self._settings[name] for name in self._settings if name not in _PATHS}
        described |= self.special_tokens
        described["tokenizer_class"] = self._settings.get("tokenizer_class", _CLASS)
        described["chat_template"] = self.chat_template
        described["added_tokens_decoder"] = {
            str(token_id): {
                "content": token.content,
                "lstrip": token.lstrip,
                "normalized": token.normalized,
                "rstrip": token.rstrip,
                "single_word": token.single_word,
                "special": token.special,
            }
            for token_id, token in sorted(added.items())
        }
        return described

    def get_vocab(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; with `add_special_tokens`, as the model wants a text to begin.

        Special tokens written in the text become their ids. Raises RequestError for text
        that is not valid Unicode, or that the vocabulary has no tokens for.
        """
        # Only the batch call lets other threads run meanwhile.
        return self._encoded(self.backend.encode_batch_fast, text, add_special_tokens).ids

    def encoding(self, text: str) -> Encoding:
        """The tokens of `text` alone, with their places in it; raises RequestError."""
        return self._encoded(self.backend.encode_batch, text, False)

    def _encoded(
        self, encode_batch: Callable[..., list[Encoding]], text: str, add_special_tokens: bool
    ) -> Encoding:
        try:
            with _GUARD:
                (encoding,) = encode_batch([text], add_special_tokens=add_special_tokens)
            return encoding
        except VLLMLiteError:
            raise
        except (TypeError, UnicodeEncodeError):
            if not isinstance(text, str):
                raise
            raise RequestError(
                "The text holds half of a surrogate pair, which is not valid Unicode", "prompt"
            ) from None
        except Exception as error:  # the library raises no narrower type
            raise RequestError(
                f"The model's tokenizer cannot encode this text: {error}", "prompt"
            ) from None

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = False,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of `ids`, taken as a whole text; what is not valid UTF-8 becomes U+FFFD.

        Without `spaces_between_special_tokens`, added tokens that follow one another are
        joined without the space that some decoders put between tokens.
        """
        with _GUARD:
            if spaces_between_special_tokens or skip_special_tokens or self.spelling is not None:
                return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
            return "".join(
                self.backend.decode(run, skip_special_tokens=False) for run in self._joined(ids)
            )

    def _joined(self, ids: Sequence[int]) -> Iterator[list[int]]:
        """`ids` in runs, cut between added tokens that follow one another."""
        run: list[int] = []
        previous_added = False
        for token_id in ids:
            added = token_id in self.added_token_ids
            if added and previous_added:
                yield run
                run = []
            run.append(token_id)
            previous_added = added
        yield run

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Each id's piece as the vocabulary spells it; "" where there is none."""
        return [self.backend.id_to_token(token_id) or "" for token_id in ids]

    def token_to_id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token adds inside a text; perhaps a part of a character."""
        known = self._bytes.get(token_id)
        if known is None:
            piece = self.backend.id_to_token(token_id)
            if piece is None:
                known = b""
            elif self.spelling is not None:
                known = self.spelling.to_bytes(piece)
            else:
                known = self.decode([token_id]).encode()
            self._bytes[token_id] = known
        return known

    def marker_ids(self, text: str) -> list[int]:
        """The ids of a text of markers: of a special token its own, however texts are read."""
        found = self.token_to_id(text)
        return self.encode(text, add_special_tokens=False) if found is None else [found]

    def decode_token(self, token_id: int) -> str:
        """One token's text for logprobs; a part of a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")


def load_tokenizer(config: VllmConfig) -> Tokenizer:
    """The tokenizer of the model, or the one that --tokenizer names; raises CheckpointError."""
    path = tokenizer_path(config)
    try:
        with quiet_panics():
            model = config.model
            parts = read_parts(
                path, mode=model.tokenizer_mode, trust_remote_code=model.trust_remote_code
            )
            if config.facts.pooling is not None and config.facts.pooling.lowers_texts:
                _lower_texts(parts.backend)
            tokenizer = Tokenizer(parts)
            _try_out(tokenizer)
        return tokenizer
    except CheckpointError as error:
        if str(path) in str(error):
            raise
        raise CheckpointError(f"{path}: {error}") from None
    except (TypeError, ValueError, LookupError, AttributeError, TokenizerPanic) as error:
        # Whatever stands in these files instead of what should.
        raise CheckpointError(
            f"{path}: its tokenizer's files are damaged ({type(error).__name__}: {error}); "
            "fetch them again, or pass --tokenizer"
        ) from None


def _lower_texts(backend: Backend) -> None:
    """Let `backend` lower texts before all else; special tokens in them stay."""
    if not hasattr(backend, "normalizer"):
        raise CheckpointError(
            "sentence_bert_config.json sets do_lower_case, and its tokenizer is code of "
            "transformers, whose texts cannot be lowered here; use one with a tokenizer.json"
        )
    steps = [normalizers.Lowercase()]
    if backend.normalizer is not None:
        steps.append(backend.normalizer)
    backend.normalizer = normalizers.Sequence(steps)


def _try_out(tokenizer: Tokenizer) -> None:
    """Raise what the first request would meet."""
    if not tokenizer.vocab_size:
        raise CheckpointError("its tokenizer holds no tokens; fetch it again, or pass --tokenizer")
    with suppress(RequestError):  # of a vocabulary that lacks some of these characters
        tokenizer.decode(tokenizer.encode(_TRIAL))
    tokenizer.decode([0])


def read_parts(
    path: Path, *, mode: str = "auto", trust_remote_code: bool = False
) -> TokenizerParts:
    """The tokenizer of the directory or .gguf file `path`, by --tokenizer-mode; CheckpointError."""
    if is_mistral(path, mode):
        return tokenizer_from_mistral(path)
    if path.suffix == ".gguf":
        parts = tokenizer_from_gguf(read_gguf(path).metadata)
        if is_demo(path):
            templates = {**parts.chat_templates, "tool_use": DEMO_TOOL_TEMPLATE}
            parts = replace(parts, chat_templates=templates)
        return parts
    return tokenizer_from_directory(path, trust_remote_code=trust_remote_code)
