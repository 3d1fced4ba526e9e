"""`vllm-lite bench` as a process: against the demo server, without one, and one that dies."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess, free_port
from tests.models.byte_model import save_byte_encoder

TINY_ENGINE = ["--model", "demo", "--max-model-len", "128", "--num-gpu-blocks-override", "64"]


def start(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "vllm_lite", "bench", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )


def bench(*words: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    process = start(*words, **environment)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, out, err


def figure(table: str, label: str) -> float:
    (line,) = [line for line in table.splitlines() if line.startswith(label)]
    return float(line[len(label) :])


@pytest.mark.slow
def test_serve_reports_what_the_server_did(demo_server: ServerProcess, tmp_path: Path) -> None:
    before = demo_server.metric("vllm:prompt_tokens_total")
    code, out, err = bench(
        *("serve", "--port", str(demo_server.port), "--num-prompts", "8", "--input-len", "32"),
        *("--output-len", "12", "--max-concurrency", "4", "--goodput", "e2el:1e6"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--save-detailed"),
        *("--result-dir", str(tmp_path), "--metadata", "where=here", "--request-rate", "50"),
        *("--plot", "--plot-dataset-stats", "--probe-request-rate", "100"),
    )
    assert code == 0, err
    assert figure(out, "Successful requests:") == 8
    assert figure(out, "Total input tokens:") == 8 * 32
    assert figure(out, "Total generated tokens:") == 8 * 12
    assert figure(out, "Request goodput (req/s):") == figure(out, "Request throughput (req/s):")
    # The prompts that the server saw are as long as the client says.
    sent = demo_server.metric("vllm:prompt_tokens_total") - before
    assert sent >= 8 * 32, "and the probes'"
    assert "tok/s" not in err, "live figures are for terminals"
    assert figure(out, "Probe requests completed:") >= 1
    (path,) = tmp_path.glob("*.json")
    pictures = [
        path.with_suffix(f".{kind}.png") for kind in ("latency", "timeline", "dataset_stats")
    ]
    assert set(tmp_path.iterdir()) == {path, *pictures}
    assert path.name.startswith("openai-50.0qps-concurrency4-demo-")
    run = json.loads(path.read_text())
    assert (run["model_id"], run["tokenizer_id"], run["where"]) == ("demo", "demo", "here")
    assert run["output_lens"] == [12] * 8 and run["errors"] == [""] * 8
    assert all(len(gaps) <= 11 for gaps in run["itls"])
    ends = zip(run["ttfts"], run["itls"], run["latencies"], strict=True)
    assert all(ttft + sum(gaps) == pytest.approx(end) for ttft, gaps, end in ends)


@pytest.mark.slow
def test_chat_with_a_file_and_a_ramp_up(demo_server: ServerProcess, tmp_path: Path) -> None:
    rows = [
        {"prompt": "Say hello.", "output_tokens": 5},
        {"prompt": "And bye.", "output_tokens": 6},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    result = tmp_path / "result.json"
    code, out, err = bench(
        *("serve", "--base-url", demo_server.url, "--backend", "openai-chat", "--num-warmups", "2"),
        *("--dataset-name", "custom", "--dataset-path", str(path), "--custom-output-len", "-1"),
        *("--num-prompts", "4", "--ignore-eos", "--temperature", "0", "--extra-body.seed", "3"),
        *("--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "8"),
        *("--ramp-up-end-rps", "32", "--ready-check-timeout-sec", "5", "--disable-tqdm"),
        *("--append-result", "--result-filename", str(result), "--header", "x-tenant=me"),
    )
    assert (code, err) == (0, "")
    assert figure(out, "Successful requests:") == 4
    assert 4 * 5 <= figure(out, "Total generated tokens:") <= 4 * 6
    run = json.loads(result.read_text())
    assert run["rps_change_events"][0]["rps"] == 8
    assert run["endpoint_type"] == "openai-chat"


@pytest.mark.slow
def test_refusals_are_counted_and_named(demo_server: ServerProcess) -> None:
    words = ["serve", "--port", str(demo_server.port), "--num-prompts", "2", "--disable-tqdm"]
    code, out, err = bench(*words, "--model", "demo", "--served-model-name", "other")
    assert code == 1 and figure(out, "Failed requests:") == 2
    assert err.startswith("vllm-lite bench: 2 of 2 requests failed; 2 of them: HTTP 404: ")
    assert "other" in err


@pytest.mark.slow
def test_no_server_and_bad_options_are_one_line() -> None:
    for words, cause in (
        (["--port", str(free_port())], "there is no server: cannot connect to http://127.0.0.1:"),
        (["--max-concurrency", "0"], "--max-concurrency must be at least 1"),
        (["--goodput", "speed:1"], "--goodput speed is not one of"),
        (["--ramp-up-strategy", "linear"], "needs both"),
    ):
        code, out, err = bench("serve", *words)
        assert (code, out) == (1, "")
        assert err.startswith("vllm-lite bench: error: ") and cause in err
        assert err.count("\n") == 1


@pytest.mark.slow
def test_a_server_that_dies_costs_its_requests_only() -> None:
    with ServerProcess("--max-model-len", "512", "--num-gpu-blocks-override", "300") as server:
        process = start(
            *("serve", "--port", str(server.port), "--num-prompts", "200", "--input-len", "8"),
            *("--output-len", "20", "--max-concurrency", "2"),
        )
        deadline = time.monotonic() + 30
        while server.metric("vllm:generation_tokens_total") < 60:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        server.kill()
        out, err = process.communicate(timeout=20)
    assert "Traceback" not in err
    completed, failed = figure(out, "Successful requests:"), figure(out, "Failed requests:")
    assert completed > 0 and failed > 0 and completed + failed == 200
    assert f"{failed:.0f} of 200 requests failed" in err
    assert process.returncode == 0


@pytest.mark.slow
def test_latency_times_batches(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    code, out, err = bench(
        *("latency", *TINY_ENGINE, "--input-len", "8", "--output-len", "4", "--batch-size", "2"),
        *("--num-iters-warmup", "1", "--num-iters", "3", "--output-json", str(path)),
        *("--plot", str(tmp_path / "latency.png")),
    )
    assert code == 0, err
    lines = out.splitlines()
    result = json.loads(path.read_text())
    assert list(result) == ["model_id", "avg_latency", "latencies", "percentiles"]
    assert len(result["latencies"]) == 3
    assert lines[0] == f"Avg latency: {result['avg_latency']} seconds"
    assert lines.pop() == f"Wrote {tmp_path / 'latency.png'}"
    shown = {line.partition("%")[0]: line for line in lines[1:]}
    assert list(shown) == list(result["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert shown["50"] == f"50% percentile latency: {result['percentiles']['50']} seconds"
    assert "Bench iterations" not in err  # bars are for terminals


@pytest.mark.parametrize(
    "engine",
    [[], pytest.param(["--async-engine", "--prequeue-requests"], marks=pytest.mark.slow)],
    ids=["LLM", "AsyncLLM"],
)
def test_throughput_counts_tokens(engine: list[str], tmp_path: Path) -> None:
    path = tmp_path / "throughput.json"
    code, out, err = bench(
        *("throughput", *TINY_ENGINE, *engine, "--input-len", "8", "--output-len", "4"),
        *("--num-prompts", "6", "--num-warmups", "1", "--output-json", str(path), "--n", "2"),
    )
    assert code == 0, err
    result = json.loads(path.read_text())
    assert list(result) == [
        "model_id",
        "elapsed_time",
        "num_requests",
        "total_num_tokens",
        "requests_per_second",
        "tokens_per_second",
    ]
    assert (result["num_requests"], result["total_num_tokens"]) == (6, 6 * 8 + 6 * 4 * 2)
    rates, prompt, output = out.splitlines()
    assert rates.startswith(f"Throughput: {result['requests_per_second']:.2f} requests/s, ")
    assert (prompt, output) == (
        "Total num prompt tokens:  48",
        "Total num output tokens:  48",
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", [[], ["--async-engine"]], ids=["LLM", "AsyncLLM"])
def test_throughput_tells_of_drafts(engine: list[str], tmp_path: Path) -> None:
    path = tmp_path / "throughput.json"
    table = "-sc.num_speculative_tokens_per_batch_size=[[1, 64, 4]]"
    drafts = ["-sc.method", "custom_class", "-sc.num_speculative_tokens", "4", table]
    code, out, err = bench(
        *("throughput", *TINY_ENGINE, *engine, "--input-len", "8", "--output-len", "20", *drafts),
        *("-sc.model", "tests.models.test_draft_methods.Repeater"),
        *("--num-prompts", "6", "--num-warmups", "1", "--output-json", str(path)),
    )
    assert code == 0, err
    result, lines = json.loads(path.read_text()), out.splitlines()
    shown = dict(line.rsplit(maxsplit=1) for line in lines[4:] if ":" in line)
    assert "Speculative Decoding" in lines[3]
    assert int(shown["Drafts:"]) == result["spec_decode_num_drafts"] > 20
    assert result["spec_decode_draft_tokens"] <= 4 * result["spec_decode_num_drafts"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [[], ["--async-engine"]], ids=["LLM", "AsyncLLM"])
def test_throughput_of_vectors(engine: list[str]) -> None:
    code, out, err = bench(
        *("throughput", *TINY_ENGINE, *engine, "--runner", "pooling", "--input-len", "8"),
        *("--num-prompts", "6", "--num-warmups", "1"),
    )
    assert code == 0, err
    assert out.splitlines()[1:] == ["Total num prompt tokens:  48", "Total num output tokens:  0"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def embedding_server(encoder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(model=str(encoder)) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "num_texts"),
    [("openai-embeddings", 3), ("vllm-pooling", 3), ("vllm-rerank", 3 + 1)],
)
def test_serve_loads_a_server_that_embeds(
    backend: str, num_texts: int, embedding_server: ServerProcess, encoder: Path
) -> None:
    """Each of two requests has three of the texts; to rerank them takes a query as well."""
    before = embedding_server.metric("vllm:request_success_total")
    words = ["--dataset-name", "random-rerank"] if backend == "vllm-rerank" else []
    code, out, err = bench(
        *("serve", "--port", str(embedding_server.port), "--backend", backend, *words),
        *("--tokenizer", str(encoder), "--num-prompts", "6", "--input-len", "24"),
        *("--random-batch-size", "3", "--max-concurrency", "2"),
    )
    assert code == 0, err
    assert figure(out, "Successful requests:") == 2
    assert figure(out, "Mean E2EL (ms):") > 0
    embedded = embedding_server.metric("vllm:request_success_total") - before
    assert embedded == 2 * num_texts


@pytest.mark.slow
def test_a_sweep_over_sizes_of_batches(encoder: Path, tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps([{"random_batch_size": size} for size in (1, 4)]))
    command, port = f"{sys.executable} -m vllm_lite", free_port()
    load = f"{command} bench serve --port {port} --backend openai-embeddings --num-prompts 4"
    code, _, err = bench(
        *("sweep", "serve", "--output-dir", str(tmp_path), "--experiment-name", "sizes"),
        *("--serve-cmd", f"{command} serve {encoder} --port {port}", "--num-runs", "1"),
        *("--bench-cmd", f"{load} --tokenizer {encoder} --input-len 24"),
        *("--bench-params", str(sizes)),
    )
    assert code == 0, err
    with open(tmp_path / "sizes" / "summary.csv", newline="") as file:
        rows = {row["random_batch_size"]: row for row in csv.DictReader(file)}
    assert {size: row["completed"] for size, row in rows.items()} == {"1": "4", "4": "1"}
    assert {row["total_input_tokens"] for row in rows.values()} == {str(4 * 24)}


@pytest.mark.slow
def test_lengths_beyond_the_model_are_one_line() -> None:
    code, out, err = bench("throughput", *TINY_ENGINE, "--input-len", "120", "--num-prompts", "1")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == (
        "vllm-lite bench: error: a prompt and its output have 248 tokens, --max-model-len is 128; "
        "lower --input-len or --output-len"
    )


@pytest.mark.slow
def test_ctrl_c_ends_a_load_quietly(demo_server: ServerProcess) -> None:
    before = demo_server.metric("vllm:generation_tokens_total")
    process = start(
        *("serve", "--port", str(demo_server.port), "--num-prompts", "400", "--input-len", "8"),
        *("--output-len", "200", "--max-concurrency", "4"),
    )
    deadline = time.monotonic() + 60
    while demo_server.metric("vllm:generation_tokens_total") == before:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    while demo_server.metric("vllm:num_requests_running"):
        assert time.monotonic() < deadline, "its requests end with it"
        time.sleep(0.02)


@pytest.mark.slow
def test_startup_times_fresh_processes(tmp_path: Path) -> None:
    path = tmp_path / "startup.json"
    code, out, err = bench(
        *("startup", *TINY_ENGINE, "--num-iters-cold", "1", "--num-iters-warmup", "0"),
        *("--num-iters-warm", "1", "--output-json", str(path)),
    )
    assert code == 0, err
    result = json.loads(path.read_text())
    kinds = ("cold_startup", "cold_compilation", "warm_startup", "warm_compilation")
    assert list(result) == [
        key
        for kind in kinds
        for key in (f"avg_{kind}_time", f"{kind}_times", f"{kind}_percentiles")
    ]
    assert result["avg_cold_startup_time"] == result["cold_startup_times"][0] > 0
    assert f"Avg startup time: {result['avg_warm_startup_time']:.2f} seconds" in out
    assert out.index("COLD STARTUP:") < out.index("WARM STARTUP:")
    code, out, err = bench("startup", "--model", "./none", "--num-iters-cold", "1")
    assert (code, out) == (1, "") and err.count("\n") == 1
