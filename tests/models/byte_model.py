"""A tiny random model over bytes: it writes what nobody would, so constraints have to hold."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.models.checkpoints import make_model, save

SPECIAL = ["<eos>", "<mark>", "<think>", "</think>"]
CONTEXT = 512


def save_byte_model(directory: Path) -> Path:
    """Write the model and its tokenizer; thinking is marked by <think> and </think>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: index for index, piece in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL[:2])
    tokenizer.add_tokens(SPECIAL[2:])
    eos = tokenizer.token_to_id("<eos>")
    model = make_model(
        "llama",
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=CONTEXT,
        eos_token_id=eos,
    )
    save(model, directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"})
    )
    return directory
