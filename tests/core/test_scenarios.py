"""Every scenario file: what is expected comes out, and what must always hold holds after each plan.

Beside our own files, cases that lie next to the checkout are run where that folder is there; where
our policy decides otherwise on purpose, `differences.json` names the scenario and the rule.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from scheduling.core.cycle import plan
from scheduling.core.scenario import (
    Scenario,
    export_scenario,
    load_scenario,
    load_scenarios,
    run_scenario,
)
from tests.core.invariants import check_plan
from tests.core.worlds import shuffled

HERE = Path(__file__).resolve().parents[1] / "scenarios"
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "cases"
DIFFERENCES = json.loads((HERE / "differences.json").read_text(encoding="utf-8"))


def _scenarios() -> list[Scenario]:
    files = [path for path in sorted(HERE.glob("*.json")) if path.name != "differences.json"]
    files += [path for path in sorted(BESIDE.glob("*.json")) if path.name != "policy.json"]
    found: dict[str, Scenario] = {}
    for path in files:
        for scenario in load_scenarios(json.loads(path.read_text(encoding="utf-8"))):
            name = scenario.id if path.parent == HERE else f"{scenario.id} beside"
            assert name not in found, f"two scenarios are called {name}"
            found[name] = scenario
    return list(found.values())


SCENARIOS = _scenarios()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_scenario(scenario: Scenario) -> None:
    result = run_scenario(scenario)
    assert result.is_stable, result.differences
    if scenario.id in DIFFERENCES:
        assert result.differences, f"{scenario.id} no longer differs: take it off the list"
    else:
        assert result.passed is not False, result.differences
    snapshot = scenario.snapshot
    random = Random(scenario.id)
    for _ in range(scenario.cycles + 1):
        decided = plan(snapshot, scenario.policy, scenario.now_s)
        again = plan(shuffled(random, snapshot), scenario.policy, scenario.now_s)
        assert decided == again, "the plan depends on the order of its input"
        snapshot = check_plan(snapshot, decided, scenario.now_s)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_an_exported_scenario_gives_the_same_plan(scenario: Scenario) -> None:
    file = export_scenario(
        scenario.snapshot, scenario.policy, scenario.now_s, scenario_id=scenario.id
    )
    read = load_scenario(json.loads(json.dumps(file)))
    assert read.policy == scenario.policy
    assert plan(read.snapshot, read.policy, read.now_s) == plan(
        scenario.snapshot, scenario.policy, scenario.now_s
    )
