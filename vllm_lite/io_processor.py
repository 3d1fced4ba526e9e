"""IO processors: plugins that make prompts of a request's own data, and a reply of their answers.

As in vLLM, a package registers a function under the entry points `vllm.io_processor_plugins`; it
returns the full name of a class with the methods of IOProcessor. Knows no route.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import UsageError
from vllm_lite.outputs import PoolingOutput, PoolingRequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.tokenizer.tokenizer import Tokenizer

GROUP = "vllm.io_processor_plugins"

Given = TypeVar("Given")
Reply = TypeVar("Reply")
Answer = PoolingRequestOutput[PoolingOutput]


class IOProcessor(ABC, Generic[Given, Reply]):
    """One for an engine; a ValueError of its methods refuses the request.

    They run on a server's event loop: what takes long belongs into the ones that are awaited.
    """

    def __init__(self, vllm_config: VllmConfig, tokenizer: Tokenizer | None) -> None:
        self.vllm_config = vllm_config
        self.tokenizer = tokenizer

    def parse_data(self, data: object) -> Given:
        """The request's `data`, checked."""
        return cast("Given", data)

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """Parameters of the prompts, from those of the request."""
        return params or PoolingParams()

    @abstractmethod
    def pre_process(self, prompt: Given, request_id: str | None = None, **kwargs: Any) -> Any:
        """A prompt, or a list of them: texts, token ids, or dicts of `prompt_token_ids`."""

    async def pre_process_async(
        self, prompt: Given, request_id: str | None = None, **kwargs: Any
    ) -> Any:
        """The same on a server."""
        return self.pre_process(prompt, request_id, **kwargs)

    @abstractmethod
    def post_process(
        self, model_output: Sequence[Answer], request_id: str | None = None, **kwargs: Any
    ) -> Reply:
        """The reply; `model_output` are the answers to the prompts, in their order."""

    async def post_process_async(
        self,
        model_output: AsyncIterator[tuple[int, Answer]],
        request_id: str | None = None,
        **kwargs: Any,
    ) -> Reply:
        """The same on a server, where answers come in any order, with the prompt's number."""
        found = [item async for item in model_output]
        answers = [answer for _, answer in sorted(found, key=lambda item: item[0])]
        return self.post_process(answers, request_id, **kwargs)


def load_io_processor(
    config: VllmConfig, tokenizer: Tokenizer | None
) -> IOProcessor[Any, Any] | None:
    """The processor that --io-processor-plugin names; raises UsageError."""
    name = config.model.io_processor_plugin
    if name is None:
        return None
    flag = f"--io-processor-plugin {name}"
    if config.facts.pooling is None:
        raise UsageError(f"{flag} needs a model that pools; add --runner pooling")
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise UsageError(f"{flag}: no installed package has it under {GROUP}; there: {known}")
    try:
        module, _, kind = found[name].load()().rpartition(".")
        made: IOProcessor[Any, Any] = getattr(import_module(module), kind)(config, tokenizer)
    except Exception as error:
        raise UsageError(f"{flag} failed with {type(error).__name__}: {error}") from error
    return made
