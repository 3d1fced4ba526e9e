"""`python -m vllm_lite.entrypoints.openai.api_server`: the old name of `vllm-lite serve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vllm_lite.cli.main import main as run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Serve with the options in `argv` (default: sys.argv), --model among them; the exit code."""
    # Not through the log: that may be what is wrong with the environment.
    sys.stderr.write(
        "python -m vllm_lite.entrypoints.openai.api_server is deprecated; "
        "use `vllm-lite serve MODEL`\n"
    )
    return run_command(["serve", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
