"""Parameters of one pooling request: vLLM's PoolingParams, validated once.

Invariant: every instance is valid, and decoding it changes nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from vllm_lite.config.pooling import BOTH, TASKS, TOKEN_TASKS, PoolingFacts
from vllm_lite.errors import RequestError
from vllm_lite.sampling_params import RequestOutputKind

_REMOVED_TASKS = {
    "score": "use classify",
    "encode": "use token_embed or token_classify",
    "plugin": "use a task of the model's, also in a plugin",
}
_FLAGS = ("use_activation", "normalize", "skip_reading_prefix_cache", "requires_token_ids")
_OF_VECTORS = ("embed", "token_embed", BOTH)
# In extra_kwargs: the position of the first token of the second type, as in vLLM.
TOKEN_TYPE_START = "compressed_token_type_ids"


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True, tag="pool"):
    """See vLLM's PoolingParams; field names and defaults are the same.

    Raises RequestError, with the field's name in `param`, for a wrong or unavailable value.
    """

    # Keep so many tokens of a prompt, without those of truncation_side; -1: as many as the context
    # holds. Without a side the end of a text is cut, and its special tokens stay.
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    # Whether a vector is divided by its length, and logits become probabilities; None: as the
    # checkpoint says, True by default.
    use_activation: bool | None = None
    # The older name of it.
    normalize: bool | None = None
    # None: the model's first.
    task: str | None = None
    # Numbers of a vector, of a model that was trained for several sizes.
    dimensions: int | None = None
    # Of STEP pooling: the token behind each step, and the classes to answer.
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    # The worker always has the token ids.
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: Any = None
    extra_kwargs: dict[str, Any] | None = None
    # Tokens at a prompt's beginning that a mean or maximum leaves out (not of vLLM).
    num_uncounted_tokens: int = 0
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY

    # A request has one result.
    n: ClassVar[int] = 1

    @property
    def is_per_token(self) -> bool:
        """Whether tokens of the prompt have answers of their own."""
        return self.task in TOKEN_TASKS

    @property
    def token_type_start(self) -> int | None:
        """The position of the first token of the second type; None where all are of the first."""
        return (self.extra_kwargs or {}).get(TOKEN_TYPE_START)

    def for_task(self, task: str | None) -> PoolingParams:
        """These parameters for `task`; None: for their own. Raises RequestError if they differ."""
        if task is None or task == self.task:
            return self
        if self.task is not None:
            raise RequestError(f"task is {self.task} and pooling_task {task}; drop one", "task")
        return msgspec.structs.replace(self, task=task)

    def fitted(self, facts: PoolingFacts) -> PoolingParams:
        """These parameters, for a model, with its defaults; raises RequestError."""
        task = self.task or facts.default_task
        if task not in facts.tasks:
            raise RequestError(
                f"task is {task}, and this model answers {' and '.join(facts.tasks)}; use one of "
                "them, or a model that is made for it",
                "task",
            )
        if self.token_type_start is not None and facts.num_token_types < 2:
            raise RequestError(
                f"this model's tokens have one type; leave {TOKEN_TYPE_START} out", "extra_kwargs"
            )
        is_of_steps = task == "token_classify" and facts.tok_pooling_type == "STEP"
        fitted: dict[str, Any] = {"task": task}
        if self.use_activation is None:
            fitted["use_activation"] = facts.use_activation
        if task in _OF_VECTORS:
            size = fitted["dimensions"] = self.dimensions or facts.dimensions
            _check_dimensions(size, facts)
        elif self.dimensions is not None:
            raise RequestError(f"dimensions are of vectors, and the task is {task}", "dimensions")
        for name in ("step_tag_id", "returned_token_ids"):
            own, default = getattr(self, name), getattr(facts, name)
            if is_of_steps and own is None and default not in (None, ()):
                fitted[name] = list(default) if isinstance(default, tuple) else default
            elif own is not None and not is_of_steps:
                raise RequestError(f"{name} needs tok_pooling_type STEP and token_classify", name)
        if any(not 0 <= i < facts.num_labels for i in self.returned_token_ids or ()):
            raise RequestError(
                f"returned_token_ids are numbers of classes, 0 to {facts.num_labels - 1}",
                "returned_token_ids",
            )
        reads_all = task in TOKEN_TASKS or facts.seq_pooling_type != "LAST"
        if reads_all and self.skip_reading_prefix_cache is False:
            raise RequestError(
                f"{task} reads every token of the prompt; leave skip_reading_prefix_cache out",
                "skip_reading_prefix_cache",
            )
        fitted["skip_reading_prefix_cache"] = reads_all or self.skip_reading_prefix_cache
        return msgspec.structs.replace(self, **fitted)

    def __post_init__(self) -> None:
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool | None):
                raise RequestError(f"{name} must be true or false", name)
        keep: object = self.truncate_prompt_tokens
        if keep is not None and (type(keep) is not int or keep < -1 or keep == 0):
            raise RequestError(
                "truncate_prompt_tokens must be -1 or at least 1", "truncate_prompt_tokens"
            )
        if self.truncation_side not in (None, "left", "right"):
            raise RequestError('truncation_side must be "left" or "right"', "truncation_side")
        if self.normalize is not None:
            if self.use_activation not in (None, self.normalize):
                raise RequestError("normalize and use_activation differ; drop one", "normalize")
            self.use_activation, self.normalize = self.normalize, None
        if self.task is not None and self.task not in TASKS:
            known = _REMOVED_TASKS.get(self.task, f"use one of {', '.join(TASKS)}")
            raise RequestError(f"pooling task {self.task!r:.40} is not available: {known}", "task")
        for name, least in (("dimensions", 1), ("step_tag_id", 0), ("num_uncounted_tokens", 0)):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or not least <= number < 1 << 31):
                raise RequestError(f"{name} must be a whole number from {least}", name)
        ids: Any = self.returned_token_ids
        if ids is not None and not (
            isinstance(ids, list) and ids and all(type(i) is int for i in ids)
        ):
            raise RequestError("returned_token_ids must be a list of numbers", "returned_token_ids")
        if self.late_interaction_params is not None:
            raise RequestError(
                "late_interaction_params are not available; score token_embed vectors by score()",
                "late_interaction_params",
            )
        if self.output_kind != RequestOutputKind.FINAL_ONLY:
            raise RequestError("output_kind must be FINAL_ONLY: there is one answer", "output_kind")
        extra: Any = {} if self.extra_kwargs is None else self.extra_kwargs
        if not isinstance(extra, dict) or not all(
            name == TOKEN_TYPE_START and type(start) is int and start >= 0
            for name, start in extra.items()
        ):
            raise RequestError(
                f"extra_kwargs has one key, {TOKEN_TYPE_START}: the position of the first token of "
                "the second type",
                "extra_kwargs",
            )


def _check_dimensions(size: int | None, facts: PoolingFacts) -> None:
    if size is None:
        return
    sizes = facts.matryoshka_dimensions
    if not facts.is_matryoshka:
        raise RequestError(
            f"dimensions is {size}, and this model's vectors cannot be cut: it is no Matryoshka "
            "model; leave it out",
            "dimensions",
        )
    if size > facts.size or (sizes and size not in sizes):
        known = ", ".join(map(str, sizes)) if sizes else f"1 to {facts.size}"
        raise RequestError(f"dimensions is {size}; this model has {known}", "dimensions")
