"""`vllm-lite serve`: read the options, then hand over to the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_lite.config.cli import parse_serve_args, serve_parser
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.server import ServerConfig

if TYPE_CHECKING:
    from vllm_lite.batch.stored import StoredBatches

# The parser of `vllm-lite serve`.
parser = serve_parser


def run(argv: Sequence[str]) -> int:
    """Serve until a signal ends it; returns the exit code."""
    engine_args, server_config = parse_serve_args(argv)
    # Imported here: help and mistakes must not wait for the HTTP stack.
    from vllm_lite.server.process.launch import run_server

    batches = _stored_batches(server_config)
    if batches is not None:
        # What would be first come, first served lets clients pass rows.
        given = {"scheduling_policy": "priority", **engine_args.given}
        engine_args = EngineArgs(**given)
    return run_server(engine_args, server_config, batches) or 0


def _stored_batches(server_config: ServerConfig) -> StoredBatches | None:
    """What runs the batches of --batch-storage-dir; raises UsageError."""
    if not server_config.batch_storage_dir:
        return None
    from vllm_lite.batch.stored import StoredBatches

    return StoredBatches(server_config)
