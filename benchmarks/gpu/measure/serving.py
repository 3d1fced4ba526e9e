"""Section `serving`: many requests at once, beside transformers in the same run, in two ways.

Its `generate` gets the first of the same requests, padded to one batch, with a static cache and
without torch.compile; its rate for them stands for all. Ours is also measured on the same few. Its
continuous batching, with its own choice of graphs and of the cache's size, gets all of them twice:
as one batch, and in batches as large as that of `generate`. The faster counts.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from measure.decode import decoding, gap_row, overhead_row, profile_row
from measure.engine import Job, add, dummy_engine, give_back, made_up, run
from measure.place import Place, say
from measure.report import TIMES, Row, one_line
from measure.shapes import model_folder
from measure.timeline import prepare
from vllm_lite.engine.core.engine_core import EngineCore

SECTION, MODEL = "serving", "Qwen3-0.6B"
GOAL = 24.0
SHORTEST, LONGEST = 100, 1024
# Requests of the workload, and how many of them the rival gets.
NUM_REQUESTS, NUM_RIVAL = 256, 64
# What a rival may take; it is cut off then, and counted as far as it came.
RIVAL_SECONDS = 40.0
# Beside generating, continuous batching makes its cache, and ends the step it is in: at most,
# and as a rule.
BESIDE_SECONDS, QUICK_SECONDS = 8.0, 2.0
# The whole section.
SECONDS = 124.0


def workload(place: Place, vocabulary: int) -> list[Job]:
    """Prompts and answers of uniform lengths, the same in every run."""
    count, shortest, longest = place.either((NUM_REQUESTS, SHORTEST, LONGEST), (6, 5, 20))
    lengths = random.Random(0)
    return [
        Job(
            made_up(vocabulary, lengths.randint(shortest, longest), seed=n),
            lengths.randint(shortest, longest),
        )
        for n in range(count)
    ]


def serving(place: Place) -> None:
    """Throughput of ours and of the rival; what steps lose between them."""
    place = replace(place, deadline=min(place.deadline, time.monotonic() + SECONDS))
    folder = model_folder(place, MODEL)
    count = place.either(NUM_REQUESTS, 6)
    prepare(place)
    with dummy_engine(place, MODEL, 2 * LONGEST + 64, count) as core:
        say(f"  {core.describe().kernels}")
        vocabulary = core.config.facts.vocab_size
        jobs = workload(place, vocabulary)
        few = jobs[: place.either(NUM_RIVAL, 2)]
        warm_up(core, count)
        all_rate, few_rate = rate(core, "all", jobs), rate(core, "few", few)
        place.tell(Row(SECTION, f"{MODEL}, {count} requests, ours", all_rate, "tokens/s"))
        for rows in (1, count):
            found = decoding(place, core, rows, place.either(512, 16), place.either(60, 3))
            place.tell(overhead_row(SECTION, MODEL, found))
            place.tell(gap_row(SECTION, MODEL, found))
            place.tell(profile_row(SECTION, MODEL, found))
    del core
    give_back(place)
    theirs = static_rate(place, rival_model(place, folder), few)
    rival = f"transformers, static cache, one batch of the first {len(few)} requests"
    place.tell(Row(SECTION, rival, theirs["rate"], "tokens/s", details=theirs))
    place.tell(
        Row(
            SECTION,
            f"{MODEL}, {count} requests, ours / transformers",
            share=all_rate / theirs["rate"],
            share_unit=TIMES,
            goal=GOAL,
            note=f"the rival's rate over {len(few)} of them is taken for all {count}",
        )
    )
    place.tell(
        Row(
            SECTION,
            f"{MODEL}, the same {len(few)} requests, ours / transformers",
            few_rate,
            "tokens/s",
            few_rate / theirs["rate"],
            share_unit=TIMES,
        )
    )
    tell_batching(place, folder, jobs, (count, len(few)), all_rate)


def tell_batching(
    place: Place, folder: Path, jobs: Sequence[Job], sizes: tuple[int, int], ours: float
) -> None:
    """Rows of transformers' continuous batching of all requests, by batches of each size."""
    give_back(place)  # what `generate` held, since the cache takes what is free
    model, best, what = rival_model(place, folder), 0.0, "transformers, continuous batching"
    # A host's free memory takes long to fill.
    small = place.either({}, {"num_blocks": 32, "max_batch_tokens": 64})
    for left, size in zip((2, 1), sizes, strict=True):
        # One that takes all of BESIDE_SECONDS is the last.
        seconds = (place.seconds_left() - BESIDE_SECONDS) / left - QUICK_SECONDS
        seconds = min(RIVAL_SECONDS / 2, max(5.0, seconds))
        found = batching(model, jobs, {"max_requests_per_batch": size, **small}, seconds)
        best = max(best, found.rate)
        rate = found.rate or None
        at_once = f"{size} at once"
        place.tell(Row(SECTION, what, rate, "tokens/s", note=found.note, column=at_once))
        if found.is_stuck:
            break
    share = ours / best if best else None
    note = "with the faster of its settings" if best else "it made no token"
    work = f"{MODEL}, {len(jobs)} requests, ours / transformers' continuous batching"
    place.tell(Row(SECTION, work, share=share, share_unit=TIMES, note=note))


