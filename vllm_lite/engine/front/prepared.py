"""A front end's bounded memory of constraints that compiled, and of refusals.

Spares a request the round trip to the engine core.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from vllm_lite.core.step import Task
from vllm_lite.errors import QueueFullError, RequestError, UnavailableError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.structured_output.canonical import name_of
from vllm_lite.structured_output.grammar import Refusal

MAX_REMEMBERED = 4096


class PreparedConstraints:
    """Evicts the least recently used."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Refusal | None] = OrderedDict()

    def unknown(self, processed: Iterable[Task]) -> dict[bytes, SamplingParams]:
        """The constraints of `processed` parameters to prepare in the core, by name.

        Raises RequestError for one that is known to be refused.
        """
        found: dict[bytes, SamplingParams] = {}
        for params in processed:
            if isinstance(params, PoolingParams) or params.structured_outputs is None:
                continue
            asked = _asked(params)
            name = name_of(asked)
            if name not in self._known:
                found[name] = asked
                continue
            self._known.move_to_end(name)
            check_refusal(self._known[name])
        return found

    def learn(self, name: bytes, refusal: Refusal | None) -> None:
        """Remember a lasting answer of the core. Raises RequestError for a refusal."""
        if refusal is None or refusal.status == RequestError.status:
            self._known[name] = refusal
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        check_refusal(refusal)


def check_refusal(refusal: Refusal | None) -> None:
    """Raise a refusal as a RequestError."""
    if refusal is None:
        return
    for kind in (QueueFullError, UnavailableError):
        if refusal.status == kind.status:
            raise kind(refusal.message)
    raise RequestError(refusal.message, refusal.param)


def _asked(params: SamplingParams) -> SamplingParams:
    """The constraint of processed parameters, and the bans that may contradict it."""
    return SamplingParams(
        structured_outputs=params.structured_outputs,
        allowed_token_ids=params.allowed_token_ids,
        bad_words_token_ids=params.bad_words_token_ids,
        stop_token_ids=params.stop_token_ids if params.min_tokens else None,
        max_tokens=None,
        min_tokens=params.min_tokens,
    )
