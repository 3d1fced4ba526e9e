"""`bench throughput`: how much the engine generates when it has all the work at once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vllm_lite.bench.datasets import Sample, Source, load_samples
from vllm_lite.bench.options.datasets import TEMPLATED, DatasetOptions
from vllm_lite.bench.options.load import ThroughputOptions
from vllm_lite.bench.prompts import PromptMaker
from vllm_lite.bench.report import write_json
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.errors import UsageError
from vllm_lite.llm import LLM
from vllm_lite.outputs import RequestOutput
from vllm_lite.progress import progress_bar
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tokenizer.chat_template import render_chat
from vllm_lite.tokenizer.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt, as text or ids, and how many tokens to generate."""

    prompt: str | list[int]
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    """The tokens and seconds of a run."""

    num_requests: int
    num_prompt: int
    num_output: int
    seconds: float


def run_throughput(options: ThroughputOptions, engine_args: EngineArgs) -> int:
    """Generate for every prompt of the dataset and print the rates; raises UsageError."""
    config = engine_args.create_engine_config("llm")
    # Before the engine starts: what cannot work should not take so long to say so.
    jobs = _jobs(options, load_tokenizer(config), config.model.seed)
    _check_lengths(jobs, config.model.max_model_len)
    if options.async_engine:
        work = asyncio.run(_run_async(options, config, jobs))
    else:
        work = _run_llm(options, engine_args, jobs)
    _report(options, engine_args.model, work)
    return 0


def _report(options: ThroughputOptions, model: str, work: Work) -> None:
    total = work.num_prompt + work.num_output
    requests, tokens = work.num_requests / work.seconds, total / work.seconds
    sys.stdout.write(
        f"Throughput: {requests:.2f} requests/s, {tokens:.2f} total tokens/s, "
        f"{work.num_output / work.seconds:.2f} output tokens/s\n"
        f"Total num prompt tokens:  {work.num_prompt}\n"
        f"Total num output tokens:  {work.num_output}\n"
    )
    if options.output_json is not None:
        content = {
            "model_id": model,
            "elapsed_time": work.seconds,
            "num_requests": work.num_requests,
            "total_num_tokens": total,
            "requests_per_second": requests,
            "tokens_per_second": tokens,
        }
        write_json(options.output_json, content)


def _run_llm(options: ThroughputOptions, engine_args: EngineArgs, jobs: Sequence[Job]) -> Work:
    given = dict(engine_args.given)
    with LLM(given.pop("model", engine_args.model), **given) as llm:
        warm = _warmups(options, jobs)
        if warm:
            llm.generate([job.prompt for job in warm], _params(warm, options), use_tqdm=False)
        prompts, params = [job.prompt for job in jobs], _params(jobs, options)
        began = time.perf_counter()
        outputs = llm.generate(prompts, params)
        return _work(outputs, time.perf_counter() - began)


async def _run_async(options: ThroughputOptions, config: VllmConfig, jobs: Sequence[Job]) -> Work:
    engine = AsyncLLM.from_vllm_config(config)
    try:
        warm = _warmups(options, jobs)
        await _generate_all(engine, warm, _params(warm, options), "warmup")
        params = _params(jobs, options)
        if options.prequeue_requests:
            await engine.pause_generation("keep")
        began = time.perf_counter()
        task = asyncio.create_task(_generate_all(engine, jobs, params, "Processed prompts"))
        if options.prequeue_requests:
            # Requests that a pause holds back count as waiting.
            while not task.done() and await _num_waiting(engine) < len(jobs) * options.n:
                await asyncio.sleep(0)
            await engine.resume_generation()
        return _work(await task, time.perf_counter() - began)
    finally:
        await engine.shutdown()


def _warmups(options: ThroughputOptions, jobs: Sequence[Job]) -> list[Job]:
    return [jobs[index % len(jobs)] for index in range(options.num_warmups)]


async def _num_waiting(engine: AsyncLLM) -> int:
    return (await engine.get_stats()).num_waiting


def _work(outputs: Sequence[RequestOutput], seconds: float) -> Work:
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    return Work(len(outputs), num_prompt, num_output, seconds)


async def _generate_all(
    engine: AsyncLLM, jobs: Sequence[Job], params: Sequence[SamplingParams], name: str
) -> list[RequestOutput]:
    """The last output of each request; all of them run at once."""
    bar = progress_bar(total=len(jobs), desc=name, is_shown=name != "warmup")
    num_tokens = 0

    async def one(index: int) -> RequestOutput:
        nonlocal num_tokens
        stream = engine.generate(jobs[index].prompt, params[index], f"{name}-{index}")
        last = [output async for output in stream][-1]
        num_tokens += sum(len(choice.token_ids) for choice in last.outputs)
        rate = num_tokens / max(bar.format_dict["elapsed"], 1e-9) if not bar.disable else 0.0
        bar.set_postfix_str(f"output: {rate:.2f} toks/s", refresh=False)
        bar.update()
        return last

    with bar:
        return list(await asyncio.gather(*(one(index) for index in range(len(jobs)))))


def _jobs(options: ThroughputOptions, tokenizer: Tokenizer, seed: int) -> list[Job]:
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
    return [_job(sample, tokenizer if is_templated else None) for sample in samples]


def _as_chat(tokenizer: Tokenizer) -> Callable[[str], str]:
    def write(prompt: str) -> str:
        return render_chat(tokenizer, [{"role": "user", "content": prompt}])

    return write


def _text(sample: Sample) -> str:
    if not isinstance(sample.prompt, str):
        raise UsageError("--backend vllm-chat takes a dataset of texts, not of token ids")
    return sample.prompt


def _job(sample: Sample, tokenizer: Tokenizer | None) -> Job:
    if tokenizer is not None:
        ids = tokenizer.encode(_text(sample), add_special_tokens=False)
        return Job(ids, len(ids), sample.output_tokens)
    prompt = sample.prompt
    ready = prompt if isinstance(prompt, str) else [int(one) for one in prompt]
    return Job(ready, sample.prompt_tokens, sample.output_tokens)


def _check_lengths(jobs: Sequence[Job], max_model_len: int) -> None:
    longest = max(job.prompt_tokens + job.output_tokens for job in jobs)
    if longest > max_model_len:
        raise UsageError(
            f"a prompt and its output have {longest} tokens, --max-model-len is {max_model_len}; "
            "lower --input-len or --output-len"
        )


def _params(jobs: Sequence[Job], options: ThroughputOptions) -> list[SamplingParams]:
    return [
        SamplingParams(
            n=options.n,
            temperature=1.0,
            top_p=1.0,
            ignore_eos=True,
            max_tokens=job.output_tokens,
            detokenize=not options.disable_detokenize,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for job in jobs
    ]
