"""A tokenizer.json that the tokenizers package panics over is one line at start, never a panic."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from tests.checkpoints import write_hf
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import CheckpointError, RequestError, VLLMLiteError
from vllm_lite.tokenizer.parts import TokenizerParts
from vllm_lite.tokenizer.tokenizer import Tokenizer, load_tokenizer

VOCABULARY = {"a": 0, "b": 1, "?": 2}


def precompiled(content: bytes) -> dict[str, Any]:
    charsmap = base64.b64encode(content).decode()
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}}


def template(special: str, **known: Any) -> dict[str, Any]:
    pieces = [{"SpecialToken": {"id": special, "type_id": 0}}, {"Sequence": {"id": "A"}}]
    pieces[1]["Sequence"]["type_id"] = 0
    pair = [*pieces, {"Sequence": {"id": "B", "type_id": 1}}]
    found = {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": known}
    return {"post_processor": found}


DAMAGES: dict[str, dict[str, Any]] = {
    "charsmap empty": precompiled(b""),
    "charsmap cut": precompiled(b"\xff\xff\xff\xff" + bytes(64)),
    "charsmap out of bounds": precompiled(b"\x10\0\0\0" + bytes(16)),
    "charsmap no base64": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"}},
    "template names a missing token": template("<s>"),
    "vocabulary empty": {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "?"}},
    "unigram empty": {"model": {"type": "Unigram", "unk_id": 0, "vocab": []}},
    "unknown normalizer": {"normalizer": {"type": "Nothing"}},
    "normalizer nested": {"normalizer": json.loads('{"a":' * 500 + "1" + "}" * 500)},
}


def load(folder: Path, **changes: Any) -> Tokenizer:
    content = json.loads(Backend(models.WordLevel(VOCABULARY, unk_token="?")).to_str())
    write_hf(folder)
    (folder / "tokenizer.json").write_text(json.dumps({**content, **changes}))
    return load_tokenizer(EngineArgs(model=str(folder), device="cpu").create_engine_config())


@pytest.mark.parametrize("name", DAMAGES)
def test_it_is_one_line_and_nothing_is_printed(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckpointError, match="fetch") as caught:
        load(tmp_path, **DAMAGES[name])
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_what_others_print_meanwhile_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    encode = Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer, "encode", lambda *args: (os.write(2, b"a log line\n"), encode(*args))[1]
    )
    load(tmp_path)
    assert capfd.readouterr().err == "a log line\n"


def test_a_panic_that_a_text_brings_about_is_an_ordinary_error() -> None:
    content = json.loads(Backend(models.WordLevel(VOCABULARY, unk_token="?")).to_str())
    backend = Backend.from_str(json.dumps({**content, **template("<s>")}))
    with pytest.raises(VLLMLiteError, match="no entry found"):
        Tokenizer(TokenizerParts(backend)).encode("a")


def test_a_text_without_tokens_is_a_refusal() -> None:
    tokenizer = Tokenizer(TokenizerParts(Backend(models.WordLevel({"a": 0}, unk_token="?"))))
    assert tokenizer.encode("a") == [0]
    with pytest.raises(RequestError, match="cannot encode this text"):
        tokenizer.encode("b")
