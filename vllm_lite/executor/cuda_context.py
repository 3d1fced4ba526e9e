"""The first GPU's context, made by the driver while this process still imports.

torch takes the same one and finds it ready.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

DRIVER = "libcuda.so.1"


@cache
def begin_context() -> threading.Thread:
    """Make it, once, in a thread that no one need wait for; what fails here, torch will report."""
    thread = threading.Thread(target=_make_context, name="cuda-context", daemon=True)
    thread.start()
    return thread


def _make_context() -> None:
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        # For as long as the process lives, as torch has it.
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
