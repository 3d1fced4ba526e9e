"""A recorded step is the forward pass, bit for bit; what cannot be recorded runs layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.checkpoints import make_model, save
from tests.models.families import CASES
from tests.models.quantized_checkpoints import write_pair
from tests.models.runner import PagedRunner, load
from tests.models.test_bad_formats import ALL
from tests.models.test_families import ids_of
from vllm_lite.kernels import dispatch
from vllm_lite.kernels.cpu.program import StepTensors, UnrecordableError, record_step
from vllm_lite.kernels.dispatch import ops
from vllm_lite.models.interfaces import CausalLM
from vllm_lite.quantization import unquantized
from vllm_lite.worker.recorded_forward import recorded_forward

pytestmark = pytest.mark.skipif(not dispatch.is_compiled(), reason="records compiled kernels")


def logits(model: CausalLM, is_recorded: bool) -> list[Tensor]:
    """A prompt in chunks beside others that come and go, then single tokens."""
    runner = PagedRunner(model, is_recorded=is_recorded)
    a, b, c = ids_of(1), ids_of(2, 30), ids_of(3, 70)
    steps = [
        {"a": a[:13]},
        {"b": b[:20], "a": a[13:30]},
        {"a": a[30:31], "b": b[20:21]},
        {"c": c, "a": a[31:32], "b": b[21:25]},
        {"b": b[25:26]},
        {"b": b[26:27], "c": [5], "a": a[32:33]},
    ]
    return [rows for step in steps for rows in runner.step(step).values()]


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, changes = CASES[request.param]
    return save(make_model(family, **changes), tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_recorded_step_is_the_forward_pass(checkpoint: Path, dtype: str) -> None:
    model = load(checkpoint, dtype=dtype)
    for want, got in zip(logits(model, False), logits(model, True), strict=True):
        assert want.isfinite().all()
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "fp8_e5m2", "fp8_per_token_head", "int8"])
@pytest.mark.parametrize("case", ["llama-head-size-6", "qwen3-layer-types"])
def test_a_recorded_step_keeps_caches_of_one_byte(
    case: str, kv_cache_dtype: str, dtype: str, tmp_path: Path
) -> None:
    family, changes = CASES[case]
    path = save(make_model(family, **changes), tmp_path)
    model = load(path, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    exact = logits(load(path, dtype=dtype), True)
    for want, got, wide in zip(logits(model, False), logits(model, True), exact, strict=True):
        assert want.isfinite().all()
        assert torch.equal(got, want)
        assert not torch.equal(got, wide)


# Groups that torch spreads with zeros are not. One of each first word stands for the others.
RECORDED = [name for name in ALL if not name.endswith(("groups of 8", "groups of 24"))]
RECORDED = [name for name in RECORDED if "groups of 40" not in name]
FIRST = {name.split()[0]: name for name in reversed(RECORDED)}.values()


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[] if each in FIRST else pytest.mark.slow) for each in RECORDED],
)
def test_a_step_by_stored_weights_is_recorded(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = ALL[name]
    packed, _ = write_pair(tmp_path, settings, quantise, **sizes)
    model = load(packed, dtype="bfloat16")
    want, got = (
        PagedRunner(model, is_recorded=each).step({"a": [5, 7, 3]}) for each in (False, True)
    )
    assert torch.equal(got["a"], want["a"])


def test_a_step_larger_than_its_memory_is_refused(tmp_path: Path) -> None:
    runner = PagedRunner(load(save(make_model("llama"), tmp_path)), is_recorded=True)
    with pytest.raises(IndexError, match="129 tokens is larger than the 128"):
        runner.step({"a": [5] * 70, "b": [6] * 59})


def test_torch_gemms_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unquantized, "_is_packed", lambda weight: False)
    model = load(save(make_model("llama"), tmp_path), dtype="bfloat16")
    PagedRunner(model)
    assert recorded_forward(model, 128) == model.forward


def example(num_tokens: int = 3) -> StepTensors:
    return {
        "input_ids": torch.zeros(num_tokens, dtype=torch.int64),
        "positions": torch.arange(num_tokens),
        "slot_mapping": torch.arange(num_tokens),
        "block_table": torch.zeros((1, 1), dtype=torch.int32),
        "query_start_loc": torch.tensor([0, num_tokens], dtype=torch.int32),
        "seq_lens": torch.tensor([num_tokens], dtype=torch.int32),
    }


TABLE = torch.randn(10, 16)
OUTSIDE = torch.randn(3, 16)
OTHER_IDS = torch.arange(3)


def adds_by_torch(step: StepTensors) -> Tensor:
    return ops().embedding(step["input_ids"], TABLE) + 1.0


def reads_from_outside(step: StepTensors) -> Tensor:
    return ops().rms_norm(OUTSIDE, TABLE[0], 1e-6)


def reads_what_nobody_wrote(step: StepTensors) -> Tensor:
    return ops().rms_norm(torch.empty(3, 16), TABLE[0], 1e-6)


def takes_some_of_the_tokens(step: StepTensors) -> Tensor:
    return ops().rms_norm(ops().embedding(step["input_ids"], TABLE)[1:], TABLE[0], 1e-6)


def takes_other_ids(step: StepTensors) -> Tensor:
    return ops().embedding(OTHER_IDS, TABLE)


def writes_to_an_input(step: StepTensors) -> Tensor:
    query = ops().embedding(step["input_ids"], TABLE).view(-1, 2, 8)
    key = step["positions"].view(torch.float32).view(-1, 1, 2)
    ops().rms_norm(key, TABLE[0, :2], 1e-6, out=key)
    return query


def returns_what_nobody_wrote(step: StepTensors) -> Tensor:
    ops().embedding(step["input_ids"], TABLE)
    return torch.empty(3, 16)


@pytest.mark.parametrize(
    "forward",
    [
        adds_by_torch,
        reads_from_outside,
        reads_what_nobody_wrote,
        takes_some_of_the_tokens,
        takes_other_ids,
        writes_to_an_input,
        returns_what_nobody_wrote,
    ],
)
def test_a_step_that_a_program_cannot_follow_is_refused(
    forward: Callable[[StepTensors], Tensor],
) -> None:
    with torch.inference_mode(), pytest.raises(UnrecordableError):
        record_step(forward, example(), 8)


@pytest.mark.parametrize(("is_chain", "num_buffers"), [(False, 3), (True, 7)])
def test_temporaries_share_memory_only_if_disjoint(is_chain: bool, num_buffers: int) -> None:
    weights = [torch.randn(16) for _ in range(6)]

    def changed(hidden: Tensor, weight: Tensor) -> Tensor:
        if is_chain:
            return ops().rms_norm(hidden, weight, 1e-6)
        return ops().mix_rows(hidden.view(-1, 1, 16), weight=weight).view(-1, 16)

    def forward(step: StepTensors) -> Tensor:
        first = ops().embedding(step["input_ids"], TABLE)
        hidden = first
        for weight in weights:
            hidden = changed(hidden, weight)
        return ops().fused_add_rms_norm(hidden, first, weights[0], 1e-6)[0]

    step = example(5)
    with torch.inference_mode():
        recorded = record_step(forward, example(), 64)
        assert torch.equal(recorded.run(step), forward(step))
    # The stream, and what the operations read and write in turn; the calls of a chain, which run
    # at once, share nothing.
    assert recorded.num_bytes == num_buffers * 64 * 16 * 4
