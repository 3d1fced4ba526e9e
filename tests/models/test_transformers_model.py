"""Models that run by transformers' own module: the same logits, under every schedule."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from tests.models.checkpoints import TINY, save
from tests.models.runner import PagedRunner, load
from tests.models.test_families import LONG, LONGROPE, expected, ids_of
from tests.models.test_quantized import assert_near
from tests.models.test_schedules import NUM_TOKENS, PROMPTS, Greedy
from tests.models.test_tensor_parallel import Meeting, ThreadRank
from vllm_lite import LLM, SamplingParams
from vllm_lite.distributed.groups import tensor_parallel
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.worker.recorded_forward import recorded_forward

EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 3, "moe_intermediate_size": 24}
# Layers that read the keys and values of earlier ones.
SHARED = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "head_dim": 12,
    "hidden_size_per_layer_input": 8,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
# Scaled and tied embeddings, learned positions; fused and partly rotated heads; experts of ours and
# of the module's own, latents, masks of several kinds; sinks, renamed tensors, tied heads with
# biases; families that are native as well.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "biogpt": ("BioGptForCausalLM", {}),
    "persimmon": ("PersimmonForCausalLM", {"num_key_value_heads": None}),
    "dots1": (
        "Dots1ForCausalLM",
        {**EXPERTS, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "n_shared_experts": 1},
    ),
    "flex_olmo": ("FlexOlmoForCausalLM", {**EXPERTS, "num_experts": 6, "pad_token_id": None}),
    "jetmoe": (
        "JetMoeForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 16},
    ),
    "longcat_flash": (
        "LongcatFlashForCausalLM",
        {
            "n_routed_experts": 6,
            "zero_expert_num": 2,
            "moe_topk": 2,
            "q_lora_rank": 20,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "expert_ffn_hidden_size": 24,
            "ffn_hidden_size": 40,
            "num_layers": 2,
            "num_key_value_heads": 4,
            "head_dim": 8,
        },
    ),
    "flint": (
        "FlintForCausalLM",
        {
            **EXPERTS,
            "num_experts": 6,
            "mlp_only_layers": [0],
            "head_dim": 12,
            "shared_expert_intermediate_size": 24,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "kolibri1": (
        "Kolibri1ForCausalLM",
        {**EXPERTS, "n_routed_experts": 6, "n_shared_experts": 1, "head_dim": 12, "n_group": 1},
    ),
    "modernbert_decoder": (
        "ModernBertDecoderForCausalLM",
        {"local_attention": 18, "num_hidden_layers": 3, "pad_token_id": 0, "bos_token_id": 1},
    ),
    "bert": (
        "BertLMHeadModel",
        {"is_decoder": True, "pad_token_id": 0, "num_key_value_heads": None},
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        {"head_dim": 20, "sliding_window": 9, "attn_logit_softcapping": 2.0},
    ),
    "gemma3n": (
        "Gemma3nForCausalLM",
        {
            **SHARED,
            "vocab_size_per_layer_input": 120,
            "laurel_rank": 8,
            "altup_num_inputs": 2,
            "intermediate_size": 80,
            "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0],
        },
    ),
    "gemma4": (
        "Gemma4ForCausalLM",
        {**SHARED, "global_head_dim": 24, "vocab_size_per_layer_input": 131},
    ),
    "llama": ("LlamaForCausalLM", {"tie_word_embeddings": True, "mlp_bias": True}),
    "phi3": ("Phi3ForCausalLM", {"pad_token_id": None}),
}
FALLBACK = {"model_impl": "transformers"}


def make(case: str, **changes: Any) -> PreTrainedModel:
    """A random model in float32, as checkpoints.make_model makes those of families."""
    name, settings = CASES.get(case, (case, {}))
    kind = getattr(transformers, name)
    torch.manual_seed(sum(map(ord, case)))
    given = {**TINY, **settings, **changes, "attn_implementation": "eager"}
    model: PreTrainedModel = kind(kind.config_class(**given)).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in path else 0.0, 0.25)
    return model


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_module_s_own(case: str, tmp_path: Path) -> None:
    reference = make(case)
    model = load(save(reference, tmp_path), **FALLBACK)
    ids, other = ids_of(1), ids_of(2, 21)
    want, want_other = expected(reference, ids), expected(reference, other)
    runner = PagedRunner(model)
    assert recorded_forward(model, 128) == model.forward
    parts, others = [runner.step({"a": ids[:13]})["a"]], []
    for step in ({"b": other[:20], "a": ids[13:30]}, {"a": ids[30:31], "b": other[20:]}):
        mixed = runner.step(step)
        parts, others = [*parts, mixed["a"]], [*others, mixed["b"]]
    parts += [runner.step({"a": [token]})["a"] for token in ids[31:]]
    torch.testing.assert_close(torch.cat(parts), want, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat(others), want_other, atol=1e-4, rtol=0)
    tokens, largest = model.greedy_tokens(torch.randn(3, 48))
    assert tokens.shape == largest.shape == (3,)


@pytest.mark.parametrize("case", ["biogpt", "dots1"])
def test_no_schedule_changes_a_token(case: str, tmp_path: Path) -> None:
    reference = make(case)
    greedy = Greedy(reference)
    with LLM(
        str(save(reference, tmp_path)),
        dtype="float32",
        skip_tokenizer_init=True,
        disable_frontend_multiprocessing=True,
        block_size=8,
        max_model_len=64,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=25,
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        for repeats in (1, 6, 1):  # the last finds its prompts in the prefix cache
            prompts = PROMPTS * repeats
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
            for prompt, output in zip(prompts, outputs, strict=True):
                assert greedy.gives(prompt, output.outputs[0].token_ids)
        assert any(output.num_cached_tokens for output in outputs)


def test_windows_are_those_of_the_masks(tmp_path: Path) -> None:
    layers = load(save(make("gemma2"), tmp_path), **FALLBACK).kv_cache_spec().layers
    assert [layer.sliding_window for layer in layers] == [9, None]


def test_bfloat16_and_rounded_weights_are_close(tmp_path: Path) -> None:
    reference = make("llama", hidden_size=64, intermediate_size=96)
    save(reference, tmp_path)
    got = PagedRunner(load(tmp_path, **FALLBACK, dtype="bfloat16")).step({"a": ids_of(1)})["a"]
    want = expected(reference, ids_of(1))
    assert torch.nn.functional.cosine_similarity(got, want, dim=1).min() > 0.99
    native, got = (
        PagedRunner(load(tmp_path, **options, quantization="int8")).step({"a": ids_of(1)})["a"]
        for options in ({}, FALLBACK)
    )
    assert_near(got, native, 0.02)


def test_ranks_together_equal_one(tmp_path: Path) -> None:
    reference = make("llama")
    save(reference, tmp_path)
    meeting, models = Meeting(2), []
    for rank in range(2):
        with tensor_parallel(ThreadRank(rank, 2, meeting)):
            models.append(load(tmp_path, **FALLBACK))
    with ThreadPoolExecutor(2) as pool:
        for got in pool.map(lambda model: PagedRunner(model).step({"a": ids_of(1)})["a"], models):
            torch.testing.assert_close(got, expected(reference, ids_of(1)), atol=1e-4, rtol=0)
    assert models[0].kv_cache_spec().layers[0].num_kv_heads == 1
    save(make("dots1"), tmp_path)
    with (
        tensor_parallel(ThreadRank(0, 2, meeting)),
        pytest.raises(UsageError, match=r"cannot be split .* its plan has"),
    ):
        load(tmp_path, **FALLBACK)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("MambaForCausalLM", {}, "it keeps a state of its own"),
        (
            "GPTNeoXJapaneseForCausalLM",
            {},
            "does not attend by transformers' attention interface",
        ),
        ("BartForCausalLM", {}, "it is no decoder that takes positions"),
        ("RobertaForCausalLM", {"is_decoder": True}, r"its positions are not 0, 1, 2, \.\.\."),
        (
            "Lfm3ForCausalLM",
            {"layer_types": ["conv", "full_attention"], "pad_token_id": None},
            "it has layers of the kind conv",
        ),
        ("OtherForCausalLM", {}, "has no such model"),
    ],
)
def test_what_a_paged_cache_cannot_give_is_refused(
    name: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    if name == "OtherForCausalLM":
        config = save(make("llama"), tmp_path) / "config.json"
        config.write_text(config.read_text().replace("LlamaForCausalLM", name))
    else:
        save(make(name, **changes), tmp_path)
    with pytest.raises(CheckpointError, match=f"{name} .*{reason}"):
        load(tmp_path, **FALLBACK).kv_cache_spec()


@pytest.mark.parametrize(("length", "max_model_len"), [(44, 128), (21, 32)], ids=["long", "short"])
def test_longrope_follows_the_longest_sequence_that_may_come(
    length: int, max_model_len: int, tmp_path: Path
) -> None:
    """Also as Phi-3's files spell it."""
    reference = make("phi3", rope_parameters=LONGROPE, **LONG)
    config = save(reference, tmp_path) / "config.json"
    told = json.loads(config.read_text())
    rope = told.pop("rope_parameters")
    told["rope_scaling"] = {key: rope[key] for key in ("short_factor", "long_factor")}
    told["rope_scaling"]["type"] = "longrope"
    config.write_text(json.dumps(told | {"rope_theta": rope["rope_theta"]}))
    ids = ids_of(1, length)
    model = load(tmp_path, **FALLBACK, max_model_len=max_model_len)
    got = PagedRunner(model).step({"a": ids})["a"]
    torch.testing.assert_close(got, expected(reference, ids), atol=1e-4, rtol=0)


