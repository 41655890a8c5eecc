"""A training's time limit against the really started stack: warned, saved, stopped, whoever of the
worker and beat was away meanwhile."""

from __future__ import annotations

import pytest

from scheduling.management.stack import until
from tests.e2e.stack import Stack
from tests.e2e.test_story import api_get, api_submit, training, wait_for_phase

pytestmark = [pytest.mark.e2e, pytest.mark.alone]


def events(stack: Stack, workload: object) -> list[str]:
    query = "SELECT code FROM scheduling_event WHERE workload_id = %s ORDER BY id"
    return [str(code) for (code,) in stack.rows(query, workload)]


def test_at_its_end_a_training_saves_and_stops_and_the_next_run_goes_on(stack: Stack) -> None:
    arguments = "--steps 100000 --step-delay 0.05"
    values = {**training("language", "limited", arguments), "max_run_s": 60}
    workload = api_submit(stack, "lena", **values)["id"]
    wait_for_phase(stack, workload, "running")
    until(lambda: "limit_warning" in events(stack, workload), "the first warning", 90)
    limit = api_get(stack, "lena", f"workloads/{workload}")["time_limit"]
    assert isinstance(limit, dict)
    assert limit["warned_end_at"] is not None
    for name in ("worker", "beat", "agent"):
        stack.kill(name)
    wait_for_phase(stack, workload, "stopped", limit_s=180)
    told = events(stack, workload)
    assert told.count("limit_warning") == 2
    assert told.index("time_limit") < told.index("ended")
    found = api_get(stack, "lena", f"workloads/{workload}")
    assert isinstance(found["reason"], dict)
    assert found["reason"]["code"] == "time_limit"
    assert found["num_failures"] == 0
    saved = "SELECT count(*) FROM scheduling_checkpoint WHERE workload_id = %s AND is_kept"
    ((num_saved,),) = stack.rows(saved, workload)
    assert num_saved
    with stack.client("lena") as client:
        assert client.post(f"/api/v1/workloads/{workload}/retry").is_success
    until(
        lambda: stack.rows(
            "SELECT 1 FROM scheduling_attempt WHERE workload_id = %s AND number = 2"
            " AND phase = 'running' AND resumed_from_id IS NOT NULL",
            workload,
        ),
        "it goes on from its checkpoint",
        90,
    )
    again = api_get(stack, "lena", f"workloads/{workload}")["time_limit"]
    assert isinstance(again, dict)
    assert again["left_s"] > 0
    assert again["ran_s"] < 60, "with all of its time"
