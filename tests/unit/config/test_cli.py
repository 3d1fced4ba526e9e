"""The command line: vLLM's parsing rules, and the two of its faults that are mended."""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_lite.config.options.cli import parse_serve_args, serve_parser
from vllm_lite.config.options.option import option_table
from vllm_lite.config.server import ServerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import UsageError


def engine(line: str) -> dict[str, Any]:
    """The engine options that a command line sets."""
    return dict(parse_serve_args(shlex.split(line))[0].given)


def server(line: str) -> ServerConfig:
    return parse_serve_args(shlex.split(line))[1]


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The stderr of a command line that must fail with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        parse_serve_args(shlex.split(line))
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("usage: vllm-lite serve")
    return text


def test_only_what_was_set_comes_back() -> None:
    assert engine("") == {}
    assert engine("demo --max-num-seqs 4") == {"model": "demo", "max_num_seqs": 4}
    assert server("demo --port=9000") == ServerConfig(port=9000)


def test_the_model_may_stand_anywhere() -> None:
    for line in ("demo --port 1 --seed 2", "--port 1 demo --seed 2", "--port 1 --seed 2 demo"):
        assert engine(line) == {"model": "demo", "seed": 2}
    assert engine("--model demo") == engine("--model=demo") == {"model": "demo"}


def test_names_alone_are_no_model() -> None:
    with pytest.raises(UsageError, match="--served-model-name without a model"):
        parse_serve_args(["--served-model-name", "a", "demo"])
    assert engine("demo --served-model-name a b")["served_model_name"] == ["a", "b"]


def test_underscores_are_dashes_in_names_only() -> None:
    assert engine("demo --max_num_seqs=4")["max_num_seqs"] == 4
    got = engine("demo --hf_overrides.a_b.c_d x_y --load_format=auto")
    assert got["hf_overrides"] == {"a_b": {"c_d": "x_y"}}


