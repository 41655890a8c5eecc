"""Whoever waits in a kept cycle is asked about once, however often shares have risen."""

from __future__ import annotations

from scheduling.core.cycle import Cycle
from scheduling.core.others import Others
from scheduling.core.state import State
from scheduling.core.types import Policy, ProjectId
from tests.core.small import GPU, node, project, session, snapshot, training


def test_a_newcomer_beside_others_who_gained_waits_once() -> None:
    parts = snapshot(
        node("n", 1),
        project("p", 1000),
        session("runs", "p", 1000, "n:0"),
        training("waits", "p", 1000),
    )
    cycle = Cycle(State(parts, Policy(), 0.0))
    cycle.decide(lambda _: None, with_estimates=False)
    others = Others(cycle)
    account = cycle.state.accounts.by_id[ProjectId("p")]
    gpu = cycle.state.resources.number[GPU]
    assert others.fail({account: {gpu: 0}}, {}), "nobody has anything to give"
    others.join(cycle.state.enter(training("new", "p", 500)))
    assert [batch.first.id for batch in others.waiting()] == ["waits", "new"]
