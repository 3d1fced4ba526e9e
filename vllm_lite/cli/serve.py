"""`vllm-lite serve`: read the options, then hand over to the server."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.cli import parse_serve_args, serve_parser

# The parser of `vllm-lite serve`.
parser = serve_parser


def run(argv: Sequence[str]) -> int:
    """Serve until a signal ends it; returns the exit code."""
    engine_args, server_config = parse_serve_args(argv)
    # Imported here: help and mistakes must not wait for the HTTP stack.
    from vllm_lite.server.launch import run_server

    return run_server(engine_args, server_config) or 0
