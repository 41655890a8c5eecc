"""Unfinished workloads with all that a plan asks of them, in a fixed number of queries.

The planner reads tens of thousands of rows, each with its attempts, and those with what they hold.
Django's own prefetching asks for the children of so many rows by as many numbers, and clones a
query for each parent. So each kind is read once here, and put where `row.attempts.all()` and the
like look first. What many rows share (projects, nodes, devices) is one object. Of one cycle's rows
most are the last one's: who plans again and again keeps them (`Rows`).

Workloads come first: what changes while the rest is read then has another generation than was read,
and a plan that touches it is refused.
"""

from __future__ import annotations

import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from django.db import connection
from django.db.models import Model, Q, QuerySet, TextField
from django.db.models.expressions import RawSQL

from projects.models import NodeType, Project
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
    Zone,
)

Row = TypeVar("Row", bound=Model)

_MAX_ASKED = 10_000
"""So many rows are asked for by their numbers; where more are new, all are read."""


class Kept(Generic[Row]):
    """Rows of one kind, each read again only once the database has another version of it.

    A version is where PostgreSQL keeps the row and which transaction wrote it there: it changes
    with every change of the row, whoever made it. Rows that are kept are not to be changed.
    """

    def __init__(self, shrink: Callable[[Row], None] = lambda row: None) -> None:
        """Keep nothing yet; `shrink` lets a row take less memory."""
        self._shrink = shrink
        self._known: dict[Any, Row] = {}  # keys of any kind

    def read(self, rows: QuerySet[Row]) -> list[Row]:
        """What a query selects now."""
        versioned = rows.annotate(row_version=_version_of(rows.model))
        if self._known:
            versions = dict(versioned.values_list("pk", "row_version"))
            news = [pk for pk, version in versions.items() if self._version(pk) != version]
            if len(news) <= min(_MAX_ASKED, len(versions) // 4):
                found = {**self._known, **self._fresh(versioned.filter(pk__in=news))}
                self._known = {pk: found[pk] for pk in versions if pk in found}
                return list(self._known.values())
        self._known = self._fresh(versioned)
        return list(self._known.values())

    def _fresh(self, rows: Iterable[Row]) -> dict[Any, Row]:
        found = {}
        for row in rows:
            self._shrink(row)
            found[row.pk] = row
        return found

    def _version(self, pk: object) -> str | None:
        return getattr(self._known.get(pk), "row_version", None)


def _version_of(model: type[Model]) -> RawSQL:
    table = connection.ops.quote_name(model._meta.db_table)
    return RawSQL(f"{table}.xmin::text || {table}.ctid::text", (), output_field=TextField())


class Rows:
    """All rows that plans are made from, kept from one plan to the next."""

    def __init__(self) -> None:
        self._nodes = Kept[Node]()
        self._devices = Kept[Device]()
        self._workloads = Kept[Workload](_share_words)
        self._attempts = Kept[Attempt]()
        self._allocations = Kept[Allocation]()
        self._parts = Kept[DeviceAllocation]()

    def nodes(self) -> list[Node]:
        """All nodes with their types, zones and devices."""
        nodes, devices = (
            self._nodes.read(Node.objects.all()),
            self._devices.read(Device.objects.all()),
        )
        _share(nodes, "zone", Zone.objects.all())
        _share(nodes, "node_type", NodeType.objects.all())
        _give(nodes, "devices", _by(devices, "node_id"))
        return nodes

    def workloads(self, nodes: Iterable[Node]) -> list[Workload]:
        """All unfinished workloads with project, open attempts and holds; attempts, in order of
        replica, with allocation, parts of devices by index, node, and open loans.

        Args:
            nodes: All of them, as `nodes` gives them.
        """
        rows = self._workloads.read(_workloads())  # first: see above
        attempts = sorted(self._attempts.read(_attempts()), key=_by_replica)
        open_ones = Attempt.objects.open()
        _complete(
            attempts,
            self._allocations.read(Allocation.objects.filter(attempt__in=open_ones)),
            self._parts.read(DeviceAllocation.objects.filter(allocation__attempt__in=open_ones)),
            [device for node in nodes for device in children(node, "devices")],
        )
        _complete_loans(attempts, open_ones)
        return _together(rows, attempts, list(DeviceHold.objects.all()), nodes)


def read_some(keys: Collection[uuid.UUID]) -> list[Workload]:
    """A few of them, alike."""
    rows = list(_workloads().filter(pk__in=keys))
    attempts = sorted(_attempts().filter(workload__in=keys), key=_by_replica)
    holds = list(DeviceHold.objects.filter(workload__in=keys))
    ids = [attempt.pk for attempt in attempts]
    named = {each.node_id for each in attempts} | {each.node_id for each in holds}
    _complete(
        attempts,
        Allocation.objects.filter(attempt__in=ids),
        DeviceAllocation.objects.filter(allocation__attempt__in=ids),
        Device.objects.filter(node__in=named),
    )
    _complete_loans(attempts, ids)
    nodes = Node.objects.filter(pk__in=named).select_related("node_type")
    return _together(rows, attempts, holds, nodes)


_UNREAD_OF_WORKLOADS = (
    "backoff_limit",
    "checkpoint_command",
    "checkpoint_every_s",
    "checkpoint_path",
    "checkpoint_signal",
    "command",
    "decisive",
    "ended_at",
    "env",
    "grace_s",
    "language",
    "num_extensions",
    "request_id",
    "session_secret",
    "working_dir",
)
_UNREAD_OF_ATTEMPTS = (
    "around_share",
    "cpu_limit_milli",
    "ended_at",
    "error",
    "exit_cause",
    "exit_code",
    "goal_at",
    "goal_detail",
    "idle_end_at",
    "idle_from",
    "idle_kept_until",
    "idle_last_warned_at",
    "idle_signals",
    "idle_warned_at",
    "is_retryable",
    "last_lines",
    "lost_progress_s",
    "memory_limit_mib",
    "num_replicas",
    "number",
    "peak_memory_mib",
    "rendezvous_port",
    "resumed_from",
)


def _workloads() -> QuerySet[Workload]:
    return Workload.objects.unfinished().defer(*_UNREAD_OF_WORKLOADS)


def _attempts() -> QuerySet[Attempt]:
    return Attempt.objects.open().defer(*_UNREAD_OF_ATTEMPTS)


def _share_words(row: Workload) -> None:
    """What thousands of reasons say alike is there once."""
    row.reason = _shared(row.reason)


def _shared(said: Any) -> Any:  # JSON
    if isinstance(said, str):
        return sys.intern(said)
    if isinstance(said, dict):
        return {sys.intern(key): _shared(value) for key, value in said.items()}
    return [_shared(each) for each in said] if isinstance(said, list) else said


def _by_replica(attempt: Attempt) -> int:
    return attempt.replica


def _complete(
    attempts: Sequence[Attempt],
    allocations: Iterable[Allocation],
    parts: Iterable[DeviceAllocation],
    devices: Iterable[Device],
) -> None:
    """Give open attempts their allocations, and these their parts of devices."""
    parts, allocations = list(parts), list(allocations)
    _share(parts, "device", devices)
    parts.sort(key=lambda part: part.device.index)
    _give(allocations, "devices", _by(parts, "allocation_id"))
    of_attempt = {allocation.attempt_id: allocation for allocation in allocations}
    for attempt in attempts:
        allocation = of_attempt.get(attempt.pk)
        if allocation is not None:
            attempt._state.fields_cache["allocation"] = allocation


def _complete_loans(
    attempts: Sequence[Attempt], named: Collection[uuid.UUID] | QuerySet[Attempt]
) -> None:
    """Give attempts the loans that are open, and what came of the last of those that are not.

    Args:
        attempts: Open ones.
        named: The same, to ask for their loans.
    """
    loans = list(Loan.objects.open().select_related("lender"))
    _give(attempts, "loans_given", _by(loans, "lender_id"))
    _give(attempts, "loans_taken", _by(loans, "borrower_id"))
    of_borrowers = Loan.objects.filter(borrower__in=named).order_by("borrower", "-started_at")
    last = {
        pk: {"last_loan_state": state, "last_loan_end": end}
        for pk, state, end in of_borrowers.distinct("borrower").values_list(
            "borrower", "state", "ended_by"
        )
    }
    not_to_be_had = Q(ended_by="button") | Q(state=LoanState.REFUSED)
    of_lenders = Loan.objects.filter(not_to_be_had, lender__in=named)
    asked_back = dict(
        of_lenders.order_by("lender", "-started_at")
        .distinct("lender")
        .values_list("lender", "ended_at")
    )
    never = {"last_loan_state": None, "last_loan_end": None}
    for attempt in attempts:
        vars(attempt).update(last.get(attempt.pk, never), asked_back_at=asked_back.get(attempt.pk))


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


def children(row: Model, name: str) -> Sequence[Any]:  # of whatever model the relation has
    """What `row.<name>.all()` gives, without the manager and the query that Django makes for it
    each time, where it was read before."""
    read = vars(row).get("_prefetched_objects_cache", {}).get(name)
    return list(getattr(row, name).all()) if read is None else read


_NOTHING: list[Model] = []


def _give(rows: Iterable[Model], name: str, found: Mapping[Any, list[Row]]) -> None:
    """Let a relation to many rows answer from memory, as after `prefetch_related`."""
    for row in rows:
        known = row.__dict__.setdefault("_prefetched_objects_cache", {})
        known[name] = found.get(row.pk, _NOTHING)
