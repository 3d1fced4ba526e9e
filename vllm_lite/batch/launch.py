"""`run-batch`, from options to exit code. Checks files before the model loads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from vllm_lite import __version__
from vllm_lite.batch.journal import Journal
from vllm_lite.batch.lines import Scan, scan
from vllm_lite.batch.places import local_input, target_of
from vllm_lite.batch.transfer import Reach
from vllm_lite.config.batch import BatchConfig
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.server import ServerConfig
from vllm_lite.engine.link.core_process import launch_core
from vllm_lite.errors import EngineDeadError
from vllm_lite.lifeline import terminable
from vllm_lite.log import init_logger, timeline
from vllm_lite.server.startup_checks import check_reply_options

logger = init_logger(__name__)


def run_batch(engine_args: EngineArgs, server_config: ServerConfig, batch: BatchConfig) -> int:
    """Answer every line of the input and store the answers; returns the exit code 0.

    Raises UsageError, or EngineDeadError if the engine failed; the journal keeps all answers.
    """
    timeline.mark("imports")
    engine_args.configure_logging()

    def answer(path: Path, whole: Scan, journal: Journal) -> None:
        config = engine_args.create_engine_config("llm")
        timeline.mark("config")
        check_reply_options(config, server_config)
        logger.info("vLLM-lite %s, model %s", __version__, engine_args.model)
        if journal.num_done:
            logger.info("%d of %d lines are done already", journal.num_done, whole.num_lines)
        core = launch_core(config)
        # Imported while the engine core loads.
        from vllm_lite.batch.answering import answer_all

        answer_all(config, core, server_config, batch, path, whole, journal)

    with terminable():
        process(batch, engine_args.model, answer)
    return 0


def process(batch: BatchConfig, model: str, answer: Callable[[Path, Scan, Journal], None]) -> None:
    """Open the files, have `answer` complete the journal, and store the output."""
    reach = Reach(batch.allowed_url_domains)
    target = target_of(batch.output_file, batch.input_file, batch.output_tmp_dir, reach)
    with local_input(batch.input_file, batch.output_tmp_dir, reach) as path:
        whole = scan(path)
        timeline.mark("input")
        with Journal(
            target.journal, whole.digest, model, whole.last_number, resume=batch.resume
        ) as journal:
            if journal.num_done < whole.num_lines:
                with _logging_what_is_kept(journal, whole):
                    answer(path, whole, journal)
            target.store(journal.records())
            journal.remove()
    logger.info(
        "Wrote %d answers to %s, %d of them errors",
        journal.num_done,
        target.name,
        journal.num_failed,
    )


@contextlib.contextmanager
def _logging_what_is_kept(journal: Journal, whole: Scan) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, EngineDeadError):
        if journal.num_done:
            logger.warning(
                "Not finished: %d of %d results are in %s; continue with --resume",
                journal.num_done,
                whole.num_lines,
                journal.path,
            )
        raise
