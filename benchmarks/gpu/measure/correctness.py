"""Sections `kernels`, `sanitizers` and `tokens`: what is timed has to be right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from check_kernels import SANITIZERS, sanitizer

from measure import cuda_module
from measure.place import Place, say
from measure.report import Row, one_line

FOLDER = Path(__file__).parents[1]
EXPECTED = FOLDER / "demo_tokens.json"
# What a dry run checks of the kernels: the script, in seconds.
DRY_CASES = "decode torch.float16 D=64 window=0 cap=0.0"


def kernels(place: Place) -> None:
    """Every kernel against float64, by several processes: compiling takes most of the time."""
    library = _built(place)
    shares = place.either(min(8, max(1, (os.cpu_count() or 2) // 2)), 1)
    options = ["--dry-run", "--only", DRY_CASES] if place.is_dry else []
    options += [] if library is None else ["--cuda-library", str(library)]
    files = [place.folder / f"kernels_{share}.json" for share in range(shares)]

    def check(share: int) -> subprocess.CompletedProcess[str]:
        files[share].unlink(missing_ok=True)
        words = ["--share", f"{share}/{shares}", "--output", str(files[share])]
        # The last case may be long; what was not begun by then is told of.
        words += ["--budget-s", str(place.seconds_left() - place.either(25.0, 0.0))]
        return _script([*options, *words], place)

    with ThreadPoolExecutor(shares) as pool:
        done = list(pool.map(check, range(shares)))
    results: list[dict[str, Any]] = []
    num_left = 0
    for process, file in zip(done, files, strict=True):
        if not file.exists():
            raise RuntimeError(f"check_kernels.py ended early: {one_line(process.stderr[-400:])}")
        record = json.loads(file.read_text())
        results += record["results"]
        num_left += record["num_left"]
    wrong = [r for r in results if not r["error"] <= r["allowed"]]
    for result in wrong:
        why = result.get("failure") or f"{result['error']:.2e} of {result['allowed']:.2e}"
        say(f"  WRONG {result['backend']} {result['case']}: {one_line(why)}")
    notes = [f"wrong: {', '.join(_names(wrong[:3]))}"] if wrong else []
    notes += [f"{num_left} not begun"] if num_left else []
    cuda = sum(r["backend"] == "cuda" for r in results)
    row = Row(
        "kernels",
        f"kernels right against float64, of {len(results)} ({cuda} of CUDA)",
        len(results) - len(wrong),
        share=1 - len(wrong) / max(len(results), 1),
        goal=1.0,
        note="; ".join(notes),
        has_failed=bool(wrong or num_left) or not results,
        details={"results": results},
    )
    place.tell(row)


def _names(results: Sequence[dict[str, Any]]) -> list[str]:
    return [f"{result['backend']} {result['case']}" for result in results]


def _built(place: Place) -> Path | None:
    """csrc/cuda for this device, or None with a line that says why."""
    if place.is_dry:
        return None
    try:
        return cuda_module.build(place.folder, cuda_module.device_arch())
    except RuntimeError as error:
        place.tell(Row("kernels", "csrc/cuda built", note=one_line(error)))
        return None


def _script(words: Sequence[str], place: Place, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, str(FOLDER / "check_kernels.py"), *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=max(5.0, place.seconds_left()),
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )


def sanitizers(place: Place) -> None:
    """memcheck and racecheck over the CUDA kernels, side by side."""
    missing = [name for name in ("compute-sanitizer", "nvcc") if shutil.which(name) is None]
    if missing and not place.is_dry:
        note = f"{' and '.join(missing)} not on the path"
        place.tell(Row("sanitizers", "memcheck and racecheck of csrc/cuda", note=note))
        return
    words = ["--only", "cuda", "--small"]
    if place.is_dry:
        words = ["--dry-run", "--sanitize"]
    else:
        arch = cuda_module.device_arch()
        words += ["--cuda-library", str(cuda_module.build(place.folder, arch))]

    def sanitize(tool: str) -> tuple[str, subprocess.CompletedProcess[str]]:
        return tool, _script(words, place, *place.either(sanitizer(tool), []))

    with ThreadPoolExecutor(len(SANITIZERS)) as pool:
        for tool, done in pool.map(sanitize, place.either(list(SANITIZERS), ["memcheck"])):
            lines = [line for line in done.stdout.splitlines() if line.startswith("====")]
            row = Row(
                "sanitizers",
                f"{tool} of csrc/cuda clean",
                float(done.returncode == 0),
                note=one_line(lines[-1] if lines else "", 100),
                has_failed=done.returncode != 0,
                details={"tail": done.stdout[-1500:] + done.stderr[-500:]},
            )
            place.tell(row)


def tokens(place: Place) -> None:
    """Greedy tokens of the demo model, where the CPU's float32 was sure of them."""
    if place.demo is None:
        place.tell(
            Row("tokens", "greedy tokens of the demo model", note="no --demo PATH was given")
        )
        return
    from measure.engine import engine

    expected = json.loads(EXPECTED.read_text())
    del expected["texts"][place.either(len(expected["texts"]), 1) :]
    settings = {"max_model_len": 256, "max_num_seqs": 16}
    if place.is_dry:
        settings |= {"kv_cache_memory_bytes": 1 << 28}
    with engine(place, place.demo, **settings) as core:
        found = compare(core, expected)
    row = Row(
        "tokens",
        f"greedy tokens as the CPU's, of {found['sure']} with a gap above {expected['tolerance']}",
        found["sure"] - len(found["wrong"]),
        share=1 - len(found["wrong"]) / max(found["sure"], 1),
        goal=1.0,
        note=f"{found['close']} closer ones differ",
        has_failed=bool(found["wrong"]),
        details=found,
    )
    place.tell(row)


def compare(core: Any, expected: dict[str, Any]) -> dict[str, Any]:
    """Follow the expected texts; after each token that differs, go on behind the expected one."""
    from measure.engine import Job, add, run

    tolerance, texts = expected["tolerance"], expected["texts"]
    at = dict.fromkeys(range(len(texts)), 0)
    wrong: list[list[int]] = []
    close = turn = 0
    while at:
        for number, start in at.items():
            wanted, prompt = texts[number]["tokens"], texts[number]["prompt"]
            job = Job(prompt + wanted[:start], len(wanted) - start)
            add(core, f"text{number}.{turn}", [job])
        given = run(core)
        for number, start in list(at.items()):
            wanted, gaps = texts[number]["tokens"][start:], texts[number]["gaps"][start:]
            got = given[f"text{number}.{turn}-0"]
            differing = next((i for i, t in enumerate(wanted) if got[i] != t), None)
            if differing is None:
                del at[number]
                continue
            if gaps[differing] > tolerance:
                wrong.append([number, start + differing, wanted[differing], got[differing]])
            else:
                close += 1
            at[number] = start + differing + 1
            if at[number] == len(texts[number]["tokens"]):
                del at[number]
        turn += 1
    sure = sum(gap > tolerance for text in texts for gap in text["gaps"])
    return {"sure": sure, "close": close, "wrong": wrong}
