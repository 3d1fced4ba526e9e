"""Token ids of texts and of pairs of texts that are cut to a length, special tokens kept.

What a model puts around a text or between two, as [CLS] and [SEP], is never cut away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vllm_lite.errors import RequestError
from vllm_lite.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class PairLimits:
    """Most tokens of the first text, of the second, and of both with special tokens; None: any."""

    first: int | None = None
    second: int | None = None
    prompt: int | None = None
    # Cuts ids off the whole prompt's side, as of a prompt of ids, special tokens or not.
    side: Side | None = None


def cut(token_ids: list[int], most: int | None, side: Side | None) -> list[int]:
    """At most `most` ids, without those of `side`; the right one unless it is given."""
    if most is None or len(token_ids) <= most:
        return token_ids
    return token_ids[-most:] if side == "left" else token_ids[:most]


def encode_fitted(tokenizer: Tokenizer, text: str, most: int, *, special: bool) -> list[int]:
    """Ids of a text, its end cut where there are more than `most`.

    Raises RequestError for a text that cannot be encoded.
    """
    ids = tokenizer.encode(text, add_special_tokens=special)
    if len(ids) > most and special and tokenizer.has_encodings:
        encoding, backend = tokenizer.encoding(text), tokenizer.backend
        encoding.truncate(max(most - backend.num_special_tokens_to_add(False), 0))
        ids = backend.post_process(encoding, None, True).ids
    return ids[:most]


def encode_pair(
    tokenizer: Tokenizer, first: str, second: str, limits: PairLimits
) -> tuple[list[int], list[int]]:
    """Ids of a pair as the model wants it, and each id's type, 0 or 1.

    With a limit for both but no side, the longer text is cut first, at its end. Raises
    RequestError for a text that cannot be encoded.
    """
    backend = tokenizer.backend
    if not tokenizer.has_encodings:
        raise RequestError("this model's tokenizer is code of transformers, which joins no texts")
    one, two = tokenizer.encoding(first), tokenizer.encoding(second)
    _truncate(one, limits.first)
    _truncate(two, limits.second)
    if limits.prompt is not None and limits.side is None:
        room = max(limits.prompt - backend.num_special_tokens_to_add(True), 0)
        lengths = _longest_first(len(one.ids), len(two.ids), room)
        _truncate(one, lengths[0])
        _truncate(two, lengths[1])
    pair = backend.post_process(one, two, True)
    ids, types = pair.ids, pair.type_ids
    return cut(ids, limits.prompt, limits.side), cut(types, limits.prompt, limits.side)


def cut_text(tokenizer: Tokenizer, text: str, most: int | None) -> str:
    """The beginning of `text` that is made of at most `most` tokens."""
    if most is None:
        return text
    offsets = tokenizer.encoding(text).offsets
    return text if len(offsets) <= most else text[: offsets[most - 1][1]]


def _truncate(encoding: Encoding, most: int | None) -> None:
    if most is not None and len(encoding.ids) > most:
        encoding.truncate(most)


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths that `room` holds: of the shorter all, where that leaves the other as much."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return (shorter, longer) if first <= second else (longer, shorter)
