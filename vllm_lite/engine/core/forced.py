"""Drafts that grammars dictate: keys, punctuation and constants, as the tokenizer would write them.

The text is certain where a grammar leaves no choice, its tokens are not: they are drafts, verified
under the grammar's masks like any other. A text is tokenized aside, so that no step waits for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from vllm_lite.core.request import Request
from vllm_lite.structured_output.grammar import Vocabulary
from vllm_lite.structured_output.sequence import ConstrainedSequence

# Bytes below which a text is hardly more than the token that is sampled anyway.
_LEAST_BYTES = 2
# Bytes of a text that are looked at, and texts that are remembered.
_MOST_BYTES = 512
_MOST_TEXTS = 4096


@dataclass(slots=True)
class _Plan:
    """Tokens that a request is expected to continue with."""

    # Tokens of the request that come before.
    start: int
    # Of the last token and of the text that must follow it.
    token_ids: Future[list[int]]


class ForcedTokens:
    """Drafts for the sequences of one engine core."""

    def __init__(self, tokenize: Callable[[str], Future[list[int]]]) -> None:
        """`tokenize` begins to turn a text into token ids, without special tokens."""
        self._tokenize = tokenize
        self._plans: dict[str, _Plan] = {}
        self._texts: OrderedDict[str, Future[list[int]]] = OrderedDict()

    def follow(self, sequence: ConstrainedSequence) -> bool:
        """Whether more than a token must come next. Raises MatcherError."""
        return len(sequence.forced_text()) >= _LEAST_BYTES

    def propose(
        self, request: Request, sequence: ConstrainedSequence, vocabulary: Vocabulary
    ) -> Sequence[int]:
        """Tokens that write what must come next; none where there is a choice.

        Raises MatcherError.
        """
        plan = self._plans.pop(request.request_id, None)
        if plan is not None:
            if not plan.token_ids.done():
                self._plans[request.request_id] = plan
                return ()
            rest = _rest(plan, request)
            if rest:
                self._plans[request.request_id] = plan
                return rest
        forced = sequence.forced_text()
        if len(forced) < _LEAST_BYTES:
            return ()
        # With the token before, tokens do not depend on where the text was cut.
        last = vocabulary.tokens[request.token_ids[-1]]
        try:
            text = (last + forced[:_MOST_BYTES]).decode()
        except UnicodeDecodeError:
            return ()
        plan = _Plan(request.num_tokens, self._token_ids(text))
        self._plans[request.request_id] = plan
        return _rest(plan, request) if plan.token_ids.done() else ()

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that ended."""
        self._plans.pop(request_id, None)

    def _token_ids(self, text: str) -> Future[list[int]]:
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = self._tokenize(text)
            if len(self._texts) > _MOST_TEXTS:
                self._texts.popitem(last=False)
        else:
            self._texts.move_to_end(text)
        return found


def _rest(plan: _Plan, request: Request) -> Sequence[int]:
    """The planned tokens that are still to come; none where the request went another way."""
    if plan.token_ids.cancelled() or plan.token_ids.exception() is not None:
        return ()
    expected = plan.token_ids.result()
    written = request.token_ids[plan.start - 1 :]
    return expected[len(written) :] if written == expected[: len(written)] else ()
