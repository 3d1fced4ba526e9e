"""The goals of embeddings are judged by what was measured."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("pooling_peers")


def verdicts(peers: Any, results: Any) -> list[bool | None]:
    return [goal.is_met(results) for goal in peers.GOALS]


def test_every_goal_is_judged_once_its_figures_are_there(peers: Any) -> None:
    results = peers.Results(machine={})
    assert set(verdicts(peers, results)) == {None}
    for goal in peers.GOALS:
        results.add(goal.work, goal.engine, goal.bound)
    # A bound that is just reached counts; ratios need the peers' figures.
    assert verdicts(peers, results) == [None if goal.peers else True for goal in peers.GOALS]


def test_ratios_are_to_the_best_of_the_peers(peers: Any) -> None:
    results = peers.Results(machine={})
    times, rates = peers.SINGLE, peers.OFFLINE
    figures = {
        rates: {"ours bfloat16": 30.0, "st bfloat16": 5.0, "st float32": 25.0},
        times: {"ours bfloat16": 4.0, "vllm bfloat16": 12.0},
    }
    for work, by_engine in figures.items():
        for engine, value in by_engine.items():
            results.add(work, engine, value)
    found = {goal.title: (goal.found(results), goal.is_met(results)) for goal in peers.GOALS}
    beside = "times better than"
    assert found[f"ours bfloat16: {rates}, {beside} st bfloat16 or st float32"] == (1.2, False)
    assert found[f"ours bfloat16: {times}, {beside} vllm bfloat16 or vllm float32"] == (3.0, True)
    assert found[f"ours bfloat16: {times}"] == (4.0, True)
    st = {engine.id: engine for engine in peers.ENGINES}
    assert peers.is_hopeless(st["st bfloat16"], results)
    assert not peers.is_hopeless(st["st float32"], results)
