"""A sweep runs every combination once and keeps its results.

Server and load are small scripts here: the sweep knows them by their command lines only.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from vllm_lite.bench.sweep.commands import Overrides, SweptServer, read_overrides
from vllm_lite.cli.bench import run
from vllm_lite.errors import UsageError

SERVER = """
import http.server, os, sys
assert os.environ["VLLM_SERVER_DEV_MODE"] == "1"
if "--fail" in sys.argv:
    sys.exit("no such model")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        code = 200 if "prefix" in self.path else 404 if "mm" in self.path else 501
        self.send_response(code); self.end_headers()
    def log_message(self, *args):
        print(self.command, self.path, flush=True)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
LOAD = """
import json, os, sys, time
words = dict(zip(sys.argv, sys.argv[1:]))
if words.get("--max-concurrency") == "13":
    sys.exit(3)
if words.get("--max-concurrency") == "99":
    open(words["--started"], "w").close()
    time.sleep(60)
users = int(words.get("--max-concurrency", 1))
record = {"request_throughput": users * 2.0, "mean_e2el_ms": 500.0, "median_ttft_ms": 10.0 * users,
          "total_token_throughput": 100.0 * users, "output_throughput": 50.0 * users,
          "max_concurrency": users, "latencies": [0.1, 0.2], "request_rate": "inf"}
with open(os.path.join(words["--result-dir"], words["--result-filename"]), "w") as file:
    json.dump(record, file)
"""


