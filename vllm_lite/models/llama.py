"""Llama and the many models of its shape: the plain decoder, biases as its config says."""

from __future__ import annotations

from vllm_lite.models.decoder import DecoderForCausalLM


class LlamaForCausalLM(DecoderForCausalLM):
    """DecoderSpec's own defaults."""
