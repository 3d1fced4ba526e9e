"""Made-up weights of every quantised form load without files, and give logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.checkpoints import make_model, save
from tests.models.runner import load
from tests.models.test_aqlm import FORMS as AQLM
from tests.models.test_integer_checkpoints import FORMATS
from tests.models.test_quantized_checkpoints import (
    CODES,
    PACKED,
    SIZES,
    SQUARE,
    TERNARY,
    logits,
)
from tests.models.test_quantized_experts import FORTIES, NAMES
from tests.models.test_quantized_experts import SIZES as EXPERTS
from tests.models.test_stored_codes import CASES

FORMS: dict[str, dict[str, Any]] = {f"aqlm {name}": form for name, form in AQLM.items()}
FORMS |= {f"bitnet {name}": form[0] for name, form in TERNARY.items()}
for cases in (PACKED, CODES, CASES, FORMATS):
    FORMS |= {name: case[0] for name, case in cases.items()}


def check(directory: Path, settings: dict[str, Any], family: str, sizes: dict[str, Any]) -> None:
    path = save(make_model(family, **sizes), directory)
    (path / "model.safetensors").unlink()
    model = load(path, load_format="dummy", hf_overrides={"quantization_config": settings})
    found = logits(model)
    assert found.isfinite().all() and found.std() > 0


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_dummy_weights(name: str, tmp_path: Path) -> None:
    others = SQUARE if "blocks" in name else SIZES
    check(tmp_path, FORMS[name], "llama", FORMATS[name][2] if name in FORMATS else others)


@pytest.mark.parametrize("name", NAMES)
def test_experts_of_every_form_have_dummy_weights(name: str, tmp_path: Path) -> None:
    check(tmp_path, FORMS[name], "qwen3_moe", FORTIES if "of 40" in name else EXPERTS)
