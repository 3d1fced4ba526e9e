"""Every flag that vLLM has documented gets a truthful answer: all rows of data/cli_flags*.json.

A row says what vLLM's documents say: name, group, type, default, and a tier. 1 and 2 are
features, 3 is checked and refused where it would matter, 4 is deprecated. What this build does
with a flag is the option's own level; the laws here hold whatever that is. The second file has
what 0.32 added, and the benchmarks' own flags.
"""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.flag_effects import EFFECTS
from tests.unit.cli import make_docs
from vllm_lite.bench.options.load import LatencyOptions, StartupOptions, ThroughputOptions
from vllm_lite.bench.options.load import ServeOptions as BenchServeOptions
from vllm_lite.bench.options.sweep import SweepOptions
from vllm_lite.cli import run_batch
from vllm_lite.cli.chat import ChatOptions
from vllm_lite.cli.complete import CompleteOptions
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.options.argv import spellings_of
from vllm_lite.config.options.cli import OptionParser, serve_parser
from vllm_lite.config.options.deprecation import warn_of_idle, without_deprecated
from vllm_lite.config.options.option import Option, make, option_table
from vllm_lite.config.server import ServerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import NotInBuildError, UsageError

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]
LONG_KNOWN: list[Row] = json.loads((ROOT / "tests/data/cli_flags.json").read_text())
ADDED: list[Row] = json.loads((ROOT / "tests/data/cli_flags_032.json").read_text())
ROWS = LONG_KNOWN + ADDED
# Read by the parser itself, before there are options.
NOT_OPTIONS = ("--help", "--version", "--config")
# Commands that are refused as a whole, whatever their flags.
REFUSED = tuple(
    f"bench sweep {name}" for name in ("serve_workload", "startup", "plot", "plot_pareto")
)
OPTIONS = [
    {**row, "commands": [name for name in row["commands"] if name not in REFUSED]}
    for row in ROWS
    if row["flag"] not in NOT_OPTIONS and not set(row["commands"]) <= set(REFUSED)
]
CLASSES: dict[str, tuple[type, ...]] = {
    "chat": (ChatOptions,),
    "complete": (CompleteOptions,),
    "bench latency": (LatencyOptions, VllmConfig),
    "bench throughput": (ThroughputOptions, VllmConfig),
    "bench startup": (StartupOptions, VllmConfig),
    "bench serve": (BenchServeOptions,),
    "bench sweep serve": (SweepOptions,),
}
# Flags whose default here is another one, and why.
OTHER_DEFAULTS = {
    "--ignore-patterns": "none means none; the patterns are those of vLLM 0.32 and more",
    "--block-size": "see docs/differences.md",
    "--enable-prefix-caching": "on, as vLLM resolves it",
    "--enable-chunked-prefill": "on, as vLLM resolves it",
    "--enable-lora": "off, as vLLM resolves it",
    "--lora-modules": "no adapters",
    "--scheduler-cls": "the one there is",
    "--shutdown-timeout": "running requests finish",
    "--custom-output-len": "that of bench serve",
    "--prefix-repetition-prefix-len": "that of bench serve",
    "--prefix-repetition-suffix-len": "that of bench serve",
    "--prefix-repetition-num-prefixes": "that of bench serve",
    "--prefix-repetition-output-len": "that of bench serve",
    "--asr-max-audio-len-sec": "none means no limit",
    "--input-file": "asked for when it is missing",
    "--output-file": "asked for when it is missing",
}
# Told of as deprecated in vLLM, but with an effect here.
BETTER = {"--device": "chooses where the model runs"}


def ids(row: Row) -> str:
    return f"{row['flag']}-{row['commands'][0] if row['commands'] else 'all'}"


def where(levels: tuple[str, ...]) -> pytest.MarkDecorator:
    """Parametrize over rows of options whose own level is one of `levels`."""
    chosen = [row for row in OPTIONS if option_of(row).level in levels]
    return pytest.mark.parametrize("row", chosen, ids=ids)


@cache
def parser_of(command: str) -> OptionParser:
    if command == "serve":
        return serve_parser()
    if command == "run-batch":
        return run_batch.parser()
    return OptionParser(f"vllm-lite {command}", "[options]", "", CLASSES[command])


