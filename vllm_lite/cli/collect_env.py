"""`vllm-lite collect-env`: facts of this machine for a bug report.

Each fact is probed separately; a missing one is shown as such. torch is not
loaded. Invariant: no value that may be a secret is printed.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import vllm_lite
from vllm_lite import envs
from vllm_lite.cli.main import call
from vllm_lite.config.machine import cuda_obstacle, has_cuda_device, has_native_bfloat16
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.errors import VLLMLiteError
from vllm_lite.platform import (
    free_memory,
    isa_flags,
    num_compute_threads,
    num_usable_cores,
    total_memory,
)

MASK = "***"
_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|DSN", re.IGNORECASE
)
# A word of this trade that only begins like a secret.
_HARMLESS = re.compile(r"TOKENI[SZ]E|MAX_TOKENS|BATCHED_TOKENS", re.IGNORECASE)
_SECRET_TEXTS = (
    # A login in an address; its password may hold any character.
    re.compile(r"(?<=://)\S+(?=@)"),
    # token=..., "api_key": "...", sig=... in a query.
    re.compile(
        r"(?P<kept>(?:key|token|secret|passw\w*|pwd|credentials?|auth|cookie|sig|signature)"
        r"[\"']?\s*[=:]\s*[\"']?)[^\s&\"',;})]+",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<kept>\b(?:bearer|basic)\s+)\S+", re.IGNORECASE),
    # The shapes in which well-known services issue keys, and JSON web tokens.
    re.compile(r"\b(?:hf|sk|pk|rk|gh[a-z]|github_pat|glpat|xox[a-z])[-_][\w-]{8,}"),
    re.compile(r"\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"),
)
Probe = Callable[[], object]
_UNKNOWN = "Could not collect"
_COMMAND_SECONDS = 5.0
# Beside what this package requires.
_LIBRARIES = ("triton", "nanobind", "gguf", "xgrammar", "llguidance")
_LIBRARY_PREFIXES = ("nvidia-", "torch")
_ROCM_VERSION = Path("/opt/rocm/.info/version")
_PROCESSORS = Path("/proc/cpuinfo")
_GPU_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def masked_value(name: str, value: str) -> str:
    """The variable's value on one line, without what may be secret in it."""
    if _SECRET_NAME.search(_HARMLESS.sub("", name)):
        return MASK
    return masked_text(" ".join(value.split()))


def masked_text(text: str) -> str:
    """`text` without what has a secret's shape."""
    for secret in _SECRET_TEXTS:
        text = secret.sub(lambda match: match.groupdict().get("kept", "") + MASK, text)
    return text


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite collect-env",
        "[-h]",
        "Print what a report of a problem should say of this machine; secrets are masked.",
        (),
        examples=("vllm-lite collect-env > report.txt",),
    )


def run(argv: Sequence[str]) -> int:
    parser().parse_options(argv)
    sys.stdout.write("Collecting environment information...\n")
    for title, facts in _sections():
        sys.stdout.write(_box(title))
        width = max(len(label) for label, _ in facts)
        for label, probe in facts:
            value = masked_text(_collect(probe))
            sys.stdout.write(f"{label:<{width}} : {value}\n" if label else f"{value}\n")
        sys.stdout.flush()
    return 0


def _sections() -> Iterator[tuple[str, list[tuple[str, Probe]]]]:
    """Titles with their facts; a fact without a label is a block of lines."""
    yield (
        "System Info",
        [
            ("OS", _operating_system),
            ("GCC version", lambda: _first_line("gcc", "--version")),
            ("Clang version", lambda: _first_line("clang", "--version")),
            ("CMake version", lambda: _first_line("cmake", "--version")),
            ("Libc version", lambda: "-".join(platform.libc_ver())),
        ],
    )
    yield (
        "PyTorch Info",
        [
            ("PyTorch version", lambda: _torch_build("__version__")),
            ("Is debug build", lambda: _torch_build("debug")),
            ("CUDA used to build PyTorch", lambda: _torch_build("cuda")),
            ("ROCM used to build PyTorch", lambda: _torch_build("hip")),
            ("XPU used to build PyTorch", lambda: _torch_build("xpu")),
        ],
    )
    yield (
        "Python Environment",
        [
            ("Python version", lambda: " ".join(sys.version.split())),
            ("Python platform", platform.platform),
        ],
    )
    if has_cuda_device():
        yield (
            "CUDA / GPU Info",
            [
                ("GPU models and drivers", lambda: _output("nvidia-smi", *_GPU_QUERY)),
                ("CUDA compiler", lambda: _output("nvcc", "--version").splitlines()[-1]),
            ],
        )
    yield "CPU Info", [("", _processor)]
    yield "Versions of relevant libraries", [("", _libraries), ("", _conda_packages)]
    yield (
        "vLLM-lite Info",
        [
            ("ROCM Version", lambda: _ROCM_VERSION.read_text().strip()),
            ("vLLM-lite Version", lambda: vllm_lite.__version__),
            ("Build Flags", _build_flags),
            ("GPU Topology", lambda: "\n" + _output("nvidia-smi", "topo", "-m")),
            ("CPU instruction sets", lambda: ", ".join(isa_flags()) or "none that matter"),
            ("Kernels that run here", lambda: ", ".join(_compiled_kernels())),
            ("Kernels chosen", _chosen_kernels),
            ("Compute threads", _threads),
            ("Memory", _memory),
            ("dtype auto", lambda: "bfloat16" if has_native_bfloat16() else "float32"),
            ("Missing", lambda: "; ".join(_gaps()) or "nothing"),
        ],
    )
    yield "Environment Variables", [("", _variables)]


