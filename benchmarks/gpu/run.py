"""Every check and every figure of the GPU backend, in three parts of a few minutes each.

    PYTHONPATH=. python benchmarks/gpu/run.py --part a          then b and c, or all at once
    PYTHONPATH=. python benchmarks/gpu/run.py --sections device serving
    PYTHONPATH=. python benchmarks/gpu/run.py --dry-run         without a GPU; proves the script

A section runs in a process of its own with a time limit; a failure is a line of the table. After
each, the results go to --output, where those of other sections, of earlier runs on the same kind
of device, stay; --resume leaves out what is there of these sources. docs/gpu.md explains the
figures.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
# What figures depend on, by folder and by the files' endings.
SOURCES = {"vllm_lite": (".py", ".json"), "csrc/cuda": (".cu", ".cuh", ".h", ".cpp")}
SOURCES |= {"benchmarks/gpu": (".py",)}


@dataclass(frozen=True, slots=True)
class Section:
    """Its function is `measure.<module>.<name>`; seconds that it may take at most."""

    part: str
    module: str
    name: str
    limit_s: float
    needs_limits: bool = False


SECTIONS = (
    Section("a", "limits", "device", 45),
    Section("a", "correctness", "kernels", 170),
    Section("a", "attention", "decode_attention", 60, True),
    Section("a", "attention", "prefill_attention", 45, True),
    Section("a", "products", "few_rows", 95, True),
    Section("b", "decode", "llama_8b", 100, True),
    Section("b", "serving", "serving", 150),
    Section("b", "mixed_steps", "mixed_steps", 45),
    Section("b", "decode", "other_shapes", 60, True),
    Section("c", "correctness", "tokens", 90),
    Section("c", "startup", "startup", 70),
    Section("c", "decode", "quantized", 70, True),
    Section("c", "correctness", "sanitizers", 90),
)


def main() -> None:
    args = _arguments()
    if args.child:
        _child(args)
        return
    is_dry = args.dry_run
    if not is_dry:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("torch sees no NVIDIA GPU; --dry-run proves the script without one")
    folder = args.folder or Path(tempfile.gettempdir()) / f"vllm-lite-gpu-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    rows = folder / f"rows_{os.getpid()}.jsonl"
    try:
        if args.resume:
            _resume(args, rows)
        _run_sections(args, folder, rows)
        _show(args, rows)
    finally:
        rows.unlink(missing_ok=True)


def _arguments() -> argparse.Namespace:
    names = [section.name for section in SECTIONS]
    parts = sorted({section.part for section in SECTIONS})
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=parts, help="the sections of one part")
    parser.add_argument("--sections", nargs="+", choices=names, metavar="NAME", help="only these")
    parser.add_argument("--demo", type=Path, help="the demo model: its .gguf file or a directory")
    parser.add_argument("--budget-s", type=float, help="for the whole; the sum of its limits")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/gpu-<device>.json")
    parser.add_argument("--folder", type=Path, help="for made-up checkpoints and builds, kept")
    parser.add_argument("--resume", action="store_true", help="only what the output lacks")
    parser.add_argument("--dry-run", action="store_true")
    for hidden in ("--child", "--rows"):
        parser.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sections is None:
        args.sections = [one.name for one in SECTIONS if args.part in (None, one.part)]
    return args


def _resume(args: argparse.Namespace, rows_file: Path) -> None:
    """Leave out sections that the output has of these sources, whole; take over their rows."""
    from measure.report import Row, append_rows

    before, state = _record(args), _sources()
    rows = before.get("rows", [])
    failed = {row["section"] for row in rows if row["has_failed"]}
    same = {name for name, of in before.get("sources", {}).items() if of == state} - failed
    left = [name for name in args.sections if name not in same]
    # Others' shares are of what it measures, on the machine that they run on.
    if left and "device" in args.sections and "device" not in left:
        left.insert(0, "device")
    taken = [name for name in args.sections if name not in left]
    append_rows(rows_file, [Row.from_json(row) for row in rows if row["section"] in taken])
    print(f"left out, since they are done: {' '.join(taken) or 'none'}", flush=True)
    args.sections = left


def _run_sections(args: argparse.Namespace, folder: Path, rows: Path) -> None:
    """Each section until its limit or the budget's end."""
    from measure.report import Row, append_rows

    if args.budget_s is None:
        args.budget_s = sum(one.limit_s for one in SECTIONS if one.name in args.sections)
    end, taken = time.monotonic() + args.budget_s, dict[str, float]()
    chosen = [section for section in SECTIONS if section.name in args.sections]
    # A stand-in cannot be broken by a section for those after it, and starts are slow.
    groups = [chosen] if args.dry_run and chosen else [[section] for section in chosen]
    for group in groups:
        names = [section.name for section in group]
        limit = min(sum(section.limit_s for section in group), end - time.monotonic())
        failure: str | None = "no time was left"
        began = time.monotonic()
        if limit >= 5:
            print(f"== {' '.join(names)}: {limit:.0f} s at most", flush=True)
            failure = _child_failure(args, names, folder, rows, limit)
        taken[" ".join(names)] = time.monotonic() - began
        if failure:
            append_rows(rows, [Row(names[0], " ".join(names), note=failure, has_failed=True)])
            print(f"   FAILED: {failure}", flush=True)
        _write(args, rows, taken)


