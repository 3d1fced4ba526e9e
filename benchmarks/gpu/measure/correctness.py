"""Sections `kernels`, `sanitizers` and `tokens`: what is timed has to be right."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from check_kernels import SANITIZERS, sanitizer

from measure import cuda_module
from measure.cuda_module import cuda_operations
from measure.engine import Job, add, engine, made_up, run
from measure.place import Place, say
from measure.report import Row, one_line
from measure.shapes import model_folder

FOLDER = Path(__file__).parents[1]
EXPECTED = FOLDER / "demo_tokens.json"
# The ways to run a step; each must give the tokens of the first.
WAYS: dict[str, dict[str, Any]] = {
    "graphs, asynchronous": {},
    "eager": {"enforce_eager": True},
    "synchronous": {"async_scheduling": False},
    "CUDA's kernels": {"attention_backend": "CUDA"},
    "torch's attention": {"attention_backend": "TORCH_SDPA", "enforce_eager": True},
    "flash-attn": {"attention_backend": "FLASH_ATTN", "block_size": 256},
    "FlashInfer": {"attention_backend": "FLASHINFER", "enforce_eager": True},
    "deterministic": {"deterministic": True},
    "fp8 cache": {"kv_cache_dtype": "fp8"},
    "float16": {"dtype": "float16"},
}
# Modules of attention backends that a machine may lack.
MODULES = {"FLASH_ATTN": "flash_attn", "FLASHINFER": "flashinfer"}
DRY_WAYS = ("graphs, asynchronous", "synchronous")
# Of the second model, whose heads are larger and have norms.
FEW_WAYS = ("graphs, asynchronous", "eager", "CUDA's kernels")
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
                "csrc/cuda is clean",
                float(done.returncode == 0),
                note=one_line(lines[-1] if lines else "", 100),
                has_failed=done.returncode != 0,
                details={"tail": done.stdout[-1500:] + done.stderr[-500:]},
                column=tool,
            )
            place.tell(row)


def tokens(place: Place) -> None:
    """Greedy tokens, where float32 on the host was sure of them, in each way to run a step."""
    for name in ("small Llama", "small Qwen3"):
        folder, expected = small_model(place, name)
        before: list[list[int]] | None = None
        for way, settings in WAYS.items():
            if name != "small Llama" and way not in FEW_WAYS:
                continue
            # No graph and no other backend is there on the stand-in.
            if place.is_dry and way not in DRY_WAYS:
                continue
            if lacking := _lacking(place, settings.get("attention_backend")):
                left_out = f"greedy tokens, {name}, left out"
                place.tell(Row("tokens", left_out, note=lacking, column=way))
                continue
            before = _tokens_one_way(place, (name, way), folder, expected, settings, before)
    if place.demo is None:
        note = "no --demo PATH was given"
        place.tell(Row("tokens", "greedy tokens of the demo model", note=note))
        return
    expected = json.loads(EXPECTED.read_text())
    del expected["texts"][place.either(len(expected["texts"]), 1) :]
    _tokens_one_way(place, ("the demo model", ""), place.demo, expected, {}, None)


def _lacking(place: Place, backend: str | None) -> str:
    """The packages that an attention backend needs and this machine lacks."""
    if backend == "CUDA" and cuda_operations(place) is None:
        return "csrc/cuda is not built"
    module = MODULES.get(backend or "")
    if module and importlib.util.find_spec(module) is None:
        return f"no module {module}"
    return ""


def small_model(place: Place, name: str) -> tuple[Path, dict[str, Any]]:
    """A seeded checkpoint, and what transformers says of it in float32 on the host."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(min(4, os.cpu_count() or 1))
    folder = model_folder(place, name)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        # Weights that both sides hold exactly.
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
        model.get_input_embeddings().weight.mul_(16.0)
    model.to(torch.bfloat16).save_pretrained(folder)
    model.float()
    texts, num_tokens = [], place.either(32, 4)
    for seed, length in enumerate(place.either((1, 7, 16, 33, 150, 400, 17, 64), (1, 7))):
        prompt = made_up(config.vocab_size, length, seed)
        made = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, length, dtype=torch.int64),
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = [logits[0].topk(2).values for logits in made.logits]
        gaps = [round((first - second).item(), 3) for first, second in best]
        texts.append(
            {"prompt": prompt, "tokens": made.sequences[0, length:].tolist(), "gaps": gaps}
        )
    deviation = made.logits[-1].std().item()
    return folder, {"tolerance": round(0.05 * deviation, 3), "texts": texts}


def _tokens_one_way(
    place: Place,
    name_and_way: tuple[str, str],
    model: Path,
    expected: dict[str, Any],
    settings: dict[str, Any],
    before: list[list[int]] | None,
) -> list[list[int]] | None:
    """Report how many are right; returns the tokens, to compare the next way's with."""
    name, way = name_and_way
    work = f"greedy tokens, {name}"
    settings = {"max_model_len": 512, "max_num_seqs": 16, **settings}
    if place.is_dry:
        settings |= {"max_model_len": 256, "kv_cache_memory_bytes": 1 << 28}
    try:
        with engine(place, model, **settings) as core:
            found = compare(core, expected)
    except Exception as error:  # another way may still work
        traceback.print_exc()
        failure = one_line(f"{type(error).__name__}: {error}")
        place.tell(Row("tokens", work, note=failure, has_failed=True, column=way))
        return before
    first = found.pop("first")
    differing = sum(a != b for a, b in zip(before or first, first, strict=True))
    place.tell(
        Row(
            "tokens",
            work,
            found["sure"] - len(found["wrong"]),
            share=1 - len(found["wrong"]) / max(found["sure"], 1),
            goal=1.0,
            note=f"of {found['sure']} with a gap above {expected['tolerance']}; "
            f"{found['close']} closer ones differ; {differing} texts other than the way before",
            has_failed=bool(found["wrong"]),
            details=found,
            column=way,
        )
    )
    return first


def compare(core: Any, expected: dict[str, Any]) -> dict[str, Any]:
    """Follow the expected texts; after each token that differs, go on behind the expected one."""
    tolerance, texts = expected["tolerance"], expected["texts"]
    at = dict.fromkeys(range(len(texts)), 0)
    wrong: list[list[int]] = []
    first: list[list[int]] = []
    close = turn = 0
    while at:
        for number, start in at.items():
            wanted, prompt = texts[number]["tokens"], texts[number]["prompt"]
            job = Job(prompt + wanted[:start], len(wanted) - start)
            add(core, f"text{number}.{turn}", [job])
        given = run(core)
        first = first or [given[f"text{number}.0-0"] for number in range(len(texts))]
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
    return {"sure": sure, "close": close, "wrong": wrong, "first": first}
