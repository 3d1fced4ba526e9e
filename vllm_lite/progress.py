"""Progress bars: drawn on a terminal alone, so that none reaches a log file or a pipe.

The one module that draws. Others' bars (pip's, the hub's) follow what `on_terminal` says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")


def on_terminal() -> bool:
    """Whether standard error, where bars are drawn, is a terminal."""
    return sys.stderr.isatty()


def progress_bar(
    iterable: Iterable[T] | None = None, *, is_shown: bool = True, **settings: Any
) -> tqdm[T]:
    """A bar with tqdm's `settings`; one that draws nothing unless it `is_shown` on a terminal."""
    # Imported here: commands without a bar need not wait for it.
    from tqdm import tqdm

    bar: Any = tqdm(
        iterable, disable=not (is_shown and on_terminal()), dynamic_ncols=True, **settings
    )
    return bar  # type: ignore[no-any-return]