def test_abbreviations_work_where_unique(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine("demo --tensor-par 1")["tensor_parallel_size"] == 1
    assert engine("demo --hf-over.a 1")["hf_overrides"] == {"a": 1}
    assert engine("demo -tp 1 -pp=1")["pipeline_parallel_size"] == 1
    assert engine("demo --max-seq 3") == {"model": "demo"}  # deprecated, and told of
    assert "--speculative-config" in refusal("demo --speculative {}x", capsys)
    assert "ambiguous option: --max-num" in refusal("demo --max-num 2", capsys)
    assert "-tp2" in refusal("demo -tp2", capsys)


def test_booleans_have_two_flags_and_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine("demo --no-enable-prefix-caching")["enable_prefix_caching"] is False
    assert engine("demo --enable-prefix-caching")["enable_prefix_caching"] is True
    assert "ignored explicit argument" in refusal("demo --enforce-eager=false", capsys)
    assert "unrecognized arguments: true" in refusal("demo --enforce-eager true", capsys)


def test_optional_values_can_be_emptied(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine("demo --revision None")["revision"] is None
    assert engine("demo --revision ''")["revision"] is None
    assert engine("demo --revision none")["revision"] == "none"
    assert "--seed" in refusal("demo --seed None", capsys)


def test_human_integers_where_they_are_declared(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine("demo --max-model-len 1k")["max_model_len"] == 1000
    assert engine("demo --max-model-len auto")["max_model_len"] == -1
    assert engine("demo --max-model-len -1")["max_model_len"] == -1
    assert engine("demo --max-num-batched-tokens 25.6k")["max_num_batched_tokens"] == 25600
    assert engine("demo --kv-cache-memory-bytes 2G")["kv_cache_memory_bytes"] == 2 << 30
    assert "1.5k" in refusal("demo --max-model-len 1.5K", capsys)
    assert "invalid int value: '1k'" in refusal("demo --max-num-seqs 1k", capsys)


def test_dotted_json() -> None:
    line = "demo --hf-overrides.a.b 1k --hf-overrides.a.c=true --hf-overrides.d null"
    assert engine(line)["hf_overrides"] == {"a": {"b": 1000, "c": True}, "d": None}
    line = "demo --hf-overrides.c+ x --hf-overrides.c+=y,z"
    assert engine(line)["hf_overrides"] == {"c": ["x", "y", "z"]}
    line = """demo --hf-overrides.b -1 --hf-overrides '{"a": 1}'"""
    assert engine(line)["hf_overrides"] == {"b": -1}


@settings(deadline=None)
@given(
    st.recursive(
        st.dictionaries(st.sampled_from("abc"), st.integers() | st.text("xyz ", min_size=1)),
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
    ).filter(bool)
)
def test_dotted_keys_rebuild_any_object(value: dict[str, Any]) -> None:
    def flags(part: dict[str, Any], path: str) -> list[str]:
        words = []
        for key, item in part.items():
            name = f"{path}.{key}"
            words += flags(item, name) if isinstance(item, dict) else [name, json.dumps(item)]
        return words

    def pruned(part: dict[str, Any]) -> dict[str, Any]:
        kept = {k: pruned(v) if isinstance(v, dict) else v for k, v in part.items()}
        return {k: v for k, v in kept.items() if v != {}}

    given_args = parse_serve_args(["demo", *flags(value, "--hf-overrides")])[0].given
    assert given_args.get("hf_overrides", {}) == pruned(value)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("demo --hf-overrides.a", "--hf-overrides.a needs a value"),
        ("demo --hf-overrides.a --port 1", "--hf-overrides.a needs a value"),
        ("demo --hf-overrides.a 1 --hf-overrides.a.b 2", "not an object"),
        ("demo --hf-overrides.a 1 --hf-overrides.a+ 2", "not a list"),
        ("demo --hf-overrides. 1", "empty key"),
        ("demo --hf-overrides '{bad'", "is not a JSON object"),
        ("demo --allowed-origins a", "is not a JSON list"),
        ("demo --nothing-like-it 3", "unrecognized arguments: --nothing-like-it"),
        ("demo --max-num-sqs 3", "did you mean --max-num-seqs?"),
        ("demo --dtype int8", "invalid choice: 'int8'"),
        ("demo more", "unrecognized arguments: more"),
        ("demo --port", "expected one argument"),
    ],
)
def test_unreadable_lines(line: str, cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cause in refusal(line, capsys)


def test_repeats_warn_and_the_last_one_wins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    assert server("demo --port 1 --port=2").port == 2
    assert "Found duplicate keys --port" in caplog.text


def test_bare_token_means_the_stored_login() -> None:
    assert engine("demo --hf-token")["hf_token"] is True
    assert engine("demo --hf-token abc")["hf_token"] == "abc"


class TestConfigFile:
    """--config FILE: its keys are flags that the command line overrides."""

    def write(self, folder: Path, text: str) -> str:
        (folder / "f.yaml").write_text(text)
        return str(folder / "f.yaml")

    def test_both_spellings_are_read(self, tmp_path: Path) -> None:
        file = self.write(tmp_path, "max_num_seqs: 4\nmodel: demo\n")
        for line in (f"--config {file}", f"--config={file}"):
            assert engine(line) == {"model": "demo", "max_num_seqs": 4}

    def test_the_command_line_wins(self, tmp_path: Path) -> None:
        file = self.write(tmp_path, "max-num-seqs: 4\nmodel: demo\nport: 1\n")
        assert engine(f"other --config {file} --max-num-seqs 8") == {
            "model": "other",
            "max_num_seqs": 8,
        }
        assert server(f"--config {file}").port == 1

    def test_every_kind_of_value(self, tmp_path: Path) -> None:
        text = (
            "enable-prefix-caching: false\nenforce-eager: true\nmax-model-len: 1k\n"
            "served-model-name: [a, b]\nhf-overrides: {a: {b: 1}}\nrevision: null\n"
            'allowed-origins: ["http://x"]\n'
        )
        file = self.write(tmp_path, text)
        assert engine(f"demo --config {file}") == {
            "model": "demo",
            "enable_prefix_caching": False,
            "enforce_eager": True,
            "max_model_len": 1000,
            "served_model_name": ["a", "b"],
            "hf_overrides": {"a": {"b": 1}},
            "revision": None,
        }
        assert server(f"demo --config {file}").allowed_origins == ["http://x"]

    def test_keys_may_be_dotted_and_values_may_begin_with_a_dash(self, tmp_path: Path) -> None:
        text = 'hf_overrides.a_b: true\nhf-overrides.c: "5"\nchat-template: "-{{ x }}"\n'
        file = self.write(tmp_path, text + "middleware: []\nmax-model-len: -1\n")
        given = engine(f"demo --config {file}")
        assert given["hf_overrides"] == {"a_b": True, "c": "5"}
        assert given["max_model_len"] == -1
        assert server(f"demo --config {file}").chat_template == "-{{ x }}"

    def test_a_list_takes_no_word_of_the_command_line(self, tmp_path: Path) -> None:
        file = self.write(tmp_path, 'served-model-name: [a, "-b"]\n')
        given = {"model": "demo", "served_model_name": ["a", "-b"]}
        for line in (f"demo --config {file}", f"--config {file} demo"):
            assert engine(line) == given
        bare = self.write(tmp_path, "hf-token: true\n")
        assert engine(f"--config {bare} demo") == {"model": "demo", "hf_token": True}
        keys = self.write(tmp_path, 'api-key:\n  - -secret\n  - "--other"\n')
        assert server(f"demo --config {keys}").api_key == ["-secret", "--other"]

    def test_repeated_keys_warn_and_the_last_one_wins(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
        file = self.write(tmp_path, "seed: 1\nseed: 2\n")
        assert engine(f"demo --config {file}")["seed"] == 2
        assert "Found duplicate key seed" in caplog.text

    @pytest.mark.parametrize(
        ("text", "cause"),
        [
            ("nothing: 1", "unrecognized arguments: --nothing"),
            ("config: other.yaml", "unrecognized arguments: --config=other.yaml"),
            ("a: [", "is not valid YAML: line 1: "),
            ("port: 1\n\tb: 2", "is not valid YAML: line 2: found character '\\t'"),
            ("- a", "must hold keys and values"),
            ("nothing: [1, 2]", "unrecognized arguments: --nothing\n"),
            ("a: &x [*x]", "a value holds itself"),
            ("model: [a]", "model must be one name"),
            ("max-num-seqs: true", "invalid int value: 'True'"),
            ("cudagraph-capture-sizes: [1, x]", "invalid int value: 'x'"),
        ],
    )
    def test_mistakes(
        self, tmp_path: Path, text: str, cause: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cause in refusal(f"demo --config {self.write(tmp_path, text)}", capsys)

    def test_other_files_are_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert "No such file" in refusal("demo --config none.yaml", capsys)
        assert "ends in .yaml" in refusal("demo --config f.json", capsys)
        assert "needs a YAML file" in refusal("demo --config", capsys)
        assert "needs a YAML file" in refusal("demo --config=", capsys)
        assert "could match --config-format, --config" in refusal("demo --conf f.yaml", capsys)


class TestHelp:
    """--help is a summary; --help=TOPIC shows a group or a search."""

    def shown(self, word: str, capsys: pytest.CaptureFixture[str]) -> str:
        with pytest.raises(SystemExit) as caught:
            parse_serve_args(["demo", word])
        assert caught.value.code == 0
        return capsys.readouterr().out

    def test_summary(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = self.shown("--help", capsys)
        assert "usage: vllm-lite serve" in text
        assert "SchedulerConfig" in text and "Frontend" in text
        assert "--max-num-seqs" not in text
        assert self.shown("-h", capsys) == text

    def test_a_group_by_any_case(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = self.shown("--help=schedulerconfig", capsys)
        assert "--max-num-seqs" in text and "--port" not in text

    def test_groups_and_pages(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = self.shown("--help=listgroup", capsys)
        assert text.startswith("Option groups:") and "--help=" not in text
        assert self.shown("--help=page", capsys) == self.shown("--help=all", capsys)

    def test_a_word(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = self.shown("--help=max_num", capsys)
        assert "  --max-num-seqs N" in text and "  --max-model-len N" not in text

    def test_all_shows_what_works_and_absent_the_rest(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        texts = {topic: self.shown(f"--help={topic}", capsys) for topic in ("all", "absent")}
        heads = {
            topic: [
                line.split(",")[0].split()[0] for line in text.splitlines() if line[:3] == "  -"
            ]
            for topic, text in texts.items()
        }
        entries = [
            entry for cls in (VllmConfig, ServerConfig) for entry in option_table(cls).values()
        ]
        works = {entry.flag for entry in entries if entry.level in ("full", "partial")}
        assert sorted(heads["all"]) == sorted(works)
        assert sorted(heads["absent"]) == sorted({entry.flag for entry in entries} - works)
        assert "Not available in this build" not in texts["all"]

    def test_what_is_absent_is_still_found_by_its_name(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert "Not available in this build" in self.shown("--help=enable-lora", capsys)
        assert "--max-loras" in self.shown("--help=LoRAConfig", capsys)

    def test_groups_that_a_newcomer_wants_come_first(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        names = [
            line.split()[0] for line in self.shown("--help=listgroup", capsys).splitlines()[1:]
        ]
        first = ["options", "Frontend", "ModelConfig", "CacheConfig", "SchedulerConfig"]
        assert names[:5] == first and "MambaConfig" not in names


def test_every_option_says_what_it_is_for() -> None:
    for cls in (VllmConfig, ServerConfig):
        for entry in option_table(cls).values():
            if entry.level in ("full", "partial"):
                assert entry.help.endswith("."), entry.flag
            lacks_some = not entry.keys and entry.level in ("partial", "absent")
            assert lacks_some == ("remedy" in entry.rules), entry.flag
            assert (entry.rules.get("level") == "idle") == ("why" in entry.rules), entry.flag


def test_engine_and_server_options_do_not_collide() -> None:
    assert not set(option_table(VllmConfig)) & set(option_table(ServerConfig))
    serve_parser()


class TestServerConfig:
    """Checks among the server's own options."""

    def test_a_key_may_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_API_KEY", "from-env")
        assert server("demo").api_key == ["from-env"]
        assert server("demo --api-key a b").api_key == ["a", "b"]
        assert "from-env" not in repr(server("demo"))

    @pytest.mark.parametrize(
        ("line", "cause"),
        [
            ("demo --enable-log-outputs", "--enable-log-outputs needs --enable-log-requests"),
            ("demo --chat-template nofile.jinja", "--chat-template: there is no file"),
            ("demo --ssl-certfile nofile", "--ssl-certfile: there is no file"),
            ("demo --port 70000", "--port must be"),
            ("demo --api-key ''", "--api-key must not be empty"),
        ],
    )
    def test_refusals(self, line: str, cause: str) -> None:
        with pytest.raises(UsageError, match=cause):
            server(line)

    def test_a_template_in_one_line_is_no_path(self) -> None:
        assert server("demo --chat-template '{{ messages }}'").chat_template == "{{ messages }}"
