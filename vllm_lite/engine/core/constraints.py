"""The constrained sequences of an engine core: those that wait for a grammar, and those that run.

The scheduler does not know of it: a sequence reaches the scheduler once its grammar is compiled.
Without a constrained request it starts nothing and costs one look at a dict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.request import Request, RequestStatus
from vllm_lite.core.step import EngineCoreOutput, SchedulerOutput, TokenMasks
from vllm_lite.engine.core.forced import ForcedTokens
from vllm_lite.engine.core.grammar_cache import GrammarCache, Result, outcome
from vllm_lite.parsers.registry import bind_parsers, prompt_ends_in_reasoning
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.spec_decode.drafter import make_drafter
from vllm_lite.structured_output.compile_pool import CompilePool
from vllm_lite.structured_output.grammar import (
    CompiledGrammar,
    Matcher,
    MatcherError,
    Refusal,
    TokenizerFacts,
)
from vllm_lite.structured_output.sequence import (
    Bans,
    BudgetedSequence,
    ConstrainedSequence,
    Reasoning,
    guarded,
)

# Tokens of a prompt in which its last mark of reasoning is looked for.
_PROMPT_TAIL = 64


@dataclass(slots=True)
class _Waiting:
    """A sequence that is not in the scheduler yet, and the future that it waits for."""

    request: Request
    # Of a grammar, or of the tokenizer's tokens alone.
    future: Future[Result | TokenizerFacts]


class Constraints:
    """Grammars and thinking budgets of one engine core."""

    def __init__(self, config: VllmConfig, *, masks_come_late: bool = False) -> None:
        """`masks_come_late`: the executor asks for a step's masks after its forward pass."""
        self._config = config
        # The drafts of a drafter must be known before the forward pass.
        self._runs_ahead = masks_come_late and config.speculative.method is None
        self._parser = config.structured_outputs.reasoning_parser
        bind_parsers(config)
        self._waiting: dict[str, _Waiting] = {}
        self._sequences: dict[str, ConstrainedSequence] = {}
        # Of those that have any.
        self._bans: dict[str, Bans] = {}
        # Sequences whose mask could not be made, until their step is over.
        self._broken: dict[str, str] = {}
        # Mask rows, in turn: a step may still read its own when the next one is planned.
        self._spare = self._masks = np.zeros((0, 0), np.int32)
        self._has_pool = False
        # States of layers go forward only: no draft can be taken back.
        self._can_draft = not config.has_states
        self._forced = ForcedTokens(lambda text: self._pool.tokenize(text))
        self._drafter = make_drafter(config.speculative)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def prepare(self, params: SamplingParams) -> Future[Result]:
        """Compile the canonical constraint of `params`, or find it in the cache."""
        if params.structured_outputs is None:
            raise ValueError("parameters without a constraint have nothing to prepare")
        return self._cache.get(params.structured_outputs)

    def verdict(self, params: SamplingParams, future: Future[Result]) -> Refusal | None:
        """Why a request with `params`, whose grammar is compiled, is refused; None where it is not.

        Its first token's mask is known already, unless it reasons first.
        """
        found = outcome(future)
        if isinstance(found, Refusal):
            return found
        facts, constraint = self._pool.facts, params.structured_outputs
        bans = Bans(params, facts.vocabulary.eos_ids, self._config.facts.vocab_size)
        reasons = facts.reasoning is not None and not (
            constraint and constraint.enable_in_reasoning
        )
        if bans.is_empty or reasons:
            return None
        masks = np.zeros((1, facts.vocabulary.mask_words), np.int32)
        try:
            ConstrainedSequence(facts.vocabulary, _matcher(found), None).fill(masks, 0)
            conflict = bans.conflict(masks, 0, [])
        except MatcherError as error:
            conflict = str(error)
        return Refusal(conflict, "structured_outputs") if conflict else None

    def hold(self, request: Request) -> bool:
        """Keep a constrained sequence until take_ready(); False for any other."""
        if not request.is_sampling:
            return False
        params = request.sampling_params
        if params.structured_outputs is None and params.thinking_token_budget is None:
            return False
        if params.structured_outputs is not None:
            future: Future[Any] = self._cache.get(params.structured_outputs)
        else:
            future = self._pool.read_facts()
        self._waiting[request.request_id] = _Waiting(request, future)
        return True

    def take_ready(self, patience: float = 0.0) -> list[tuple[Request, str | None]]:
        """Sequences whose grammar is compiled, each with the reason where it cannot run.

        Waits for one up to `patience` seconds.
        """
        if not self._waiting:
            return []
        futures = {held.future for held in self._waiting.values()}
        if patience:
            wait(futures, patience, FIRST_COMPLETED)
        ready = [held for held in self._waiting.values() if held.future.done()]
        for held in ready:
            del self._waiting[held.request.request_id]
        return [(held.request, self._begin(held)) for held in ready]

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget sequences that are gone; unknown ids are ignored."""
        if self._waiting or self._sequences:
            for request_id in request_ids:
                self._waiting.pop(request_id, None)
                self._forget(request_id)

    @property
    def waiting(self) -> list[Request]:
        """Sequences that wait for their grammar."""
        return [held.request for held in self._waiting.values()]

    def propose(self, requests: Mapping[str, Request]) -> None:
        """Give constrained requests the drafts of the next step."""
        if not self._can_draft:
            return
        for request_id, sequence in self._sequences.items():
            request = requests.get(request_id)
            if request is None:
                continue
            if request_id in self._bans:
                request.drafts = ()
                continue
            is_known = not request.num_expected_tokens
            try:
                request.drafts = self._drafts(request, sequence) if is_known else ()
                if self._runs_ahead:
                    # Text that must come next is drafted in a step that knows the token before.
                    request.can_run_ahead = not (request.drafts or self._forced.follow(sequence))
            except MatcherError as error:
                request.drafts, self._broken[request_id] = (), str(error)

    def _drafts(self, request: Request, sequence: ConstrainedSequence) -> Sequence[int]:
        forced = self._forced.propose(request, sequence, self._pool.facts.vocabulary)
        if forced:
            return forced
        drafts = list(request.drafts)  # a model's, which came with the last token
        if self._drafter is not None:
            known = np.array(request.token_ids, np.int32)
            most = self._config.speculative.num_drafts
            drafts = self._drafter.propose(known, most, "").tolist()
        return drafts[: sequence.num_allowed(drafts)] if drafts else drafts

    def await_answers(self, step: SchedulerOutput, requests: Mapping[str, Request]) -> bool:
        """Whether the masks of `step` depend on tokens of steps in flight."""
        return any(
            count and requests[request_id].num_expected_tokens > count
            for request_id, count in step.num_verified.items()
            if request_id in self._sequences
        )

    def masks(self, step: SchedulerOutput, requests: Mapping[str, Request]) -> TokenMasks | None:
        """The token masks of sequences that sample in `step`; None where none is constrained."""
        if not self._sequences:
            return None
        sampling = [
            (request_id, count)
            for request_id, count in step.num_verified.items()
            if count and request_id in self._sequences
        ]
        masks = self._rows(sum(count for _, count in sampling))
        masked: list[str] = []
        for request_id, count in sampling:
            row, sequence = len(masked), self._sequences[request_id]
            try:
                if count > 1:
                    sequence.fill_ahead(masks, row, step.drafts[request_id])
                elif not sequence.fill(masks, row):
                    continue
            except MatcherError as error:
                self._broken[request_id] = str(error)
                continue
            bans = self._bans.get(request_id)
            conflict = bans and bans.conflict(masks, row, requests[request_id].output_token_ids)
            if conflict:
                self._broken[request_id] = conflict
            else:
                masked += [request_id] * count
        return TokenMasks(masked, masks[: len(masked)]) if masked else None

    def advance(
        self, outputs: list[EngineCoreOutput], requests: Mapping[str, Request]
    ) -> list[tuple[str, RequestStatus]]:
        """Advance the sequences by the sampled tokens; those that end get a last output.

        Returns those that end but still run in the scheduler.
        """
        ended: list[tuple[str, RequestStatus]] = []
        if not self._sequences:
            return ended
        for output in list(outputs):
            request_id = output.request_id
            sequence = self._sequences.get(request_id)
            if sequence is None:
                continue
            is_running = output.finish_reason is None
            broken = self._broken.pop(request_id, None)
            must_end = False
            if broken is None and is_running:
                try:
                    for token_id in output.new_token_ids:
                        sequence.accept(token_id)
                    must_end = self._must_end(sequence, requests[request_id])
                except MatcherError as error:
                    broken = str(error)
            status = None
            if broken is not None:
                status = RequestStatus.FINISHED_ERROR
                output.new_token_ids, output.new_logprobs = [], None
                output.finish_reason, output.stop_reason = status.finish_reason, broken
                output.is_refused = True
            elif must_end:
                # min_tokens forbids the end token, so the sequence ends without one.
                status = RequestStatus.FINISHED_STOPPED
                front_end = output.front_end
                end = EngineCoreOutput(request_id, [], finish_reason="stop", front_end=front_end)
                outputs.append(end)
            if not is_running or status is not None:
                self._forget(request_id)
            if is_running and status is not None:
                ended.append((request_id, status))
        return ended

    def shutdown(self) -> None:
        if self._has_pool:
            self._pool.close()

    @cached_property
    def _pool(self) -> CompilePool:
        self._has_pool = True
        return CompilePool(self._config)

    @cached_property
    def _cache(self) -> GrammarCache:
        return GrammarCache(self._pool)

    def _begin(self, held: _Waiting) -> str | None:
        """Start a request whose grammar is compiled; returns why it cannot run, if it cannot."""
        found = outcome(held.future)
        if isinstance(found, Refusal):
            return found.message
        request, facts = held.request, self._pool.facts
        params, request_id = request.sampling_params, request.request_id
        try:
            matcher = None if isinstance(found, TokenizerFacts) else _matcher(found)
        except MatcherError as error:
            return str(error)
        reasoning = self._reasoning(request, facts)
        if matcher is not None or reasoning is not None:
            # Its masks say what may follow the token before.
            request.can_run_ahead = self._runs_ahead
            self._sequences[request_id] = _sequence(request, facts, matcher, reasoning)
            bans = Bans(params, request.eos_token_ids, self._config.facts.vocab_size)
            if not bans.is_empty:
                self._bans[request_id] = bans
        return None

    def _forget(self, request_id: str) -> None:
        self._forced.forget(request_id)
        for kept in (self._sequences, self._bans, self._broken):
            kept.pop(request_id, None)

    def _reasoning(self, request: Request, facts: TokenizerFacts) -> Reasoning | None:
        params = request.sampling_params
        constraint = params.structured_outputs
        is_free = params.thinking_token_budget is None
        if facts.reasoning is None or (is_free and constraint and constraint.enable_in_reasoning):
            return None
        tail = request.prompt_token_ids[-_PROMPT_TAIL:]
        tokens = facts.vocabulary.tokens
        text = b"".join(tokens[token_id] for token_id in tail).decode("utf-8", "replace")
        begins_inside = prompt_ends_in_reasoning(self._parser, text)
        return Reasoning(facts.reasoning, begins_inside, params.thinking_token_budget)

    def _must_end(self, sequence: ConstrainedSequence, request: Request) -> bool:
        """Whether a sequence can only end, but has not generated its min_tokens."""
        is_early = request.num_output_tokens < request.sampling_params.min_tokens
        return is_early and sequence.must_end(self._new_rows(1), 0)

    def _rows(self, count: int) -> npt.NDArray[np.int32]:
        """At least `count` mask rows, used again in every other step."""
        self._masks, self._spare = self._spare, self._masks
        if len(self._masks) < count:
            self._masks = self._new_rows(2 * count)
        return self._masks

    def _new_rows(self, count: int) -> npt.NDArray[np.int32]:
        return np.zeros((count, -(-self._config.facts.vocab_size // 32)), np.int32)


def _sequence(
    request: Request, facts: TokenizerFacts, matcher: Matcher | None, reasoning: Reasoning | None
) -> ConstrainedSequence:
    constraint = request.sampling_params.structured_outputs
    if matcher and reasoning and constraint and constraint.enable_in_reasoning:
        return BudgetedSequence(facts.vocabulary, matcher, reasoning)
    return ConstrainedSequence(facts.vocabulary, matcher, reasoning)


def _matcher(grammar: CompiledGrammar) -> Matcher:
    return guarded(grammar.matcher)
