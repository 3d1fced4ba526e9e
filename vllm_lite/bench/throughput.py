"""`bench throughput`: how much the engine generates when it has all the work at once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from tqdm import tqdm

from vllm_lite.bench.datasets import Sample, Source, load_samples
from vllm_lite.bench.options import DatasetOptions, ThroughputOptions
from vllm_lite.bench.prompts import PromptMaker
from vllm_lite.bench.report import write_json
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.async_llm import AsyncLLM
from vllm_lite.errors import UsageError
from vllm_lite.llm import LLM
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tokenizer.chat_template import render_chat
from vllm_lite.tokenizer.tokenizer import Tokenizer, load_tokenizer

Timed = tuple[list[RequestOutput], float]


def run_throughput(options: ThroughputOptions, engine_args: EngineArgs) -> int:
    """Generate for every prompt of the dataset and print the rates; raises UsageError."""
    config = engine_args.create_engine_config("llm")
    # Before the engine starts: what cannot work should not take so long to say so.
    samples = _samples(options, load_tokenizer(config), config.model.seed)
    _check_lengths(samples, config.model.max_model_len)
    if options.async_engine:
        outputs, seconds = asyncio.run(_run_async(options, config, samples))
    else:
        outputs, seconds = _run_llm(options, engine_args, samples)
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    requests, total = len(outputs) / seconds, (num_prompt + num_output) / seconds
    sys.stdout.write(
        f"Throughput: {requests:.2f} requests/s, {total:.2f} total tokens/s, "
        f"{num_output / seconds:.2f} output tokens/s\n"
        f"Total num prompt tokens:  {num_prompt}\n"
        f"Total num output tokens:  {num_output}\n"
    )
    if options.output_json is not None:
        content = {
            "model_id": engine_args.model,
            "elapsed_time": seconds,
            "num_requests": len(outputs),
            "total_num_tokens": num_prompt + num_output,
            "requests_per_second": requests,
            "tokens_per_second": total,
        }
        write_json(options.output_json, content)
    return 0


def _run_llm(
    options: ThroughputOptions, engine_args: EngineArgs, samples: Sequence[Sample]
) -> Timed:
    given = dict(engine_args.given)
    with LLM(given.pop("model", engine_args.model), **given) as llm:
        warm = [samples[index % len(samples)] for index in range(options.num_warmups)]
        if warm:
            llm.generate([s.prompt for s in warm], _params(warm, options), use_tqdm=False)
        prompts, params = [sample.prompt for sample in samples], _params(samples, options)
        began = time.perf_counter()
        outputs = llm.generate(prompts, params)
        return outputs, time.perf_counter() - began


async def _run_async(
    options: ThroughputOptions, config: VllmConfig, samples: Sequence[Sample]
) -> Timed:
    engine = AsyncLLM.from_vllm_config(config)
    try:
        warm = [samples[index % len(samples)] for index in range(options.num_warmups)]
        await _generate_all(engine, warm, _params(warm, options), "warmup")
        params = _params(samples, options)
        began = time.perf_counter()
        outputs = await _generate_all(engine, samples, params, "Processed prompts")
        return outputs, time.perf_counter() - began
    finally:
        await engine.shutdown()


async def _generate_all(
    engine: AsyncLLM, samples: Sequence[Sample], params: Sequence[SamplingParams], name: str
) -> list[RequestOutput]:
    """The last output of each request; all of them run at once."""
    bar = tqdm(total=len(samples), desc=name, dynamic_ncols=True, disable=name == "warmup")
    num_tokens = 0

    async def one(index: int) -> RequestOutput:
        nonlocal num_tokens
        stream = engine.generate(samples[index].prompt, params[index], f"{name}-{index}")
        last = [output async for output in stream][-1]
        num_tokens += sum(len(choice.token_ids) for choice in last.outputs)
        rate = num_tokens / max(bar.format_dict["elapsed"], 1e-9) if not bar.disable else 0.0
        bar.set_postfix_str(f"output: {rate:.2f} toks/s", refresh=False)
        bar.update()
        return last

    with bar:
        return list(await asyncio.gather(*(one(index) for index in range(len(samples)))))


def _samples(options: ThroughputOptions, tokenizer: Tokenizer, seed: int) -> list[Sample]:
    def as_chat(prompt: str) -> str:
        return render_chat(tokenizer, [{"role": "user", "content": prompt}])

    dataset: DatasetOptions = options.dataset
    if options.prefix_len:
        dataset = replace(dataset, random_prefix_len=options.prefix_len)
    write = None if dataset.skip_chat_template else as_chat
    return load_samples(options.dataset_kind, Source(dataset, PromptMaker(tokenizer), seed, write))


def _check_lengths(samples: Sequence[Sample], max_model_len: int) -> None:
    longest = max(sample.prompt_tokens + sample.output_tokens for sample in samples)
    if longest > max_model_len:
        raise UsageError(
            f"a prompt and its output have {longest} tokens, --max-model-len is {max_model_len}; "
            "lower --input-len or --output-len"
        )


def _params(samples: Sequence[Sample], options: ThroughputOptions) -> list[SamplingParams]:
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
