"""A claim like one that was made in vain is made again once something has changed for it."""

from __future__ import annotations

import pytest

from scheduling.core.cycle import plan
from scheduling.core.decisions import Evict, Hold
from scheduling.core.reclaim import LARGE
from scheduling.core.types import Node, Policy, Workload
from tests.core.invariants import check_plan
from tests.core.small import node, project, session, snapshot, training


def world(part: int, devices: tuple[str, str], *more: Node | Workload) -> list[Evict]:
    """On node n lie two parts of what `first` and `second` ask for: one that borrows from them, and
    a replica of a gang that only its own department may stop. That is stopped between the two
    claims, for a claimant on node o, where the gang's other replica lies.

    Returns:
        The evictions.
    """
    one, two = devices
    gpus = 1 if one == two else 2
    parts = snapshot(
        node("n", gpus),
        node("o", gpus, labels={"rack": "o"}),
        project("p", 2 * part, priority=300),
        project("d", 3 * part, priority=200),
        project("own", part, parent="d"),
        project("gang", 0, parent="d"),
        project("later", 2 * part),
        project("borrower", 0),
        project("steady", 100 * part),
        training("lent", "borrower", part, f"n:{one}"),
        training("w", "gang", part, f"n:{two}", f"o:{one}", min_replicas=2),
        session("z", "steady", part, f"o:{two}"),
        training("first", "p", 2 * part),
        training("between", "own", part, required_labels={"rack": "o"}),
        training("second", "later", 2 * part),
        *more,
    )
    decided = plan(parts, Policy(consolidation_max_moves=0), 0.0)
    check_plan(parts, decided)
    assert isinstance(next(d for d in decided.decisions if d.workload == "first"), Hold)
    return [d for d in decided.decisions if isinstance(d, Evict)]


def outcome(evictions: list[Evict]) -> list[tuple[str, str | None]]:
    return [(eviction.workload, eviction.claimant) for eviction in evictions]


EXPECTED = [("w", "between"), ("lent", "second")]


def test_one_device_that_has_become_free_in_part() -> None:
    assert outcome(world(500, ("0", "0"))) == EXPECTED


@pytest.mark.parametrize("num_others", [0, LARGE])
def test_two_devices_of_which_one_has_become_free(num_others: int) -> None:
    others: list[Node | Workload] = []
    for i in range(num_others):
        others += [node(f"f{i}", 1), session(f"s{i}", "steady", 1000, f"f{i}:0")]
    assert outcome(world(1000, ("0", "1"), *others)) == EXPECTED
