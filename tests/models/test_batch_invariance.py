"""A request's logits are the same bits alone, in any batch, in any chunks, cached or computed anew.

Every form of weights and of the cache that a CPU has, on every instruction set of this machine,
through the engine core and the model runner: what is compared are the logits themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as GGML

from tests.models.checkpoints import make_model, save
from tests.models.test_gguf import SIZES, write_gguf
from vllm_lite import _cpu
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.executor.select import make_executor
from vllm_lite.kernels import dispatch
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.worker import worker
from vllm_lite.worker.batch import Batch, Computed
from vllm_lite.worker.model_runner import ModelRunner

pytestmark = pytest.mark.skipif(not dispatch.is_compiled(), reason="a law of compiled kernels")

CONTEXT = 1024
# Longer than a span of context that attention takes at once, and than a block of a product's rows.
LONG, SHORT = 583, 75
MATES = (1, 2, 5, 16, 33, 100, 250)
NUM_OUTPUTS = 6
# Bits of each position's logits.
Logits = dict[int, torch.Tensor]


class _Runner(ModelRunner):
    """Keeps the logits that the request "mine" samples from, and those of its whole prompt."""

    def __init__(self, kept: Logits, config: Any, model: CausalLM, *rest: Any) -> None:
        super().__init__(config, model, *rest)
        self._kept = kept
        self._computed = model.compute_logits
        model.compute_logits = self._compute_logits  # type: ignore[method-assign]
        self._greedy_tokens = model.greedy_tokens
        model.greedy_tokens = self._checked_tokens  # type: ignore[method-assign]

    def _compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._computed(hidden)
        self._last = logits.clone()
        return logits

    def _checked_tokens(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, largest = self._greedy_tokens(hidden)
        expected = dispatch.ops().greedy_tokens(self._compute_logits(hidden))
        assert torch.equal(tokens, expected[0])
        assert torch.equal(largest.view(torch.int32), expected[1].view(torch.int32))
        return tokens, largest

    def _choose(self, computed: Computed, batch: Batch, *rest: Any) -> Any:
        choice = super()._choose(computed, batch, *rest)
        plan = batch.plan
        for row, request_id in enumerate(plan.sampling_ids):
            if request_id == "mine":
                self._kept[int(plan.sampled_positions[row])] = self._last[row].view(torch.int32)
        return choice


def prompt(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 131, (length,), generator=generator).tolist()


class Engine:
    """An engine core in this thread that tells the bits of one request's logits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: Path, **options: Any) -> None:
        settings: dict[str, Any] = {
            "max_model_len": CONTEXT,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 2048,
            "num_gpu_blocks_override": 200,
            "block_size": 16,
            "device": "cpu",
            "skip_tokenizer_init": True,
        }
        config = EngineArgs(model=str(model), **(settings | options)).create_engine_config()
        self._kept: Logits = {}
        monkeypatch.setattr(worker, "ModelRunner", partial(_Runner, self._kept))
        self._core = EngineCore(config, make_executor)
        self.num_preemptions = self.num_cached = 0

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._core.shutdown()

    def bits(
        self, length: int, mates: tuple[int, ...] = (), late: int = 0, *, scored: bool = True
    ) -> tuple[dict[int, list[int]], list[Any]]:
        """Bits of the logits that "mine" samples from, and what its prompt's tokens score.

        `mates` run beside it; the last `late` of them come while it does.
        """
        self._kept.clear()
        mine = {"temperature": 0.0, "max_tokens": NUM_OUTPUTS, "ignore_eos": True}
        if scored:
            mine["prompt_logprobs"] = 0
        other = SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True)
        waiting = [
            EngineCoreRequest(f"mate-{size}", prompt(size, size), other, [2], 0.0) for size in mates
        ]
        early, waiting = waiting[: len(waiting) - late], waiting[len(waiting) - late :]
        own = EngineCoreRequest("mine", prompt(7, length), SamplingParams(**mine), [2], 0.0)
        self._core.add_requests([*early, own])
        scores: list[Any] = []
        while self._core.has_work():
            for output in self._core.step().outputs:
                if output.request_id == "mine":
                    scores += output.new_prompt_logprobs or []
                    self.num_preemptions = max(self.num_preemptions, output.num_preemptions)
                    self.num_cached = output.num_cached_tokens or self.num_cached
            self._core.add_requests(waiting[:1])
            del waiting[:1]
        assert list(self._kept) == list(range(length, length + NUM_OUTPUTS))
        return {end: row.tolist() for end, row in self._kept.items()}, scores