def warm_up(core: EngineCore, count: int) -> None:
    """Meet every batch size on the way down from `count`, so that each graph is there."""
    jobs = [Job(made_up(320, 30, 10**6 + n), n + 2) for n in range(count)]
    run_jobs(core, "warm", jobs)
    core.reset_prefix_cache()


def run_jobs(core: EngineCore, name: str, jobs: Sequence[Job]) -> int:
    """All of them; how many tokens came out, which must be all that were asked for."""
    add(core, name, jobs)
    count = sum(map(len, run(core).values()))
    if count != sum(job.num_outputs for job in jobs):
        raise RuntimeError(f"{count} tokens came out, {sum(j.num_outputs for j in jobs)} were due")
    return count


def rate(core: EngineCore, name: str, jobs: Sequence[Job]) -> float:
    """Output tokens a second."""
    core.reset_prefix_cache()
    began = time.perf_counter()
    count = run_jobs(core, name, jobs)
    seconds = time.perf_counter() - began
    say(f"  {len(jobs)} requests, {count} tokens in {seconds:.2f} s")
    return count / seconds


def rival_model(place: Place, folder: Path) -> Any:
    """The same model in transformers, with its own random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    dtype = place.either(torch.bfloat16, torch.float32)
    with torch.device(place.device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@dataclass(slots=True)
class Progress:
    """How far continuous batching came, kept up to date by the thread that drives it."""

    num_jobs: int
    finished: int = 0
    tokens: int = 0
    seconds: float = 0.0
    failure: str = ""
    is_stuck: bool = False

    @property
    def rate(self) -> float:
        """Tokens a second, those of unfinished requests among them; 0 where there are none."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def note(self) -> str:
        text = f"{self.finished} of {self.num_jobs} requests ended in {self.seconds:.1f} s"
        return f"{text}; {self.failure}" if self.failure else text

    def add(self, result: Any) -> None:
        """Count a request that ended or was cut off."""
        self.tokens += len(result.generated_tokens)
        self.finished += result.error is None


def batching(model: Any, jobs: Sequence[Job], settings: dict[str, int], seconds: float) -> Progress:
    """Generate for so long by continuous batching, in a thread that is left where it hangs.

    The manager's own thread is a daemon as the one is that starts it, so neither holds the process.
    """
    progress = Progress(len(jobs))

    def work() -> None:
        try:
            drive(model, jobs, settings, seconds, progress)
        except Exception as error:
            progress.failure = one_line(f"{type(error).__name__}: {error}", 90)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds + BESIDE_SECONDS)
    if thread.is_alive():
        progress.is_stuck, progress.failure = True, "it did not stop"
    say(f"  transformers, continuous: {progress.tokens} tokens, {progress.note}")
    return progress


def drive(
    model: Any, jobs: Sequence[Job], settings: dict[str, int], seconds: float, progress: Progress
) -> None:
    """Add all jobs and count what comes, at the end also of what is cut off."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(**settings),
    )
    manager.warmup()
    began = time.perf_counter()
    manager.start()
    for job in jobs:
        manager.add_request(list(job.prompt), max_new_tokens=job.num_outputs)
    while progress.finished < len(jobs) and progress.seconds < seconds and manager.is_running():
        if (result := manager.get_result(timeout=0.2)) is not None:
            progress.add(result)
        progress.seconds = time.perf_counter() - began
    has_died = not manager.is_running()
    # An ordinary stop first generates all that is left; this one hands it out as far as it came.
    manager.stop(timeout=BESIDE_SECONDS / 2, hard_stop=True)
    while (result := manager.get_result(timeout=0.0)) is not None:
        progress.add(result)
        if has_died and result.error:
            progress.failure = one_line(result.error, 90)


def static_rate(place: Place, model: Any, jobs: Sequence[Job]) -> dict[str, Any]:
    """Useful output tokens a second of transformers, and how far it came."""
    from transformers import StoppingCriteria

    class OutOfTime(StoppingCriteria):  # type: ignore[misc]
        def __init__(self, deadline: float) -> None:
            self.deadline = deadline

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            is_late = time.monotonic() > self.deadline
            return torch.full((len(input_ids),), is_late, device=input_ids.device)

    longest = max(len(job.prompt) for job in jobs)
    ids = torch.tensor([[0] * (longest - len(job.prompt)) + job.prompt for job in jobs])
    mask = torch.tensor([[0] * (longest - len(job.prompt)) + [1] * len(job.prompt) for job in jobs])

    def generate(num_tokens: int, max_seconds: float) -> int:
        made = model.generate(
            input_ids=ids.to(place.device),
            attention_mask=mask.to(place.device),
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,
            pad_token_id=0,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            stopping_criteria=[OutOfTime(time.monotonic() + max_seconds)],
        )
        place.synchronize()
        return int(made.shape[1]) - longest

    generate(4, 10.0)
    budget = min(RIVAL_SECONDS, max(5.0, place.seconds_left() / 2))
    began = time.perf_counter()
    steps = generate(max(job.num_outputs for job in jobs), budget)
    seconds = time.perf_counter() - began
    useful = sum(min(steps, job.num_outputs) for job in jobs)
    say(f"  transformers: {useful} tokens in {seconds:.2f} s, {steps} steps")
    return {"rate": useful / seconds, "seconds": seconds, "steps": steps, "batch": len(jobs)}
