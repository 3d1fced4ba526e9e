"""Parameters of one pooling request: vLLM's PoolingParams, validated once.

Invariant: every instance is valid, and decoding it changes nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from vllm_lite.errors import RequestError
from vllm_lite.sampling_params import RequestOutputKind

# vLLM's pooling tasks: the vector of the last token, of every token, and unavailable ones.
_TASKS = ("embed", "token_embed")
_ABSENT_TASKS = ("classify", "score", "token_classify", "plugin")
_FLAGS = ("use_activation", "normalize", "skip_reading_prefix_cache")
_ABSENT = ("dimensions", "step_tag_id", "returned_token_ids", "requires_token_ids", "extra_kwargs")


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True, tag="pool"):
    """See vLLM's PoolingParams; field names and defaults are the same.

    Raises RequestError, with the field's name in `param`, for a wrong or unavailable value.
    """

    # Keep so many of a prompt's last tokens; -1: as many as the context holds.
    truncate_prompt_tokens: int | None = None
    # Whether a vector is divided by its length; None: as the checkpoint says, True by default.
    use_activation: bool | None = None
    # The older name of it.
    normalize: bool | None = None
    task: str | None = None
    skip_reading_prefix_cache: bool | None = None
    # Fields of vLLM that are refused.
    dimensions: Any = None
    step_tag_id: Any = None
    returned_token_ids: Any = None
    requires_token_ids: Any = False
    extra_kwargs: Any = None

    # A request has one result, sent once.
    n: ClassVar[int] = 1
    output_kind: ClassVar[RequestOutputKind] = RequestOutputKind.FINAL_ONLY
    truncation_side: ClassVar[str] = "left"

    @property
    def is_per_token(self) -> bool:
        """Whether each token of the prompt has a vector, not the last alone."""
        return self.task == "token_embed"

    def for_task(self, task: str | None) -> PoolingParams:
        """These parameters for `task`; None: for their own. Raises RequestError if they differ."""
        if task is None or task == self.task:
            return self
        if self.task is not None:
            raise RequestError(f"task is {self.task} and pooling_task {task}; drop one", "task")
        return msgspec.structs.replace(self, task=task)

    def __post_init__(self) -> None:
        for name in _ABSENT:
            if getattr(self, name) is not None and getattr(self, name) is not False:
                raise RequestError(f"{name} is not available in this build; leave it out", name)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool | None):
                raise RequestError(f"{name} must be true or false", name)
        keep: object = self.truncate_prompt_tokens
        if keep is not None and (type(keep) is not int or keep < -1 or keep == 0):
            raise RequestError(
                "truncate_prompt_tokens must be -1 or at least 1", "truncate_prompt_tokens"
            )
        if self.normalize is not None:
            if self.use_activation not in (None, self.normalize):
                raise RequestError("normalize and use_activation differ; drop one", "normalize")
            self.use_activation, self.normalize = self.normalize, None
        if self.task not in (None, *_TASKS):
            known = "not available in this build" if self.task in _ABSENT_TASKS else "unknown"
            names = " or ".join(_TASKS)
            raise RequestError(f"pooling task {self.task!r:.40} is {known}; use {names}", "task")
        if self.is_per_token:
            if self.skip_reading_prefix_cache is False:
                raise RequestError(
                    "token_embed computes every token of the prompt; leave "
                    "skip_reading_prefix_cache out",
                    "skip_reading_prefix_cache",
                )
            self.skip_reading_prefix_cache = True
