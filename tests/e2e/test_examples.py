"""Every example runs, and stays short."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.e2e.server_process import ServerProcess
from tests.models.byte_model import save_byte_encoder
from tests.models.checkpoints import make_model, save
from tests.models.encoders.test_engine import renamed

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, *arguments: str) -> str:
    """The example's output, as a user would run it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_stay_short() -> None:
    assert len(EXAMPLES) == 8
    for example in EXAMPLES:
        assert len(example.read_text().splitlines()) < 40, f"{example.name} is too long"


def test_offline() -> None:
    printed = run("offline.py")
    assert "'The capital of France is' -> ' Paris" in printed
    assert "reply:" in printed


@pytest.fixture
def run_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Runs an example in this process, which has imported torch; its output."""

    def run(name: str, *arguments: str) -> str:
        path = str(ROOT / "examples" / name)
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_save_sharded_state(ranks: int, tmp_path: Path, run_here: Callable[..., str]) -> None:
    save(make_model("llama"), tmp_path / "model")
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(131)}, unk_token="t0"))
    words.save(str(tmp_path / "model" / "tokenizer.json"))
    lines = run_here(
        "save_sharded_state.py", str(tmp_path / "model"), str(tmp_path / "new"), str(ranks)
    ).splitlines()
    assert lines[:-1] == [f"model-rank-{rank}-part-0.safetensors" for rank in range(ranks)]
    assert lines[-1].split()


def test_async_engine(run_here: Callable[..., str]) -> None:
    lines = run_here("async_engine.py").splitlines()
    assert [line[1:8].strip() for line in lines] == ["The sea", "The sky", "The for"]


@pytest.mark.parametrize("name", ["semantic_search.py", "rerank.py", "late_interaction.py"])
def test_pooling(name: str, run_here: Callable[..., str]) -> None:
    lines = run_here(name).splitlines()
    scores = [float(line.split()[0]) for line in lines if line.startswith("  ")]
    assert len(scores) >= 3
    ranked = scores[:2] if name == "semantic_search.py" else scores
    assert ranked == sorted(ranked, reverse=True)


def test_late_interaction_of_colbert(tmp_path: Path, run_here: Callable[..., str]) -> None:
    """Vectors are those of the checkpoint's last layer, as many as it has tokens."""
    save_byte_encoder(tmp_path)
    renamed(tmp_path, "HF_ColBERT", linear__weight=torch.randn(128, 48))
    title, *lines = run_here("late_interaction.py", str(tmp_path)).splitlines()
    assert title == "When was the lighthouse built? (30 tokens)"
    scores = [float(line.split()[0]) for line in lines]
    assert scores == sorted(scores, reverse=True) and max(scores) <= 30


@pytest.mark.parametrize("name", ["chat_client.py", "streaming_client.py"])
def test_clients(demo_server: ServerProcess, name: str, run_here: Callable[..., str]) -> None:
    printed = run_here(name, f"{demo_server.url}/v1")
    assert "Paris" in printed if name == "chat_client.py" else " tokens" in printed
