"""Progress bars, only on a terminal, never in a log file or a pipe.

The only module that draws bars; others' bars (pip's, the hub's) follow `on_terminal`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")


def on_terminal() -> bool:
    """Whether standard error, which shows the bars, is a terminal."""
    return sys.stderr.isatty()


@overload
def progress_bar(iterable: Iterable[T], *, is_shown: bool = ..., **settings: Any) -> tqdm[T]: ...
@overload
def progress_bar(*, is_shown: bool = ..., **settings: Any) -> tqdm[Any]: ...
def progress_bar(
    iterable: Iterable[Any] | None = None, *, is_shown: bool = True, **settings: Any
) -> tqdm[Any]:
    """A bar with tqdm's `settings`; invisible unless it `is_shown` on a terminal."""
    # Imported here: commands without a bar need not wait for it.
    from tqdm import tqdm

    is_off = not (is_shown and on_terminal())
    bar: Any = tqdm(iterable, disable=is_off, dynamic_ncols=True, **settings)
    return bar  # type: ignore[no-any-return]
