"""Section `startup`: from a new process to an engine that has answered, weights on a warm disk.

python benchmarks/gpu/measure/startup.py DEVICE MODEL [OPTIONS as JSON]     one start, in JSON
python -X importtime benchmarks/gpu/measure/startup.py                      its imports alone

Modules are loaded in the order of an engine in its caller's process, and without looking for
garbage, as the process of an engine core does.
"""

from __future__ import annotations

import gc
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]
SECTION, MODEL, GOAL = "startup", "Qwen3-0.6B", 6.0
# Beside torch, which is told in any case.
NUM_DEAREST = 10
# Of a start on a GPU, in its order.
MODULES = (
    *("vllm_lite.config.engine_args", "torch", "vllm_lite.engine.core.engine_core"),
    *("vllm_lite.executor.uniproc", "vllm_lite.kernels.gpu.triton.ops"),
)
# Microseconds of a module alone and with those that it loads, its depth, and its name.
IMPORTED = re.compile(r"import time: +(\d+) \| +(\d+) \| ( *)(\S+)")
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1])]


def start_once(device: str, model: str, options: dict[str, Any]) -> None:
    """In the child: build, say that it is ready, prove it by a token."""
    stamps = [("interpreter", time.time())]
    gc.disable()
    from measure import plain_structs

    plain_structs.install()
    from vllm_lite.config.engine_args import EngineArgs

    fixed = {"skip_tokenizer_init": True, "disable_log_stats": True, "async_scheduling": True}
    args = EngineArgs(model=model, device=device, **fixed, **options)
    config = args.create_engine_config("llm")
    stamps.append(("configuration", time.time()))
    import torch  # noqa: F401

    stamps.append(("torch", time.time()))
    from vllm_lite.engine.core.engine_core import EngineCore

    stamps.append(("engine's modules", time.time()))
    core = EngineCore(config, executor_maker(device, model))
    stamps.append(("engine", time.time()))
    gc.enable()
    print(json.dumps({"stamps": stamps, "timeline": timeline_of(core)}), flush=True)
    from measure.engine import Job, add, run

    add(core, "first", [Job([5, 6, 7], 2)])
    (tokens,) = run(core).values()
    print(json.dumps({"answered": time.time(), "tokens": len(tokens)}), flush=True)
    core.shutdown()


def executor_maker(device: str, model: str) -> Any:
    """The package's own on a GPU, which loads its modules when it is called."""
    if device == "cuda":
        from vllm_lite.executor.select import make_executor

        return make_executor
    from measure.engine import executor_of
    from measure.place import Place

    return executor_of(Place(True, 0.0, Path(model), lambda row: None))


def timeline_of(core: Any) -> Any:
    """The engine's own account of where the time went."""
    return [[str(name), float(seconds)] for name, seconds in core.describe().timeline]


def import_all() -> None:
    """In a child with `-X importtime`: import what a start on a GPU does."""
    gc.disable()
    from measure import plain_structs

    plain_structs.install()
    for name in MODULES:
        __import__(name)  # import_module is timed only in what a module itself imports


def dearest_imports(command: list[str], max_seconds: float) -> dict[str, Any]:
    """Seconds of `import torch`, of all imports, and of the dearest modules outside torch."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max_seconds)
    except subprocess.TimeoutExpired:
        return {"failure": f"not done after {max_seconds:.0f} s"}
    if done.returncode:
        return {"failure": done.stderr.strip().splitlines()[-1]}
    # A module's line follows those of what it loads, which are deeper.
    lines = [
        (int(alone), int(in_all), len(indent) // 2, name)
        for alone, in_all, indent, name in IMPORTED.findall(done.stderr)
    ]
    outside, depth = [], -1
    for line in reversed(lines):
        if depth >= 0 and line[2] > depth:
            continue
        depth = line[2] if line[3] == "torch" else -1
        outside.append(line)
    torch = next((line[1] for line in outside if line[3] == "torch"), 0)
    dearest = sorted((one for one in outside if one[3] != "torch"), key=lambda one: -one[1])
    return {
        "torch_s": torch / 1e6,
        "all_s": sum(line[0] for line in lines) / 1e6,
        "dearest": [[name, in_all / 1e6] for _, in_all, _, name in dearest[:NUM_DEAREST]],
    }


def startup(place: Any) -> None:
    """The median of a few starts, after one that fills the caches."""
    from measure.place import say
    from measure.report import SECONDS, Row
    from measure.shapes import write_dense_checkpoint

    model = write_dense_checkpoint(place, MODEL)
    options = place.either({"dtype": "bfloat16"}, {"dtype": "float32", "max_model_len": 128})
    if place.is_dry:
        options |= {"kv_cache_memory_bytes": 1 << 22, "max_num_batched_tokens": 64}
    script = str(Path(__file__).resolve())
    command = [sys.executable, script, place.device.type, str(model), json.dumps(options)]
    ready, answered, parts, phases = [], [], [], []
    for turn in range(place.either(4, 1)):
        began = time.time()
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=max(5.0, place.seconds_left()),
        )
        if done.returncode:
            raise RuntimeError(f"the start failed: {done.stderr.strip().splitlines()[-1:]}")
        first, second = (json.loads(line) for line in done.stdout.splitlines()[-2:])
        ends = dict(first["stamps"])
        spent = durations(began, ends)
        say(f"  ready after {ends['engine'] - began:.2f} s: {rounded(spent)}")
        say(f"  by its own account: {rounded(dict(first['timeline']))}")
        if turn or place.is_dry:
            ready.append(ends["engine"] - began)
            answered.append(second["answered"] - began)
            parts.append(first["timeline"])
            phases.append(spent)
        if len(ready) > 1 and place.seconds_left() < 3 * ready[-1]:
            break
    seconds = statistics.median(ready)
    details = {"ready_s": ready, "answered_s": answered, "timelines": parts, "phases": phases}
    place.tell(
        Row(
            SECTION,
            f"start to ready, {MODEL}",
            seconds,
            "s",
            seconds,
            share_unit=SECONDS,
            goal=GOAL,
            is_ceiling=True,
            details=details,
        )
    )
    words = [sys.executable, "-X", "importtime", script]
    found = dearest_imports(words, max(5.0, place.seconds_left()))
    say(f"  imports: {found}")
    before = statistics.median(sum(spent.values()) - spent["engine"] for spent in phases)
    note = found.get("failure") or f"import torch: {found['torch_s']:.2f} s under -X importtime"
    work = f"start to where the engine begins, {MODEL}"
    place.tell(Row(SECTION, work, before, "s", note=note, details=found))


def durations(began: float, ends: dict[str, float]) -> dict[str, float]:
    """Seconds of each phase, from the times at which they ended."""
    times = [began, *ends.values()]
    return {name: end - start for name, start, end in zip(ends, times, times[1:], strict=False)}


def rounded(seconds: dict[str, float]) -> str:
    return " | ".join(f"{name} {spent:.2f}" for name, spent in seconds.items())


if __name__ == "__main__":
    if len(sys.argv) == 1:
        import_all()
    else:
        start_once(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
