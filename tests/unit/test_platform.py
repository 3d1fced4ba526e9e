"""Usable CPUs and memory, read from made-up system files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_lite import platform
from vllm_lite.errors import UsageError

GIB = 1 << 30


def machine(root: Path, files: dict[str, str]) -> Path:
    meminfo = f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_control_groups_memory_is_the_machines(tmp_path: Path) -> None:
    root = machine(tmp_path, {})
    assert platform.total_memory(root) == 64 * GIB
    assert platform.free_memory(root) == 32 * GIB


def test_the_tightest_group_above_counts_and_its_page_cache_is_free(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/outer"
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            f"{group}/memory.max": f"{8 * GIB}",
            f"{group}/memory.current": f"{5 * GIB}",
            f"{group}/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
            f"{group}/inner/memory.max": "max",
            f"{group}/inner/memory.current": f"{4 * GIB}",
        },
    )
    assert platform.total_memory(root) == 8 * GIB
    assert platform.free_memory(root) == 5 * GIB


def test_version_one_groups_are_read_too(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory"
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/gone/elsewhere\n3:cpu,cpuacct:/\n",
            f"{folder}/memory.limit_in_bytes": f"{4 * GIB}",
            f"{folder}/memory.usage_in_bytes": f"{3 * GIB}",
            f"{folder}/memory.stat": f"total_inactive_file {GIB}\n",
        },
    )
    assert platform.free_memory(root) == 2 * GIB


def test_a_version_one_group_without_a_limit_limits_nothing(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory"
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/\n",
            f"{folder}/memory.limit_in_bytes": "9223372036854771712",
            f"{folder}/memory.usage_in_bytes": "1",
        },
    )
    assert platform.total_memory(root) == 64 * GIB


def test_two_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 9})
    files = {}
    for cpu in range(4):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{topology}/physical_package_id"] = "0"
        files[f"{topology}/core_id"] = str(cpu % 2)
    # Processor 9 tells nothing of itself: it counts as a core.
    assert platform.num_usable_cores(machine(tmp_path, files)) == 3


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("max 100000", 4)])
def test_a_quota_bounds_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota}
    assert platform.num_usable_cores(machine(tmp_path, files)) == cores


def test_this_machine_has_what_a_test_needs() -> None:
    assert 0 < platform.free_memory() <= platform.total_memory()
    assert platform.num_usable_cores() >= 1


def test_the_users_thread_count_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_NUM_THREADS", "7")
    assert platform.num_compute_threads() == platform.num_compute_threads(2) == 7
    monkeypatch.setenv("VLLM_CPU_NUM_THREADS", "0")
    with pytest.raises(UsageError, match="VLLM_CPU_NUM_THREADS"):
        platform.num_compute_threads()


def test_compute_threads_can_be_kept_on_some_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 6})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus))
    for text in ("", "auto", "nobind"):
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", text)
        platform.bind_compute_threads()
    assert bound == []
    for text in ("1-3,6", "1-3,6|0"):
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", text)
        platform.bind_compute_threads()
    platform.bind_compute_threads(1)
    assert bound == [*[{1, 2, 3, 6}] * 2, {0}]
    with pytest.raises(UsageError, match="lists the CPUs of 2 ranks"):
        platform.bind_compute_threads(2)


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_NUM_THREADS", raising=False)
    monkeypatch.setattr(platform, "num_usable_cores", lambda: 8)
    assert [platform.num_compute_threads(n) for n in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-3|4-7")
    assert platform.num_compute_threads(2) == 8  # of those that are this rank's alone


@pytest.mark.parametrize("text", ["all", "3-1", "1,", "-2", "7"])
def test_other_lists_of_cpus_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", text)
    with pytest.raises(UsageError, match="VLLM_CPU_OMP_THREADS_BIND"):
        platform.bind_compute_threads()
