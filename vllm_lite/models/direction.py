"""Decoders whose tokens see later ones, as some that embed."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, with_mixers


def for_direction(spec: DecoderSpec, facts: ModelFacts) -> DecoderSpec:
    """`spec` with tokens that see later ones, where they do.

    A window is as wide, with half of it on each side. Raises CheckpointError for other mixers.
    """
    if facts.pooling is None or facts.pooling.is_causal:
        return spec
    if any(layer.beside_attention is not None for layer in spec.layers):
        raise CheckpointError("its layers have states, which see no later tokens")
    mixers = []
    for layer in spec.layers:
        if not isinstance(layer.mixer, AttentionSpec):
            raise CheckpointError("its layers see no later tokens")
        window = layer.mixer.window and layer.mixer.window // 2
        mixers.append(replace(layer.mixer, is_bidirectional=True, window=window))
    return with_mixers(spec, mixers)
