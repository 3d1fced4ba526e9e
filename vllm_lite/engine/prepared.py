"""What a front end remembers of constraints: those that compiled, and why others were refused.

Spares the engine core the question, and a request the wait for the core's answer. Bounded;
knows no grammar.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from vllm_lite.errors import QueueFullError, RequestError, UnavailableError
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.structured_output.canonical import name_of
from vllm_lite.structured_output.grammar import Refusal
from vllm_lite.structured_outputs_params import StructuredOutputsParams

MAX_REMEMBERED = 4096


class PreparedConstraints:
    """Least recently used first out."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Refusal | None] = OrderedDict()

    def unknown(
        self, constraints: Iterable[StructuredOutputsParams]
    ) -> dict[bytes, StructuredOutputsParams]:
        """Those of canonical `constraints` to ask the core about, by name.

        Raises RequestError for one that is known to be refused.
        """
        found: dict[bytes, StructuredOutputsParams] = {}
        for params in constraints:
            name = name_of(params)
            if name not in self._known:
                found[name] = params
                continue
            self._known.move_to_end(name)
            check_refusal(self._known[name])
        return found

    def learn(self, name: bytes, refusal: Refusal | None) -> None:
        """Remember the core's answer where it holds for ever. Raises RequestError for a refusal."""
        if refusal is None or refusal.status == RequestError.status:
            self._known[name] = refusal
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        check_refusal(refusal)


def check_refusal(refusal: Refusal | None) -> None:
    """Raise a refusal as the RequestError that it is."""
    if refusal is None:
        return
    for kind in (QueueFullError, UnavailableError):
        if refusal.status == kind.status:
            raise kind(refusal.message)
    raise RequestError(refusal.message, refusal.param)


def constraint_of(params: SamplingParams) -> tuple[StructuredOutputsParams, ...]:
    """The constraint of a processed request, if it has one."""
    return () if params.structured_outputs is None else (params.structured_outputs,)
