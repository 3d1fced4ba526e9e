"""The dashboard and the rules ask only for metrics and labels that a server has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.engine.engines import engine_config
from vllm_lite.metrics.exposition import families, render
from vllm_lite.metrics.front_end import FrontEndMetrics
from vllm_lite.metrics.prometheus import EngineCollector

FOLDER = Path(__file__).parents[3] / "examples" / "observability"
NAME = re.compile(r"\b(?:vllm:|http_)\w+")
LABELS = re.compile(r"((?:vllm:|http_)\w+)\{([^}]*)\}|\bby \(([^)]*)\)")
# Made by Prometheus itself.
OF_PROMETHEUS = {"instance", "job"}


def samples() -> dict[str, set[str]]:
    """Names of samples of a server that has answered, with their labels."""
    http = FrontEndMetrics("tiny")
    http.count_request("/v1/models", "GET", 200, sizes=(0, 1), seconds=0.1)
    text = render(families([EngineCollector(engine_config(), 10).registry, http.registry]))
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def expressions() -> Iterator[str]:
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in dashboard["templating"]["list"]:
        query: Any = variable["query"]
        yield query["query"] if isinstance(query, dict) else query
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_what_is_asked_for_is_there(expression: str) -> None:
    known = samples()
    names = set(NAME.findall(expression))
    assert names <= known.keys(), names - known.keys()
    labels = {label for name in names for label in known[name]} | OF_PROMETHEUS
    for _, matchers, grouped in LABELS.findall(expression):
        asked = re.findall(r"(\w+)\s*[=!]", matchers) + re.findall(r"\w+", grouped)
        assert set(asked) <= labels


def test_the_dashboard_shows_what_matters() -> None:
    text = (FOLDER / "grafana.json").read_text()
    for name in ("time_to_first_token_seconds", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f"vllm:{name}" in text
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 12


def test_prometheus_finds_the_rules_and_a_server() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert all((FOLDER / name).is_file() for name in config["rule_files"])
    (job,) = config["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["localhost:8000"]
