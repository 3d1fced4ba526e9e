"""The implementation is chosen once, by the environment or the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from vllm_lite import _cpu
from vllm_lite.errors import UsageError
from vllm_lite.kernels import cpu, dispatch, reference


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    yield
    dispatch.select_ops("cpu")


def test_the_machine_s_best_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_LITE_CPU_ISA", raising=False)
    assert dispatch.select_ops("cpu") is cpu
    assert dispatch.ops() is cpu
    assert _cpu.selected_isa() == _cpu.supported_isas()[0]
    assert dispatch.describe().startswith(f"{_cpu.selected_isa()}, {_cpu.num_threads()} thread")


@pytest.mark.parametrize("name", _cpu.supported_isas())
def test_each_supported_set_can_be_forced(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", name.upper())
    dispatch.select_ops("cpu")
    assert _cpu.selected_isa() == name


def test_the_reference_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "reference")
    assert dispatch.select_ops("cpu") is reference
    assert dispatch.describe().startswith("reference")


def test_unknown_choices_name_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_CPU_ISA", "mmx")
    with pytest.raises(UsageError, match="'mmx' is unknown; choose from auto, avx512_bf16"):
        dispatch.select_ops("cpu")
    monkeypatch.undo()
    with pytest.raises(UsageError, match="no kernels for device 'cuda'"):
        dispatch.select_ops("cuda")


def test_a_missing_module_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm_lite._cpu", None)
    monkeypatch.delattr("vllm_lite._cpu", raising=False)
    with pytest.raises(UsageError, match=r"run `pip install \.`"):
        dispatch.select_ops("cpu")
