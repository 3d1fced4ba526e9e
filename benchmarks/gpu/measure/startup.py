"""Section `startup`: from a new process to an engine that has answered, weights on a warm disk.

python benchmarks/gpu/measure/startup.py DEVICE MODEL [OPTIONS as JSON]     one start, in JSON
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]
SECTION, MODEL, GOAL = "startup", "Qwen3-0.6B", 6.0
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1])]


def start_once(device: str, model: str, options: dict[str, Any]) -> None:
    """In the child: build, say that it is ready, prove it by a token."""
    from measure.engine import Job, add, engine, run
    from measure.place import Place

    place = Place(device == "cpu", 0.0, Path(model), lambda row: None)
    with engine(place, Path(model), **options) as core:
        print(json.dumps({"ready": time.time(), "timeline": timeline_of(core)}), flush=True)
        add(core, "first", [Job([5, 6, 7], 2)])
        (tokens,) = run(core).values()
        print(json.dumps({"answered": time.time(), "tokens": len(tokens)}), flush=True)


def timeline_of(core: Any) -> Any:
    """The engine's own account of where the time went."""
    return [[str(name), float(seconds)] for name, seconds in core.describe().timeline]


def startup(place: Any) -> None:
    """The median of a few starts, after one that fills the caches."""
    from measure.place import say
    from measure.report import SECONDS, Row
    from measure.shapes import write_dense_checkpoint

    model = write_dense_checkpoint(place, MODEL)
    options = place.either({}, {"max_model_len": 128, "kv_cache_memory_bytes": 1 << 22})
    command = [sys.executable, str(Path(__file__).resolve()), place.device.type, str(model)]
    ready, answered, parts = [], [], []
    for turn in range(place.either(4, 1)):
        began = time.time()
        done = subprocess.run(
            [*command, json.dumps(options)],
            capture_output=True,
            text=True,
            timeout=max(5.0, place.seconds_left()),
        )
        if done.returncode:
            raise RuntimeError(f"the start failed: {done.stderr.strip().splitlines()[-1:]}")
        first, second = (json.loads(line) for line in done.stdout.splitlines()[-2:])
        say(f"  ready after {first['ready'] - began:.2f} s: {first['timeline']}")
        if turn or place.is_dry:
            ready.append(first["ready"] - began)
            answered.append(second["answered"] - began)
            parts.append(first["timeline"])
        if len(ready) > 1 and place.seconds_left() < 3 * ready[-1]:
            break
    seconds = statistics.median(ready)
    details = {"ready_s": ready, "answered_s": answered, "timelines": parts}
    row = Row(
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
    place.tell(row)


if __name__ == "__main__":
    start_once(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