class Sweep:
    """A folder with the two scripts, and the words of a sweep over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("server.py", SERVER), ("load.py", LOAD)):
            (folder / name).write_text(text)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def write(self, name: str, content: Any) -> str:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return str(path)

    def words(self, *further: str) -> list[str]:
        return [
            *("sweep", "serve", "--output-dir", str(self.folder), "--experiment-name", "exp"),
            *("--serve-cmd", f"{sys.executable} {self.folder / 'server.py'} --port {self.port}"),
            *("--bench-cmd", f"{sys.executable} {self.folder / 'load.py'}"),
            *further,
        ]

    @property
    def results(self) -> Path:
        return self.folder / "exp"


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_options_replace_what_a_command_had() -> None:
    words = ["serve", "m", "--max-num-seqs", "4", "--dtype=auto", "--enforce-eager", "--port", "1"]
    values = {
        "max_num_seqs": 8,
        "dtype": "bfloat16",
        "enforce-eager": False,
        "compilation_config.use_graphs": True,
        "served_model_name": ["a", "b"],
        "override": {"x": 1},
    }
    assert Overrides(values).apply(words) == [
        *("serve", "m", "--max-num-seqs", "8", "--dtype", "bfloat16", "--no-enforce-eager"),
        *("--port", "1", "--compilation-config.use_graphs=true", "--served-model-name", "a", "b"),
        *("--override", '{"x": 1}'),
    ]
    assert Overrides({"max-num-seqs": 4}).get("max_num_seqs") == 4
    assert Overrides({"num-prompts": 4}).having(num_prompts=2).values == {"num_prompts": 2}


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ([], "neither a list of objects nor names"),
        ([1], "neither a list of objects nor names"),
        ({"a": 1}, "neither a list of objects nor names"),
        ([{"x": 1}, {"x": 1}], "has x=1 twice"),
    ],
)
def test_a_bad_parameter_file_is_one_line(sweep: Sweep, content: Any, cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        read_overrides("--bench-params", sweep.write("p.json", content))
    with pytest.raises(UsageError, match="--bench-params none: No such file"):
        read_overrides("--bench-params", "none")


def test_every_combination_runs_and_is_kept(
    sweep: Sweep, capfd: pytest.CaptureFixture[str]
) -> None:
    serve = sweep.write("s.json", [{"max_num_seqs": 1}, {"max_num_seqs": 2}])
    load = sweep.write("b.json", {"one": {"max_concurrency": 1}, "two": {"max-concurrency": 2}})
    words = sweep.words("--serve-params", serve, "--bench-params", load, "--num-runs", "2")
    assert run([*words, "--dry-run"]) == 0
    assert not sweep.results.exists()
    assert capfd.readouterr().out.count("load.py") == 8
    assert run(words) == 0
    folders = {path.name for path in sweep.results.iterdir() if path.is_dir()}
    assert folders == {
        f"SERVE--max_num_seqs={seqs}-BENCH--{name}" for seqs in (1, 2) for name in ("one", "two")
    }
    (first, second) = json.loads(
        (sweep.results / "SERVE--max_num_seqs=2-BENCH--two" / "summary.json").read_text()
    )
    assert (first["run_number"], second["run_number"]) == (0, 1)
    assert (first["max_num_seqs"], first["_benchmark_name"]) == (2, "two")
    with open(sweep.results / "summary.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and "latencies" not in rows[0]
    log = (sweep.results / "SERVE--max_num_seqs=1.log").read_text()
    assert log.count("POST /reset_prefix_cache") == 4, "after each load"
    capfd.readouterr()
    # What is there is not run again, and the servers are not started.
    with pytest.raises(UsageError, match="exists already; add --resume"):
        run(words)
    assert run([*words, "--resume"]) == 0
    assert "$" not in capfd.readouterr().out


def test_a_failure_ends_a_sweep_or_is_noted(
    sweep: Sweep, capfd: pytest.CaptureFixture[str]
) -> None:
    serve = sweep.write("s.json", [{"fail": True}, {"max_num_seqs": 1}])
    load = sweep.write("b.json", [{"max_concurrency": 13}, {"max_concurrency": 2}])
    words = sweep.words("--serve-params", serve, "--bench-params", load, "--num-runs", "1")
    with pytest.raises(UsageError, match=r"server ended with code 1 .* its log is in .*fail=True"):
        run(words)
    assert "--resume" in capfd.readouterr().err
    assert "no such model" in (sweep.results / "SERVE--fail=True.log").read_text()
    assert run([*words, "--resume", "--continue-on-error"]) == 0
    failed = sweep.results / "SERVE--max_num_seqs=1-BENCH--max_concurrency=13"
    assert "ended with code 3" in (failed / "run=0.failure.json").read_text()
    assert (sweep.results / "SERVE--fail=True-failure.json").exists()
    assert len(list(sweep.results.rglob("summary.json"))) == 1


def test_linked_options_must_be_equal(sweep: Sweep) -> None:
    serve = sweep.write("s.json", [{"max_num_seqs": 1}, {"max_num_seqs": 2}])
    load = sweep.write("b.json", [{"max_concurrency": 1}, {"max_concurrency": 2}])
    words = sweep.words("--serve-params", serve, "--bench-params", load, "--num-runs", "1")
    assert run([*words, "--link-vars", "max_num_seqs=max_concurrency"]) == 0
    assert {path.name for path in sweep.results.iterdir() if path.is_dir()} == {
        f"SERVE--max_num_seqs={n}-BENCH--max_concurrency={n}" for n in (1, 2)
    }
    with pytest.raises(UsageError, match="is not such as max_num_seqs"):
        run([*words, "--link-vars", "max_num_seqs"])


def test_ctrl_c_stops_the_server_too(sweep: Sweep) -> None:
    started = sweep.folder / "started"
    load = sweep.write("b.json", [{"max_concurrency": 99, "started": str(started)}])
    command = [sys.executable, "-m", "vllm_lite", "bench", *sweep.words("--bench-params", load)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not started.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    assert SweptServer(["--port", str(sweep.port)]).is_ready()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped early; continue with --experiment-name exp --resume" in err
    assert "vllm_lite" not in err, "no traceback of ours"
    assert not SweptServer(["--port", str(sweep.port)]).is_ready()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("serve_workload", "--bench-params file of request rates"),
        ("startup", "run bench startup once"),
        ("plot", "summary.csv"),
        ("plot_pareto", "summary.csv"),
    ],
)
def test_other_sweeps_name_what_to_use(
    name: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", name, "--dry-run"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"error: {name} is not available in this build; " in line and remedy in line


@pytest.mark.parametrize("words", [["sweep", "nothing"], ["sweep", "serve", "word"]])
def test_a_wrong_word_is_exit_code_2(words: list[str]) -> None:
    try:
        code: object = run(words)
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert run(["sweep", "--help"]) == 0


def test_a_sweep_without_commands_is_one_line() -> None:
    with pytest.raises(UsageError, match="needs --serve-cmd and --bench-cmd"):
        run(["sweep", "serve"])
