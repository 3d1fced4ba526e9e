"""--middleware: the user's own code around every request, imported before the model loads."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence

from vllm_lite.errors import UsageError


def load_middleware(paths: Sequence[str]) -> list[object]:
    """The classes and async functions at `paths`, in order; raises UsageError."""
    return [_load(path) for path in paths]


def _load(path: str) -> object:
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise UsageError(f"--middleware {path}: give the import path, as in package.module.Name")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"--middleware {path} cannot be imported ({error}); check the path and PYTHONPATH"
        ) from None
    if not (inspect.isclass(found) or inspect.iscoroutinefunction(found)):
        raise UsageError(f"--middleware {path} is neither a class nor an async function")
    return found
