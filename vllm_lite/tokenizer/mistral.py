"""Mistral's tokenizers, tekken.json and tokenizer.model, by the package mistral-common.

Owns what that package is asked for: token ids of texts, in which no special token is ever read, and
of whole conversations. Imports it only where such a tokenizer is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, decoders

from vllm_lite.errors import CheckpointError, RequestError, UsageError
from vllm_lite.tokenizer.chat_template import part_text
from vllm_lite.tokenizer.gguf_tokenizer import sentencepiece_decoder
from vllm_lite.tokenizer.parts import BYTE_OF, Ids, NamedTokens, TokenizerParts

# Of a reader of other tokenizers in the same place.
_OTHERS = ("tokenizer.json", "tokenizer_config.json")
_VERSION = re.compile(r"tokenizer\.model\.v(\d+)(m\d+)?")
_LONGEST_CALL_ID = 9


def mistral_file(directory: Path) -> Path | None:
    """The file of Mistral's tokenizer there: tekken's, else SentencePiece's of the last version."""
    if (tekken := directory / "tekken.json").is_file():
        return tekken
    found = {int(m[1]): p for p in directory.glob("tokenizer.model.v*") if (m := _match(p))}
    plain = directory / "tokenizer.model"
    return found[max(found)] if found else plain if plain.is_file() else None


def _match(path: Path) -> re.Match[str] | None:
    return _VERSION.fullmatch(path.name)


def is_mistral(directory: Path, mode: str) -> bool:
    """Whether --tokenizer-mode `mode` has the tokenizer read here, and not as transformers would.

    With auto it is read here where nothing says what else it may be.
    """
    if mode != "auto":
        return mode == "mistral"
    file = mistral_file(directory)
    is_bare = file is not None and file.name == "tokenizer.model"
    others = (*_OTHERS, "config.json") if is_bare else _OTHERS
    return file is not None and not any((directory / name).is_file() for name in others)


def tokenizer_from_mistral(directory: Path) -> TokenizerParts:
    """The tokenizer in `directory`; raises CheckpointError, and UsageError without the package."""
    file = mistral_file(directory)
    if file is None:
        raise CheckpointError(
            f"--tokenizer-mode mistral: {directory} holds no tekken.json and no tokenizer.model; "
            "leave the option out, or pass --tokenizer"
        )
    try:
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

        made: Any = MistralTokenizer.from_file(str(file))
    except ImportError as error:
        raise UsageError(
            f"{file} needs the packages mistral-common and sentencepiece ({error}): "
            "pip install 'vllm-lite[mistral]'"
        ) from None
    except Exception as error:  # asserts, and errors of every kind, for one cause: no such file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{file} cannot be read by mistral-common ({reason:.200}); fetch it again"
        ) from None
    backend: Any = _Backend(made.instruct_tokenizer.tokenizer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    known = backend.get_vocab()
    special = {name: token for name, token in names.items() if token in known}
    return TokenizerParts(backend, special, chat=MistralChat(made))


class _Backend(NamedTokens):
    """One of the package's text tokenizers, seen as one of the tokenizers package."""

    def __init__(self, tokenizer: Any) -> None:
        from mistral_common.tokens.tokenizers.tekken import is_tekkenizer

        self._tokenizer = tokenizer
        self._encode: Callable[..., list[int]] = tokenizer.encode
        special = {*tokenizer.special_ids, tokenizer.unk_id}
        self.decoder: decoders.Decoder
        self._pieces: list[str]
        if is_tekkenizer(tokenizer):
            self.decoder = decoders.ByteLevel()
            char_of = {byte: char for char, byte in BYTE_OF.items()}
            self._pieces = [
                tokenizer.id_to_piece(i)
                if i in special
                else "".join(char_of[byte] for byte in tokenizer.id_to_byte_piece(i))
                for i in range(tokenizer.n_words)
            ]
        else:
            self.decoder = sentencepiece_decoder()
            self._pieces = [tokenizer.id_to_piece(i) for i in range(tokenizer.n_words)]
        # A special token comes before one of the same text.
        order = sorted(range(len(self._pieces)), key=lambda i: (i in special, -i))
        self._vocab = {self._pieces[i]: i for i in order}
        self._special = {i: AddedToken(self._pieces[i], special=True) for i in sorted(special)}

    def encode_batch_fast(
        self, sequences: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[Ids]:
        return [Ids(self._encode(one, bos=add_special_tokens, eos=False)) for one in sequences]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        shown = (i for i in ids if not (skip_special_tokens and i in self._special))
        return self.decoder.decode([self._pieces[i] for i in shown if i < len(self._pieces)])

    def id_to_token(self, id: int) -> str | None:
        return self._pieces[id] if id < len(self._pieces) else None

    def get_vocab_size(self, *, with_added_tokens: bool = True) -> int:
        return len(self._pieces)

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        return self._special


class MistralChat:
    """Writes conversations as token ids, where other models have a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        content_format: Literal["auto", "string", "openai"] = "auto",
    ) -> list[int]:
        """The prompt for `messages`, as render_chat takes them; raises RequestError.

        There is no template and no text of a reply's beginning, so that neither can be chosen.
        """
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        if continue_final_message and add_generation_prompt:
            raise RequestError.about(
                "continue_final_message", "needs add_generation_prompt to be false"
            )
        variables = dict(chat_template_kwargs or {})
        effort = variables.pop("reasoning_effort", None)
        variables.pop("enable_thinking", None)
        given = {"chat_template": chat_template, "documents": documents}
        for name, value in {**given, "chat_template_kwargs": variables}.items():
            if value:
                raise RequestError.about(
                    name, "has no effect: this model's tokenizer (mistral) has no chat template"
                )
        # Older models know no efforts, as templates pass over variables that they do not know.
        knows_effort = self._tokenizer.version.supports_model_settings
        try:
            request = ChatCompletionRequest.from_openai(
                messages=[_prepared(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                continue_final_message=continue_final_message,
                **({"reasoning_effort": effort} if effort and knows_effort else {}),
            )
            ids: list[int] = self._tokenizer.encode_chat_completion(request).tokens
        except (RequestError, MemoryError):
            raise
        except Exception as error:  # asserts, and errors of pydantic's and of its own, by version
            raise RequestError(_explain(error), "messages") from error
        return ids


def _explain(error: Exception) -> str:
    found = getattr(error, "errors", None)
    stated = str(found()[0]["msg"]) if callable(found) else str(error)
    reason = (stated.strip().splitlines() or [type(error).__name__])[0]
    return f"The model's tokenizer refuses these messages: {reason:.300}"


def _prepared(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with text alone, and with ids of calls that versions before 13 take."""
    prepared = dict(message)
    if isinstance(content := message.get("content"), Sequence) and not isinstance(content, str):
        prepared["content"] = [_chunk(part) for part in content]
    if prepared.get("tool_call_id") is not None:
        prepared["tool_call_id"] = str(prepared["tool_call_id"])[-_LONGEST_CALL_ID:]
    if calls := message.get("tool_calls"):
        prepared["tool_calls"] = [
            {**call, "id": str(call.get("id") or "null")[-_LONGEST_CALL_ID:]} for call in calls
        ]
    elif message.get("role") == "assistant":
        prepared["tool_calls"] = None
    return prepared


def _chunk(part: Any) -> dict[str, Any]:
    text = part_text(part)
    if isinstance(part, Mapping) and part.get("type") == "thinking":
        return {"type": "thinking", "thinking": text, "closed": True}
    return {"type": "text", "text": text}
