"""Triton's interpreter without the work whose result it throws away."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


@cache
def _languages(fn: Any) -> list[Any]:
    """Triton's modules that a function's module has imported."""
    known = filter(inspect.ismodule, fn.__globals__.values())
    return [module for module in known if module in (tl, tl.core)]


def quicken() -> None:
    """Programs compute the same, in a third of the time."""
    patch = interpreter._patch_lang
    numpy_type = cache(interpreter._get_np_dtype)

    def patch_once(fn: Any) -> Any:
        # Each function that a program calls would replace again what its start has replaced.
        if any(tl.core.is_builtin(module.load) for module in _languages(fn)):
            return patch(fn)
        return interpreter._LangPatchScope()

    def cached_type(kind: Any) -> Any:
        # Blocks and pointers cannot be hashed; all pointers are the same numbers.
        return numpy_type(tl.uint64 if kind.scalar.is_ptr() else kind.scalar)

    interpreter._patch_lang = patch_once
    interpreter._get_np_dtype = cached_type
    # Sums are computed a second time to find overflows, which only `debug` would report.
    assert not interpreter.interpreter_builder.options.debug
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )
