"""A zone in virtual time: sessions are used and fall idle, trainings borrow, yield and end.

The simulated back end of lending. It does what an agent does with the core's decisions (copies
device memory out before a borrower starts, wakes a session at once when it is used, whoever
borrows) with a clock of its own, and records each loan. A scenario with an `activity` runs through
it, and so does the week of `manage.py bench swap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop

from scheduling.core.cycle import plan
from scheduling.core.decisions import Plan
from scheduling.core.lenders import swap_rate
from scheduling.core.predict.idleness import Spell, expected_left_s
from scheduling.core.scenario.following import follow
from scheduling.core.types import (
    Idleness,
    Kind,
    Loan,
    Node,
    Policy,
    Replica,
    ReplicaId,
    ReplicaState,
    Snapshot,
    Workload,
    WorkloadId,
)

MAX_CYCLES_AT_ONCE = 20
MAX_SPELLS = 200
"""A person's latest idle spells that are looked at, as the database's reader does."""


@dataclass(frozen=True, slots=True)
class Use:
    """A session's days.

    Attributes:
        used: From when to when its device is used, in order, not overlapping.
        past_idle_s: How long its owner's sessions were idle before, for the prediction.
    """

    used: tuple[tuple[float, float], ...]
    past_idle_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """A training's length, in seconds of running, and its device memory."""

    run_s: float
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Activity:
    """What happens in a zone while its scheduler plans.

    Attributes:
        period_s: The scheduler is woken at each change, and this often besides.
        parks: Whether borrowers yield in memory; else they save, stop and start anew.
        start_s: For a training to start, or start anew.
    """

    until_s: float
    uses: Mapping[WorkloadId, Use]
    works: Mapping[WorkloadId, Work] = field(default_factory=dict)
    period_s: float = 60.0
    parks: bool = True
    start_s: float = 10.0


@dataclass(frozen=True, slots=True)
class LoanRecord:
    """One loan, as it went.

    Attributes:
        runs_from_s: When memory was copied and the borrower ran.
        to_s: None while it goes on.
        ended_by: `cell` (its session was used), `other_lender`, `borrower_ended`, `orchestrator`.
        wake_s: From the cell to the session's memory being back, where a cell ended it.
    """

    lender: WorkloadId
    borrower: WorkloadId
    from_s: float
    runs_from_s: float
    gpu_milli: int
    to_s: float | None = None
    ended_by: str = ""
    wake_s: float | None = None


class SwappingZone:
    """The zone, its clock, and what came of it."""

    def __init__(
        self, snapshot: Snapshot, policy: Policy, activity: Activity, now_s: float = 0.0
    ) -> None:
        self.snapshot = snapshot
        self.now_s = now_s
        self.plans: list[Plan] = []
        self.closed: list[LoanRecord] = []
        self.open: dict[ReplicaId, LoanRecord] = {}
        self.run_gpu_s: dict[WorkloadId, float] = {}
        self.num_plans = 0
        self.on_end: Callable[[], None] | None = None
        self._policy = policy
        self._activity = activity
        self._nodes: dict[str, Node] = {node.name: node for node in snapshot.nodes}
        self._spells = {
            name: [Spell(lasted_s) for lasted_s in use.past_idle_s]
            for name, use in activity.uses.items()
        }
        self._idle_since: dict[WorkloadId, float | None] = {}
        self._woke_s: dict[WorkloadId, float] = {}
        self._works = dict(activity.works)
        self._left_s = {name: work.run_s for name, work in activity.works.items()}
        self._runs_from: dict[ReplicaId, float] = {}
        self._events: list[float] = []
        for name in activity.uses:
            self._idle_since[name] = None if self._is_used(name) else now_s
        self._push(edge for use in activity.uses.values() for span in use.used for edge in span)

    def _push(self, times: Iterable[float]) -> None:
        self._events.extend(time for time in times if self.now_s < time <= self._activity.until_s)
        heapify(self._events)

    def submit(self, workload: Workload, work: Work) -> None:
        """One more training, from now on."""
        self._left_s[workload.id] = work.run_s
        self._works[workload.id] = work
        self.snapshot = replace(self.snapshot, workloads=(*self.snapshot.workloads, workload))

    def run(self, on_plan: Callable[[Plan], None] | None = None) -> None:
        """Let time pass until the activity's end."""
        until_s = self._activity.until_s
        self._plan(on_plan)
        while self.now_s < until_s:
            target = min(self._next_event(), self._next_end(), until_s)
            self._advance(target)
            while self._events and self._events[0] <= self.now_s:
                heappop(self._events)
            self._observe_uses()
            self._end_trainings()
            self._plan(on_plan)

    def _next_event(self) -> float:
        next_s = self.now_s + self._activity.period_s
        return min(next_s, self._events[0]) if self._events else next_s

    def _next_end(self) -> float:
        """When the next training will have done its work."""
        ends = [
            max(self.now_s, self._runs_from.get(replica.id, self.now_s)) + left_s
            for workload, replica in self._running_trainings()
            if (left_s := self._left_s.get(workload.id)) is not None
        ]
        return min(ends, default=self._activity.until_s)

    def _running_trainings(self) -> Iterable[tuple[Workload, Replica]]:
        for workload in self.snapshot.workloads:
            if workload.kind is Kind.TRAINING:
                for replica in workload.replicas:
                    if replica.state in (ReplicaState.RUNNING, ReplicaState.LENT):
                        yield workload, replica

    def _advance(self, to_s: float) -> None:
        done: set[WorkloadId] = set()
        for workload, replica in self._running_trainings():
            from_s = max(self.now_s, self._runs_from.get(replica.id, self.now_s))
            ran_s = max(0.0, to_s - from_s)
            placement = replica.placement
            assert placement is not None
            gpus = placement.milli_per_device * len(placement.devices) / 1000
            self.run_gpu_s[workload.id] = self.run_gpu_s.get(workload.id, 0.0) + ran_s * gpus
            if workload.id in self._left_s and workload.id not in done:
                done.add(workload.id)
                self._left_s[workload.id] -= ran_s
        self.now_s = to_s

    # What people do.

    def _is_used(self, name: WorkloadId) -> bool:
        return any(a <= self.now_s < b for a, b in self._activity.uses[name].used)

    def _observe_uses(self) -> None:
        for name in sorted(self._activity.uses):
            since_s, is_used = self._idle_since[name], self._is_used(name)
            if is_used and since_s is not None:
                self._idle_since[name] = None
                self._spells[name].append(Spell(self.now_s - since_s))
                del self._spells[name][:-MAX_SPELLS]
                self._wake(name)
            elif not is_used and since_s is None:
                self._idle_since[name] = self.now_s
                workload = self._workload(name)
                if workload is not None and workload.idle is not None:
                    self._push([self.now_s + workload.idle.window_s])

    def _workload(self, name: WorkloadId) -> Workload | None:
        return next((w for w in self.snapshot.workloads if w.id == name), None)

    def _wake(self, name: WorkloadId) -> None:
        """The agent's part: the borrower's memory leaves, the session's comes back, at once."""
        workload = self._workload(name)
        if workload is None:
            return
        record = self.open.get(workload.replicas[0].id)
        if record is None:
            return
        borrower = self._workload(record.borrower)
        assert borrower is not None
        rate = self._rate(workload.replicas[0])
        work = self._works.get(record.borrower, Work(0.0))
        copied = (workload.idle.memory_mib if workload.idle else 0) + work.memory_mib
        wake_s = copied / rate
        self._woke_s[name] = self.now_s + wake_s
        self._close(record.borrower, "other_lender", {name: ("cell", wake_s)})
        self._yield(record.borrower)

    def _rate(self, replica: Replica) -> float:
        assert replica.placement is not None
        return swap_rate(self._policy, self._nodes[replica.placement.node].node_type)

    def _close(
        self,
        borrower: WorkloadId,
        ended_by: str,
        special: Mapping[WorkloadId, tuple[str, float]] | None = None,
    ) -> None:
        for name in [name for name, record in self.open.items() if record.borrower == borrower]:
            record = self.open.pop(name)
            cause, wake_s = (special or {}).get(record.lender, (ended_by, None))
            self._woke_s.setdefault(record.lender, self.now_s)
            self._woke_s[record.lender] = max(self._woke_s[record.lender], self.now_s)
            self.closed.append(replace(record, to_s=self.now_s, ended_by=cause, wake_s=wake_s))

    def _yield(self, name: WorkloadId) -> None:
        def after(replica: Replica) -> Replica:
            if replica.state is not ReplicaState.LENT:
                return replica
            if self._activity.parks:
                return replace(replica, state=ReplicaState.PARKED)
            return Replica(replica.id, ReplicaState.PENDING)

        gone = {r.id for w in self.snapshot.workloads if w.id == name for r in w.replicas}
        self.snapshot = replace(
            self.snapshot,
            workloads=tuple(
                replace(w, replicas=tuple(map(after, w.replicas))) if w.id == name else w
                for w in self.snapshot.workloads
            ),
            loans=tuple(loan for loan in self.snapshot.loans if loan.borrower not in gone),
        )

    def _end_trainings(self) -> None:
        ended = {name for name, left_s in self._left_s.items() if left_s <= 1e-6}
        for _ in ended if self.on_end else ():
            assert self.on_end is not None
            self.on_end()
        for name in sorted(ended):
            del self._left_s[name]
            self._close(name, "borrower_ended")
        if ended:
            gone = {r.id for w in self.snapshot.workloads if w.id in ended for r in w.replicas}
            self.snapshot = replace(
                self.snapshot,
                workloads=tuple(w for w in self.snapshot.workloads if w.id not in ended),
                loans=tuple(loan for loan in self.snapshot.loans if loan.borrower not in gone),
            )

    # Planning.

    def _plan(self, on_plan: Callable[[Plan], None] | None) -> None:
        self._tell_idleness()
        for _ in range(MAX_CYCLES_AT_ONCE):
            decided = plan(self.snapshot, self._policy, self.now_s)
            self.num_plans += 1
            self.plans.append(decided)
            del self.plans[:-MAX_CYCLES_AT_ONCE]
            if on_plan is not None:
                on_plan(decided)
            after = follow(self.snapshot, decided, self.now_s)
            if after == self.snapshot:
                return
            self._carry_out(self.snapshot, after)
            self.snapshot = after

    def _tell_idleness(self) -> None:
        """What signals and prediction say now of each session."""
        self.snapshot = replace(
            self.snapshot, workloads=tuple(self._told(w) for w in self.snapshot.workloads)
        )

    def _told(self, workload: Workload) -> Workload:
        name = workload.id
        if name not in self._activity.uses or workload.replicas[0].state is not (
            ReplicaState.RUNNING
        ):
            return workload
        since_s = self._idle_since[name]
        left_s = None
        if since_s is not None and not self._is_lending(workload):
            left_s = expected_left_s(self._spells[name], self.now_s - since_s)
        idle = replace(
            workload.idle or Idleness(None),
            since_s=since_s,
            expected_left_s=left_s,
            woke_s=self._woke_s.get(name),
        )
        return replace(workload, idle=idle)

    def _is_lending(self, workload: Workload) -> bool:
        return workload.replicas[0].id in self.open

    def _carry_out(self, before: Snapshot, after: Snapshot) -> None:
        """Note when what starts will really run, and which loans begin and end."""
        states = {r.id: r.state for w in before.workloads for r in w.replicas}
        placed_before = {loan.lender: loan for loan in before.loans}
        still = {loan.lender for loan in after.loans}
        for lender in sorted(placed_before.keys() - still):
            if lender in self.open:
                self._close(self.open[lender].borrower, "orchestrator")
        owners = {r.id: (w, r) for w in after.workloads for r in w.replicas}
        copy_s: dict[ReplicaId, float] = {}
        for loan in after.loans:
            if loan.lender not in placed_before:
                session, replica = owners[loan.lender]
                memory = session.idle.memory_mib if session.idle else 0
                copied_s = memory / self._rate(replica)
                copy_s[loan.borrower] = copy_s.get(loan.borrower, 0.0) + copied_s
        for workload, replica in owners.values():
            if workload.kind is Kind.TRAINING:
                self._note_start(workload, replica, states[replica.id], copy_s)
        for loan in after.loans:
            if loan.lender not in placed_before:
                self._open_loan(loan, owners)

    def _note_start(
        self,
        workload: Workload,
        replica: Replica,
        was: ReplicaState,
        copy_s: Mapping[ReplicaId, float],
    ) -> None:
        runs = (ReplicaState.RUNNING, ReplicaState.LENT)
        if replica.state not in runs or was in runs:
            return
        start_s = self._activity.start_s
        if was is ReplicaState.PARKED:
            work = self._works.get(workload.id, Work(0.0))
            start_s = work.memory_mib / self._rate(replica)
        self._runs_from[replica.id] = self.now_s + copy_s.get(replica.id, 0.0) + start_s

    def _open_loan(self, loan: Loan, owners: Mapping[ReplicaId, tuple[Workload, Replica]]) -> None:
        lender, place = owners[loan.lender]
        borrower, theirs = owners[loan.borrower]
        assert place.placement is not None
        assert theirs.placement is not None
        self.open[loan.lender] = LoanRecord(
            lender.id,
            borrower.id,
            self.now_s,
            self._runs_from[loan.borrower],
            min(place.placement.milli_per_device, theirs.placement.milli_per_device),
        )

    def records(self) -> list[LoanRecord]:
        """All loans, in the order in which they began."""
        return sorted(
            [*self.closed, *self.open.values()], key=lambda record: (record.from_s, record.lender)
        )
