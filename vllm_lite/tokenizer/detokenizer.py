"""Text of one request as its tokens arrive: whole characters only, cut at stop strings.

Owns what may be shown of an unfinished text. Invariant: any split of the ids into updates
gives the same final text, and the deltas joined are that text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tokenizer.stop_strings import StopMatcher
from vllm_lite.tokenizer.tokenizer import Tokenizer

_utf8_decoder = codecs.getincrementaldecoder("utf-8")
# A character has at most four bytes, and a piece at least one byte.
_MAX_PIECES_OF_CHARACTER = 4
_CONTEXT = 6


# Gives the text that a token id completes, "" where it completes none: the start of an unfinished
# character is kept back.
_Step = Callable[[int], str]


class _ByteStream:
    """For vocabularies whose pieces spell bytes; the UTF-8 decoder keeps what is incomplete.

    What is left when the text ends is the beginning of a character, and is never shown.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.all_special_ids if skip_special else frozenset()
        self._decode = _utf8_decoder("replace").decode
        spelling = tokenizer.spelling
        # A text's first space is not shown: it stands for "a word begins". A prompt that shows
        # nothing leaves that place to the first token.
        strips = spelling is not None and spelling.strips_first_space
        self._at_start = strips and all(token_id in self._skipped for token_id in prompt)

    def step(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        piece = self._token_bytes(token_id)
        if self._at_start and piece:
            self._at_start = False
            piece = piece.removeprefix(b" ")
        return self._decode(piece)


class _WindowStream:
    """For any other vocabulary: decode a few tokens with and without the newest.

    The difference is new text. An end in U+FFFD is held back while it may be an unfinished
    character.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special: bool, spaced: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._options = (skip_special, spaced or skip_special)
        self._window = list(prompt[-_CONTEXT:])
        self._num_shown = len(self._window)

    def step(self, token_id: int) -> str:
        window = self._window
        window.append(token_id)
        shown = self._tokenizer.decode(window[: self._num_shown], *self._options)
        text = self._tokenizer.decode(window, *self._options)
        is_cut = text.endswith("\ufffd")
        is_young = len(window) - self._num_shown < _MAX_PIECES_OF_CHARACTER
        # A skipped token waits too: alone it would be no context for the next one.
        if len(text) <= len(shown) or (is_cut and is_young):
            return ""
        # The last tokens shown stay as the context of the next one.
        self._window = window[self._num_shown :]
        self._num_shown = len(self._window)
        return text[len(shown) :]


def _step_of(tokenizer: Tokenizer | None, prompt: Sequence[int], params: SamplingParams) -> _Step:
    if tokenizer is None or not params.detokenize:
        return lambda token_id: ""
    skip_special = params.skip_special_tokens
    if tokenizer.spelling is not None:
        return _ByteStream(tokenizer, prompt, skip_special).step
    spaced = params.spaces_between_special_tokens
    return _WindowStream(tokenizer, prompt, skip_special, spaced).step


class IncrementalDetokenizer:
    """The text of one choice of one request."""

    def __init__(
        self, tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """`tokenizer` is None where the engine runs without one; there is no text then."""
        self._step = _step_of(tokenizer, prompt_token_ids, params)
        stops = [params.stop] if isinstance(params.stop, str) else params.stop
        self._matcher = StopMatcher(stops) if stops else None
        self._keeps_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        # Tokens taken in, up to the one that completed a stop string.
        self.num_tokens = 0
        self._stop: str | None = None
        self._num_returned = 0
        # All text so far, including what is held back because a stop string may begin there.
        self.output_text = ""

    def update(self, new_token_ids: Sequence[int], stop_terminated: bool) -> str | None:
        """Append tokens; the stop string that is now complete, or None.

        With a stop string the text is cut (before it, or after it with
        `include_stop_str_in_output`) and final. `stop_terminated`: the last id is the
        end-of-text or stop token that ended the request; it adds no text unless
        `include_stop_str_in_output`.
        """
        if stop_terminated and not self._keeps_stop:
            new_token_ids = new_token_ids[:-1]
        for token_id in new_token_ids:
            if self._stop is not None:
                break
            self.num_tokens += 1
            text = self._step(token_id)
            if text:
                self._append(text)
        return self._stop

    def _append(self, text: str) -> None:
        if self._matcher is None:
            self.output_text += text
            return
        match = self._matcher.feed(text, can_stop=self.num_tokens > self._min_tokens)
        if match is None:
            self.output_text += text
            return
        self._stop = match.stop
        self.output_text += text[: match.end]
        if not self._keeps_stop:
            self.output_text = self.output_text[: -len(match.stop)]

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """The text to show now: all of it, or with `delta` what was not returned before.

        Until `finished`, an end that may become a stop string is held back.
        """
        end = len(self.output_text)
        is_open = not finished and self._stop is None and not self._keeps_stop
        if is_open and self._matcher is not None:
            end -= self._matcher.num_held_back
        start = self._num_returned if delta else 0
        if delta:
            self._num_returned = end
        return self.output_text[start:end]
