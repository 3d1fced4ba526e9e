"""Late imports: help and mistakes must not wait for an engine or a server to be imported."""

from __future__ import annotations

import importlib
from typing import Any


def call(function: str, *values: Any) -> Any:
    """Import the module of `function` in this package and call it."""
    module, _, name = function.rpartition(".")
    return getattr(importlib.import_module(f"vllm_lite.{module}"), name)(*values)
