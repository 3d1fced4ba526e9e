"""Architectures that transformers' own module runs, by name."""

from __future__ import annotations

# Those whose logits the sweep found equal; what is not here is refused by name.
RUNS = [
    "AXK1ForCausalLM",
    "AfmoeForCausalLM",
    "Apertus1p5TextForCausalLM",
    "AriaTextForCausalLM",
    "BeamForCausalLM",
    "BertLMHeadModel",
    "BioGptForCausalLM",
    "CTRLLMHeadModel",
    "CohereCompassForCausalLM",
    "ElectraForCausalLM",
    "Emu3ForCausalLM",
    "ErnieForCausalLM",
    "FlintForCausalLM",
    "Gemma4UnifiedForCausalLM",
    "GraniteMoeSWAForCausalLM",
    "GraniteSWAForCausalLM",
    "HeliumForCausalLM",
    "Jais2ForCausalLM",
    "JetMoeForCausalLM",
    "Kolibri1ForCausalLM",
    "LagunaForCausalLM",
    "LongcatFlashForCausalLM",
    "MellumForCausalLM",
    "MiniMaxM3VLForCausalLM",
    "Mistral4ForCausalLM",
    "ModernBertDecoderForCausalLM",
    "MoshiForCausalLM",
    "PersimmonForCausalLM",
    "RoCBertForCausalLM",
    "SolarOpenForCausalLM",
    "YoutuForCausalLM",
]
