"""LLM: offline generation from a list of prompts to a list of results.

The engine core runs in a child process, which needs no `__main__` guard.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

from vllm_lite.beam_search import BeamSearch
from vllm_lite.beam_search_params import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.engine.client import Prompt, PromptDict
from vllm_lite.engine.front.input_processor import ProcessedInput
from vllm_lite.engine.front.sync_llm import LLMEngine
from vllm_lite.errors import EngineGenerateError
from vllm_lite.io_processor import load_io_processor
from vllm_lite.llm_pooling import PoolingCalls, as_prompts, one_each
from vllm_lite.metrics.exposition import MetricValue, read_metrics
from vllm_lite.metrics.stats import SchedulerStats
from vllm_lite.outputs import AnyOutput, RequestOutput
from vllm_lite.progress import progress_bar
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tokenizer.chat import encode_chat
from vllm_lite.tokenizer.chat_template import load_chat_template

Message = Mapping[str, Any]


class LLM(PoolingCalls):
    """A model to call from Python; also a context manager."""

    def __init__(
        self,
        model: str,
        *,
        chat_template: str | None = None,
        disable_frontend_multiprocessing: bool = False,
        **options: Any,
    ) -> None:
        """Load `model`: demo, a directory, a .gguf file or a hub id.

        `options` are those of the command line, with underscores; a wrong name is a TypeError,
        a wrong value a UsageError. `chat_template` is a file or the template itself. With
        `disable_frontend_multiprocessing` the model runs in this process.
        """
        config = EngineArgs(model=model, **options).create_engine_config("llm")
        self._chat_template = load_chat_template(chat_template)
        multiprocess = False if disable_frontend_multiprocessing else None
        self.llm_engine = LLMEngine.from_vllm_config(config, multiprocess=multiprocess)
        try:
            tokenizer = None if config.model.skip_tokenizer_init else self.llm_engine.tokenizer
            self._io_processor = load_io_processor(config, tokenizer)
        except BaseException:
            self.llm_engine.shutdown()
            raise
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt; results in the order of the prompts.

        A prompt is text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`.
        Sampling parameters: one for all, one for each, or None for the model's own defaults.
        A request that fails in the engine has finish_reason "error"; a bad one raises
        RequestError before anything runs.
        """
        listed = as_prompts(prompts)
        params = self._params_for(sampling_params, len(listed))
        priorities = one_each("priority", priority, len(listed)) if priority else [0] * len(listed)
        inputs = self.llm_engine.process_all(listed, params)
        self.llm_engine.prepare(inputs)
        return cast("list[RequestOutput]", self._run(inputs, priorities, use_tqdm))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of a list of them, as the chat template writes it."""
        prompts: list[Prompt] = []
        for conversation in _as_conversations(messages):
            text, ids = encode_chat(
                self.get_tokenizer(),
                conversation,
                tools=tools,
                chat_template=chat_template or self._chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
            prompts.append(PromptDict(prompt=text, prompt_token_ids=ids))
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[BeamSearchOutput]:
        """The best continuations of each prompt; results in the order of the prompts.

        Raises RequestError for a prompt, or a width, that cannot be searched.
        """
        engine = self.llm_engine
        limits = engine.config.model
        searches: list[BeamSearch] = []
        for prompt in as_prompts(prompts):
            start = engine.process(prompt, SamplingParams(max_tokens=1))
            eos, length = start.eos_token_ids, len(start.prompt_token_ids)
            search = BeamSearch(params, eos, max_logprobs=limits.max_logprobs)
            search.begin(start.prompt_token_ids, limits.max_model_len - length)
            searches.append(search)
        while pending := [(search, search.prompts()) for search in searches if search.prompts()]:
            inputs = [
                engine.process(ids, search.step_params())
                for search, continued in pending
                for ids in continued
            ]
            run = self._run(inputs, [0] * len(inputs), use_tqdm=False)
            found = iter(cast("list[RequestOutput]", run))
            for search, continued in pending:
                choices = [next(found).outputs[0] for _ in continued]
                if any(choice.finish_reason == "error" for choice in choices):
                    raise EngineGenerateError(f"a beam search failed: {choices[0].stop_reason}")
                search.feed([choice.logprobs[0] for choice in choices if choice.logprobs])
        return [BeamSearchOutput(self._sequences(search)) for search in searches]

    def _sequences(self, search: BeamSearch) -> list[BeamSearchSequence]:
        has_text = not self.llm_engine.config.model.skip_tokenizer_init
        found = []
        for beam in search.best():
            tokens = search.tokens(beam)
            text = self.get_tokenizer().decode(tokens) if has_text else None
            sequence = BeamSearchSequence(
                tokens, list(beam.positions), beam.logprob, text, beam.finish_reason, None
            )
            found.append(sequence)
        return found

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters that generate() uses by default."""
        return SamplingParams.from_optional(**self.llm_engine.config.sampling_defaults)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False where blocks are in use."""
        return self.llm_engine.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Forget the KV cache and give its memory back until wake_up(); level 0 keeps the memory.

        Needs enable_sleep_mode=True. Raises RequestError for another level.
        """
        self.llm_engine.sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """End sleep(), unless `tags` name weights alone, which stayed."""
        self.llm_engine.wake_up(tags)

    def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int = 5 << 30
    ) -> None:
        """Write the weights as each rank holds them, for load_format="sharded_state".

        Files in the directory `path` hold at most `max_size` bytes, and are named by `pattern`
        with {rank} and {part}. Raises RequestError.
        """
        self.llm_engine.save_sharded_state(path, pattern, max_size)

    def get_stats(self) -> SchedulerStats:
        """The scheduler's counters now."""
        return self.llm_engine.get_stats()

    def get_metrics(self) -> list[MetricValue]:
        """The metrics that a server would export; needs disable_log_stats=False."""
        return read_metrics(self.llm_engine.registry)

    def close(self) -> None:
        """End the engine and release its memory; calling it again does nothing."""
        self.llm_engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _params_for(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [_final_only(given)] * count
        return [_final_only(own) for own in one_each("sampling_params", given, count)]

    def _run(
        self, inputs: list[ProcessedInput], priorities: list[int], use_tqdm: bool
    ) -> list[AnyOutput]:
        engine, first = self.llm_engine, self._num_requests
        self._num_requests += len(inputs)
        ids = [str(first + index) for index in range(len(inputs))]
        for request_id, processed, priority in zip(ids, inputs, priorities, strict=True):
            engine.add_request(request_id, processed, priority=priority)
        done: dict[str, AnyOutput] = {}
        progress = _Progress(len(inputs), is_shown=use_tqdm)
        try:
            while len(done) < len(inputs):
                for output in engine.step():
                    done[output.request_id] = output
                    progress.add(output)
        finally:
            progress.close()
            if len(done) < len(inputs):
                engine.abort_request(ids)
                engine.step()
        return [done[request_id] for request_id in ids]


class _Progress:
    """Update the progress bar and its speeds."""

    def __init__(self, total: int, *, is_shown: bool) -> None:
        self._bar = progress_bar(
            total=total,
            desc="Processed prompts",
            is_shown=is_shown,
            postfix=f"est. speed input: {0:.2f} toks/s, output: {0:.2f} toks/s",
        )
        self._num_prompt_tokens = self._num_output_tokens = 0

    def add(self, output: AnyOutput) -> None:
        choices = output.outputs if isinstance(output, RequestOutput) else []
        self._num_prompt_tokens += len(output.prompt_token_ids) * max(1, len(choices))
        self._num_output_tokens += sum(len(choice.token_ids) for choice in choices)
        if not self._bar.disable:
            seconds = max(self._bar.format_dict["elapsed"], 1e-9)
            self._bar.set_postfix_str(
                f"est. speed input: {self._num_prompt_tokens / seconds:.2f} toks/s, "
                f"output: {self._num_output_tokens / seconds:.2f} toks/s",
                refresh=False,
            )
            self._bar.update()

    def close(self) -> None:
        self._bar.close()


def _as_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    if messages and isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]
    return [*cast("Sequence[Sequence[Message]]", messages)]


def _final_only(params: SamplingParams) -> SamplingParams:
    final = copy.copy(params)
    final.output_kind = RequestOutputKind.FINAL_ONLY
    return final
