"""Tokenizers read from model directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from tests.checkpoints import write_hf
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.errors import CheckpointError
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tokenizer.detokenizer import IncrementalDetokenizer
from vllm_lite.tokenizer.hf_tokenizer import tokenizer_from_directory
from vllm_lite.tokenizer.tokenizer import Tokenizer, load_tokenizer


def write(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """A directory with a tiny tokenizer.json that cuts texts, as some are saved."""
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "</s>": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=4)
    backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_nothing_is_cut_or_padded(tmp_path: Path) -> None:
    tokenizer = Tokenizer(tokenizer_from_directory(write(tmp_path)))
    assert tokenizer.encode("a b a b a") == [0, 1, 0, 1, 0]
    assert tokenizer.encode("a") == [0]


def test_named_tokens_become_special(tmp_path: Path) -> None:
    config = {
        "eos_token": {"content": "</s>", "special": True},
        "bos_token": "<new>",
        "additional_special_tokens": ["<x>"],
        "added_tokens_decoder": {"7": {"content": "<plain>", "special": False}},
    }
    tokenizer = Tokenizer(tokenizer_from_directory(write(tmp_path, config)))
    ids = tokenizer.encode("a</s><x><plain><new>")
    assert tokenizer.convert_ids_to_tokens(ids) == ["a", "</s>", "<x>", "<plain>", "<new>"]
    assert tokenizer.eos_token_id == 2
    assert tokenizer.all_special_ids == {ids[1], ids[2], ids[4]}
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a <plain>"


def test_the_older_map_of_special_tokens_is_read(tmp_path: Path) -> None:
    (write(tmp_path) / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    assert Tokenizer(tokenizer_from_directory(tmp_path)).eos_token_id == 2


def test_template_files_win_over_the_configuration(tmp_path: Path) -> None:
    write(tmp_path, {"chat_template": "in config"})
    assert tokenizer_from_directory(tmp_path).chat_templates == {"default": "in config"}
    (tmp_path / "chat_template.jinja").write_text("in a file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    found = tokenizer_from_directory(tmp_path).chat_templates
    assert found == {"default": "in a file", "rag": "R"}


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        (
            "tokenizer_config.json",
            {"chat_template": [{"name": "default", "template": "D"}]},
            {"default": "D"},
        ),
        ("chat_template.json", {"chat_template": "J"}, {"default": "J"}),
        ("chat_template.json", {}, {}),
    ],
)
def test_templates_are_found_wherever_they_are_kept(
    tmp_path: Path, file: str, content: dict[str, Any], expected: dict[str, str]
) -> None:
    (write(tmp_path) / file).write_text(json.dumps(content))
    assert tokenizer_from_directory(tmp_path).chat_templates == expected


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: str) -> None:
    (write(tmp_path, {}) / file).write_text(content)
    with pytest.raises(CheckpointError, match=file) as caught:
        tokenizer_from_directory(tmp_path)
    assert "\n" not in str(caught.value)


def test_transformers_reads_tokenizers_without_tokenizer_json(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = Tokenizer(tokenizer_from_directory(tmp_path))
    assert tokenizer.encode("abab<|endoftext|>") == [2, 2, 3]
    assert tokenizer.eos_token_id == 3 and tokenizer.spelling is not None


def test_a_directory_without_a_tokenizer_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(CheckpointError, match="--tokenizer") as caught:
        tokenizer_from_directory(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_tokenizer_option_overrules_the_model(tmp_path: Path) -> None:
    (write(tmp_path, {}) / "config.json").write_text("{}")
    own = load_tokenizer(EngineArgs(model="demo").create_engine_config())
    other = load_tokenizer(EngineArgs(model="demo", tokenizer=str(tmp_path)).create_engine_config())
    assert (own.vocab_size, other.vocab_size) == (49152, 4)


def test_a_tokenizer_written_in_python_serves_as_well(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    tokenizer = Tokenizer(tokenizer_from_directory(tmp_path))
    ids = tokenizer.encode("né", add_special_tokens=False)
    assert tokenizer.encode("né") == [*ids, tokenizer.eos_token_id]
    assert tokenizer.decode(ids) == "né" and tokenizer.max_token_id >= max(ids)
    detokenizer = IncrementalDetokenizer(tokenizer, [1], SamplingParams())
    shown = []
    for token_id in ids:
        detokenizer.update([token_id], False)
        shown.append(detokenizer.get_next_output_text(False, True))
    assert shown == ["n", "", "é"]


def test_a_tokenizer_describes_itself_without_paths(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "</s>"}, "name_or_path": "/home/me", "model_max_length": 9}
    described = Tokenizer(tokenizer_from_directory(write(tmp_path, config))).describe()
    assert "name_or_path" not in described
    assert (described["eos_token"], described["model_max_length"]) == ("</s>", 9)
    assert described["tokenizer_class"] == "PreTrainedTokenizerFast"
    (entry,) = described["added_tokens_decoder"].values()
    assert (entry["content"], entry["special"]) == ("</s>", True)
    json.dumps(described)


@pytest.mark.parametrize("normalizer", [None, normalizers.Replace("!", "b")])
def test_texts_are_lowered_where_sentence_transformers_says_so(
    normalizer: Any, tmp_path: Path
) -> None:
    write_hf(tmp_path)
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "A": 2, "!": 3, "<S>": 4}, unk_token="A"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_special_tokens(["<S>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = tmp_path / "sentence_bert_config.json"
    for lowers in (False, True):
        settings.write_text(json.dumps({"max_seq_length": 8, "do_lower_case": lowers}))
        args = EngineArgs(model=str(tmp_path), load_format="dummy", runner="pooling")
        tokenizer = load_tokenizer(args.create_engine_config())
        first, *rest = tokenizer.encode("A b ! <S>")
        assert first == (0 if lowers else 2)
        assert rest == [1, 3 if normalizer is None else 1, 4]
