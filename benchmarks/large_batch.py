"""run-batch at length: memory that does not grow, and a killed run that loses nothing.

    python benchmarks/large_batch.py                     20,000 lines of 50 KB on the demo model
    python benchmarks/large_batch.py --lines 300 --line-bytes 300 --max-growth-mib 40

Runs one batch twice: whole, and killed with SIGKILL half-way and resumed. Every hundredth line is
broken. Fails unless both outputs are the same, in the input's order, but for ids and times, and
unless the resident memory of both processes is flat from the second quarter of the whole run to
the last; by then the KV cache, whose pages count once they are used, must have been full.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

# No JSON: half a request.
BROKEN = '{"custom_id": "r%d", "method": "POST", "url": "/v1/compl'
BROKEN_EVERY = 100
MIB = 1 << 20
OPTIONS = "--max-model-len 512 --num-gpu-blocks-override 2048"


def write_input(path: Path, args: argparse.Namespace) -> None:
    """Chat and text completions in turn whose greedy answers are the same on every run."""
    with path.open("w") as file:
        for i in range(args.lines):
            file.write(BROKEN % i if i % BROKEN_EVERY == BROKEN_EVERY - 1 else _request(i, args))
            file.write("\n")


def _request(i: int, args: argparse.Namespace) -> str:
    body: dict[str, Any] = {"max_tokens": args.max_tokens, "temperature": 0}
    if i % 2:
        url = "/v1/completions"
        body["prompt"] = f"{i} apples and {i + 1} pears make"
    else:
        url = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": f"What follows {i}?"}]
    text = json.dumps({"custom_id": f"r{i}", "method": "POST", "url": url, "body": body})
    # What no one reads makes the line as long as a long prompt would, at no cost to the model.
    padding = args.line_bytes - len(text) - len(', "note": ""')
    return text[:-1] + f', "note": "{"x" * padding}"}}' if padding > 0 else text


@dataclass
class Run:
    """One run of the command, its journal and the memory of its two processes, in bytes."""

    process: psutil.Popen
    journal: Path
    started: float = field(default_factory=time.perf_counter)
    # (records in the journal, resident bytes of the command, of the engine core)
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    num_done: int = 0
    _offset: int = 0

    def watch(self, interval: float) -> bool:
        """Take a sample; false once the command has ended."""
        try:
            self.process.wait(interval)
        except psutil.TimeoutExpired:
            pass
        else:
            return False
        if self.journal.exists():
            with self.journal.open("rb") as file:
                file.seek(self._offset)
                while chunk := file.read(MIB):
                    self.num_done += chunk.count(b"\n")
                    self._offset += len(chunk)
        try:
            core = sum(p.memory_info().rss for p in self.process.children(recursive=True))
            self.samples.append((self.num_done, self.process.memory_info().rss, core))
        except psutil.NoSuchProcess:
            pass
        return True

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


def start(source: Path, output: Path, args: argparse.Namespace, *words: str) -> Run:
    command = [sys.executable, "-m", "vllm_lite", "run-batch", "--model", args.model]
    command += ["-i", str(source), "-o", str(output), *args.options.split(), *words]
    journal = output.with_name(output.name + ".journal")
    return Run(psutil.Popen(command, stderr=subprocess.DEVNULL), journal)


def finish(run: Run, interval: float) -> None:
    while run.watch(interval):
        pass
    if run.process.returncode:
        raise SystemExit(f"the batch ended with {run.process.returncode}")


def kill_half_way(run: Run, lines: int, interval: float) -> int:
    """Kill the command once half of its lines are done; returns how many were."""
    while run.num_done <= lines // 2:
        if not run.watch(interval):
            raise SystemExit("the batch ended before it could be killed")
    children = run.process.children(recursive=True)
    run.process.kill()
    run.process.wait()
    if psutil.wait_procs(children, timeout=30)[1]:
        raise SystemExit("the engine core outlives the command")
    return run.num_done - 1


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The output's records without what differs from run to run."""
    with path.open() as file:
        for line in file:
            record = json.loads(line)
            del record["id"], record["response"]["request_id"]
            body = record["response"]["body"] or {}
            body.pop("id", None)
            body.pop("created", None)
            yield record


def check_outputs(whole: Path, resumed: Path, lines: int) -> int:
    """Fail unless both have the same record for each line, in order; returns how many failed."""
    num_failed = 0
    for i, (one, other) in enumerate(zip(records(whole), records(resumed), strict=True)):
        if one != other:
            raise SystemExit(f"line {i + 1} differs:\n{one}\n{other}")
        is_broken = i % BROKEN_EVERY == BROKEN_EVERY - 1
        if one["custom_id"] != f"r{i}" or (one["response"]["status_code"] != 200) is not is_broken:
            raise SystemExit(f"line {i + 1} has the wrong answer: {one}")
        if is_broken and one["error"]["error"]["line"] != i + 1:
            raise SystemExit(f"line {i + 1} does not know its number: {one}")
        num_failed += is_broken
    if i + 1 != lines:
        raise SystemExit(f"{i + 1} answers for {lines} lines")
    return num_failed


def growth(run: Run, lines: int, column: int) -> tuple[float, float]:
    """MiB of resident memory: the most, and the growth from the second quarter to the last.

    Growth is that of medians: a step's own tensors come and go.
    """
    early = [sample[column] for sample in run.samples if lines / 4 < sample[0] <= lines / 2]
    late = [sample[column] for sample in run.samples if lines * 3 / 4 < sample[0] < lines]
    if not early or not late:
        raise SystemExit("too short a run to see its memory; give more --lines")
    most = max(sample[column] for sample in run.samples)
    return most / MIB, (statistics.median(late) - statistics.median(early)) / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--line-bytes", type=int, default=50_000)
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--options", default=OPTIONS, help="more for run-batch")
    parser.add_argument("--max-growth-mib", type=float, default=32.0)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between two samples")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="large-batch-") as directory:
        source, whole, resumed = (Path(directory, name) for name in ("in", "whole", "resumed"))
        write_input(source, args)
        print(f"Input: {args.lines} lines, {source.stat().st_size / 1e9:.3f} GB")
        run = start(source, whole, args)
        finish(run, args.interval)
        print(f"Whole run: {run.seconds:.1f} s, {args.lines / run.seconds:.1f} lines/s")
        is_flat = True
        for column, name in ((1, "command"), (2, "engine core")):
            most, more = growth(run, args.lines, column)
            is_flat &= more <= args.max_growth_mib
            print(f"Memory of the {name}: {most:.0f} MiB at most, growth {more:.1f} MiB")
        num_done = kill_half_way(start(source, resumed, args), args.lines, args.interval)
        run = start(source, resumed, args, "--resume")
        finish(run, args.interval)
        print(f"Killed after {num_done} lines; the rest took {run.seconds:.1f} s")
        num_failed = check_outputs(whole, resumed, args.lines)
        print(f"Both outputs are the same: {args.lines} records, {num_failed} of them errors")
        if not is_flat:
            raise SystemExit(f"memory grew by more than {args.max_growth_mib} MiB")


if __name__ == "__main__":
    main()
