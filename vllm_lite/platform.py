"""The machine as far as this process may use it: instruction sets, cores, memory, dtypes.

Limits of the container count: CPU affinity and quota, and memory limits of control groups v1 and
v2, at every level.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from vllm_lite import envs
from vllm_lite.config.machine import cpu_flags
from vllm_lite.errors import UsageError

_ISA_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
    "i8mm",
    "sve",
)
# VLLM_CPU_OMP_THREADS_BIND where no CPUs are listed.
_UNBOUND = ("auto", "nobind")
# Control groups write "no limit" as a word (v2) or as a number close to 2**63 (v1).
_NO_LIMIT = 1 << 60


def isa_flags() -> tuple[str, ...]:
    """The relevant vector instruction sets of this CPU, by the kernel's names."""
    present = cpu_flags()
    return tuple(flag for flag in _ISA_FLAGS if flag in present)


def num_compute_threads(num_ranks: int = 1) -> int:
    """VLLM_CPU_NUM_THREADS, else this rank's share of the physical cores that it may use.

    Ranks share all cores but those that VLLM_CPU_OMP_THREADS_BIND gives to one.
    """
    wanted = envs.VLLM_CPU_NUM_THREADS
    if wanted is None:
        sharing = num_ranks if envs.VLLM_CPU_OMP_THREADS_BIND in _UNBOUND else 1
        return max(1, num_usable_cores() // sharing)
    if wanted < 1:
        raise UsageError(f"VLLM_CPU_NUM_THREADS={wanted} must be at least 1; raise or unset it")
    return wanted


def bind_compute_threads(rank: int = 0) -> None:
    """Keep this thread, and those it starts, on the CPUs that VLLM_CPU_OMP_THREADS_BIND lists."""
    text = envs.VLLM_CPU_OMP_THREADS_BIND
    if text in _UNBOUND:
        return
    # One list for each rank, with bars between.
    lists = text.split("|")
    if rank >= len(lists):
        raise UsageError(
            f"VLLM_CPU_OMP_THREADS_BIND={text!r} lists the CPUs of {len(lists)} ranks; give one "
            "list for each of --tensor-parallel-size, with | between, or unset it"
        )
    wanted = _cpu_list(lists[rank])
    lacking = wanted - os.sched_getaffinity(0)
    if lacking or not wanted:
        raise UsageError(
            f"VLLM_CPU_OMP_THREADS_BIND={text!r} must be auto, nobind, or CPUs that this process "
            "may use, such as 0-3,6; change or unset it"
        )
    os.sched_setaffinity(0, wanted)


def _cpu_list(text: str) -> set[int]:
    """`0-2,6` as {0, 1, 2, 6}; empty where it is no such list."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(last) > 5:
            return set()
        found.update(range(int(first), int(last or first) + 1))
    return found


def num_usable_cores(root: Path = Path("/")) -> int:
    """Physical cores within the affinity mask and the CPU quota."""
    cores = {_core_of(root, cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, math.ceil(min(len(cores), _cpu_quota(root))))


def total_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use at most: the machine's or its control group's."""
    limits = [limit for limit, _ in _memory_groups(root)]
    return min([_meminfo(root, "MemTotal"), *limits])


def free_memory(root: Path = Path("/")) -> int:
    """Bytes available without swapping, droppable page cache included."""
    rooms = [limit - used for limit, used in _memory_groups(root)]
    return max(0, min([_meminfo(root, "MemAvailable"), *rooms]))


def _core_of(root: Path, cpu: int) -> tuple[str, str] | int:
    """An identifier that the hardware threads of one core share."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    package, core = _text(topology / "physical_package_id"), _text(topology / "core_id")
    return (package, core) if package is not None and core is not None else cpu


def _cpu_quota(root: Path) -> float:
    """Cores' worth of time that the control groups grant; infinite without a limit."""
    quota = math.inf
    for folder in _group_folders(root, "cpu"):
        limit, period = _text(folder / "cpu.max"), None
        if limit is not None:
            limit, _, period = limit.partition(" ")
        else:
            limit = _text(folder / "cpu.cfs_quota_us")
            period = _text(folder / "cpu.cfs_period_us")
        if limit and period and limit.isdecimal() and period.isdecimal():
            quota = min(quota, int(limit) / max(1, int(period)))
    return quota


def _memory_groups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use) of each control group above this process that has a limit."""
    for folder in _group_folders(root, "memory"):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _text(folder / limit_name), _text(folder / usage_name)
            if limit is None or usage is None or not limit.isdecimal():
                continue
            if int(limit) < _NO_LIMIT:
                droppable = _field(_text(folder / "memory.stat") or "", cache_name)
                yield int(limit), max(0, int(usage) - droppable)


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and of those above it, v2 and v1."""
    mount = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = mount
        elif controller in controllers.split(","):
            top = mount / controller
        else:
            continue
        # In a container the path may be the host's: then only the top folder exists.
        folder = top / path.strip("/")
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def _meminfo(root: Path, name: str) -> int:
    return _field(_text(root / "proc/meminfo") or "", name + ":") * 1024


def _field(text: str, name: str) -> int:
    """The number after `name` in lines of "name number"; 0 if absent."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
