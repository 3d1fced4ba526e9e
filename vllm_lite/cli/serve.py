"""`vllm-lite serve`: reads the options and starts the server."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.cli.main import call
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.options.cli import parse_serve_args, serve_parser

# The parser of `vllm-lite serve`.
parser = serve_parser


def run(argv: Sequence[str]) -> int:
    engine_args, server_config = parse_serve_args(argv)
    batches = None
    if server_config.batch_storage_dir:
        batches = call("batch.stored.StoredBatches", server_config)
        # Clients go before rows of batches, which first come, first served would not allow.
        engine_args = EngineArgs(**{"scheduling_policy": "priority", **engine_args.given})
    return call("server.process.launch.run_server", engine_args, server_config, batches) or 0
