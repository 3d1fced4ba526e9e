"""Reads files into the system's cache ahead of those who map them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

_REMOTE = {"nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "gpfs", "beegfs", "fuse.sshfs"}
_MOUNTS = Path("/proc/self/mounts")
_LARGEST_SHARE = 0.9


def prefetch(files: Sequence[Path], num_threads: int, block_size: int) -> list[Thread]:
    """Begin to read `files` in blocks; the threads end by themselves, or with the process."""
    queue: SimpleQueue[tuple[Path, int]] = SimpleQueue()
    for file in files:
        for start in range(0, file.stat().st_size, block_size):
            queue.put((file, start))

    # Of all threads: what is in it does not matter.
    block = bytearray(block_size)

    def run() -> None:
        while True:
            try:
                file, start = queue.get_nowait()
                with open(file, "rb", buffering=0) as opened:
                    opened.seek(start)
                    opened.readinto(block)
            except (Empty, OSError):  # who needs the file will say why it cannot be read
                return

    threads = [Thread(target=run, name="prefetch", daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    return threads


def is_worth_it(files: Sequence[Path], available: int) -> bool:
    """Whether `files` are on another machine's disk and fit into memory."""
    size = sum(file.stat().st_size for file in files)
    return size < _LARGEST_SHARE * available and any(_is_remote(file) for file in files)


def _is_remote(file: Path) -> bool:
    try:
        mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return False
    held = [(place, kind) for place, kind in mounts if file.resolve().is_relative_to(place)]
    return bool(held) and max(held, key=lambda mount: len(mount[0]))[1] in _REMOTE
