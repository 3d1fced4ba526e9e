"""How many blocks of a kernel a processor holds, by arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

FOLDER = Path(__file__).parents[2] / "benchmarks/gpu"
OF_EACH_RECORD = pytest.mark.parametrize(
    "record", sorted(FOLDER.glob("kernel_resources_*.json")), ids=lambda path: path.stem
)


@pytest.mark.parametrize(
    ("target", "warps", "registers", "shared", "blocks"),
    [
        (80, 4, 32, 0, 16),  # all 64 warps
        (80, 4, 33, 0, 12),  # 40 registers: 12 warps in each of four parts
        (90, 8, 255, 0, 1),  # two warps in each part
        (90, 4, 64, 100 * 1024, 2),  # with 1 KiB each
        (80, 4, 64, 81 * 1024, 2),
        (80, 4, 64, 81 * 1024 + 1, 1),
        (89, 1, 16, 0, 24),
        (89, 8, 16, 0, 6),
    ],
)
def test_the_scarcest_of_a_processor_decides(
    monkeypatch: pytest.MonkeyPatch,
    target: int,
    warps: int,
    registers: int,
    shared: int,
    blocks: int,
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    from kernel_resources import blocks_a_processor

    figures = {"registers": registers, "stack": 0, "shared": shared}
    assert blocks_a_processor(figures, warps, target) == blocks


def test_a_version_without_a_record_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import kernel_resources

    monkeypatch.setattr(kernel_resources, "VERSION", "9.9")
    monkeypatch.setattr("sys.argv", ["kernel_resources.py", "--check"])
    with pytest.raises(SystemExit, match=r"^Triton 9\.9 has no record to check: .* --write$"):
        kernel_resources.main()


@OF_EACH_RECORD
def test_programs_of_split_attention_are_at_a_processor_at_once(
    monkeypatch: pytest.MonkeyPatch, record: Path
) -> None:
    """Of 16-bit caches: more programs than fit would begin when the first have ended."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from kernel_resources import blocks_a_processor

    from vllm_lite.kernels.gpu.triton.attention.splits import _PROGRAMS_A_PROCESSOR

    kernels = json.loads(record.read_text())["kernels"]
    split = [
        targets
        for name, targets in kernels.items()
        if name.startswith("paged_attention_kernel")
        and all(part in name for part in ("block_m=16,", "format=0,", "is_split=True"))
    ]
    assert len(split) > 5
    for targets in split:
        for target in (80, 90):
            held = blocks_a_processor(targets[f"sm_{target}"], 4, target)
            assert held >= _PROGRAMS_A_PROCESSOR, (target, targets)


@OF_EACH_RECORD
def test_no_other_kernels_spill_than_those_that_may(
    monkeypatch: pytest.MonkeyPatch, record: Path
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    from kernel_resources import MAY_SPILL

    kernels = json.loads(record.read_text())["kernels"]
    for name, targets in kernels.items():
        spills = any(figures["stack"] for figures in targets.values())
        assert not spills or name.startswith(MAY_SPILL), name
