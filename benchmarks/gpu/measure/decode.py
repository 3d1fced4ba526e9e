"""Sections of steady decoding: a step's time against what must be read and computed in it."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

from measure.engine import (
    EngineCore,
    Job,
    UsageError,
    add,
    dummy_engine,
    made_up,
    take,
    timed_waits,
)
from measure.place import Limits, Place, say
from measure.report import Row, one_line
from measure.shapes import dense_tensors, shape
from measure.timeline import Timeline, prepare, record

BYTES = 2  # of a number of bf16
# Bytes of a weight of a layer and of the output head, by --quantization; scales count.
NARROW_BYTES = {"fp8": (1.0, 2.0), "int4": (0.625, 1.0625)}
# Kernels of a step that its profile names, and those that its line of the table has room for.
NUM_DEAREST, NUM_NAMED = 14, 3
ALONE_GOAL, BATCH_GOAL, OVERHEAD_GOAL, GAP_GOAL = 0.88, 0.80, 0.05, 0.03


@dataclass(frozen=True, slots=True)
class Decoding:
    """Steps in which every one of `count` sequences gets a token."""

    count: int
    context: float  # of a sequence, the mean over the steps
    step_seconds: float
    host_seconds: float  # of a step, without waiting for its answer
    timeline: Timeline
    num_steps: int  # of the timeline
    num_layers: int

    @property
    def busy_seconds(self) -> float:
        """The device's, of a step."""
        return self.timeline.busy / self.num_steps


def decoding(place: Place, core: EngineCore, count: int, context: int, steps: int) -> Decoding:
    """Let `count` sequences of `context` tokens decode; first timed, then recorded."""
    vocabulary = core.config.facts.vocab_size
    warm, recorded = place.either((10, 20), (2, 3))
    # Those whose prompts are done first decode while the others' are computed.
    length = place.either(500, 60)
    say(f"  prompts of {count} x {context} tokens")
    prompts = [made_up(vocabulary, context, 1000 * count + n) for n in range(count)]
    add(core, f"decode{count}", [Job(prompt, length) for prompt in prompts])
    tokens: dict[str, list[int]] = {}
    while take(core, tokens) < count:
        if not core.has_work():
            raise RuntimeError(f"{count} sequences never decoded in one step")
    for _ in range(warm):
        take(core, tokens)
    times = []
    with timed_waits() as waits:
        for _ in range(steps):
            began = time.perf_counter()
            if take(core, tokens) != count:
                raise RuntimeError("a step of steady decoding left sequences out")
            times.append(time.perf_counter() - began)

    def go_on() -> None:
        for _ in range(recorded):
            take(core, tokens)

    timeline = record(place, go_on)
    core.abort_requests(list(tokens))
    while core.has_work():
        core.step()
    # Aborted requests' blocks stay as cached prefixes, which nothing may hit.
    core.reset_prefix_cache()
    mean, host = context + warm + steps / 2, (sum(times) - sum(waits)) / steps
    step, num_layers = statistics.median(times), core.config.facts.num_layers
    found = Decoding(count, mean, step, host, timeline, recorded, num_layers)
    say_profile(found)
    return found