def mixed_kinds(name: str) -> GGML:
    """A GGUF file whose layers are of many types, plain ones among them."""
    kinds = {
        "attn_q": GGML.Q4_0,
        "attn_k": GGML.Q5_1,
        "attn_v": GGML.Q6_K,
        "attn_output": GGML.BF16,
        "ffn_gate": GGML.Q4_K,
        "ffn_up": GGML.Q3_K,
        "ffn_down": GGML.Q8_0,
    }
    return kinds.get(name.rsplit(".", 1)[-1], GGML.Q4_1)


ODD = {"hidden_size": 52, "intermediate_size": 84, "head_dim": 20, "tie_word_embeddings": True}
WINDOWED = {"use_sliding_window": True, "sliding_window": 7}
LAYERS = {**WINDOWED, "layer_types": ["sliding_attention", "full_attention"]}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "attention_bias": True}
# Family, sizes and options of the engine.
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "float32": ("llama", SMALL, {"dtype": "float32"}),
    "bfloat16": ("llama", SMALL, {"dtype": "bfloat16"}),
    "odd sizes and a window": ("qwen3", {**ODD, **LAYERS}, {"dtype": "bfloat16"}),
    "odd sizes in float32": ("qwen3", {**ODD, **LAYERS}, {"dtype": "float32"}),
    "int8 cache": ("llama", SMALL, {"dtype": "bfloat16", "kv_cache_dtype": "int8"}),
    "fp8 cache": ("llama", SMALL, {"dtype": "bfloat16", "kv_cache_dtype": "fp8"}),
    "fp8 cache with scales": (
        "llama",
        SMALL,
        {"dtype": "float32", "kv_cache_dtype": "fp8_per_token_head"},
    ),
    "int8": ("llama", SMALL, {"dtype": "bfloat16", "quantization": "int8"}),
    "int4": ("llama", SMALL, {"dtype": "float32", "quantization": "int4"}),
    "experts": ("qwen3_moe", {**SMALL, "moe_intermediate_size": 40}, {"dtype": "bfloat16"}),
    "experts in int8": (
        "qwen3_moe",
        {**SMALL, "moe_intermediate_size": 64},
        {"dtype": "float32", "quantization": "int8"},
    ),
    "experts of rounded inputs": (
        "qwen3_moe",
        {**SMALL, "moe_intermediate_size": 40},
        {"dtype": "bfloat16", "quantization": "int8_per_channel"},
    ),
    "gguf": ("llama", SIZES, {"dtype": "bfloat16", "quantization": "gguf"}),
}


@pytest.fixture(scope="module", params=list(FORMS))
def form(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    family, sizes, options = FORMS[request.param]
    folder = tmp_path_factory.mktemp("model")
    model = make_model(family, **sizes, max_position_embeddings=CONTEXT)
    if options.get("quantization") == "gguf":
        return write_gguf(folder / "m.gguf", family, model, mixed_kinds), options
    return save(model, folder), options


@pytest.fixture(params=_cpu.supported_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Forces one instruction set; the machine's own choice comes back after the test."""
    before = _cpu.selected_isa()
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", request.param)
    yield request.param
    _cpu.select_isa(before)


def has_window(model: Path) -> bool:
    config = model / "config.json"
    return config.is_file() and bool(json.loads(config.read_text()).get("use_sliding_window"))


@pytest.mark.usefixtures("isa")
def test_a_request_has_the_same_bits_however_it_is_computed(
    form: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The GGUF file says less than it can.
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    model, options = form
    engine = partial(Engine, monkeypatch, model, **options)
    with engine() as one:
        alone, scores = one.bits(LONG)
        assert one.bits(LONG, MATES) == (alone, scores)
        assert one.bits(LONG, MATES, 4) == (alone, scores)
        assert one.num_cached == 0
        assert one.bits(LONG, MATES, scored=False)[0] == alone
        assert one.num_cached > LONG // 2
        short = one.bits(SHORT)
    with engine(max_num_batched_tokens=64) as one:
        assert one.bits(LONG, MATES, 3) == (alone, scores)
    with engine(max_num_batched_tokens=16) as one:
        assert one.bits(SHORT, MATES, 3) == short
    with engine(max_num_batched_tokens=5, max_num_seqs=2) as one:
        assert one.bits(SHORT, MATES, 3) == short
    with engine(max_num_batched_tokens=1, max_num_seqs=1) as one:
        assert one.bits(SHORT) == short
    with engine(enforce_eager=True, deterministic=True) as one:
        assert one.bits(SHORT, MATES, 3) == short
    with engine(async_scheduling=True) as one:
        assert one.bits(LONG, MATES, 3) == (alone, scores)
    # A block of two groups is a page of each, but layers with a window give theirs back.
    num_blocks = 92 if has_window(model) else 72
    with engine(
        num_gpu_blocks_override=num_blocks, max_model_len=640, max_num_batched_tokens=64
    ) as one:
        assert one.bits(LONG, MATES) == (alone, scores)
        assert one.num_preemptions > 0
