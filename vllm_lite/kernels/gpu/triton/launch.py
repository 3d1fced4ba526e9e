"""Launches of the kernels of a layer, without Triton's search for the compiled one each time.

That search takes the host longer than many kernels run: of 16 us a launch of seven arguments on an
H200's host 9 were left without it, and most launches have three times as many.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

# Sizes of steps are part of what tells launches apart.
_MOST = 10_000
# A compiled kernel, and the constants that it takes as arguments too.
_found: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """As kernel[grid](*arguments, **constants).

    Launches share a compiled kernel if all is equal that Triton may look at: numbers, constants,
    and tensors' types and alignment.
    """
    key = (id(kernel), tuple(map(_look, arguments)), tuple(constants.values()))
    found = _found.get(key)
    if found is not None:
        compiled, values = found
        compiled[*grid, 1, 1](*arguments, *values)
        return
    compiled = kernel[grid](*arguments, **constants)
    if not isinstance(kernel, JITFunction) or compiled is None:
        return  # interpreted, or only noted
    if len(_found) >= _MOST:
        _found.clear()
    names = [param.name for param in kernel.params[len(arguments) :]]
    _found[key] = compiled, tuple(constants[name] for name in names)


def _look(argument: Any) -> Hashable:
    """All of an argument that Triton may look at."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16
    if isinstance(argument, tuple):
        return tuple(map(_look, argument))
    if isinstance(argument, TensorDescriptor):
        return argument.base.dtype, *argument.block_shape
    return argument  # type: ignore[no-any-return]