def _box(title: str) -> str:
    line = "=" * 30
    return f"\n{line}\n{title:^30}".rstrip() + f"\n{line}\n"


def _collect(probe: Probe) -> str:
    """The text that `probe` returns; its failure does not affect other probes."""
    try:
        value = probe()
    except VLLMLiteError as error:
        return f"{_UNKNOWN}: {error}"
    except Exception:
        return _UNKNOWN
    return "N/A" if value is None else str(value) or _UNKNOWN


def _output(*command: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=_COMMAND_SECONDS,
        stdin=subprocess.DEVNULL,
        env=envs.child_environment(LC_ALL="C"),
    )
    return done.stdout.strip()


def _first_line(*command: str) -> str:
    return _output(*command).partition("\n")[0]


def _operating_system() -> str:
    return f"{platform.freedesktop_os_release()['PRETTY_NAME']} ({platform.machine()})"


def _processor() -> str:
    """lscpu's description, or the kernel's own of the first core."""
    try:
        return _output("lscpu")
    except (OSError, subprocess.SubprocessError):
        return _PROCESSORS.read_text().partition("\n\n")[0].replace("\t", "")


def _torch_build(name: str) -> Any:
    """A value of torch/version.py, which is read without the rest of torch."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return _UNKNOWN
    spec = importlib.util.spec_from_file_location(
        "torch_version", Path(torch.origin).with_name("version.py")
    )
    if spec is None or spec.loader is None:
        return _UNKNOWN
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name, None)


def _libraries() -> str:
    wanted = {_plain(name) for name, _ in _requirements()} | set(_LIBRARIES)
    found = {
        _plain(installed.metadata["Name"]): installed.version
        for installed in metadata.distributions()
    }
    return "\n".join(
        f"[pip3] {name}=={found[name]}"
        for name in sorted(found)
        if name in wanted or name.startswith(_LIBRARY_PREFIXES)
    )


def _conda_packages() -> str:
    records = sorted(Path(sys.prefix, "conda-meta").glob("*.json"))
    return "\n".join(f"[conda] {record.stem}" for record in records) or f"[conda] {_UNKNOWN}"


def _plain(name: str) -> str:
    """A package's name in the one spelling that indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements() -> Iterator[tuple[str, Any]]:
    """This package's requirements without its extras: name and accepted versions."""
    from packaging.requirements import Requirement

    for line in metadata.requires("vllm-lite") or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name, requirement.specifier


def _compiled_kernels() -> list[str]:
    return list(call("_cpu.supported_isas"))


def _build_flags() -> str:
    """The build's targets, whatever this machine supports."""
    has_cpu = importlib.util.find_spec("vllm_lite._cpu") is not None
    return f"CPU: {'Enabled' if has_cpu else 'Disabled'}; CUDA, ROCm and XPU: Disabled"


def _chosen_kernels() -> str:
    """The choice of kernels.dispatch, made without loading torch."""
    forced = envs.VLLM_LITE_CPU_ISA.lower()
    if forced == "reference":
        return "reference (plain torch, slow), by VLLM_LITE_CPU_ISA"
    compiled = _compiled_kernels()
    if forced == "auto":
        return compiled[0]
    if forced not in compiled:
        return f"none: VLLM_LITE_CPU_ISA={forced} does not run here"
    return f"{forced}, by VLLM_LITE_CPU_ISA"


def _threads() -> str:
    return f"{num_compute_threads()} (usable cores: {num_usable_cores()})"


def _memory() -> str:
    return f"{free_memory() / 2**30:.1f} GiB free of {total_memory() / 2**30:.1f} GiB usable"


def _gaps() -> Iterator[str]:
    """Problems that make this package fail or run slower than it could here."""
    try:
        kernels = _compiled_kernels()
    except ImportError:
        yield "the compiled kernels: run `pip install .` in the source tree"
    else:
        if kernels == ["portable"]:
            yield "AVX2: the portable kernels are slow"
    for name, versions in _requirements():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield f"the package {name}{versions}"
        else:
            if not versions.contains(version, prereleases=True):
                yield f"the package {name}{versions} (it is {version})"
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        yield "a C++ compiler, needed to build from source only"
    obstacle = cuda_obstacle()
    if has_cuda_device() and obstacle is not None:
        yield f"what the NVIDIA GPU needs ({obstacle}): models run on the CPU"


def _variables() -> str:
    lines = [f"{name}={masked_value(name, value)}" for name, value in envs.reported().items()]
    return "\n".join(lines) or "none that matter"
