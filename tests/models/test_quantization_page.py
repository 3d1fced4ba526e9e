"""docs/quantization.md has a row for every name, and a test for every row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.models.demo_checkpoints import ALIKE, CHECKPOINTS
from tests.models.make_quantization_page import (
    BEYOND,
    LIMIT,
    LOADS,
    RESULTS,
    ROWS,
    STORED,
    Row,
    cases,
    in_flight,
    option_of,
    page,
    readable,
)
from tests.models.quantized_checkpoints import write_pair
from tests.models.runner import load
from tests.models.test_integer_checkpoints import TILED
from tests.models.test_quantized_checkpoints import logits
from tests.test_flags import names_in
from vllm_lite.config.model import LoadConfig, ModelConfig
from vllm_lite.config.quantized.registry import HARDWARE, OTHER_NAMES, READERS

READ = [row for row in ROWS if readable(row.names) or not row.names]


def test_the_page_is_what_the_tables_say() -> None:
    written = Path(__file__).parents[2] / "docs" / "quantization.md"
    advice = "run `python -m tests.models.make_quantization_page > docs/quantization.md`"
    assert written.read_text() == page(), advice


def test_every_name_has_one_row() -> None:
    choices = option_of(ModelConfig, "quantization").choices
    known = [name for row in READ for name in readable(row.names)]
    assert len(known) == len(set(known))
    assert {*known, *in_flight(), *HARDWARE} == set(readable(choices))
    assert {method for row in READ for method in row.methods} >= {*READERS} - {*readable(choices)}
    assert set(LOADS) == set(option_of(LoadConfig, "load_format").choices)


@pytest.mark.parametrize("row", READ, ids=lambda row: (row.names or row.methods)[0])
def test_every_row_is_of_readers_that_are_tested(row: Row) -> None:
    assert is_there(row.test)
    for name in readable(row.names):
        stored = {name, *OTHER_NAMES.get(name, ())}
        assert not stored.isdisjoint(row.methods) or not row.methods
    assert cases(row) or not row.methods


def test_every_form_in_flight_and_load_format_is_tested() -> None:
    tests = [test for _, test in (*in_flight().values(), *LOADS.values())]
    assert all(map(is_there, tests)), [test for test in tests if not is_there(test)]


def test_files_are_worth_themselves_dequantised_but_for_those_that_the_page_names() -> None:
    files = [each for each in json.loads(RESULTS.read_text())["results"] if each["part"] == "GGUF"]
    beyond = {each["name"] for each in files if abs(each["of_itself_percent"]) > LIMIT}
    assert files and beyond == set(BEYOND)
    lost = {each["name"] for each in files if each["change_percent"] >= 1000}
    assert beyond - lost == {"IQ1_M", "IQ2_XXS"}


def test_every_checkpoint_is_measured() -> None:
    results = json.loads(RESULTS.read_text())["results"]
    assert {each["name"] for each in results if each["part"] == STORED} == set(CHECKPOINTS)
    read = {settings["quant_method"] for _, settings, _ in (CHECKPOINTS | ALIKE).values()}
    # gpt-oss's experts are a model's of their own.
    assert {method for row in READ for method in row.methods} <= read | {"gguf", "mxfp4"}


@pytest.mark.parametrize("name", ALIKE)
def test_layouts_that_are_shown_as_another_have_its_logits(name: str, tmp_path: Path) -> None:
    other, *own = ALIKE[name]
    found, _ = write_pair(tmp_path / "own", *own, **TILED)
    known, _ = write_pair(tmp_path / "other", *CHECKPOINTS[other][1:], **TILED)
    # Zero points of some are subtracted elsewhere in a sum.
    torch.testing.assert_close(logits(load(found)), logits(load(known)), rtol=0, atol=1e-4)


def is_there(test: str) -> bool:
    """Whether the test `file::name` is there."""
    file, _, name = test.partition("::")
    return name in names_in(file)
