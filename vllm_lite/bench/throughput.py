"""`bench throughput`: how much the engine generates, or pools, when it has all the work at once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from vllm_lite.bench.datasets import Sample, Source, load_samples
from vllm_lite.bench.options.datasets import TEMPLATED, DatasetOptions
from vllm_lite.bench.options.load import ThroughputOptions
from vllm_lite.bench.prompts import PromptMaker
from vllm_lite.bench.report import drafts_block, write_json
from vllm_lite.bench.target_server import DraftCounts
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import Task
from vllm_lite.engine.client import Prompt
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.errors import UsageError
from vllm_lite.llm import LLM
from vllm_lite.metrics.stats import SchedulerStats, SpecDecodingStats
from vllm_lite.outputs import AnyOutput, RequestOutput
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.progress import progress_bar
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tokenizer.chat_template import render_chat
from vllm_lite.tokenizer.tokenizer import Tokenizer, load_tokenizer

# The requests' last outputs, the seconds that they took together, and their drafts.
Work = tuple[Sequence[AnyOutput], float, DraftCounts]


def run_throughput(options: ThroughputOptions, engine_args: EngineArgs) -> int:
    """Run every prompt of the dataset and print the rates; raises UsageError."""
    config = engine_args.create_engine_config("llm")
    # Before the engine starts: what cannot work should not take so long to say so.
    samples = _samples(options, load_tokenizer(config), config.model.seed)
    if config.facts.pooling is not None:
        if options.n > 1:
            raise UsageError("--n is for models that generate, and this one pools")
        samples = [replace(sample, output_tokens=0) for sample in samples]
    longest = max(sample.prompt_tokens + sample.output_tokens for sample in samples)
    if longest > config.model.max_model_len:
        raise UsageError(
            f"a prompt and its output have {longest} tokens, --max-model-len is "
            f"{config.model.max_model_len}; lower --input-len or --output-len"
        )
    if options.async_engine:
        work = asyncio.run(_run_async(options, config, samples))
    else:
        work = _run_llm(options, config, engine_args, samples)
    _report(options, engine_args.model, work)
    return 0


def _report(options: ThroughputOptions, model: str, work: Work) -> None:
    outputs, seconds, counts = work
    drafts = drafts_block(counts)
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(map(_num_tokens, outputs))
    total = num_prompt + num_output
    requests, tokens = len(outputs) / seconds, total / seconds
    sys.stdout.write(
        f"Throughput: {requests:.2f} requests/s, {tokens:.2f} total tokens/s, "
        f"{num_output / seconds:.2f} output tokens/s\n"
        f"Total num prompt tokens:  {num_prompt}\n"
        f"Total num output tokens:  {num_output}\n"
    )
    sys.stdout.writelines(f"{line}\n" for line in (drafts.lines if drafts else ()))
    if options.output_json is not None:
        content = {
            "model_id": model,
            "elapsed_time": seconds,
            "num_requests": len(outputs),
            "total_num_tokens": total,
            "requests_per_second": requests,
            "tokens_per_second": tokens,
            **(drafts.json if drafts else {}),
        }
        write_json(options.output_json, content)


def _run_llm(
    options: ThroughputOptions,
    config: VllmConfig,
    engine_args: EngineArgs,
    samples: Sequence[Sample],
) -> Work:
    given = dict(engine_args.given)
    with LLM(given.pop("model", engine_args.model), **given) as llm:
        run: Callable[..., Sequence[AnyOutput]] = llm.generate
        if config.facts.pooling is not None:
            run = llm.encode
        warm = _warmups(options, samples)
        if warm:
            run(_prompts(warm), _params(warm, options, config), use_tqdm=False)
        prompts, params = _prompts(samples), _params(samples, options, config)
        before, began = _drafts(llm.get_stats()), time.perf_counter()
        outputs = run(prompts, params)
        seconds = time.perf_counter() - began
        return outputs, seconds, _drafts(llm.get_stats()).since(before)


async def _run_async(
    options: ThroughputOptions, config: VllmConfig, samples: Sequence[Sample]
) -> Work:
    engine = AsyncLLM.from_vllm_config(config)
    try:
        warm = _warmups(options, samples)
        await _run_all(engine, warm, _params(warm, options, config), "warmup")
        params = _params(samples, options, config)
        if options.prequeue_requests:
            await engine.pause_generation("keep")
        before, began = _drafts(await engine.get_stats()), time.perf_counter()
        task = asyncio.create_task(_run_all(engine, samples, params, "Processed prompts"))
        if options.prequeue_requests:
            # Requests that a pause holds back count as waiting.
            while not task.done():
                if (await engine.get_stats()).num_waiting >= len(samples) * options.n:
                    break
                await asyncio.sleep(0)
            await engine.resume_generation()
        outputs, seconds = await task, time.perf_counter() - began
        return outputs, seconds, _drafts(await engine.get_stats()).since(before)
    finally:
        await engine.shutdown()


def _drafts(stats: SchedulerStats) -> DraftCounts:
    """Those of all requests so far."""
    told = stats.spec_decoding or SpecDecodingStats()
    at = dict(enumerate(told.num_accepted_tokens_per_pos))
    return DraftCounts(told.num_drafts, told.num_draft_tokens, told.num_accepted_tokens, at)


def _warmups(options: ThroughputOptions, samples: Sequence[Sample]) -> list[Sample]:
    return [samples[index % len(samples)] for index in range(options.num_warmups)]


def _prompts(samples: Sequence[Sample]) -> list[Prompt]:
    return [sample.prompt for sample in samples]  # type: ignore[misc]


async def _run_all(
    engine: AsyncLLM, samples: Sequence[Sample], params: Sequence[Task], name: str
) -> list[AnyOutput]:
    """The last output of each request; all of them run at once."""
    prompts = _prompts(samples)
    bar = progress_bar(total=len(prompts), desc=name, is_shown=name != "warmup")
    num_tokens = 0

    async def one(index: int) -> AnyOutput:
        nonlocal num_tokens
        stream: AsyncIterator[AnyOutput] = engine.generate(
            prompts[index], params[index], f"{name}-{index}"
        )
        last = [output async for output in stream][-1]
        num_tokens += _num_tokens(last)
        rate = num_tokens / max(bar.format_dict["elapsed"], 1e-9) if not bar.disable else 0.0
        bar.set_postfix_str(f"output: {rate:.2f} toks/s", refresh=False)
        bar.update()
        return last

    with bar:
        return list(await asyncio.gather(*(one(index) for index in range(len(prompts)))))


def _samples(options: ThroughputOptions, tokenizer: Tokenizer, seed: int) -> list[Sample]:
    """The dataset's prompts; those that a chat template wrote as ids, which nothing is added to."""
    dataset: DatasetOptions = options.dataset
    if options.prefix_len:
        dataset = replace(dataset, random_prefix_len=options.prefix_len)
    is_chat = options.backend == "vllm-chat"
    write = None if dataset.skip_chat_template or is_chat else _as_chat(tokenizer)
    source = Source(dataset, PromptMaker(tokenizer), seed, write, shows_progress=True)
    samples = load_samples(options.dataset_kind, source)
    if is_chat:
        as_chat = _as_chat(tokenizer)
        samples = [replace(sample, prompt=as_chat(_text(sample))) for sample in samples]
    is_templated = is_chat or (write is not None and options.dataset_kind in TEMPLATED)
    return [_as_ids(sample, tokenizer) for sample in samples] if is_templated else samples


def _as_chat(tokenizer: Tokenizer) -> Callable[[str], str]:
    def write(prompt: str) -> str:
        return render_chat(tokenizer, [{"role": "user", "content": prompt}])

    return write


def _text(sample: Sample) -> str:
    if not isinstance(sample.prompt, str):
        raise UsageError("--backend vllm-chat takes a dataset of texts, not of token ids")
    return sample.prompt


def _as_ids(sample: Sample, tokenizer: Tokenizer) -> Sample:
    ids = tokenizer.encode(_text(sample), add_special_tokens=False)
    return replace(sample, prompt=ids, prompt_tokens=len(ids))


def _num_tokens(output: AnyOutput) -> int:
    choices = output.outputs if isinstance(output, RequestOutput) else []
    return sum(len(choice.token_ids) for choice in choices)


def _params(
    samples: Sequence[Sample], options: ThroughputOptions, config: VllmConfig
) -> Sequence[Task]:
    if config.facts.pooling is not None:
        return [PoolingParams()] * len(samples)
    return [
        SamplingParams(
            n=options.n,
            temperature=1.0,
            top_p=1.0,
            ignore_eos=True,
            max_tokens=sample.output_tokens,
            detokenize=not options.disable_detokenize,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for sample in samples
    ]
