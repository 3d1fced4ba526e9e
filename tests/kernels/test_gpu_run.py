"""The benchmark command for GPUs runs without one, and a failure in it is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("triton")

from tests.kernels import emulated_cuda
from vllm_lite.config.demo import fetch_demo

FOLDER = Path(__file__).parents[2] / "benchmarks/gpu"
# Modules that a GPU machine may lack: this package's compiled ones and other dependencies.
NOT_NEEDED = {
    *("vllm_lite._cpu", "vllm_lite._cuda", "msgspec", "zmq", "uvloop", "httptools", "uvicorn"),
    *("fastapi", "starlette", "pydantic", "prometheus_client", "xgrammar", "llguidance"),
    *("openai", "prompt_toolkit"),
}
HIDE = f"""
import sys

class Hide:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in {NOT_NEEDED!r}:
            raise ModuleNotFoundError(f"{{name}} is hidden", name=name)

sys.meta_path.insert(0, Hide)
"""


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


class Ended(NamedTuple):
    """Of a run: its exit status, and the output of its processes."""

    status: int
    stdout: str
    stderr: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs the command in this process, where torch is loaded, and its sections in theirs."""
    import run as script

    def command(*options: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["run.py", *map(str, options)])
        with pytest.raises(SystemExit) as ended:
            script.main()
        return Ended(int(ended.value.code or 0), *capfd.readouterr())

    return command


@pytest.mark.skipif(emulated_cuda.compiler() is None, reason="no C++ compiler for the emulation")
def test_dry_run_needs_neither_a_gpu_nor_compiled_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    output = tmp_path / "out.json"
    words = ["--dry-run", "--demo", fetch_demo(), "--folder", tmp_path / "work", "--output", output]
    command = list(map(str, [sys.executable, FOLDER / "run.py", *words]))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record = json.loads(output.read_text())
    import run as script

    assert {row["section"] for row in record["rows"]} == {one.name for one in script.SECTIONS}
    assert record["is_dry_run"] and not any(row["has_failed"] for row in record["rows"])
    assert done.stdout.endswith("dry run: no GPU was used and nothing was measured\n")
    last = done.stdout[done.stdout.rindex("\n\n") :].strip().splitlines()
    assert last[0] == "stand-in on the host" and len(last) <= 40
    mixed = [row for row in record["rows"] if row["section"] == "mixed_steps"]
    assert len(mixed) == 4 and all(row["details"]["graphs"] for row in mixed)
    refused = subprocess.run(
        [sys.executable, FOLDER / "measure/report.py", output], capture_output=True, text=True
    )
    assert refused.returncode == 1 and "nothing was measured" in refused.stderr


