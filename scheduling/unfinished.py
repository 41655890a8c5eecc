"""Unfinished workloads with all that a plan asks of them, in a fixed number of queries.

The planner reads tens of thousands of rows, each with its attempts, and those with what they hold.
Django's own prefetching asks for the children of so many rows by as many numbers, and clones a
query for each parent. So each kind is read once here, and put where `row.attempts.all()` and the
like look first. What many rows share (projects, nodes, devices) is one object.

Workloads come first: what changes while the rest is read then has another generation than was read,
and a plan that touches it is refused.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from django.db.models import Model, OuterRef, Q, QuerySet, Subquery

from projects.models import Project
from scheduling.models import (
    Allocation,
    Attempt,
    Device,
    DeviceAllocation,
    DeviceHold,
    Loan,
    LoanState,
    Node,
    Workload,
)

Row = TypeVar("Row", bound=Model)


def read_all(nodes: Iterable[Node]) -> list[Workload]:
    """All unfinished workloads with project, open attempts and holds; attempts, in order of
    replica, with allocation, parts of devices by index, node, and open loans.

    Args:
        nodes: All of them, with their types and devices.
    """
    rows = list(_workloads())  # first: see above
    attempts = list(_attempts())
    devices = [device for node in nodes for device in node.devices.all()]
    held = Allocation.objects.filter(attempt__in=Attempt.objects.open())
    _complete(attempts, Q(allocation__in=held), devices)
    return _together(rows, attempts, list(DeviceHold.objects.all()), nodes)


def read_some(keys: Collection[uuid.UUID]) -> list[Workload]:
    """A few of them, alike."""
    rows = list(_workloads().filter(pk__in=keys))
    attempts = list(_attempts().filter(workload__in=keys))
    holds = list(DeviceHold.objects.filter(workload__in=keys))
    named = {each.node_id for each in attempts} | {each.node_id for each in holds}
    nodes = Node.objects.filter(pk__in=named).select_related("node_type")
    held = Q(allocation__attempt__in=[attempt.pk for attempt in attempts])
    _complete(attempts, held, Device.objects.filter(node__in=named))
    return _together(rows, attempts, holds, nodes)


def _workloads() -> QuerySet[Workload]:
    return Workload.objects.unfinished().defer("command", "env")


def _attempts() -> QuerySet[Attempt]:
    newest = Loan.objects.filter(borrower=OuterRef("pk")).order_by("-started_at")
    not_to_be_had = Q(ended_by="button") | Q(state=LoanState.REFUSED)
    given = Loan.objects.filter(not_to_be_had, lender=OuterRef("pk"))
    asked_back = given.order_by("-started_at")
    return (
        Attempt.objects.open()
        .select_related("allocation")
        .defer("last_lines", "idle_signals", "around_share", "error", "goal_detail")
        .annotate(
            last_loan_state=Subquery(newest.values("state")[:1]),
            last_loan_end=Subquery(newest.values("ended_by")[:1]),
            asked_back_at=Subquery(asked_back.values("ended_at")[:1]),
        )
        .order_by("replica")
    )


def _complete(attempts: Sequence[Attempt], held: Q, devices: Iterable[Device]) -> None:
    """Give attempts the parts of devices that they hold, and what they have on loan or lent.

    Args:
        attempts: Open ones.
        held: Which parts are theirs.
        devices: Theirs at least.
    """
    parts = DeviceAllocation.objects.filter(held).order_by("device__index")
    of_allocations = _by(parts, "allocation_id")
    _share(chain(*of_allocations.values()), "device", devices)
    _give((attempt.allocation for attempt in attempts), "devices", of_allocations)
    loans = list(Loan.objects.open().select_related("lender"))
    _give(attempts, "loans_given", _by(loans, "lender_id"))
    _give(attempts, "loans_taken", _by(loans, "borrower_id"))


def _together(
    rows: list[Workload],
    attempts: Sequence[Attempt],
    holds: Sequence[DeviceHold],
    nodes: Iterable[Node],
) -> list[Workload]:
    allocations = [attempt.allocation for attempt in attempts]
    known = list(nodes)
    for each in (attempts, allocations, holds):
        _share(each, "node", known)
    _share(rows, "project", Project.objects.filter(pk__in={row.project_id for row in rows}))
    _give(rows, "attempts", _by(attempts, "workload_id"))
    _give(rows, "holds", _by(holds, "workload_id"))
    return rows


def _by(rows: Iterable[Row], name: str) -> Mapping[Any, list[Row]]:  # keys of any kind
    found: defaultdict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[getattr(row, name)].append(row)
    return found


def _share(rows: Iterable[Model], name: str, others: Iterable[Model]) -> None:
    """Let a relation to one row answer from memory."""
    found = {other.pk: other for other in others}
    for row in rows:
        other = found.get(getattr(row, f"{name}_id"))
        if other is not None:
            row._state.fields_cache[name] = other


_NOTHING: list[Model] = []


def _give(rows: Iterable[Model], name: str, found: Mapping[Any, list[Row]]) -> None:
    """Let a relation to many rows answer from memory, as after `prefetch_related`."""
    for row in rows:
        known = row.__dict__.setdefault("_prefetched_objects_cache", {})
        known[name] = found.get(row.pk, _NOTHING)
