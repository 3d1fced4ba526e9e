"""Options of the benchmarks: accepted values, refusals and meaning."""

from __future__ import annotations

import math

import pytest

from vllm_lite.bench.options.load import ServeOptions, ThroughputOptions
from vllm_lite.cli.bench import parse_engine, parse_serve, run
from vllm_lite.config.options.option import make
from vllm_lite.errors import UsageError


def test_defaults_are_vllm_s() -> None:
    options = parse_serve([])
    assert options.target.url == "http://127.0.0.1:8000"
    assert (options.target.path, options.target.backend) == ("/v1/completions", "openai")
    assert (options.dataset_name, options.dataset.num_prompts) == ("random", 1000)
    assert (options.request_rate, options.burstiness) == (math.inf, 1.0)
    assert (options.metrics, options.percentiles) == (("ttft", "tpot", "itl"), (99.0,))


def test_words_reach_their_sections() -> None:
    words = "--backend openai-chat --input-len 7 --temperature 0 --goodput ttft:200 e2el:1e3 "
    words += "--request-rate inf --header A=b C=d=e --no-oversample --metadata gpu=none "
    words += "--metric-percentiles 50,99.9 --percentile-metrics e2el,ttft"
    options = parse_serve(words.split())
    assert options.target.path == "/v1/chat/completions"
    assert options.target.headers == {"A": "b", "C": "d=e"}
    assert options.dataset.input_len == 7 and not options.dataset.oversample
    assert options.sampling.body == {"temperature": 0}
    assert options.goodput_limits == {"ttft": 200, "e2el": 1000}
    assert options.notes == {"gpu": "none"}
    assert options.metrics == ("ttft", "e2el")
    assert options.percentiles == (50, 99.9)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("--goodput speed:3", "--goodput speed is not one of"),
        ("--goodput ttft:soon", "not such as ttft:200"),
        ("--max-concurrency 0", "--max-concurrency must be at least 1"),
        ("--request-rate 0", "--request-rate must be greater than 0"),
        ("--ramp-up-strategy linear --ramp-up-start-rps 1", "needs both"),
        ("--ramp-up-start-rps 1 --ramp-up-end-rps 2", "need --ramp-up-strategy"),
        ("--ramp-up-strategy linear --ramp-up-start-rps 3 --ramp-up-end-rps 2", "not be more"),
        (
            "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2 --request-rate 3",
            "drop --request-rate",
        ),
        ("--percentile-metrics ttft,speed", "speed is not one of"),
        ("--metric-percentiles 101", "lie in"),
        ("--metric-percentiles many", "not a list"),
        ("--header nonsense", "not KEY=VALUE"),
        ("--metadata nonsense", "not KEY=VALUE"),
        ("--backend openai-chat --endpoint /v1/completions", "does not fit"),
        ("--dataset-name sharegpt", "needs --dataset-path"),
        ("--dataset-name prefix_repetition --input-len 9", "--input-len is for"),
        ("--random-range-ratio 1", "less than 1"),
        ("--dataset-path talks.json", "reads no file"),
        ("--random-batch-size 2", "needs a --backend for embeddings"),
        ("--backend openai-embeddings --temperature 0", "samples nothing"),
        ("--backend vllm-rerank", "go together"),
        ("--dataset-name random-rerank", "go together"),
        (
            "--backend openai-chat --dataset-name timed_trace --dataset-path t",
            "only --backend openai",
        ),
        ("--self-timed", "is for --dataset-name timed_trace"),
        ("--skip-tokenizer-init", "random needs a tokenizer"),
        (
            "--skip-tokenizer-init --dataset-name custom --dataset-path c",
            "needs --skip-chat-template",
        ),
        ('--chat-template-kwargs {"a":1}', "a chat server takes them in --extra-body"),
        ("--percentile-metrics client_queue_time", "needs --max-concurrency"),
        ("--timeline-itl-thresholds 25", "takes two numbers"),
        ("--random-range-ratio x", "neither a number nor JSON"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(words: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause) as refused:
        parse_serve(words.split())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--no-such"],
        ["latency", "extra"],
        ["latency", "--profile"],
        ["nothing"],
        ["mm-processor"],
    ],
)
def test_what_does_not_exist_is_exit_code_2(words: list[str]) -> None:
    try:
        code: object = run(words)
    except SystemExit as left:
        code = left.code
    assert code == 2


def test_range_ratio_is_one_number_or_two() -> None:
    both = ThroughputOptions().dataset.range_ratios
    assert both == (0.0, 0.0)
    options = parse_serve(["--random-range-ratio", '{"input": 0.1, "output": 0.5}'])
    assert options.dataset.range_ratios == (0.1, 0.5)


def test_throughput_without_a_file_is_random() -> None:
    assert make(ThroughputOptions, {}).dataset_kind == "random"
    assert make(ThroughputOptions, {"dataset_path": "talks.json"}).dataset_kind == "sharegpt"


def test_engine_flags_stand_beside_the_benchmark_s_own() -> None:
    words = "--model demo --max-num-seqs 4 --input-len 16 --seed 3"
    own, engine = parse_engine("throughput", ThroughputOptions, words.split())
    assert isinstance(own, ThroughputOptions) and own.dataset.input_len == 16
    assert engine.given == {"model": "demo", "max_num_seqs": 4, "seed": 3}


def test_ramp_up_options_hold_together() -> None:
    words = "--ramp-up-strategy exponential --ramp-up-start-rps 1 --ramp-up-end-rps 8"
    options = parse_serve(words.split())
    assert isinstance(options, ServeOptions)
    assert (options.ramp_up_start_rps, options.ramp_up_end_rps) == (1, 8)
