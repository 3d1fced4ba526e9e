"""A few of the mutants that mutate_checkpoints makes by the hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.mutate_checkpoints import attack

# Loading a dozen models, on a crowded machine.
pytestmark = pytest.mark.timeout(300)


def test_a_damaged_checkpoint_is_one_line_or_serves_finite_logits(tmp_path: Path) -> None:
    reports = attack(count=6, seed=1, keep=tmp_path)
    assert [report.faults for report in reports.values()] == [[], [], []]
    assert all(report.outcomes.total() == 6 for report in reports.values())
