"""pull, list, show and rm, as processes, against a hub on the loopback and an own cache."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoints import LLAMA_CONFIG, gguf_bytes, write_gguf, write_hf
from tests.unit.cli.fake_hub import COMMIT, OTHER_COMMIT, REPO, FakeHub, serving
from vllm_lite.cli.main import main
from vllm_lite.cli.models.show import Footprint, fitting_flags
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.vllm import VllmConfig


def safetensors(count: int = 100_000) -> bytes:
    """One tensor of zeros."""
    tensor = {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(2 * count)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {
        "config.json": json.dumps(LLAMA_CONFIG).encode(),
        "model.safetensors": safetensors(),
        "model.Q8_0.gguf": gguf_bytes(),
        "README.md": b"# Tiny\n",
        "consolidated.safetensors": b"not wanted",
    }
    with serving(FakeHub(files)) as hub:
        yield hub


class Commands:
    """`vllm-lite` with a cache of its own."""

    def __init__(self, root: Path, url: str) -> None:
        self.cache = root / "hub"
        self._environment = {
            **os.environ,
            "HF_ENDPOINT": url,
            "HF_HUB_CACHE": str(self.cache),
            "HF_HUB_OFFLINE": "0",
            "VLLM_CACHE_ROOT": str(root / "own"),
        }

    def __call__(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "vllm_lite", *words],
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    def done(self, *words: str) -> str:
        """The output of a command that must succeed."""
        code, shown, errors = self(*words)
        assert code == 0, errors
        return shown

    def refused(self, *words: str) -> str:
        """Its one line of error."""
        code, shown, errors = self(*words)
        assert (code, shown) == (1, ""), (shown, errors)
        (line,) = [line for line in errors.splitlines() if ": error: " in line]
        return line


@pytest.fixture
def command(tmp_path: Path, hub: FakeHub) -> Commands:
    return Commands(tmp_path, hub.url)


def test_a_model_s_way_through_pull_list_show_and_rm(command: Commands, hub: FakeHub) -> None:
    folder = Path(command.done("pull", REPO).strip())
    assert folder == command.cache / "models--org--tiny" / "snapshots" / COMMIT
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    _, row = command.done("list").splitlines()
    assert row.split()[0] == REPO and "safetensors" in row and "just now" in row
    assert "0.1 million, safetensors, bfloat16" in command.done("show", REPO)
    # Nothing is sent twice.
    before = dict(hub.sent)
    assert command.done("pull", REPO).strip() == str(folder)
    assert hub.sent == before
    assert command.refused("rm", REPO, "org/tinny").endswith(
        "org/tinny is not a cached model (did you mean org/tiny?)"
    )
    assert command.done("rm", REPO).startswith(f"removed {REPO} (")
    assert not folder.exists() and command.done("list").splitlines() == [
        "MODEL  SIZE  FORMAT  QUANTISATION  LAST USED"
    ]


def test_a_lost_connection_is_gone_on_from(command: Commands, hub: FakeHub) -> None:
    whole = safetensors(12_000_000)
    hub.revisions["main"] = (COMMIT, {"config.json": b"{}", "model.safetensors": whole})
    hub.cuts["model.safetensors"] = 20_000_000
    folder = Path(command.done("pull", REPO).strip())
    # huggingface_hub keeps what came in whole pieces of 10 MiB.
    (wanted,) = hub.ranges
    kept = int(wanted.removeprefix("bytes=").removesuffix("-"))
    assert 0 < kept <= 20_000_000
    assert hub.sent["model.safetensors"] == 20_000_000 + len(whole) - kept
    assert (folder / "model.safetensors").read_bytes() == whole


def test_damaged_files_are_refused_and_fetched_again(command: Commands, hub: FakeHub) -> None:
    hub.damaged["model.safetensors"] = safetensors()[:-1] + b"\1"
    line = command.refused("pull", REPO)
    assert "checksums of model.safetensors are not the hub's" in line
    assert Path(command.done("pull", REPO, "--no-verify").strip()).is_dir()
    assert "checksums" in command.refused("pull", REPO)
    hub.damaged.clear()
    folder = Path(command.done("pull", REPO).strip())
    assert (folder / "model.safetensors").read_bytes() == safetensors()


def test_revisions_and_patterns_choose_what_is_fetched(command: Commands, hub: FakeHub) -> None:
    words = ("pull", REPO, "--revision", "old", "--allow-patterns", "*.gguf")
    path = Path(command.done(*words).strip())
    assert path.name == "model.Q8_0.gguf" and path.parent.name == OTHER_COMMIT
    assert "gguf" in command.done("list")
    kept = Path(command.done("pull", REPO, "--ignore-patterns", "*.safetensors").strip())
    assert [file.name for file in kept.iterdir()] == ["config.json"]
    assert "holds nothing that is *.bin" in command.refused(
        "pull", REPO, "--allow-patterns", "*.bin", "--download-dir", str(command.cache / "x")
    )


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ((REPO, "--revision", "v9"), "org/tiny (revision v9) does not exist; check --revision"),
        (("org/other",), "org/other is neither a local path nor a hub repository"),
        (("../up",), "'../up' is no hub id such as org/name"),
        (("/",), "/ is on this machine already"),
    ],
)
def test_what_cannot_be_pulled_is_one_line(
    words: tuple[str, ...], cause: str, command: Commands
) -> None:
    assert cause in command.refused("pull", *words)


def test_a_hub_model_is_shown_without_its_weights(command: Commands, hub: FakeHub) -> None:
    shown = command.done("show", REPO)
    assert "LlamaForCausalLM" in shown and "512 tokens" in shown
    assert "Fits this machine    yes" in shown
    # Its header alone.
    assert hub.sent["model.safetensors"] < len(safetensors())
    assert not list(command.cache.rglob("*.safetensors"))


def test_a_gguf_file_is_shown_and_a_folder_without_weights_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(write_gguf(tmp_path / "m.gguf"))]) == 0
    assert "gguf, F32" in capsys.readouterr().out
    assert main(["show", str(write_hf(tmp_path / "m"))]) == 1
    shown, error = capsys.readouterr()
    assert shown == "" and "has no safetensors weights" in error and error.count("\n") == 1


def described(folder: Path) -> VllmConfig:
    return EngineArgs(
        model=str(write_hf(folder, max_position_embeddings=32768)), load_format="dummy"
    ).create_engine_config()


@settings(deadline=None, max_examples=25)
@given(
    num_weights=st.integers(10**6, 10**11),
    free=st.integers(0, 1 << 40),
    size=st.integers(10**6, 10**11),
)
def test_the_flags_that_are_told_make_it_fit(
    tmp_path_factory: pytest.TempPathFactory, num_weights: int, free: int, size: int
) -> None:
    config = described(tmp_path_factory.getbasetemp() / "fit")
    footprint = Footprint(config, num_weights, size)
    flags = fitting_flags(footprint, free)
    if flags is None:
        # Not even the smallest choice fits.
        least = replace(
            footprint,
            config=replace(
                config,
                model=replace(config.model, quantization="int4", max_model_len=512),
                cache=replace(config.cache, gpu_memory_utilization=0.9),
            ),
        )
        assert least.missing(free)
        return
    words = flags.replace("--", "").replace("-", "_").split()
    told = dict(zip(words[::2], words[1::2], strict=True))
    values = {
        "model": config.model.model,
        "load_format": "dummy",
        "max_model_len": int(told.get("max_model_len", 32768)),
        "gpu_memory_utilization": float(told.get("gpu_memory_utilization", 0.5)),
        "quantization": told.get("quantization"),
    }
    started = EngineArgs(**values).create_engine_config()
    assert not replace(footprint, config=started).missing(free)
