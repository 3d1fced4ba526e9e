"""Loads torch's libraries in a thread, beside the imports of an engine core that come before torch.

The loader holds no lock of Python's. What it cannot load, `import torch` finds again, and reports.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import threading
from pathlib import Path

# In the order, and with the visibility, in which torch loads them.
_LIBRARIES = (
    ("libtorch_global_deps.so", ctypes.RTLD_GLOBAL),
    ("libtorch_cpu.so", ctypes.RTLD_LOCAL),
)


def load_torch_libraries() -> threading.Thread:
    """Begin to load; returns the thread that does."""
    thread = threading.Thread(target=_load, name="torch-libraries", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    with contextlib.suppress(OSError):
        torch = importlib.util.find_spec("torch")
        for folder in (torch.submodule_search_locations if torch else None) or ():
            for name, mode in _LIBRARIES:
                ctypes.CDLL(str(Path(folder, "lib", name)), mode)
