"""The dashboard and the rules ask only for metrics and labels that a server has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.engine.engines import engine_config
from vllm_lite.metrics.exposition import families, render
from vllm_lite.metrics.front_end import FrontEndMetrics
from vllm_lite.metrics.prometheus import EngineCollector

FOLDER = Path(__file__).parents[3] / "examples" / "observability"
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
        if variable["type"] == "datasource":
            continue
        yield query["query"] if isinstance(query, dict) else query
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_what_is_asked_for_is_there(expression: str) -> None:
    known = {"up": set(), **samples()}  # the former is Prometheus' own
    # What Grafana fills in, and the one query that is its own.
    query = expression.replace("$__rate_interval", "5m").replace("$model_name", "tiny")
    if query.startswith("label_values("):
        query, wanted = query.removeprefix("label_values(").removesuffix(")").split(", ")
        assert wanted in known[query]
    seen: list[str] = []
    labels: set[str] = set()
    grouped: set[str] = set()

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.MatrixSelector):
            part = part.vector_selector
        if isinstance(part, promql_parser.VectorSelector):
            assert part.name in known
            own = known[part.name] | OF_PROMETHEUS
            assert {matcher.name for matcher in part.matchers.matchers} <= own
            seen.append(part.name)
            labels.update(own)
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            grouped.update(part.modifier.labels)

    promql_parser.walk(promql_parser.parse(query), visit)
    assert seen and grouped <= labels
    if "histogram_quantile" in query:
        assert grouped >= {"le"} and all(name.endswith("_bucket") for name in seen)


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
