"""Section `serving`: many requests at once, beside transformers in the same run, in two ways.

Its `generate` gets the first of the same requests, padded to one batch, with a static cache and
without torch.compile; its rate for them stands for all. Ours is also measured on the same few. Its
continuous batching, with its own choice of graphs, gets all of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from measure.decode import decoding, gap_row, overhead_row
from measure.engine import EngineCore, Job, add, engine, made_up, run
from measure.place import Place, say
from measure.report import TIMES, Row
from measure.shapes import model_folder
from measure.timeline import prepare

SECTION, MODEL = "serving", "Qwen3-0.6B"
GOAL = 24.0
SHORTEST, LONGEST = 100, 1024
# Requests of the workload, and how many of them the rival gets.
NUM_REQUESTS, NUM_RIVAL = 256, 64
# What a rival may take; it is cut off then, and counted as far as it came.
RIVAL_SECONDS = 45.0


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
    folder = model_folder(place, MODEL)
    count = place.either(NUM_REQUESTS, 6)
    settings: dict[str, Any] = {"max_model_len": 2 * LONGEST + 64, "max_num_seqs": count}
    if place.is_dry:
        settings |= {"max_model_len": 128, "kv_cache_memory_bytes": 1 << 22}
    prepare(place)
    with engine(place, folder, load_format="dummy", **settings) as core:
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
    model = rival_model(place, folder)
    theirs = batching_rate(place, model, jobs)
    place.tell(Row(SECTION, "transformers, continuous batching", theirs["rate"], "tokens/s"))
    place.tell(
        Row(
            SECTION,
            f"{MODEL}, {count} requests, ours / transformers' continuous batching",
            share=all_rate / theirs["rate"],
            share_unit=TIMES,
            note=f"it finished {theirs['finished']} of them",
        )
    )
    theirs = rival_rate(place, model, few)
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


def rival_seconds(place: Place) -> float:
    return min(RIVAL_SECONDS, max(5.0, place.seconds_left() - 15.0))


def batching_rate(place: Place, model: Any, jobs: Sequence[Job]) -> dict[str, Any]:
    """Output tokens a second of transformers' continuous batching, of what it finished in time."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    settings = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(max_requests_per_batch=len(jobs))
    count = finished = 0
    with model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=batching
    ) as manager:
        began = time.perf_counter()
        for job in jobs:
            manager.add_request(list(job.prompt), max_new_tokens=job.num_outputs)
        until = began + rival_seconds(place)
        while finished < len(jobs) and time.perf_counter() < until and manager.is_running():
            if (done := manager.get_result(timeout=0.5)) is not None and done.is_finished():
                finished += 1
                count += len(done.generated_tokens)
        seconds = time.perf_counter() - began
    say(f"  transformers, continuous: {finished} requests, {count} tokens in {seconds:.2f} s")
    if not count:
        raise RuntimeError("transformers' continuous batching finished no request")
    return {"rate": count / seconds, "finished": finished}


def rival_rate(place: Place, model: Any, jobs: Sequence[Job]) -> dict[str, Any]:
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
    budget = rival_seconds(place)
    began = time.perf_counter()
    steps = generate(max(job.num_outputs for job in jobs), budget)
    seconds = time.perf_counter() - began
    useful = sum(min(steps, job.num_outputs) for job in jobs)
    say(f"  transformers: {useful} tokens in {seconds:.2f} s, {steps} steps")
    return {"rate": useful / seconds, "seconds": seconds, "steps": steps, "batch": len(jobs)}
