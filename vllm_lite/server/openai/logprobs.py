"""Log-probabilities in the three shapes that clients see: chat, completions, prompt.

Owns how a token is shown. Knows no request; every value is finite, as JSON needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vllm_lite.outputs import Logprob, PositionLogprobs

if TYPE_CHECKING:
    from vllm_lite.server.context import ServingContext
    from vllm_lite.tokenizer.tokenizer import Tokenizer

# The candidates that logprobs list: this many of the likeliest (-1: all), or these ids.
Shown = int | Sequence[int]

# What a token that cannot be sampled is reported with; JSON has no -Infinity.
MIN_LOGPROB = -9999.0


class TokenView:
    """Shows tokens as text, or as token_id:N with `as_ids`."""

    def __init__(self, tokenizer: Tokenizer | None, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids or tokenizer is None

    def text(self, token_id: int, entry: Logprob | None) -> str:
        if self._as_ids or self._tokenizer is None:
            return f"token_id:{token_id}"
        if entry is not None and entry.decoded_token is not None:
            return entry.decoded_token
        return self._tokenizer.decode_token(token_id)

    def bytes(self, token_id: int) -> list[int] | None:
        """The UTF-8 bytes of the token, which may be a part of a character."""
        return None if self._tokenizer is None else list(self._tokenizer.token_bytes(token_id))


def token_view(context: ServingContext, *, as_ids: bool | None) -> TokenView:
    """The view of tokens that the request asks for, else the server's default."""
    if as_ids is None:
        as_ids = context.server_config.return_tokens_as_token_ids
    return TokenView(context.maybe_tokenizer, as_ids=as_ids)


def _value(entry: Logprob) -> float:
    return max(entry.logprob, MIN_LOGPROB)


def _chosen(own: int, position: PositionLogprobs, shown: Shown) -> Iterable[tuple[int, Logprob]]:
    """The entries of a position that `shown` asks for, in its order; ids always with its `own`."""
    if not isinstance(shown, int):
        wanted = dict.fromkeys((own, *shown))
        return [(token_id, position[token_id]) for token_id in wanted if token_id in position]
    if shown == -1:
        return position.items()
    return [item for item in position.items() if item[1].rank is None or item[1].rank <= shown]


def chat_logprobs(
    view: TokenView, token_ids: Sequence[int], positions: Sequence[PositionLogprobs], shown: Shown
) -> dict[str, Any]:
    """The `logprobs` of a chat choice, each token with the candidates that `shown` asks for."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        entry = _chat_token(view, token_id, position.get(token_id))
        others = _chosen(token_id, position, shown) if shown else ()
        entry["top_logprobs"] = [_chat_token(view, other, value) for other, value in others]
        content.append(entry)
    return {"content": content}


def _chat_token(view: TokenView, token_id: int, entry: Logprob | None) -> dict[str, Any]:
    return {
        "token": view.text(token_id, entry),
        "logprob": MIN_LOGPROB if entry is None else _value(entry),
        "bytes": view.bytes(token_id),
    }


def completion_logprobs(
    view: TokenView,
    token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs | None],
    shown: Shown,
    offset: int,
) -> tuple[dict[str, object], int]:
    """The `logprobs` of a completion choice and the text offset after them.

    `offset` is the first token's, in characters. A position of None, a prompt's first token,
    has no probability. A position shows the token itself and those that `shown` asks for.
    """
    offsets: list[int] = []
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token_id, position in zip(token_ids, positions, strict=True):
        entry = None if position is None else position.get(token_id)
        text = view.text(token_id, entry)
        offsets.append(offset)
        offset += len(text)
        tokens.append(text)
        values.append(None if entry is None else _value(entry))
        tops.append(None if position is None else _top(view, token_id, position, shown))
    found = {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": tokens,
        "top_logprobs": tops,
    }
    return found, offset


def _top(
    view: TokenView, token_id: int, position: PositionLogprobs, shown: Shown
) -> dict[str, float]:
    top: dict[str, float] = {}
    own = position.get(token_id)
    if own is not None:
        top[view.text(token_id, own)] = _value(own)
    for other_id, entry in _chosen(token_id, position, shown):
        # Tokens that look alike share a key; the likelier one is met first.
        top.setdefault(view.text(other_id, entry), _value(entry))
    return top


def prompt_logprobs(
    view: TokenView, positions: Sequence[PositionLogprobs | None] | None
) -> list[dict[str, object] | None] | None:
    """The `prompt_logprobs` of a reply: token id -> value, rank and text, per position."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            str(token_id): {
                "logprob": _value(entry),
                "rank": entry.rank,
                "decoded_token": view.text(token_id, entry),
            }
            for token_id, entry in position.items()
        }
        for position in positions
    ]
