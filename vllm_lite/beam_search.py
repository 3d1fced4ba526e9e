"""Beam search over an engine that continues prompts.

Its driver runs `prompts()`, each for one token, and feeds back the likeliest next tokens.
Invariant: `best()` is the result of a search without an early end.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from vllm_lite.beam_search_params import BeamSearchParams
from vllm_lite.errors import RequestError
from vllm_lite.outputs import CompletionOutput, PositionLogprobs
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tokenizer.detokenizer import IncrementalDetokenizer
from vllm_lite.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Beam:
    """A continuation; `token_ids` are generated tokens, an ending one included."""

    token_ids: tuple[int, ...] = ()
    # The sum of its tokens' log-probabilities.
    logprob: float = 0.0
    positions: tuple[PositionLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | None = None


class BeamSearch:
    """The search after one prompt.

    A continuation's score is its log-probability over its length, without an ending token, to the
    power of the length penalty.
    """

    def __init__(
        self,
        params: BeamSearchParams,
        eos_token_ids: Collection[int],
        stop_token_ids: Collection[int] = (),
        *,
        max_logprobs: int = -1,
    ) -> None:
        """`max_logprobs` is the most candidates that the engine reports; -1: no limit.

        Raises RequestError where they are too few: a search needs twice its width.
        """
        if -1 < max_logprobs < 2 * params.beam_width:
            raise RequestError(
                f"a beam search as wide as {params.beam_width} needs {2 * params.beam_width} "
                f"candidates of each token; --max-logprobs allows {max_logprobs}",
                "n",
            )
        self._params = params
        self._eos = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._stops = self._eos | frozenset(stop_token_ids)
        self._prompt: Sequence[int] = ()
        self._max_tokens = params.max_tokens
        self._running: list[Beam] = [Beam()]
        self._completed: list[Beam] = []

    def begin(self, prompt_token_ids: Sequence[int], max_tokens: int) -> None:
        """Set the prompt, and the `max_tokens` that fit after it."""
        self._prompt = list(prompt_token_ids)
        self._max_tokens = min(self._max_tokens, max_tokens)

    def prompts(self) -> list[list[int]]:
        """The prompts to continue by one token next; empty once the search is over."""
        return [[*self._prompt, *beam.token_ids] for beam in self._running]

    def step_params(self, num_logprobs: int = 0) -> SamplingParams:
        """The parameters of one step: one token, whose likeliest candidates are reported."""
        return SamplingParams(
            temperature=0,
            max_tokens=1,
            ignore_eos=True,
            logprobs=max(2 * self._params.beam_width, num_logprobs),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def feed(self, positions: Sequence[PositionLogprobs]) -> None:
        """Add the candidates after each of `prompts()`."""
        candidates: list[Beam] = []
        for beam, position in zip(self._running, positions, strict=True):
            for token_id, entry in position.items():
                longer = Beam(
                    (*beam.token_ids, token_id),
                    beam.logprob + entry.logprob,
                    (*beam.positions, position),
                )
                if token_id in self._stops:
                    reason = None if token_id in self._eos else token_id
                    ended = replace(longer, finish_reason="stop", stop_reason=reason)
                    self._completed.append(ended)
                else:
                    candidates.append(longer)
        width = self._params.beam_width
        # Stable among equals: the earlier beam, the likelier token.
        self._running = heapq.nsmallest(width, candidates, key=lambda beam: -beam.logprob)
        self._completed = self._ranked(self._completed)
        if not self._running:  # every candidate ended
            return
        if len(self._running[0].token_ids) >= self._max_tokens:
            self._end("length")
        elif len(self._completed) == width and not self._can_improve():
            self._running = []

    def abort(self) -> None:
        """End the search with the continuations so far."""
        self._end("abort")

    def best(self) -> list[Beam]:
        """The best continuations, at most beam_width, the best one first."""
        return self._completed

    def tokens(self, beam: Beam) -> list[int]:
        """The prompt and a continuation; its ending token only where the search is to keep it."""
        ids = beam.token_ids
        if beam.finish_reason == "stop" and not self._params.include_stop_str_in_output:
            ids = ids[:-1]
        return [*self._prompt, *ids]

    def score(self, beam: Beam) -> float:
        """The score of a continuation; larger is better."""
        length = len(beam.token_ids)
        if beam.finish_reason == "stop":
            length -= 1
        return self._per_length(beam.logprob, length)

    def _end(self, reason: str) -> None:
        ended = [replace(beam, finish_reason=reason) for beam in self._running]
        self._completed = self._ranked([*self._completed, *ended])
        self._running = []

    def _ranked(self, beams: list[Beam]) -> list[Beam]:
        return sorted(beams, key=self.score, reverse=True)[: self._params.beam_width]

    def _can_improve(self) -> bool:
        """Whether any continuation of the best running beam can be among the best."""
        best = self._running[0]
        # Log-probabilities only fall; the length that gives the best score is an end of
        # the range.
        length = self._max_tokens if self._params.length_penalty > 0 else len(best.token_ids)
        return self._per_length(best.logprob, length) > self.score(self._completed[-1])

    def _per_length(self, logprob: float, length: int) -> float:
        return logprob / math.pow(max(length, 1), self._params.length_penalty)


def beam_output(
    index: int,
    beam: Beam,
    prompt_token_ids: Sequence[int],
    tokenizer: Tokenizer | None,
    params: SamplingParams,
) -> CompletionOutput:
    """A continuation as a choice; `params` say which special tokens its text shows."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids, params)
    detokenizer.update(beam.token_ids, beam.finish_reason == "stop")
    return CompletionOutput(
        index=index,
        text=detokenizer.get_next_output_text(finished=True, delta=False),
        token_ids=list(beam.token_ids),
        cumulative_logprob=beam.logprob,
        logprobs=list(beam.positions),
        finish_reason=beam.finish_reason,
        stop_reason=beam.stop_reason,
    )
