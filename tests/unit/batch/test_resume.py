"""Resuming an interrupted batch."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.unit.batch.batches import chat, many, records, run, steady, write
from vllm_lite.batch.journal import Journal
from vllm_lite.engine.client import Prompt
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import SamplingParams


class Mortal(FakeEngineClient):
    """Dies as a killed engine does, once it has been given that many requests."""

    lives = 10

    def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        if len(self.seen) == self.lives:
            self.errored = True
        return super().generate(prompt, params, request_id, **options)


class TestResume:
    """Leftovers of an interrupted run, and how it resumes."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        return many(tmp_path / "in", 1500)

    @pytest.fixture
    def journal(self, source: Path, output: Path, caplog: pytest.LogCaptureFixture) -> Path:
        """That of a run whose engine died half-way."""
        client = Mortal()
        client.lives = 1000
        with pytest.raises(EngineDeadError, match="killed by signal 9"):
            run(source, output, client)
        assert not output.exists() and "continue with --resume" in caplog.text
        return output.with_name("out.jsonl.journal")

    def test_a_resumed_run_gives_the_same_output(
        self, source: Path, output: Path, journal: Path, tmp_path: Path
    ) -> None:
        num_done = journal.read_bytes().count(b"\n") - 1
        # No more than the engine was given, and lines that are broken, however far it read ahead.
        assert 400 < num_done <= 1000 + 1500 // 100
        client = run(source, output, resume=True)
        assert len(client.seen) < 1500 - num_done + 15
        assert not journal.exists()
        run(source, tmp_path / "whole")
        assert steady(output) == steady(tmp_path / "whole")

    def test_half_a_line_at_the_journal_s_end_is_dropped(
        self, source: Path, output: Path, journal: Path, tmp_path: Path
    ) -> None:
        os.truncate(journal, journal.stat().st_size - 37)
        run(source, output, resume=True)
        run(source, tmp_path / "whole")
        assert steady(output) == steady(tmp_path / "whole")

    def test_damage_in_the_middle_costs_those_lines_only(
        self, source: Path, output: Path, journal: Path, tmp_path: Path
    ) -> None:
        raw = bytearray(journal.read_bytes())
        raw[5000:5400] = b"\0" * 400
        journal.write_bytes(raw)
        run(source, output, resume=True)
        run(source, tmp_path / "whole")
        assert steady(output) == steady(tmp_path / "whole")

    def test_a_finished_journal_needs_no_engine(self, source: Path, output: Path) -> None:
        with pytest.raises(UsageError, match=r"cannot write /dev/full: No space left.*--resume"):
            run(source, "/dev/full", output_tmp_dir=str(output.parent / "tmp"))
        (journal,) = (output.parent / "tmp").glob("*.journal")
        assert journal.read_bytes().count(b"\n") == 1501
        journal.rename(output.with_name("out.jsonl.journal"))
        dead = FakeEngineClient()
        dead.errored = True
        run(source, output, dead, resume=True)
        assert len(records(output)) == 1500 and not dead.seen

    def test_results_are_not_thrown_away_unasked(
        self, source: Path, output: Path, journal: Path
    ) -> None:
        before = journal.read_bytes()
        with pytest.raises(UsageError, match="continue it with --resume, or delete"):
            run(source, output)
        assert journal.read_bytes() == before

    def test_another_input_is_refused(self, output: Path, journal: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="results of another input"):
            run(write(tmp_path / "other", chat("a")), output, resume=True)

    def test_another_model_is_refused(self, source: Path, output: Path, journal: Path) -> None:
        with pytest.raises(UsageError, match="results of the model tiny: give --model tiny"):
            run(source, output, model="other", resume=True)

    def test_another_s_file_is_not_overwritten(self, source: Path, output: Path) -> None:
        other = write(output.with_name("out.jsonl.journal"), "dear diary")
        with pytest.raises(UsageError, match="is no journal of run-batch"):
            run(source, output, resume=True)
        assert other.read_text() == "dear diary\n"

    def test_two_runs_do_not_share_an_output(self, tmp_path: Path, output: Path) -> None:
        with (
            Journal(output.with_name("out.jsonl.journal"), "", "tiny", 1, resume=False),
            pytest.raises(UsageError, match="another run-batch writes to the same output"),
        ):
            run(write(tmp_path / "in", chat("a")), output)

    def test_a_run_that_did_nothing_leaves_nothing(self, tmp_path: Path, output: Path) -> None:
        client = FakeEngineClient()
        client.errored = True
        with pytest.raises(EngineDeadError):
            run(write(tmp_path / "in", chat("a")), output, client)
        assert [path.name for path in tmp_path.iterdir()] == ["in"]

    def test_resume_without_a_journal_begins_at_the_beginning(
        self, tmp_path: Path, output: Path
    ) -> None:
        run(write(tmp_path / "in", chat("a")), output, resume=True)
        assert len(records(output)) == 1

    def test_a_full_disk_leaves_a_journal_that_can_be_continued(
        self, source: Path, output: Path
    ) -> None:
        with (
            file_size_limit(200_000),
            pytest.raises(UsageError, match=r"cannot write .*journal: .* --resume") as caught,
        ):
            run(source, output)
        assert "\n" not in str(caught.value)
        journal = output.with_name("out.jsonl.journal")
        assert journal.read_bytes().endswith(b"}\n")
        run(source, output, resume=True)
        assert len(records(output)) == 1500

    def test_a_disk_that_fills_at_the_end_keeps_the_old_output(
        self, tmp_path: Path, output: Path
    ) -> None:
        output.write_text("old")
        source = many(tmp_path / "in", 100)
        (tmp_path / "out.jsonl.partial").symlink_to("/dev/full")
        with pytest.raises(UsageError, match="the results are safe in"):
            run(source, output)
        assert output.read_text() == "old"
        run(source, output, resume=True)
        assert len(records(output)) == 100


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
