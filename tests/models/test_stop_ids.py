"""Every end that a checkpoint names ends the text: in each of its files, and in a GGUF header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as GGML

from tests.models.byte_model import save_byte_model
from tests.models.checkpoints import make_model
from tests.models.test_gguf import SIZES, write_gguf
from vllm_lite import LLM, SamplingParams

PROMPT = {"prompt_token_ids": [5, 9, 40, 77]}
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 64,
    "num_gpu_blocks_override": 20,
    "disable_frontend_multiprocessing": True,
}


def text_of(model: Path, **options: Any) -> tuple[list[int], str | None]:
    """Greedy tokens and why there are no more."""
    with LLM(str(model), **OPTIONS, **options) as llm:
        params = SamplingParams(max_tokens=12, temperature=0.0)
        answer = llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0]
    return list(answer.token_ids), answer.finish_reason


def last_new(tokens: list[int]) -> int:
    """The place, past the first, of a token that does not stand before it."""
    return max(i for i, token in enumerate(tokens) if token not in tokens[:i])


@pytest.mark.parametrize("place", ["config", "generation", "tokenizer"])
def test_ends_of_a_directory(tmp_path: Path, place: str) -> None:
    directory = save_byte_model(tmp_path)
    tokens, reason = text_of(directory)
    assert reason == "length"
    end = last_new(tokens)
    if place == "tokenizer":
        file = directory / "tokenizer_config.json"
        pieces = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
        piece = next(text for text, index in pieces.items() if index == tokens[end])
        file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token": piece}))
    else:
        file = directory / f"{'generation_' if place == 'generation' else ''}config.json"
        told = json.loads(file.read_text())
        file.write_text(json.dumps({**told, "eos_token_id": [0, tokens[end]]}))
    assert text_of(directory) == (tokens[: end + 1], "stop")


@pytest.mark.parametrize("name", ["eos", "eot", "eom"])
def test_ends_of_a_gguf_header(tmp_path: Path, name: str) -> None:
    model = make_model("llama", **SIZES)

    def write(**ends: int) -> Path:
        header = {f"tokenizer.ggml.{end}_token_id": index for end, index in ends.items()}
        return write_gguf(tmp_path / "m.gguf", "llama", model, GGML.F32, header=header)

    tokens, reason = text_of(write(), skip_tokenizer_init=True)
    assert reason == "length"
    end = last_new(tokens)
    other = next(index for index in range(131) if index not in tokens)
    path = write(**{"eos": other, name: tokens[end]})
    assert text_of(path, skip_tokenizer_init=True) == (tokens[: end + 1], "stop")
