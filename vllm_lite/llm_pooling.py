"""The calls of LLM for models that pool: vectors, classes and scores of prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from vllm_lite.engine.client import Prompt, PromptDict
from vllm_lite.engine.front.input_processor import ProcessedInput
from vllm_lite.engine.front.sync_llm import LLMEngine
from vllm_lite.errors import EngineGenerateError, RequestError
from vllm_lite.io_processor import IOProcessor
from vllm_lite.log import init_logger
from vllm_lite.outputs import (
    AnyOutput,
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from vllm_lite.pooling_params import TOKEN_TYPE_START, PoolingParams
from vllm_lite.scoring import (
    PairEncoder,
    check_counts,
    list_prompts,
    list_scores,
    pair_messages,
    score_vectors,
)
from vllm_lite.tokenizer.chat_template import render_chat
from vllm_lite.tokenizer.fitting import PairLimits, Side
from vllm_lite.tokenizer.tokenizer import Tokenizer

logger = init_logger(__name__)

Item = TypeVar("Item")


class PoolingCalls(ABC):
    """Calls of an engine that pools."""

    llm_engine: LLMEngine
    _chat_template: str | None
    _io_processor: IOProcessor[Any, Any] | None

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.tokenizer

    @abstractmethod
    def _run(
        self, inputs: list[ProcessedInput], priorities: list[int], use_tqdm: bool
    ) -> list[AnyOutput]:
        """The outputs of requests that are ready to run, in their order."""

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
        pooling_task: str | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The answers to each prompt, in their order, of a model that pools.

        Tasks are those of the model, the first unless the parameters or `pooling_task` name one:
        a vector or classes of the prompt ("embed", "classify"), or of its tokens ("token_embed",
        "token_classify"). A dict with `data` is for the plugin of `io_processor_plugin`, whose
        reply is the output of the one answer. Raises RequestError before anything runs, and
        EngineGenerateError where a request fails in the engine.
        """
        if isinstance(prompts, dict) and "data" in prompts:
            data = cast("dict[str, Any]", prompts)["data"]
            return [self._processed(data, pooling_params, use_tqdm)]
        listed = as_prompts(prompts)
        params = pooling_params or PoolingParams()
        if isinstance(params, PoolingParams):
            params = [params] * len(listed)
        each = one_each("pooling_params", params, len(listed))
        inputs = self.llm_engine.process_all(listed, [own.for_task(pooling_task) for own in each])
        found = self._run(inputs, [0] * len(inputs), use_tqdm)
        outputs = cast("list[PoolingRequestOutput[PoolingOutput]]", found)
        for output in outputs:
            if output.error is not None:
                raise EngineGenerateError(f"Request {output.request_id} failed: {output.error}")
        return outputs

    def _processed(
        self,
        data: object,
        params: PoolingParams | Sequence[PoolingParams] | None,
        use_tqdm: bool,
    ) -> PoolingRequestOutput[Any]:
        """The plugin's reply to `data`."""
        processor = self._io_processor
        if processor is None:
            raise RequestError("data needs io_processor_plugin, the name of a plugin", "data")
        prompts = as_prompts(processor.pre_process(processor.parse_data(data)))
        given = params if isinstance(params, PoolingParams) else None
        found = self.encode(prompts, processor.merge_pooling_params(given), use_tqdm=use_tqdm)
        cached = sum(output.num_cached_tokens or 0 for output in found)
        return PoolingRequestOutput("", processor.post_process(found), [], cached, True)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """encode() of prompts as wholes, with vectors as lists of numbers."""
        outputs = self.encode(prompts, pooling_params, use_tqdm=use_tqdm, pooling_task="embed")
        return [EmbeddingRequestOutput.from_base(output) for output in outputs]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[ClassificationRequestOutput]:
        """The probabilities of each prompt's classes."""
        outputs = self.encode(prompts, pooling_params, use_tqdm=use_tqdm, pooling_task="classify")
        return [ClassificationRequestOutput.from_base(output) for output in outputs]

    def reward(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """encode() with pooling_task="token_classify", which it is deprecated for."""
        logger.warning(
            'LLM.reward() is deprecated; use encode() with pooling_task="token_classify"'
        )
        return self.encode(
            prompts, pooling_params, use_tqdm=use_tqdm, pooling_task="token_classify"
        )

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """The scores of pairs of texts, 1:1, 1:N or N:N.

        A cross-encoder reads both texts of a pair, as `chat_template` writes them if there is one,
        and a listwise reranker a text and all that it is paired with; of other models the vectors
        are compared.
        """
        firsts, seconds = (
            [data] if isinstance(data, str) else [*data] for data in (data_1, data_2)
        )
        check_counts(len(firsts), len(seconds), ("data_1", "data_2"))
        params, facts = pooling_params or PoolingParams(), self.llm_engine.config.facts
        kind = facts.pooling.score_type if facts.pooling is not None else None
        if kind == "cross-encoder":
            pairs = zip(firsts * (len(seconds) // len(firsts)), seconds, strict=True)
            prompts, each = self._pair_prompts(pairs, params, chat_template or self._chat_template)
            found = self.encode(prompts, each, use_tqdm=use_tqdm, pooling_task="classify")
            return [ScoringRequestOutput.from_base(output) for output in found]
        if kind is None:
            raise RequestError("this model scores no pairs: it has neither vectors nor one class")
        task = "embed" if kind == "bi-encoder" else "token_embed"
        if kind == "listwise":
            lists = list_prompts(firsts, seconds)
            found = self.encode(lists, params, use_tqdm=use_tqdm, pooling_task=task)
            scores = list_scores([one.outputs.as_array() for one in found], len(seconds))
            each_of = found * (len(seconds) // len(found))
            return [
                one.as_kind(ScoringRequestOutput, ScoringOutput(score))
                for one, score in zip(each_of, scores, strict=True)
            ]
        texts: list[Prompt] = [*firsts, *seconds]
        found = self.encode(texts, params, use_tqdm=use_tqdm, pooling_task=task)
        vectors = [output.outputs.as_array() for output in found]
        scores = score_vectors(vectors, len(firsts), facts)
        asked = found[: len(firsts)] * (len(seconds) // len(firsts))
        return [
            ScoringRequestOutput(
                second.request_id,
                ScoringOutput(score),
                first.prompt_token_ids + second.prompt_token_ids,
                (first.num_cached_tokens or 0) + (second.num_cached_tokens or 0),
                True,
            )
            for first, second, score in zip(asked, found[len(firsts) :], scores, strict=True)
        ]

    def _pair_prompts(
        self,
        pairs: Iterable[tuple[str, str]],
        params: PoolingParams,
        template: str | None,
    ) -> tuple[list[Prompt], list[PoolingParams]]:
        """A cross-encoder's prompt for each pair, and parameters with its token types."""
        tokenizer, config = self.get_tokenizer(), self.llm_engine.config
        encoder, keep = PairEncoder(tokenizer, config.facts), params.truncate_prompt_tokens
        most = config.model.max_model_len if keep == -1 else keep
        limits = PairLimits(prompt=most, side=cast("Side | None", params.truncation_side))
        prompts: list[Prompt] = []
        each = []
        for first, second in pairs:
            start = None
            if template is not None:
                text = render_chat(tokenizer, pair_messages(first, second), chat_template=template)
                ids = encoder.encode_text(text, limits)
            else:
                ids, start = encoder.encode(first, second, limits)
            prompts.append(PromptDict(prompt_token_ids=ids))
            extra = None if start is None else {TOKEN_TYPE_START: start}
            each.append(msgspec.structs.replace(params, extra_kwargs=extra))
        return prompts, each


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, or several, as a list."""
    if isinstance(prompts, (str, dict)):
        return [cast("Prompt", prompts)]
    listed = list(cast("Sequence[Prompt | int]", prompts))
    if listed and isinstance(listed[0], int):
        return [cast("list[int]", listed)]
    return cast("list[Prompt]", listed)


def one_each(name: str, values: Sequence[Item], count: int) -> list[Item]:
    """A list of `values`, one for each of `count` prompts; raises RequestError."""
    if len(values) != count:
        raise RequestError(
            f"{name} has {len(values)} entries for {count} prompts; give one each", name
        )
    return list(values)
