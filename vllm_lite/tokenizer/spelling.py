"""How a token's piece spells bytes: the byte alphabet of GPT-2, or SentencePiece's pieces.

Owns the two spellings for which text is exactly the concatenation of its tokens' bytes.
Invariant: decoding the joined bytes as UTF-8 equals the backend's own decode, valid text given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_lite.tokenizer.parts import Backend

_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


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


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: itself, or the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet.update({chr(0x100 + rank): byte for rank, byte in enumerate(hidden)})
    return alphabet


_BYTE_OF = _byte_alphabet()


def _from_byte_alphabet(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in piece])
    except KeyError:  # an added token, written as plain text
        return piece.encode()


def _from_sentencepiece(piece: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace("\u2581", " ").encode()
