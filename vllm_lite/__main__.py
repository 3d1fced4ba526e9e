"""`python -m vllm_lite` is the vllm-lite command."""

from __future__ import annotations

import sys

from vllm_lite.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
