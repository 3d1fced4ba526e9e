"""Reads files into the system's cache ahead of those who map them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

_REMOTE = {"nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "gpfs", "beegfs", "fuse.sshfs"}
_MOUNTS = Path("/proc/self/mounts")
_LARGEST_SHARE = 0.9
# Of what is asked for at once, a system may read no more than this.
_ASKED_AT_ONCE = 128 << 10


def prefetch(files: Sequence[Path], num_threads: int, block_size: int) -> list[Thread]:
    """Have the system read `files` in blocks, without a copy; the threads end by themselves."""
    queue: SimpleQueue[tuple[Path, int]] = SimpleQueue()
    for file in files:
        for start in range(0, file.stat().st_size, block_size):
            queue.put((file, start))

    def run() -> None:
        # Who needs a file will say why it cannot be read; some systems cannot be asked.
        with contextlib.suppress(Empty, OSError, AttributeError):
            while True:
                file, start = queue.get_nowait()
                with open(file, "rb", buffering=0) as opened:
                    for place in range(start, start + block_size, _ASKED_AT_ONCE):
                        asked = min(_ASKED_AT_ONCE, start + block_size - place)
                        os.posix_fadvise(opened.fileno(), place, asked, os.POSIX_FADV_WILLNEED)

    threads = [Thread(target=run, name="prefetch", daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    return threads


def fit(files: Sequence[Path], available: int) -> bool:
    return sum(file.stat().st_size for file in files) < _LARGEST_SHARE * available


def is_worth_it(files: Sequence[Path], available: int) -> bool:
    """Whether `files` are on another machine's disk and fit into memory."""
    return fit(files, available) and any(_is_remote(file) for file in files)


def _is_remote(file: Path) -> bool:
    try:
        mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return False
    held = [(place, kind) for place, kind in mounts if file.resolve().is_relative_to(place)]
    return bool(held) and max(held, key=lambda mount: len(mount[0]))[1] in _REMOTE
