"""`bench serve`: load a running server and report how it did.

Owns the order of things: find the server and its model, make the prompts, warm up, send,
measure, show. Works with any server that speaks OpenAI's API.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
import numpy as np
import uvloop

from vllm_lite import envs
from vllm_lite.bench.arrivals import RampUp, RateChange, arrival_times, ramp_up_times
from vllm_lite.bench.datasets import Sample, Source, load_samples
from vllm_lite.bench.http_client import HttpClient, TransportError
from vllm_lite.bench.load import PreparedRequest, Sender, prepare, run_load
from vllm_lite.bench.metrics import measure
from vllm_lite.bench.options import ServeOptions, TargetOptions, new_request_id_prefix
from vllm_lite.bench.prompts import PromptMaker, open_tokenizer
from vllm_lite.bench.recorder import RequestResult, error_text
from vllm_lite.bench.report import result_path, run_json, table, write_json
from vllm_lite.errors import UsageError
from vllm_lite.tokenizer.chat_template import render_chat
from vllm_lite.tokenizer.tokenizer import Tokenizer

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model's name in requests, and where its files are."""

    name: str
    source: str


def run_serve(options: ServeOptions) -> int:
    """Run the benchmark; 1 where no request succeeded. Raises UsageError."""
    code: int = uvloop.run(_serve(options))
    return code


async def _serve(options: ServeOptions) -> int:
    target = options.target
    client = HttpClient(target.url, _headers(target), verify_tls=not target.insecure)
    try:
        model = await _find_model(client, options)
        tokenizer_name = target.tokenizer or model.source
        tokenizer = open_tokenizer(tokenizer_name, trust_remote_code=target.trust_remote_code)
        maker = PromptMaker(tokenizer)
        requests = _requests(_samples(options, tokenizer, maker), model.name, options)
        sender = Sender(client, target.path, target.request_id_prefix or new_request_id_prefix())
        await _warm_up(sender, requests, options)
        times, changes = _times(len(requests), options)
        results, duration = await run_load(
            sender, requests, times, options.max_concurrency, not options.disable_tqdm
        )
    finally:
        client.close()
    ended = datetime.now()
    for result in results:
        if result.is_success and result.output_tokens is None:
            result.output_tokens = maker.count(result.text)
    metrics = measure(results, duration, options.percentiles, options.goodput_limits)
    sys.stdout.write(table(metrics, options) + "\n")
    sys.stdout.flush()
    if options.save_result or options.append_result:
        names = {"model_id": model.source, "tokenizer_id": tokenizer_name}
        path = result_path(options, model.source, ended)
        run = run_json(metrics, results, options, names, ended, changes)
        write_json(path, run, append=options.append_result)
    return _report_failures(results)


def _headers(target: TargetOptions) -> dict[str, str]:
    key = envs.OPENAI_API_KEY
    return {**({"authorization": f"Bearer {key}"} if key else {}), **target.headers}


async def _find_model(client: HttpClient, options: ServeOptions) -> ServedModel:
    """The model that was named, or the first that the server lists."""
    target = options.target
    status, body = await _ask_models(client, options.ready_check_timeout_sec)
    if target.model is not None:
        return ServedModel(target.served_model_name or target.model, target.model)
    if status in (401, 403):
        raise UsageError(f"{client.url} refuses the API key; set OPENAI_API_KEY to one it takes")
    try:
        first = msgspec.json.decode(body)["data"][0]
        name = str(first["id"])
        source = first.get("root") or name
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        raise UsageError(
            f"{client.url} does not list its models (HTTP {status}: {error_text(body)}); "
            "give --model"
        ) from None
    return ServedModel(target.served_model_name or name, str(source))


async def _ask_models(client: HttpClient, patience: float) -> tuple[int, bytes]:
    """The answer of /v1/models, which also tells that there is a server."""
    deadline = time.perf_counter() + patience
    while True:
        try:
            return await client.get("/v1/models")
        except TransportError as error:
            if time.perf_counter() >= deadline:
                raise UsageError(
                    f"there is no server: {error}; start one with `vllm-lite serve MODEL`, or give "
                    "--base-url"
                ) from None
        await asyncio.sleep(_POLL_SECONDS)


def _samples(options: ServeOptions, tokenizer: Tokenizer, maker: PromptMaker) -> list[Sample]:
    def as_chat(prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        return render_chat(tokenizer, messages, chat_template_kwargs=options.chat_template_kwargs)

    # A chat server applies its template itself.
    is_plain = options.dataset.skip_chat_template or options.target.is_chat
    write: Callable[[str], str] | None = None if is_plain else as_chat
    if options.dataset_name == "custom" and write and tokenizer.chat_template is None:
        raise UsageError("the tokenizer has no chat template; add --skip-chat-template")
    return load_samples(options.dataset_name, Source(options.dataset, maker, options.seed, write))


def _requests(
    samples: Sequence[Sample], model: str, options: ServeOptions
) -> list[PreparedRequest]:
    target = options.target
    if options.dataset_name == "random":
        # Random text may make a model stop at once; lengths are what was asked for.
        target = replace(target, ignore_eos=True)
    return [prepare(sample, model, target, options.sampling) for sample in samples]


async def _warm_up(
    sender: Sender, requests: Sequence[PreparedRequest], options: ServeOptions
) -> None:
    """Wait until the server answers, if asked to, then send what does not count."""
    patience = options.ready_check_timeout_sec
    deadline = time.perf_counter() + patience
    while patience:
        result = await sender.send(requests[0])
        if result.is_success:
            break
        if time.perf_counter() >= deadline:
            raise UsageError(f"the server is not ready after {patience} s: {result.error}")
        await asyncio.sleep(_POLL_SECONDS)
    count = options.num_warmups
    warmups = [requests[index % len(requests)] for index in range(count)]
    if warmups:
        await run_load(sender, warmups, [0.0] * count, options.max_concurrency, False)


def _times(count: int, options: ServeOptions) -> tuple[list[float], list[RateChange]]:
    rng = np.random.default_rng(options.seed)
    start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
    if options.ramp_up_strategy is None or start is None or end is None:
        return arrival_times(count, options.request_rate, options.burstiness, rng), []
    ramp_up = RampUp(options.ramp_up_strategy, start, end)
    return ramp_up_times(count, ramp_up, options.burstiness, rng)


def _report_failures(results: Sequence[RequestResult]) -> int:
    failures = Counter(result.error for result in results if not result.is_success)
    if not failures:
        return 0
    ((cause, count),) = failures.most_common(1)
    total = sum(failures.values())
    sys.stderr.write(
        f"vllm-lite bench: {total} of {len(results)} requests failed; {count} of them: {cause}\n"
    )
    return int(total == len(results))
