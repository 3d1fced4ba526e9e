"""The OpenAPI document tells the truth: schemathesis, with every check it has, finds nothing.

300 requests from a fixed seed; `SCHEMATHESIS_EXAMPLES=3000` before the command makes it 3,000.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import app_of
from vllm_lite.config.pooling import PoolingFacts

SEED = 20261122
TOTAL = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "300"))
# A document does not say everything that is refused: which fields exclude each other, say. What
# is too large is refused before anybody reads it.
CONFIG = {
    "checks": {
        "positive_data_acceptance": {"expected-statuses": [200, 400, 404]},
        "negative_data_rejection": {"expected-statuses": [400, 404, 405, 413, 415]},
    }
}

load_all_checks()
EVERY_CHECK = [CHECKS.get_one(name) for name in CHECKS.get_all_names()]
_storage = tempfile.TemporaryDirectory()
_POOLING = PoolingFacts(tasks=("embed", "classify"), size=8, num_labels=2)


def operations(app: FastAPI) -> dict[str, Any]:
    """The application's operations by their labels."""
    schema = schemathesis.openapi.from_asgi(
        "/openapi.json", app, config=SchemathesisConfig.from_dict(CONFIG)
    )
    return {one.label: one for one in (result.ok() for result in schema.get_all_operations())}


_OWN = operations(app_of(FakeEngineClient(), batch_storage_dir=_storage.name))
# What both kinds of servers have is asked of one, but for bodies that differ.
_ALSO = operations(app_of(FakeEngineClient(pooling=_POOLING)))
OPERATIONS = [
    *_OWN.values(),
    *(one for label, one in _ALSO.items() if label not in _OWN or "invocations" in label),
]
WITH_BODY = [one for one in OPERATIONS if one.body]
# What has a path only has nothing more to vary.
FEW = 3
MANY = (TOTAL - 2 * FEW * (len(OPERATIONS) - len(WITH_BODY))) // (2 * len(WITH_BODY)) + 1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keeps warnings of fields that nobody knows out of the report."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(before)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_every_check_of_schemathesis_passes(operation: Any, mode: GenerationMode) -> None:
    @hypothesis.seed(SEED)
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=MANY if operation.body else FEW,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    def send(case: Any) -> None:
        case.validate_response(case.call(), checks=EVERY_CHECK)

    try:
        send()
    except Unsatisfiable:
        # Nothing that could be wrong with a request without parameters.
        assert mode is GenerationMode.NEGATIVE and not operation.body
