"""Tiny random models over bytes: one writes what nobody would, so constraints have to hold."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.models.checkpoints import make_model, save
from tests.models.encoders.cases import make_encoder

SPECIAL = ["<eos>", "<mark>", "<think>", "</think>"]
CONTEXT = 512


def save_byte_model(directory: Path) -> Path:
    """Write the model and its tokenizer; thinking is marked by <think> and </think>."""
    tokenizer = byte_tokenizer()
    model = make_model(
        "llama",
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=CONTEXT,
        eos_token_id=tokenizer.token_to_id("<eos>"),
    )
    save(model, directory)
    return save_tokenizer(tokenizer, directory)


def save_byte_encoder(directory: Path) -> Path:
    """Write a BERT that embeds, and its tokenizer."""
    tokenizer = byte_tokenizer()
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": CONTEXT}
    make_encoder("BertModel", **sizes).save_pretrained(directory)
    return save_tokenizer(tokenizer, directory)


def byte_tokenizer() -> Tokenizer:
    """A token for each byte, and special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: index for index, piece in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL[:2])
    tokenizer.add_tokens(SPECIAL[2:])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> Path:
    """Write it beside a model; gives the directory."""
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"})
    )
    return directory
