"""Tests every case of every model family, and writes what was tested as a table.

python -m tests.models.matrix docs/models_tested.md        `make test-families`
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.models.families import CASES, FAMILIES

FOLDER = Path(__file__).parent
# The columns: tests by name, and what their parameters have to hold.
COLUMNS = {
    "logits": ("test_logits_equal_transformers", ""),
    "recorded": ("test_a_recorded_step_is_the_forward_pass", ""),
    "blocks of 8": ("test_no_schedule_changes_a_token", "-8"),
    "blocks of 32": ("test_no_schedule_changes_a_token", "-32"),
    "2 ranks": ("test_ranks_together_equal_one", "-2"),
    "4 ranks": ("test_ranks_together_equal_one", "-4"),
}
FILES = ("test_families", "test_recorded_step", "test_schedules", "test_tensor_parallel")
HEAD = """# Models as tested

Made by `make test-families`: each case of each architecture is a random tiny checkpoint with odd
sizes. Compared are, in float32 with transformers' own module (or the plain one that the case
names): logits within 1e-4, in one step and in chunks beside another sequence; greedy tokens in
chunks of 16, preempted (but where states alone are kept, which never grow), in a batch of 35 and
from a warm prefix cache, by blocks of 8 and of 32; a recorded step with the forward pass, bit for
bit; and two and four ranks with one, for the first case of a family (a dash: its sizes cannot be
divided, which it says when it starts).

"""


class Outcomes:
    """The outcomes of tests, by name and parameters."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        match = re.fullmatch(r".*::(\w+)\[(.*)\]", report.nodeid)
        if match and (report.when == "call" or report.failed):
            self.found[match[1]][match[2]].append(report.passed)

    def cell(self, column: str, case: str) -> str:
        """Whether the tests of `column` passed for `case`; a dash where there are none."""
        test, suffix = COLUMNS[column]
        # Parameters follow the case, or come before it.
        names = {case + suffix, f"{suffix[1:]}-{case}"}
        names |= {f"{dtype}-{case}" for dtype in ("float32", "bfloat16")}
        names |= {f"{case}-{dtype}" for dtype in ("float32", "bfloat16")}
        outcomes = [passed for name in names for passed in self.found[test].get(name, [])]
        if not outcomes:
            return "-"
        return "yes" if all(outcomes) else "**no**"


def main() -> int:
    outcomes = Outcomes()
    files = [str(FOLDER / f"{name}.py") for name in FILES]
    wanted = " or ".join(test for test, _ in COLUMNS.values())
    status = pytest.main(["-n", "2", "-k", wanted, *files], plugins=[outcomes])
    lines = ["| compared with | case | " + " | ".join(COLUMNS) + " |"]
    lines.append("| --- | --- |" + " --- |" * len(COLUMNS))
    for case, (family, _) in CASES.items():
        cells = [f"`{FAMILIES[family].architecture}`", case]
        cells += [outcomes.cell(column, case) for column in COLUMNS]
        lines.append("| " + " | ".join(cells) + " |")
    Path(sys.argv[1]).write_text(HEAD + "\n".join(lines) + "\n")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
