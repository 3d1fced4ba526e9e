"""A few of the mutants that mutate_checkpoints makes by the hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.mutate_checkpoints import attack

# Loading a dozen models, on a crowded machine.
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("num_families", [6, pytest.param(None, marks=pytest.mark.slow)])
def test_a_damaged_checkpoint_is_one_line_or_serves_finite_logits(
    tmp_path: Path, num_families: int | None
) -> None:
    reports = attack(count=6, seed=1, keep=tmp_path, num_families=num_families)
    assert [report.faults for report in reports.values()] == [[], [], []]
    assert all(report.outcomes.total() == 6 for report in reports.values())