def profile(found: Decoding) -> dict[str, Any]:
    """A step's dearest kernels, its launches, and where the device and the host spend its time."""
    steps, timeline = found.num_steps, found.timeline
    counts = [count / steps for count, _ in timeline.kernels.values()]
    total = sum(taken for _, taken in timeline.kernels.values())
    return {
        "kernels": [
            {"name": name, "launches": count / steps, "us": us / steps, "share": us / total}
            for name, (count, us) in list(timeline.kernels.items())[:NUM_DEAREST]
        ],
        "launches": sum(counts),
        # What runs once a step, such as the sampler, is of no layer.
        "launches_a_layer": sum(round(count) // found.num_layers for count in counts),
        "step_us": found.step_seconds * 1e6,
        "busy_us": found.busy_seconds * 1e6,
        "gaps_us": timeline.inside_steps / steps * 1e6,
        "median_gap_us": timeline.median_inside * 1e6,
        "gap_after_answer_us": timeline.between_steps / steps * 1e6,
        "host_us": found.host_seconds * 1e6,
    }


def say_profile(found: Decoding) -> None:
    """Print the profile as a table."""
    made = profile(found)
    say(f"  a step of {found.count}, {made['step_us']:.0f} us: us, launches, us of each, share")
    for kernel in made["kernels"]:
        each, name = kernel["us"] / kernel["launches"], kernel["name"][:80]
        shares = f"{100 * kernel['share']:5.1f} %"
        say(f"  {kernel['us']:9.1f} {kernel['launches']:6.1f} {each:9.2f} {shares}  {name}")
    rest = f"{made['launches']:.0f} launches, {made['launches_a_layer']} a layer"
    say(f"  {made['busy_us']:9.1f} busy; {rest}")
    say(f"  {made['gaps_us']:9.1f} gaps inside the step, median {made['median_gap_us']:.2f}")
    say(f"  {made['gap_after_answer_us']:9.1f} gap after the answer")
    say(f"  {made['host_us']:9.1f} of the host, without its waiting")


def profile_row(section: str, name: str, found: Decoding) -> Row:
    """Launches a layer; the rest of the profile in its details."""
    made = profile(found)
    named = [
        f"{short_name(kernel['name'])} {100 * kernel['share']:.0f} %"
        for kernel in made["kernels"][:NUM_NAMED]
    ]
    return Row(
        section,
        f"step profile, {name}",
        made["launches_a_layer"],
        "launches a layer",
        note=f"host {made['host_us']:.0f} us, {', '.join(named)}",
        details=made,
        column=f"bs {found.count}",
    )


def short_name(kernel: str) -> str:
    """A kernel's name without its types and namespaces."""
    plain = kernel.removeprefix("void ").split("(")[0].split("<")[0]
    return plain.split("::")[-1].removesuffix("_kernel")[:24]


def count_numbers(config: dict[str, int]) -> int:
    """Of all weights."""
    return sum(math.prod(dims) for dims in dense_tensors(config).values())


def floor_seconds(config: dict[str, int], found: Decoding, limits: Limits) -> dict[str, float]:
    """Seconds that a step's bytes and operations take at the limits' rates."""
    embedding = config["vocab_size"] * config["hidden_size"]
    numbers = count_numbers(config)
    # The embedding is looked up; a tied one is read whole as the last product's weights.
    read = numbers if config["tie_word_embeddings"] else numbers - embedding
    head = config["head_dim"]
    per_token = config["num_hidden_layers"] * config["num_key_value_heads"] * head * 2
    cached = found.count * found.context * per_token
    attended = 4 * found.count * found.context * config["num_hidden_layers"]
    attended *= config["num_attention_heads"] * head
    return {
        "weights": read * BYTES / limits.bytes_per_s,
        "bytes": (read + cached) * BYTES / limits.bytes_per_s,
        "operations": (2 * found.count * read + attended) / limits.flops_per_s,
    }


def overhead_row(section: str, name: str, found: Decoding) -> Row:
    """The device's idle share of a step; beside it, where the profiler saw it idle."""
    timeline, steps = found.timeline, found.num_steps
    share = max(0.0, 1.0 - found.busy_seconds / found.step_seconds)
    return Row(
        section,
        f"engine overhead, {name}",
        (found.step_seconds - found.busy_seconds) * 1e6,
        "us",
        share,
        goal=OVERHEAD_GOAL,
        is_ceiling=True,
        details={"step_s": found.step_seconds, "busy_s": found.busy_seconds},
        column=f"bs {found.count}",
        beside={
            "gaps inside": timeline.inside_steps / steps * 1e6,
            "after answers": timeline.between_steps / steps * 1e6,
        },
    )


def gap_row(section: str, name: str, found: Decoding) -> Row:
    """The device's wait between steps."""
    timeline = found.timeline
    return Row(
        section,
        f"host idle gap between steps, {name}",
        timeline.median_gap * 1e6,
        "us",
        timeline.gap_share,
        goal=GAP_GOAL,
        is_ceiling=True,
        details={"idle_share": timeline.idle_share},
        column=f"bs {found.count}",
    )


def _share_row(section: str, name: str, found: Decoding, floor: float, goal: float | None) -> Row:
    return Row(
        section,
        f"{name} decode",
        found.count / found.step_seconds,
        "tokens/s",
        floor / found.step_seconds,
        goal=goal,
        details={"step_s": found.step_seconds, "floor_s": floor},
        column=f"bs {found.count}, context {found.context:.0f}",
    )


def llama_8b(place: Place) -> None:
    """Llama-3.1-8B's shape: one sequence, and 256 of a thousand tokens."""
    name, section = "Llama-3.1-8B", "llama_8b"
    config = shape(place, name)
    count, context = place.either((256, 1024), (4, 32))
    prepare(place)
    with dummy_engine(place, name, context + 512, count) as core:
        say(f"  {core.describe().kernels}")
        alone = decoding(place, core, 1, context, place.either(100, 4))
        floor = floor_seconds(config, alone, place.known_limits())["weights"]
        place.tell(_share_row(section, name, alone, floor, ALONE_GOAL))
        place.tell(overhead_row(section, name, alone))
        place.tell(profile_row(section, name, alone))
        batch = decoding(place, core, count, context, place.either(50, 4))
    floors = floor_seconds(config, batch, place.known_limits())
    floor = max(floors["bytes"], floors["operations"])
    place.tell(_share_row(section, name, batch, floor, BATCH_GOAL))
    place.tell(overhead_row(section, name, batch))
    place.tell(profile_row(section, name, batch))


def quantized(place: Place) -> None:
    """Llama-3.1-8B's shape with narrow weights, one sequence: they are what a step reads."""
    name, section = "Llama-3.1-8B", "quantized"
    config = shape(place, name)
    context = place.either(1024, 32)
    prepare(place)
    for quantization, (narrow, head) in NARROW_BYTES.items():
        try:
            with dummy_engine(place, name, context + 512, 1, quantization=quantization) as core:
                found = decoding(place, core, 1, context, place.either(100, 4))
        except UsageError as error:
            left_out = f"{name}, left out"
            place.tell(Row(section, left_out, note=one_line(error), column=quantization))
            continue
        vocabulary = config["vocab_size"] * config["hidden_size"]
        layers = count_numbers(config) - 2 * vocabulary
        floor = (layers * narrow + vocabulary * head) / place.known_limits().bytes_per_s
        told = _share_row(section, f"{name}, bs 1, narrow weights,", found, floor, None)
        place.tell(replace(told, column=quantization))
        told = profile_row(section, f"{name}, bs 1, narrow weights", found)
        place.tell(replace(told, column=quantization))


def other_shapes(place: Place) -> None:
    """Shapes that have no goal of their own, one sequence and 64."""
    section = "other_shapes"
    prepare(place)
    for name in ("Llama-3.2-1B", "Qwen3-30B-A3B"):
        count, context = place.either((64, 512), (2, 16))
        with dummy_engine(place, name, context + 512, count) as core:
            for rows in (1, count):
                found = decoding(place, core, rows, context, place.either(50, 3))
                config = shape(place, name)
                if "num_experts" in config:  # which experts are read depends on the tokens
                    speed = found.count / found.step_seconds
                    told = Row(section, f"{name} decode", speed, "tokens/s", column=f"bs {rows}")
                    place.tell(told)
                    continue
                floors = floor_seconds(config, found, place.known_limits())
                floor = max(floors["bytes"], floors["operations"])
                place.tell(_share_row(section, name, found, floor, None))