def test_frequencies_that_follow_a_sequence_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    save(make("llama", rope_parameters=rope, max_position_embeddings=48), tmp_path)
    load(tmp_path, **FALLBACK).kv_cache_spec()
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    with pytest.raises(CheckpointError, match="its tokens depend on others by more than attention"):
        load(tmp_path, **FALLBACK, max_model_len=96).kv_cache_spec()


def test_what_the_option_says_is_kept(tmp_path: Path) -> None:
    save(make("biogpt"), tmp_path)
    with pytest.raises(CheckpointError, match="the architecture BioGptForCausalLM; supported are"):
        load(tmp_path, model_impl="vllm")
    for option in ("deterministic", "disable_sliding_window"):
        with pytest.raises(UsageError, match=option.replace("_", "-")):
            load(tmp_path, **{option: True})
    config = json.loads((tmp_path / "config.json").read_text())
    named = {
        "architectures": ["OtherForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config | named))
    with pytest.raises(CheckpointError, match=r"brings Python code .* pass --trust-remote-code"):
        load(tmp_path)


def test_a_checkpoint_s_own_code_runs_where_it_is_trusted(tmp_path: Path) -> None:
    reference = make("llama")
    config = save(reference, tmp_path) / "config.json"
    code = "from transformers import LlamaForCausalLM\nOwnForCausalLM = LlamaForCausalLM\n"
    (tmp_path / "own.py").write_text(code)
    named = {
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    config.write_text(json.dumps(json.loads(config.read_text()) | named))
    got = PagedRunner(load(tmp_path, trust_remote_code=True)).step({"a": ids_of(1)})["a"]
    torch.testing.assert_close(got, expected(reference, ids_of(1)), atol=1e-4, rtol=0)