@cache
def spellings(command: str) -> dict[str, Option]:
    return spellings_of(parser_of(command).entries)


def option_of(row: Row) -> Option:
    return spellings(row["commands"][0])[row["flag"]]


def words_for(entry: Option, value: Any) -> list[str]:
    """The command line's words for a value."""
    if value is True or (value is False and entry.kind.types == (bool,)):
        return [entry.flag if value else f"--no-{entry.flag[2:]}"]
    if isinstance(value, list) and not entry.rules.get("json"):
        return [entry.flag, *map(str, value)]
    return [entry.flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]


def parsed(row: Row, value: Any) -> dict[str, Any]:
    """The value that the row's first command parses from its flag with `value`."""
    command = row["commands"][0]
    _, _, values = parser_of(command).parse(words_for(option_of(row), value))
    return {name: item for part in values for name, item in part.items()}


def refusal(row: Row, value: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that refuses `value`, after checking exit code 2."""
    with pytest.raises(SystemExit) as caught:
        parsed(row, value)
    assert caught.value.code == 2
    usage, *lines = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: vllm-lite")
    (line,) = [line for line in lines if "error: " in line]
    return line


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    yield lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("row", OPTIONS, ids=ids)
def test_every_command_that_has_the_flag_knows_it_in_its_group(row: Row) -> None:
    for command in row["commands"]:
        entry = spellings(command)[row["flag"]]
        for alias in row["aliases"]:
            # -O is several flags in one; test_levels_of_optimization is for it.
            assert alias == "-O" or spellings(command)[alias].name == entry.name
        if row["type"] in ("bool_optional", "store_true"):
            assert entry.kind.types == (bool,)
    # Elsewhere a command has groups of its own.
    if row["commands"][0] == "serve":
        assert option_of(row).group == row["group"]


@pytest.mark.parametrize("row", [row for row in OPTIONS if row["tier"] != 4], ids=ids)
def test_the_default_is_the_documented_one_and_passes(row: Row) -> None:
    entry = option_of(row)
    if row["flag"] not in OTHER_DEFAULTS and "auto" not in entry.rules:
        is_opposite = row["flag"] == f"--no-{entry.flag[2:]}"
        told = not row["default"] if is_opposite else row["default"]
        assert (entry.flat_default or None) == (told or None)
    if entry.flat_default not in (None, "", []):
        assert parsed(row, entry.flat_default) == {entry.name: entry.flat_default}
    entry.check(entry.flat_default if "auto" not in entry.rules else entry.default)


@pytest.mark.parametrize("row", [row for row in OPTIONS if row["choices"]], ids=ids)
def test_every_documented_choice_is_taken_or_refused_as_not_available(
    row: Row, capsys: pytest.CaptureFixture[str]
) -> None:
    for choice in row["choices"]:
        if choice is None:
            continue
        value = [choice] if row["type"] == "list" else choice
        if option_of(row).level == "deprecated":
            option_of(row).check(value)
            continue
        try:
            option_of(row).check(value)
        except NotInBuildError:
            assert "is not available in this build; " in refusal(row, value, capsys)
        except UsageError as error:
            assert row["flag"] == "--block-size" and "at least 8" in str(error)
        else:
            parsed(row, value)


def consequential(entry: Option) -> Any:
    """A value that would change what the engine does."""
    passing = (entry.default, *entry.rules.get("works", ()))
    others = [choice for choice in entry.choices if choice not in passing]
    if others:
        return [others[0]] if list in entry.kind.types else others[0]
    if entry.kind.types == (bool,):
        return not entry.default
    if int in entry.kind.types:
        return (entry.default or 1) + 1
    if float in entry.kind.types:
        return (entry.default or 0) / 2 + 0.25
    if dict in entry.kind.types:
        return {"key": 1}
    if list in entry.kind.types:
        return [2] if entry.kind.item is int else ["x"]
    return "x"


@where(levels=("absent", "idle", "deprecated"))
def test_an_option_without_effect_says_what_to_do_instead(
    row: Row, capsys: pytest.CaptureFixture[str], warnings: Any
) -> None:
    """Refuses an absent option, warns of an idle one, and replaces or drops an old one."""
    entry = option_of(row)
    value = {entry.keys[0].name: 1} if entry.keys else consequential(entry)
    if entry.level == "absent":
        assert row["tier"] in (1, 2, 3)
        remedy = f" is not available in this build; {entry.rules['remedy']}"
        line = refusal(row, value, capsys)
        assert f"error: {entry.flag}" in line and line.endswith(remedy)
        # Python programs get the same answer.
        with pytest.raises(NotInBuildError, match="is not available in this build"):
            entry.check(value)
        return
    if entry.level == "idle":
        entry.check(value)
        found = parsed(row, value)
        # The parser warns of options that are not the engine's.
        if entry.name in option_table(VllmConfig):
            warn_of_idle({entry.name: entry.flat_default, **found}, {entry.name: entry})
        (line,) = warnings()
        assert line.startswith(entry.flag) and " changes nothing in this build: " in line
        return
    table = {known.name: known for known in parser_of(row["commands"][0]).entries}
    values = without_deprecated({entry.name: value}, table)
    (line,) = warnings()
    assert line.startswith(f"{entry.flag} is deprecated")
    if "retired" in entry.rules:
        assert values == {} and " and changes nothing: " in line
        return
    assert "; use " in line
    assert set(values) <= set(table) and all(table[name].level != "deprecated" for name in values)


def test_deprecated_flags_are_replaced_or_better() -> None:
    for row in OPTIONS:
        if row["tier"] == 4 and row["flag"] not in BETTER:
            assert option_of(row).level == "deprecated"


@where(levels=("partial",))
def test_a_partial_option_takes_what_works_and_refuses_the_rest(
    row: Row, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = option_of(row)
    if entry.keys:
        assert len({key.level for key in entry.keys}) > 1
        return
    for value in entry.rules["works"]:
        if value is not None:
            assert parsed(row, value) == {entry.name: value}
    refused = [c for c in entry.choices if c is not None and c not in entry.rules["works"]]
    fallback = False if entry.kind.types == (bool,) else 2
    for value in refused or [fallback]:
        line = refusal(row, value, capsys)
        assert f"error: {entry.flag} {value}" in line and entry.rules["remedy"] in line


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        (
            {"guided_decoding_backend": "xgrammar"},
            {"structured_outputs_config": {"backend": "xgrammar"}},
        ),
        (
            {
                "guided_decoding_disable_any_whitespace": True,
                "structured_outputs_config": {"backend": "auto"},
            },
            {"structured_outputs_config": {"backend": "auto", "disable_any_whitespace": True}},
        ),
        ({"task": "embed"}, {"runner": "pooling", "convert": "embed"}),
        ({"task": "generate", "runner": "auto"}, {"runner": "auto"}),
        ({"task": "auto"}, {}),
        (
            {
                "speculative_model": "[ngram]",
                "num_speculative_tokens": 5,
                "ngram_prompt_lookup_max": 4,
            },
            {
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 5,
                    "prompt_lookup_max": 4,
                }
            },
        ),
        ({"speculative_model": "small"}, {"speculative_config": {"model": "small"}}),
        ({"cuda_graph_sizes": [64]}, {"max_cudagraph_capture_size": 64}),
        ({"cuda_graph_sizes": [1, 2]}, {"cudagraph_capture_sizes": [1, 2]}),
        ({"worker_use_ray": True}, {"distributed_executor_backend": "ray"}),
        ({"worker_use_ray": False}, {}),
        ({"disable_mm_preprocessor_cache": True}, {"mm_processor_cache_gb": 0.0}),
        ({"eplb_window_size": 7}, {"eplb_config": {"window_size": 7}}),
        ({"dcp_kv_cache_interleave_size": 2}, {"cp_kv_cache_interleave_size": 2}),
        (
            {"rope_theta": 5e5, "hf_overrides": {"rope_theta": 1e6}},
            {"hf_overrides": {"rope_theta": 1e6}},
        ),
        ({"swap_space": 4.0, "preemption_mode": None}, {}),
    ],
)
def test_what_deprecated_options_become(given: dict[str, Any], becomes: dict[str, Any]) -> None:
    before = json.dumps(given)
    assert without_deprecated(given, option_table(VllmConfig)) == becomes
    assert json.dumps(given) == before


def test_the_old_switch_of_request_logs_turns_them_on_when_it_is_off() -> None:
    for word, logged in (("--no-disable-log-requests", True), ("--disable-log-requests", False)):
        _, _, (_, server) = serve_parser().parse([word])
        assert server == {"enable_log_requests": logged}


def test_what_a_deprecated_option_became_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        serve_parser().parse(["--worker-use-ray"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert "--distributed-executor-backend ray is not available in this build" in line


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("-O3", {"optimization_level": 3}),
        ("-O 0", {"optimization_level": 0}),
        ("-O=1", {"optimization_level": 1}),
        ("-O.mode=3", {"compilation_config": {"mode": 3}}),
        ("-O.level 2", {"compilation_config": {"level": 2}}),
        ('-O {"mode":3}', {"compilation_config": {"mode": 3}}),
        ('-O={"mode":3}', {"compilation_config": {"mode": 3}}),
        ('-cc {"mode":3}', {"compilation_config": {"mode": 3}}),
        ("-cc.mode=3", {"compilation_config": {"mode": 3}}),
    ],
)
def test_levels_of_optimization(line: str, values: dict[str, Any]) -> None:
    assert serve_parser().parse(line.split(" "))[2][0] == values


@pytest.mark.parametrize("word", ["-O4", "-O=x", "-Ofast", "--compilation-config=3"])
def test_other_levels_are_unreadable(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        serve_parser().parse([word])
    assert caught.value.code == 2


def test_keys_of_json_options_are_checked_by_their_own_rules() -> None:
    entry = option_table(VllmConfig)["structured_outputs_config"]
    with pytest.raises(UsageError, match="has no key 'nothing'; its keys are backend, "):
        entry.check({"nothing": 1})
    with pytest.raises(UsageError, match=r"--structured-outputs-config\.backend must be one of"):
        entry.check({"backend": "nothing"})
    with pytest.raises(UsageError, match=r"--max-cudagraph-capture-size must be at least 0"):
        option_table(VllmConfig)["max_cudagraph_capture_size"].check(-1)


def real(row: Row) -> bool:
    """Whether the flag is said to have an effect that a default does not have."""
    if row["flag"] in NOT_OPTIONS:
        return True
    level = option_of(row).level
    return level == "full" or (level == "partial" and row["tier"] == 1)


EFFECTIVE = [row for row in LONG_KNOWN if row["tier"] < 4 and real(row)]
EFFECTIVE += [row for row in ADDED if "serve" in row["commands"] and option_of(row).level == "full"]


@pytest.mark.parametrize("row", EFFECTIVE, ids=ids)
def test_every_flag_that_is_said_to_work_has_a_test_that_sees_its_effect(row: Row) -> None:
    name = option_name(row)
    assert name in EFFECTS, f"{name} is said to work: name its test in tests/flag_effects.py"
    file, _, test = EFFECTS[name].partition("::")
    assert test in names_in(file), f"{name}: there is no {file}::{test}"


def option_name(row: Row) -> str:
    """`--port`, or `run-batch --port` where a command's flag is another one."""
    command = row["commands"][0] if row["commands"] else ""
    prefix = f"{command} " if command in ("chat", "run-batch") else ""
    return prefix + row["flag"]


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_documented_row_is_counted() -> None:
    assert (len(LONG_KNOWN), len(ADDED)) == (265, 294)
    known = {option_name(row) for row in ROWS}
    assert set(EFFECTS) <= known


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert page == make_docs.page(), "an option changed: run `make docs`"
    for row in OPTIONS:
        assert f"`{row['flag']}`" in page


def test_numbers_that_no_process_could_be_told_are_refused() -> None:
    for name in ("seed", "max_num_seqs", "max_model_len"):
        with pytest.raises(UsageError, match="must fit in 64 bits"):
            option_table(VllmConfig)[name].check(1 << 63)


def test_python_programs_get_the_same_answers() -> None:
    with pytest.raises(NotInBuildError, match="--enable-lora is not available in this build"):
        EngineArgs(model="demo", enable_lora=True).create_engine_config()
    with pytest.raises(NotInBuildError, match=r"--speculative-config\.model MODEL"):
        EngineArgs(model="demo", task="draft").create_engine_config()
    with pytest.raises(NotInBuildError, match="--lora-modules"):
        make(ServerConfig, {"lora_modules": ["a=b"]})
