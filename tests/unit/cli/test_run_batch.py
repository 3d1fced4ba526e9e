"""The command line of `run-batch`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.batch.batches import chat, write
from vllm_lite.cli.main import main
from vllm_lite.cli.run_batch import parse
from vllm_lite.config.batch import BatchConfig


class TestCommandLine:
    """Options and mistakes."""

    def test_options_reach_their_configs(self) -> None:
        line = (
            "-i in.jsonl -o out.jsonl --model demo --max-num-seqs 4 --response-role bot "
            "--max-log-len 10 --enable-prompt-tokens-details --enable-metrics --host ::1 "
            "--port 9"
        )
        engine, server, batch = parse(line.split())
        assert (engine.model, engine.max_num_seqs, engine.disable_log_stats) == ("demo", 4, False)
        assert (server.response_role, server.max_log_len) == ("bot", 10)
        assert server.enable_prompt_tokens_details
        assert batch == BatchConfig(
            input_file="in.jsonl", output_file="out.jsonl", enable_metrics=True, url="::1", port=9
        )
        assert parse(["-i", "a", "-o", "b"])[0].disable_log_stats

    @pytest.mark.parametrize(
        ("line", "cause"),
        [
            ("-o b", "the following arguments are required: -i/--input-file"),
            ("", "required: -i/--input-file, -o/--output-file"),
            ("demo -i a -o b", "unrecognized arguments: demo (give the model as --model MODEL)"),
            ("-i a -o b --ssl-keyfile x", "unrecognized arguments: --ssl-keyfile"),
            ("-i a -o b --enable-metrics --disable-log-stats", "--enable-metrics has nothing"),
        ],
    )
    def test_words_that_cannot_be_read(
        self, line: str, cause: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            parse(line.split())
        text = capsys.readouterr().err
        assert ended.value.code == 2 and text.startswith("usage: vllm-lite run-batch")
        assert cause in text

    def test_files_are_looked_at_before_the_model(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = write(tmp_path / "in", chat("a"))
        for words, cause in (
            (("-i", "nothing", "-o", "out"), "--input-file nothing does not exist"),
            (("-i", str(tmp_path), "-o", "out"), "is a directory; give"),
            (("-i", str(source), "-o", str(tmp_path)), "is a directory; name a file in it"),
            (("-i", str(source), "-o", str(source)), "is the input; name another file"),
            (("-i", str(source), "-o", "no/where"), "there is no directory no"),
        ):
            assert main(["run-batch", *words, "--model", "/no/model"]) == 1
            text = capsys.readouterr().err.splitlines()[-1]
            assert text.startswith("vllm-lite run-batch: error: ") and cause in text

    def test_help_names_its_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["run-batch", "--help=run-batch"])
        text = capsys.readouterr().out
        for flag in (
            "-i TEXT",
            "--input-file",
            "-o TEXT",
            "--resume",
            "--enable-metrics",
            "--host",
        ):
            assert flag in text