def _child_failure(
    args: argparse.Namespace, names: list[str], folder: Path, rows: Path, limit: float
) -> str | None:
    """Run sections in a child; how it ended, where it was not as it should."""
    words = ["--child", str(folder), "--rows", str(rows), "--sections", *names]
    words += ["--budget-s", str(limit - 2), *(["--demo", str(args.demo)] if args.demo else [])]
    words += ["--dry-run"] if args.dry_run else []
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *words],
        env=_environment(args.dry_run, folder),
        start_new_session=True,
    )
    try:
        code = child.wait(limit)
    except subprocess.TimeoutExpired:
        return f"not done after {limit:.0f} s"
    finally:
        # Whatever it started goes with it, so that nothing runs beside the next section.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return f"the process ended by {code}; see above" if code else None


def _environment(is_dry: bool, folder: Path) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {"TRITON_CACHE_DIR": str(folder / "triton"), **os.environ, "HF_HUB_OFFLINE": "1"}
    found["PYTHONPATH"] = os.pathsep.join(paths)
    if is_dry:
        found |= {"TRITON_INTERPRET": "1", "VLLM_LITE_CPU_ISA": "reference"}
        found |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_NUM_THREADS": "1"}
    return found


def _child(args: argparse.Namespace) -> None:
    """The sections, in this process; what one raises is its row."""
    from measure.limits import limits_of, measure_limits
    from measure.place import Place
    from measure.report import Row, append_rows, one_line, read_rows, table

    def tell(row: Row) -> None:
        append_rows(args.rows, [row])
        print("   " + table([row]).splitlines()[1], flush=True)

    deadline = time.monotonic() + args.budget_s
    for section in (one for one in SECTIONS if one.name in args.sections):
        limits = limits_of(read_rows(args.rows))
        place = Place(args.dry_run, deadline, args.child, tell, limits, args.demo)
        try:
            if section.needs_limits and limits is None:
                print("   the device's limits are not known yet: measuring them", flush=True)
                place = replace(place, limits=measure_limits(place))
            getattr(importlib.import_module(f"measure.{section.module}"), section.name)(place)
        except Exception as error:
            traceback.print_exc()
            failure = one_line(f"{type(error).__name__}: {error}")
            tell(Row(section.name, section.name, note=failure, has_failed=True))


def _output(args: argparse.Namespace) -> Path | None:
    """The results' file; a dry run has one only where it is given."""
    from measure.limits import device_name

    given: Path | None = args.output
    if given or args.dry_run:
        return given
    name = re.sub(r"[^a-z0-9]+", "-", device_name(False).lower()).strip("-")
    return RESULTS / f"gpu-{name}.json"


def _record(args: argparse.Namespace) -> dict[str, Any]:
    """Earlier results of the same kind of device; empty where there are none."""
    from measure.limits import device_name

    output = _output(args)
    found = json.loads(output.read_text()) if output and output.exists() else {}
    return found if found.get("device") == device_name(args.dry_run) else {}


def _sources() -> str:
    """A hash of what figures depend on: sources, and versions of what decides speed."""
    from measure.limits import versions

    digest = hashlib.sha256(json.dumps(versions()).encode())
    for folder, endings in SOURCES.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in endings:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _write(args: argparse.Namespace, rows_file: Path, seconds: dict[str, float]) -> None:
    """Write the JSON: this run's rows, and those there of sections that it has not run whole."""
    from measure.limits import device_name, versions
    from measure.report import read_rows

    output = _output(args)
    if output is None:
        return
    before = _record(args)
    rows = [row.to_json() for row in read_rows(rows_file)]
    sections = {row["section"] for row in rows}
    failed = {row["section"] for row in rows if row["has_failed"]}
    now = {(row["section"], row["work"], row["column"]) for row in rows}
    rows += [
        row
        for row in before.get("rows", [])
        if row["section"] not in sections - failed
        and (row["section"], row["work"], row["column"]) not in now
    ]
    order = [section.name for section in SECTIONS]
    record = {
        "device": device_name(args.dry_run),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "is_dry_run": args.dry_run,
        "versions": versions(),
        "sources": {**before.get("sources", {}), **dict.fromkeys(sorted(sections), _sources())},
        "seconds": {**before.get("seconds", {}), **seconds},
        "rows": sorted(rows, key=lambda row: order.index(row["section"])),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1) + "\n")
    print(f"   written: {output}", flush=True)


def _show(args: argparse.Namespace, rows_file: Path) -> None:
    """Print this run's table, 40 lines at most; end with 1 if a section failed."""
    from measure.limits import device_name
    from measure.report import most_telling, read_rows, table

    rows = read_rows(rows_file)
    shown, left = most_telling(rows, 36)
    print(f"\n{device_name(args.dry_run)}\n{table(shown)}")
    if left:
        print(f"{left} more without a goal are in the output")
    if args.dry_run:
        print("dry run: no GPU was used and nothing was measured")
    sys.exit(any(row.has_failed for row in rows))


if __name__ == "__main__":
    main()
