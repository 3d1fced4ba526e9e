"""Compares the sizes that a configuration states with the files that should hold the weights."""

from __future__ import annotations

from pathlib import Path

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError

# No format in use stores a weight in less than two bits.
_MOST_WEIGHTS_PER_BYTE = 4


def check_sizes(facts: ModelFacts) -> None:
    """Raise CheckpointError where the configuration describes more weights than the files hold.

    A model is built before names and shapes are compared one by one; this keeps it from being
    built in sizes that are made up.
    """
    path = Path(facts.path)
    files = [path] if facts.format == "gguf" else sorted(path.glob("*.safetensors"))
    held = sum(file.stat().st_size for file in files)
    # The embedding, the queries of every layer and one matrix of the MLP.
    width = facts.hf_config.get("intermediate_size")
    rows = facts.vocab_size + facts.num_layers * facts.num_heads * facts.head_size
    described = facts.hidden_size * (rows + (width if isinstance(width, int) else 0))
    if held and described > _MOST_WEIGHTS_PER_BYTE * held:
        raise CheckpointError(
            f"{facts.path}: {facts.num_layers} layers of size {facts.hidden_size} and a vocabulary "
            f"of {facts.vocab_size} are {described:.3g} weights or more, but "
            f"its files hold {held:,} bytes ({', '.join(map(str, files[:2]))}): they are cut off, "
            "or the configuration is another model's"
        )