def test_the_gpu_path_imports_no_compiled_module(tmp_path: Path) -> None:
    """On a machine with a GPU they are imported once the GPU is found."""
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    code = """
from measure import engine
from vllm_lite.kernels.gpu.backends import gpu_ops
from vllm_lite.worker import cuda_device
for backend in (None, "TORCH_SDPA"):
    assert gpu_ops(backend).paged_attention
"""
    paths = [str(tmp_path), str(FOLDER), str(FOLDER.parents[1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_a_failing_section_is_one_row_of_the_table(
    tmp_path: Path, run: Callable[..., Ended]
) -> None:
    output = tmp_path / "out.json"
    words = [
        "--dry-run",
        "--demo",
        tmp_path / "none.gguf",
        "--output",
        output,
        "--folder",
        tmp_path,
    ]
    done = run(*words, "--sections", "decode_attention", "tokens")
    rows = json.loads(output.read_text())["rows"]
    assert done.status == 1
    assert {row["section"] for row in rows} == {"tokens", "decode_attention"}
    (failed,) = (row for row in rows if row["has_failed"])
    assert failed["section"] == "tokens" and "demo" in failed["work"]
    assert "none.gguf" in failed["note"] and "\n" not in failed["note"]
    done = run("--dry-run", "--output", output, "--folder", tmp_path, "--sections", "device")
    again = json.loads(output.read_text())["rows"]
    assert [row for row in again if row["section"] != "device"] == sorted(
        rows, key=lambda row: str(row["section"])
    )
    assert again[0]["section"] == "device"


def test_a_resumed_run_repeats_only_what_failed_or_changed(
    tmp_path: Path, run: Callable[..., Ended]
) -> None:
    output = tmp_path / "out.json"
    words = ["--dry-run", "--output", output, "--folder", tmp_path, "--resume"]
    words += ["--sections", "device", "decode_attention", "few_rows"]

    def left_out() -> list[str]:
        done = run(*words)
        assert done.status == 0, done.stderr[-2000:]
        # What was left out is in the table too.
        assert "copy bandwidth" in done.stdout and "fastest products" in done.stdout
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("left out"))
        return line.split(": ")[1].split()

    assert left_out() == ["none"]
    record = json.loads(output.read_text())
    assert left_out() == ["device", "decode_attention", "few_rows"]
    assert json.loads(output.read_text()) == record
    record["rows"][-1]["has_failed"] = True
    assert record["rows"][-1]["section"] == "few_rows"
    output.write_text(json.dumps(record))
    # Shares are of what `device` measures in the same run.
    assert left_out() == ["decode_attention"]
    record["sources"]["decode_attention"] = "others"
    record["rows"][-1]["has_failed"] = False
    output.write_text(json.dumps(record))
    assert left_out() == ["few_rows"]


def test_a_section_without_time_is_reported_and_keeps_its_figures(
    tmp_path: Path, run: Callable[..., Ended]
) -> None:
    output = tmp_path / "out.json"
    words = ["--dry-run", "--folder", tmp_path, "--output", output, "--sections", "device"]
    assert run(*words).status == 0
    before = json.loads(output.read_text())["rows"]
    done = run(*words, "--budget-s", 1)
    assert done.status == 1 and "no time was left" in done.stdout
    (failed,) = (row for row in json.loads(output.read_text())["rows"] if row["has_failed"])
    assert json.loads(output.read_text())["rows"] == [failed, *before]
    # The figures are there, and yet not of a section that is done.
    assert "left out, since they are done: none" in run(*words, "--resume").stdout


def test_a_table_has_40_lines_at_most() -> None:
    from measure.report import Row, most_telling, table

    asked = [Row("a", f"asked {i}", 1.0, share=0.9, goal=0.8) for i in range(30)]
    plain = [Row("b", f"plain {i}", 1.0) for i in range(10)]
    failed = [Row("c", "failed", note="why", has_failed=True)]
    shown, left = most_telling([*plain, *asked, *failed], 36)
    assert shown == [*plain[:5], *asked, *failed] and left == 5
    assert len(table(shown).splitlines()) == 37
    assert most_telling(asked, 36) == (asked, 0)


def test_goals_can_be_lower_or_upper_bounds() -> None:
    from measure.report import Row

    assert Row("s", "w", 1.0, share=0.9, goal=0.85).is_met
    assert not Row("s", "w", 1.0, share=0.9, goal=0.85, is_ceiling=True).is_met
    assert Row("s", "w", 1.0, share=0.9).is_met is None
    assert Row("s", "w", has_failed=True).is_met is False


def test_rows_that_differ_in_a_column_are_one_line() -> None:
    from measure.report import Row, table

    def row(column: str, value: float, share: float, note: str = "") -> Row:
        beside = {"torch": 2 * value}
        return Row(
            *("s", "work", value, "TB/s", share), goal=0.5, note=note, column=column, beside=beside
        )

    several = [row("1", 1.5, 0.75), row("2", 0.5, 0.25, "slow"), Row("s", "other", 1.0)]
    _, line, other = table(several).splitlines()
    assert line.split("  ")[0] == "work: 1 / 2"
    for cell in ("1.5 / 0.5 TB/s", "75.0 / 25.0 %", ">= 50.0 %", "1 of 2", "torch: 3 / 1 TB/s"):
        assert f"  {cell}" in line
    assert line.endswith("; 2: slow") and other.split() == ["other", "1", "-"]
    failed = Row("s", "work", note="it broke", has_failed=True, column="4")
    line = table([*several[:1], failed]).splitlines()[1]
    assert "  1.5 / - TB/s" in line and "  FAILED  " in line and line.endswith("4: it broke")


def test_rows_survive_the_end_of_their_writer(tmp_path: Path) -> None:
    from measure.report import Row, append_rows, markdown, read_rows

    rows = [Row("s", "first | one", 1.5, "TB/s", 0.5, goal=0.85, note="a | b"), Row("s", "second")]
    file = tmp_path / "rows"
    append_rows(file, rows)
    with file.open("a") as open_file:
        open_file.write('{"section": "s", "wo')
    assert read_rows(file) == rows
    record = {"is_dry_run": False, "device": "D", "date": "2000-01-01", "versions": {"torch": "1"}}
    text = markdown({**record, "rows": [row.to_json() for row in rows]})
    assert "| first / one | 1.5 TB/s | 50.0 % | >= 85.0 % | NO | a / b |" in text


def event(start: float, duration: float, name: str) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "ts": start, "dur": duration, "name": name}


def test_overlapping_spans_count_once() -> None:
    from measure.timeline import spans_of, summary

    events = [
        event(0, 10, "product"),
        event(5, 10, "beside it"),
        event(15, 5, "Memcpy DtoH (Device -> Pinned)"),
        event(26, 4, "product"),
        event(40, 10, "product"),
        {**event(60, 5, "host"), "cat": "cpu_op"},
    ]
    found = summary(spans_of(events, {"kernel"}), "DtoH")
    micro = pytest.approx
    assert found.seconds * 1e6 == micro(50) and found.busy * 1e6 == micro(34)
    # From the answer's copy to the next thing, and the other pause.
    assert found.between_steps * 1e6 == found.median_gap * 1e6 == micro(6)
    assert found.inside_steps * 1e6 == found.median_inside * 1e6 == micro(10)


def test_a_profile_separates_gaps_from_waits() -> None:
    """Two steps of two layers, each of two products and an attention, and a sampler."""
    from measure.decode import Decoding, overhead_row, profile, profile_row
    from measure.timeline import spans_of, summary

    layer = [(0, 8, "void ns::product<bf16>(int)"), (8, 4, "attention"), (14, 8, "product")]
    work = [(24 * i + start, duration, name) for i in range(2) for start, duration, name in layer]
    step = [*work, (46, 2, "sampler_kernel"), (48, 2, "Memcpy DtoH (Device -> Pinned)")]
    events = [event(60 * i + start, *rest) for i in range(2) for start, *rest in step]
    timeline = summary(spans_of(events, {"kernel"}), "DtoH")
    found = Decoding(3, 100.0, 55e-6, 20e-6, timeline, num_steps=2, num_layers=2)
    made, micro = profile(found), pytest.approx
    # Two in each layer, two between them.
    assert made["gaps_us"] == micro(6) and made["median_gap_us"] == micro(2)
    assert made["gap_after_answer_us"] == micro(5)  # of the first step; none follows the last
    assert made["busy_us"] == micro(44) and made["host_us"] == micro(20)
    assert made["launches"] == 8 and made["launches_a_layer"] == 3
    first, *others = made["kernels"]
    assert first == {"name": layer[0][2], "launches": 2, "us": 16, "share": micro(16 / 44)}
    assert [kernel["name"] for kernel in others[:2]] == ["product", "attention"]
    row = profile_row("s", "M", found)
    assert row.value == 3 and row.note == "host 20 us, product 36 %, product 36 %, attention 18 %"
    row = overhead_row("s", "M", found)
    assert row.value == micro(11) and row.beside == micro({"gaps inside": 6, "after answers": 5})


def test_a_step_reads_its_weights_and_its_contexts() -> None:
    from measure.decode import Decoding, floor_seconds
    from measure.place import Limits
    from measure.shapes import SHAPES, dense_tensors

    config = SHAPES["Llama-3.1-8B"]
    assert sum(
        dims[0] * (dims[1] if len(dims) > 1 else 1) for dims in dense_tensors(config).values()
    ) == pytest.approx(8.03e9, rel=1e-3)
    nothing: Any = None
    found = Decoding(256, 1024, 1.0, 1.0, nothing, 1, 32)
    floors = floor_seconds(config, found, Limits(1e12, 1e15))
    read, cached = 15.0e9, 256 * 1024 * 131072
    assert floors["weights"] == pytest.approx(read / 1e12, rel=0.01)
    assert floors["bytes"] == pytest.approx((read + cached) / 1e12, rel=0.01)
    assert floors["operations"] == pytest.approx((256 * read + cached * 256 / 256 * 4) / 1e15, 0.2)


class Parrot:
    """An engine core that continues a prompt by counting, except at some positions."""

    def __init__(self, mistakes: set[int]) -> None:
        self.mistakes = mistakes
        self.waiting: list[Any] = []

    def add_requests(self, requests: Any) -> None:
        self.waiting += requests

    def has_work(self) -> bool:
        return bool(self.waiting)

    def step(self) -> Any:
        from types import SimpleNamespace

        request = self.waiting.pop()
        first = request.prompt_token_ids[-1] + 1
        ids = range(first, first + request.task.max_tokens)
        given = [-1 if token in self.mistakes else token for token in ids]
        output = SimpleNamespace(
            request_id=request.request_id, new_token_ids=given, finish_reason="length"
        )
        return SimpleNamespace(outputs=[output])


def test_only_tokens_with_a_clear_gap_are_compared() -> None:
    from measure.correctness import compare

    expected = {
        "tolerance": 0.5,
        "texts": [{"prompt": [1, 2], "tokens": [3, 4, 5, 6], "gaps": [0.6, 0.1, 0.9, 2.0]}] * 2,
    }
    said = [[3, 4, 5, 6]] * 2
    assert compare(Parrot(set()), expected) == {"sure": 6, "close": 0, "wrong": [], "first": said}
    said = [[3, -1, 5, 6]] * 2
    assert compare(Parrot({4}), expected) == {"sure": 6, "close": 2, "wrong": [], "first": said}
    found = compare(Parrot({4, 6}), expected)
    assert found["close"] == 2 and found["wrong"] == [[0, 3, 6, -1], [1, 3, 6, -1]]


@pytest.mark.skipif(emulated_cuda.compiler() is None, reason="no C++ compiler for the emulation")
def test_a_separate_library_replaces_the_compiled_module(tmp_path: Path) -> None:
    """Of nvcc on a GPU machine; here it is the emulation's."""
    library = emulated_cuda.build()._library._name
    code = f"""
import pathlib, torch
from measure import cuda_module
cuda_module.install(pathlib.Path({library!r}))
from vllm_lite import _cuda
from vllm_lite.kernels.gpu.cuda.paged import PagedOps
cache = torch.randn(2, 2, 3, 8, 64).half()
places = [torch.tensor(n, dtype=torch.int32) for n in ([[1]], [0, 1], [1])]
found = PagedOps(_cuda, "cpu", 64).paged_attention(cache[0, :1, :, 0], *cache, *places, 1.0)
assert torch.equal(found, cache[1, 1:, :, 0])
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), str(FOLDER.parents[1])])}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_a_build_without_nvcc_explains_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from measure import cuda_module

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="nvcc is not on the path"):
        cuda_module.build(tmp_path, "sm_90")


def test_shares_cover_each_case_once() -> None:
    import check_kernels

    shares = [[n for n in range(20) if check_kernels.in_share(n, f"{i}/3")] for i in range(3)]
    assert sorted(number for share in shares for number in share) == list(range(20))
