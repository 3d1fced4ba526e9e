"""The machine behind the figures: processor, cores, instruction sets, memory."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

from vllm_lite.platform import isa_flags, num_compute_threads, total_memory


def describe_machine() -> dict[str, Any]:
    """Plain facts, nothing that names the machine or its owner."""
    facts = dict(
        line.partition(":")[::2] for line in Path("/proc/cpuinfo").read_text().splitlines() if line
    )
    known = {name.strip(): value.strip() for name, value in facts.items()}
    return {
        "architecture": platform.machine(),
        "processor": known.get("model name", "unknown"),
        "family": known.get("cpu family", "unknown"),
        "model": known.get("model", "unknown"),
        "threads_used": num_compute_threads(),
        "instruction_sets": list(isa_flags()),
        "memory_gib": round(total_memory() / 2**30, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
    }


def installed_version(python: str, names: tuple[str, ...]) -> str:
    """The version of the first of some distributions that an interpreter has."""
    code = (
        "import sys\nfrom importlib.metadata import PackageNotFoundError, version\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        print(name, version(name)); break\n"
        "    except PackageNotFoundError:\n        pass\n"
    )
    done = subprocess.run(
        [python, "-c", code, *names], capture_output=True, text=True, check=False, cwd="/"
    )
    return done.stdout.strip() or "unknown"
