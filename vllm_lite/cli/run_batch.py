"""`vllm-lite run-batch`: reads the options and runs the batch."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.batch import BatchConfig
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.config.options.option import make
from vllm_lite.config.server import ReplyConfig, ServerConfig
from vllm_lite.config.vllm import VllmConfig


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite run-batch",
        "-i INPUT -o OUTPUT --model MODEL [options]",
        "Answer the requests of an OpenAI batch file, a JSON object a line, without a server.\n"
        "A line that cannot be answered costs that line only; the output keeps the input's order.",
        (BatchConfig, VllmConfig, ReplyConfig),
        examples=("vllm-lite run-batch -i batch.jsonl -o answers.jsonl --model demo --resume",),
    )


def parse(argv: Sequence[str]) -> tuple[EngineArgs, ServerConfig, BatchConfig]:
    """The engine's, the replies' and the batch's options; raises UsageError.

    Exits with code 2 where the words cannot be read, or name no input or output.
    """
    reader = parser()
    words, file_model, (batch, engine, reply) = reader.parse(argv)
    if words:
        reader.error(f"unrecognized arguments: {' '.join(words)} (give the model as --model MODEL)")
    missing = [name for name in ("input_file", "output_file") if not batch.get(name)]
    if missing:
        flags = ", ".join(f"-{name[0]}/--{name.replace('_', '-')}" for name in missing)
        reader.error(f"the following arguments are required: {flags}")
    if file_model is not None:
        engine.setdefault("model", file_model)
    options = make(BatchConfig, batch)
    if options.enable_metrics and engine.get("disable_log_stats"):
        reader.error("--enable-metrics has nothing to serve with --disable-log-stats")
    # Without metrics the throughput lines would only break the progress bar.
    engine.setdefault("disable_log_stats", not options.enable_metrics)
    return EngineArgs(**engine), make(ServerConfig, reply), options


def run(argv: Sequence[str]) -> int:
    engine_args, server_config, batch = parse(argv)
    # Imported here: help and mistakes must not wait for the engine's client.
    from vllm_lite.batch.launch import run_batch

    return run_batch(engine_args, server_config, batch)
