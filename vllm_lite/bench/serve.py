"""`bench serve`: load a running server and report how it did.

Owns the order of things: find the server and its model, make the prompts, warm up, send,
measure, show.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import uvloop

from vllm_lite.bench.datasets import Sample, Source, load_samples
from vllm_lite.bench.load import (
    RampUp,
    RateChange,
    Sender,
    arrival_times,
    probes,
    ramp_up_times,
    run_load,
)
from vllm_lite.bench.metrics import measure
from vllm_lite.bench.options.load import ServeOptions
from vllm_lite.bench.plots import Plotter
from vllm_lite.bench.prompts import PromptMaker, UncountedPrompts, open_tokenizer
from vllm_lite.bench.recorder import (
    PreparedRequest,
    RequestResult,
    model_names,
    prepare,
    recorder_of,
)
from vllm_lite.bench.report import (
    check_result_folder,
    drafts_block,
    probe_block,
    result_path,
    run_json,
    show,
    table,
    write_json,
)
from vllm_lite.bench.target_server import POLL_SECONDS, DraftCounts, ServedModel, TargetServer
from vllm_lite.errors import UsageError
from vllm_lite.tokenizer.chat_template import render_chat

# Their lengths are what was asked for: random text may make a model stop at once.
_FIXED_LENGTHS = ("random", "timed_trace")


@dataclass(slots=True)
class LoadRun:
    """The results of a load: its requests in order, and server counters."""

    results: list[RequestResult]
    duration: float
    ended: datetime
    changes: list[RateChange]
    probes: list[RequestResult] = field(default_factory=list)
    drafts: DraftCounts | None = None


def run_serve(options: ServeOptions) -> int:
    """Run the benchmark; 1 where no request succeeded. Raises UsageError."""
    code: int = uvloop.run(_serve(options))
    return code


async def _serve(options: ServeOptions) -> int:
    # Before the load: what cannot be drawn or written should not take so long to say so.
    wants_plots = options.plot or options.plot_timeline or options.plot_dataset_stats
    plotter = Plotter() if wants_plots else None
    if plotter is not None or options.save_result or options.append_result:
        check_result_folder(options)
    server = TargetServer(options.target)
    try:
        model = await server.find_model(options.ready_check_timeout_sec)
        tokenizer_name, maker, samples = _samples(options, model)
        run = await _load(options, server, model, samples)
    finally:
        server.close()
    for result in run.results:
        if result.is_success and result.output_tokens is None:
            result.output_tokens = maker.count(result.text)
    names = {"model_id": model.source, "tokenizer_id": tokenizer_name}
    _report(options, run, names, plotter)
    return _report_failures(run.results)


async def _load(
    options: ServeOptions, server: TargetServer, model: ServedModel, samples: Sequence[Sample]
) -> LoadRun:
    target = options.target
    requests = _requests(samples, model.name, options)
    prefix = target.request_id_prefix or f"bench-{secrets.token_hex(4)}-"
    sender = Sender(server.client, target.path, prefix, recorder_of(target))
    await _warm_up(sender, requests, options)
    times, changes = _times(samples, options)
    before = None if target.api.is_pooling else await server.draft_counts()
    if options.profile:
        await server.switch_profiler("start")
    probe = prepare(Sample("Hi", 1, 1), model.name, target, options.sampling)
    async with probes(sender, probe, options.probe_request_rate) as answers:
        results, duration = await run_load(
            sender, requests, times, options.max_concurrency, not options.disable_tqdm
        )
    run = LoadRun(results, duration, datetime.now(), changes, answers)
    if options.profile:
        await server.switch_profiler("stop")
    after = await server.draft_counts() if before else None
    if before and after:
        run.drafts = after.since(before)
    return run


def _report(
    options: ServeOptions, run: LoadRun, names: dict[str, str | None], plotter: Plotter | None
) -> None:
    metrics = measure(run.results, run.duration, options.percentiles, options.goodput_limits)
    probe, drafts = probe_block(run.probes), drafts_block(run.drafts)
    show(table(metrics, options, probe, drafts))
    path = result_path(options, names["model_id"] or "", run.ended)
    if options.save_result or options.append_result:
        content = run_json(metrics, run.results, options, names, run.ended, run.changes)
        for block in (probe, drafts):
            content |= block.json if block else {}
        write_json(path, content, append=options.append_result)
    if plotter is None:
        return
    good = [result for result in run.results if result.is_success]
    if not good:
        sys.stderr.write("vllm-lite bench: no request succeeded, so there is nothing to draw\n")
        return
    drawn = []
    if options.plot:
        values = {name: metrics.values[name] for name in options.metrics}
        drawn.append(plotter.distributions(values, path.with_suffix(".latency.png")))
    if options.plot or options.plot_timeline:
        thresholds = options.itl_thresholds
        drawn.append(plotter.timeline(good, thresholds, path.with_suffix(".timeline.png")))
    if options.plot_dataset_stats:
        drawn.append(plotter.lengths(good, path.with_suffix(".dataset_stats.png")))
    sys.stdout.write("".join(f"Wrote {file}\n" for file in drawn))


def _samples(
    options: ServeOptions, model: ServedModel
) -> tuple[str | None, PromptMaker, list[Sample]]:
    """The tokenizer's name, what counts with it, and the requests of the dataset."""
    target, dataset = options.target, options.dataset
    if target.skip_tokenizer_init:
        maker: PromptMaker = UncountedPrompts()
        return None, maker, load_samples(options.dataset_name, Source(dataset, maker, options.seed))
    name = target.tokenizer or model.source
    tokenizer = open_tokenizer(
        name, mode=target.tokenizer_mode, trust_remote_code=target.trust_remote_code
    )

    def as_chat(prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        return render_chat(tokenizer, messages, chat_template_kwargs=options.chat_template_kwargs)

    if not options.is_plain and tokenizer.chat_template is None:
        raise UsageError("the tokenizer has no chat template; add --skip-chat-template")
    maker = PromptMaker(tokenizer)
    write = None if options.is_plain else as_chat
    source = Source(dataset, maker, options.seed, write, not options.disable_tqdm)
    return name, maker, load_samples(options.dataset_name, source)


def _requests(
    samples: Sequence[Sample], model: str, options: ServeOptions
) -> list[PreparedRequest]:
    target = options.target
    if options.dataset_name in _FIXED_LENGTHS and not target.api.is_pooling:
        target = replace(target, ignore_eos=True)
    names = model_names(target, model, len(samples), options.seed)
    return [
        prepare(sample, name, target, options.sampling)
        for sample, name in zip(samples, names, strict=True)
    ]


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
        await asyncio.sleep(POLL_SECONDS)
    count = options.num_warmups
    warmups = [requests[index % len(requests)] for index in range(count)]
    if warmups:
        await run_load(sender, warmups, [0.0] * count, options.max_concurrency, False)


def _times(
    samples: Sequence[Sample], options: ServeOptions
) -> tuple[list[float], list[RateChange]]:
    if options.dataset_name == "timed_trace" and options.self_timed is not False:
        return [sample.at for sample in samples], []
    rng = np.random.default_rng(options.seed)
    start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
    if options.ramp_up_strategy is None or start is None or end is None:
        rate = options.request_rate
        return arrival_times(len(samples), rate, options.burstiness, rng), []
    ramp_up = RampUp(options.ramp_up_strategy, start, end)
    return ramp_up_times(len(samples), ramp_up, options.burstiness, rng)


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
