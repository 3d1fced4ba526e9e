"""The implementation is chosen once, by the environment or the machine."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vllm_lite import _cpu
from vllm_lite.errors import UsageError
from vllm_lite.kernels import dispatch
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.gpu.backends import gpu_ops
from vllm_lite.kernels.reference.ops import CpuOps, GpuOps, Ops
from vllm_lite.quantization import unquantized
from vllm_lite.quantization.registry import get_linear_method

# The names that each class declares, with those of its base.
OPERATIONS = {
    kind: {name for base in kind.__mro__ for name in vars(base) if not name.startswith("_")}
    for kind in (Ops, CpuOps, GpuOps)
}


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    yield
    dispatch.select_ops("cpu")


def test_implementations_match_the_reference_signatures() -> None:
    implementations: list[tuple[Any, type[Ops]]] = [(cpu, CpuOps)]
    if importlib.util.find_spec("triton"):
        from vllm_lite.kernels.gpu.triton import ops

        implementations.append((ops, GpuOps))
    for module, declared in implementations:
        public = {name for name, value in vars(module).items() if inspect.isfunction(value)}
        assert public == OPERATIONS[declared]
        for name in public:
            theirs = inspect.signature(getattr(declared, name)).parameters.values()
            ours = inspect.signature(getattr(module, name)).parameters.values()
            assert [(p.name, p.kind, p.default) for p in ours] == [
                (p.name, p.kind, p.default) for p in theirs
            ], name


def test_the_best_supported_isa_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_LITE_CPU_ISA", raising=False)
    assert dispatch.select_ops("cpu") is cpu
    assert dispatch.ops() is cpu
    assert _cpu.selected_isa() == _cpu.supported_isas()[0]
    assert dispatch.describe().startswith(f"{_cpu.selected_isa()}, {_cpu.num_threads()} thread")


def test_cpu_selection_imports_no_gpu_kernels() -> None:
    code = """
import sys
import vllm_lite.worker.worker
from vllm_lite.kernels import dispatch
dispatch.select_ops("cpu")
print(*(m for m in sys.modules if m.startswith(("vllm_lite._cuda", "vllm_lite.kernels.gpu.cuda"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", _cpu.supported_isas())
def test_each_supported_isa_can_be_forced(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", name.upper())
    dispatch.select_ops("cpu")
    assert _cpu.selected_isa() == name


def test_the_reference_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "reference")
    assert dispatch.select_ops("cpu") is Ops
    assert dispatch.describe().startswith("reference")


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_reference_and_triton_refuse_deterministic_mode(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", name)
    with pytest.raises(UsageError, match=f"cannot be kept with VLLM_LITE_CPU_ISA={name}"):
        dispatch.select_ops("cpu", deterministic=True)


def test_description_mentions_deterministic_mode() -> None:
    dispatch.select_ops("cpu")
    assert "deterministic" not in dispatch.describe()
    dispatch.select_ops("cpu", deterministic=True)
    assert dispatch.describe().endswith(", deterministic")


def test_unknown_choices_list_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "mmx")
    with pytest.raises(UsageError, match="'mmx' is unknown; choose from auto, amx, avx512_bf16"):
        dispatch.select_ops("cpu")
    monkeypatch.undo()
    for device in ("tpu", "cuda"):
        with pytest.raises(UsageError, match=f"can use no device '{device}' here; use"):
            dispatch.select_ops(device)


@pytest.mark.parametrize("backend", [None, "TRITON_ATTN", "TORCH_SDPA"])
def test_a_gpu_has_a_choice_of_backends(backend: str | None) -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu import sdpa
    from vllm_lite.kernels.gpu.triton import ops

    chosen = gpu_ops(backend)
    own = {"paged_attention": sdpa.paged_attention} if backend == "TORCH_SDPA" else {}
    for name in OPERATIONS[GpuOps]:
        assert getattr(chosen, name) is own.get(name, getattr(ops, name))


def test_deterministic_mode_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu import tuning
    from vllm_lite.kernels.gpu.triton.products.linear import fixed_linear

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for backend in ("CUDA", "TORCH_SDPA"):
        with pytest.raises(UsageError, match=f"kept by --attention-backend {backend}.*TRITON_ATTN"):
            dispatch.select_ops("cuda", backend, deterministic=True)
    dispatch.select_ops("cuda", deterministic=True)
    assert tuning.is_fixed() and dispatch.describe().endswith(", deterministic")
    with pytest.raises(UsageError, match="kept on a GPU by --quantization gguf"):
        get_linear_method("gguf", torch.bfloat16)
    assert isinstance(get_linear_method(None, torch.bfloat16), unquantized.UnquantizedLinearMethod)
    weight = torch.randn(5, 32).half()
    x = torch.randn(3, 32).half()
    product = unquantized.plain_kernel(weight, None, torch.float32)(x)
    assert torch.equal(product, fixed_linear(x, weight, None, torch.float32))
    dispatch.select_ops("cuda")
    assert not tuning.is_fixed()


def test_a_missing_backend_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"XFORMERS has no kernels.*; use TRITON_ATTN, CUDA"):
        gpu_ops("XFORMERS")
    pytest.importorskip("triton")
    for name, package in (("FLASH_ATTN", "flash_attn"), ("FLASHINFER", "flashinfer")):
        module = f"vllm_lite.kernels.gpu.{package.removesuffix('_attn')}_attention"
        monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UsageError, match=f"{name} cannot be used .*{package}.*pip install"):
            gpu_ops(name)
    monkeypatch.setitem(sys.modules, "vllm_lite._cuda", None)
    monkeypatch.delitem(sys.modules, "vllm_lite.kernels.gpu.cuda.ops", raising=False)
    with pytest.raises(UsageError, match=r"CUDA cannot be used .*VLLM_LITE_CUDA=ON"):
        gpu_ops("CUDA")


def test_a_missing_module_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm_lite._cpu", None)
    monkeypatch.delattr("vllm_lite._cpu", raising=False)
    with pytest.raises(UsageError, match=r"run `pip install \.`"):
        dispatch.select_ops("cpu")


def test_read_bandwidth_needs_a_whole_piece() -> None:
    piece = dispatch.READ_PIECE
    whole, half = (torch.ones(size, dtype=torch.uint8) for size in (piece, piece // 2))
    for tensors in ([], [half], [torch.ones(dispatch.READ_UNIT - 1, dtype=torch.uint8)] * 3):
        assert dispatch.read_bandwidth(tensors, 60.0) is None
    assert dispatch.read_bandwidth([whole], 0.0) is None
    for tensors in ([whole], [half, half], [half, whole, half]):
        speed = dispatch.read_bandwidth(tensors, 60.0)
        assert speed is not None and 1e6 < speed < 1e13


def test_the_reference_has_no_read_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "reference")
    dispatch.select_ops("cpu")
    assert dispatch.read_bandwidth([torch.ones(dispatch.READ_PIECE)], 60.0) is None
