"""`python -m vllm_lite.entrypoints.openai.api_server`: the old name of `vllm-lite serve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vllm_lite.cli.main import main as run_command
from vllm_lite.log import init_logger

# Run as a module, this one is called __main__.
logger = init_logger("vllm_lite.entrypoints.openai.api_server")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve with the options in `argv` (default: sys.argv), --model among them; the exit code."""
    logger.warning(
        "python -m vllm_lite.entrypoints.openai.api_server is deprecated; "
        "use `vllm-lite serve MODEL`"
    )
    return run_command(["serve", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
