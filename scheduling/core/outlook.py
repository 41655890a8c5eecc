"""What pages explain about a snapshot: how shares came about, who borrows, who would give way next.

Nothing is decided here and nothing computed by rules of its own: the order of victims is that of
`reclaim`, asked on behalf of a newcomer who wants a thousandth of a GPU inside its guarantee, again
and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scheduling.core.accounts import Account
from scheduling.core.demand import Item, Option
from scheduling.core.prospects import Excess, Prospects
from scheduling.core.reclaim import ReclaimVictims
from scheduling.core.search import Effort
from scheduling.core.state import State, Victim
from scheduling.core.types import (
    UNCOUNTED,
    GpuRequest,
    Kind,
    Policy,
    Project,
    ProjectId,
    ResourceKey,
    Snapshot,
    Workload,
    WorkloadId,
)


@dataclass(frozen=True, slots=True)
class ShareStep:
    """How one level of a project's path came to its fair share of a resource.

    Attributes:
        capacity: Divided among this level and its siblings.
        wanted: What it could use: what it asks for, up to its limit.
        guarantee: The part given for its quota.
        surplus: Left for projects of its priority after all guarantees, and after the surplus of
            higher priorities.
        weights: Sum of the weights of its priority that want more than their guarantee.
        fair_share: What it got in the end, for quota and weight together.
        past_use_ppm: What it used of late, in millionths of the capacity over that time.
        history_factor_milli: How much that counts; 0 does not.
    """

    id: ProjectId
    capacity: int
    quota: int | None
    limit: int | None
    weight: int
    requested: int
    wanted: int
    guarantee: int
    surplus: int
    weights: int
    fair_share: int
    allocated: int
    past_use_ppm: int = 0
    history_factor_milli: int = 0

    @property
    def by_weight(self) -> int:
        return self.fair_share - self.guarantee


@dataclass(frozen=True, slots=True)
class Holder:
    """What a project holds beyond its quota, against its fair share."""

    project: ProjectId
    quota: int | None
    fair_share: int
    allocated: int
    borrowed: int
    over_ratio: float


@dataclass(frozen=True, slots=True)
class GivingWay:
    """Somebody who would stop if the next claim came now.

    Attributes:
        amount: Of the resource, that it would give up.
        over_ratio: Its project's, just before.
        is_only_for_guarantee: Only a claim inside quota may take it; else one inside a fair share
            may, too.
    """

    workload: WorkloadId
    project: ProjectId
    num_replicas: int
    amount: int
    over_ratio: float
    is_only_for_guarantee: bool


class Outlook:
    """A snapshot as somebody sees it who asks why."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now_s: float) -> None:
        keys = {node.gpu_key for node in snapshot.nodes}
        self._parents = {project.id: project.parent for project in snapshot.projects}
        newcomers = [
            Project(_newcomer_in(parent), parent, 0, 0, dict.fromkeys(keys, UNCOUNTED))
            for parent in dict.fromkeys((None, *self._parents.values()))
        ]
        supposed = replace(snapshot, projects=(*snapshot.projects, *newcomers))
        self._state = State(supposed, policy, now_s)
        self._state.presence.open()
        self._state.presence.lift_loan_shadows()
        self._state.presence.lift_shadows()

    def share_steps(self, project: ProjectId, resource: ResourceKey) -> tuple[ShareStep, ...]:
        """How a project came to its share, from the top of the tree down; empty where the resource
        is not known."""
        accounts, r = self._state.accounts, self._number(resource)
        account = accounts.by_id.get(project)
        if r is None or account is None:
            return ()
        steps: list[ShareStep] = []
        siblings: Sequence[Account] = accounts.roots
        capacity = self._state.resources.capacity[r]
        for level in account.path:
            step = _step(level, siblings, capacity, r)
            factor_milli = accounts.history_factor_milli
            steps.append(replace(step, history_factor_milli=factor_milli))
            siblings, capacity = level.children, level.fair[r]
        return tuple(steps)

    def holders(self, resource: ResourceKey) -> tuple[Holder, ...]:
        """Projects (not departments) that hold more than their quota, by over-ratio."""
        r = self._number(resource)
        if r is None:
            return ()
        found = [
            Holder(
                project=account.id,
                quota=account.quota[r],
                fair_share=account.fair[r],
                allocated=account.allocated[r],
                borrowed=account.borrowed(r),
                over_ratio=account.over_ratio(r),
            )
            for account in self._state.accounts.by_id.values()
            if not account.children and account.borrowed(r)
        ]
        return tuple(sorted(found, key=lambda holder: (-holder.over_ratio, holder.project)))

    def next_to_give_way(
        self, resource: ResourceKey, beside: ProjectId | None = None, *, limit: int = 10
    ) -> tuple[GivingWay, ...]:
        """Who would stop, in the scheduler's own order, if a newcomer claimed its guarantee bit by
        bit; each as of the moment when those before it are gone.

        Args:
            resource: A pool of GPUs.
            beside: The newcomer belongs to the same department as this project or department;
                None: to none.
            limit: So many at most.
        """
        r = self._number(resource)
        if r is None:
            return ()
        state, removed = self._state, list[Victim]()
        found: list[GivingWay] = []
        for victim, told in self._losses(self._newcomer(r, beside), resource, r):
            state.remove(victim)
            removed.append(victim)
            if told.amount:
                found.append(told)
            if len(found) == limit:
                break
        for victim in reversed(removed):
            state.put_back(victim)
        return tuple(found)

    def _losses(
        self, claimant: Item, resource: ResourceKey, r: int
    ) -> Iterator[tuple[Victim, GivingWay]]:
        """Each next victim, to be removed by the caller before the one after it is asked for."""
        prospects = Prospects(self._state)
        option = self._option(claimant, resource, r)
        source = ReclaimVictims(self._state, prospects, claimant, option, Effort())
        while (victim := source.pick()) is not None:
            account = victim.item.account
            theirs = prospects.side_of(claimant.account, account).theirs
            yield (
                victim,
                GivingWay(
                    workload=victim.item.workload.id,
                    project=account.id,
                    num_replicas=len(victim.replicas),
                    amount=_amount(victim, r),
                    over_ratio=account.over_ratio(r),
                    is_only_for_guarantee=prospects.excess(theirs, (r,)) is not Excess.SHARE,
                ),
            )

    def _newcomer(self, r: int, beside: ProjectId | None) -> Item:
        """A session of a thousandth of a GPU, whose project has a guarantee that suffices."""
        parent = None if beside is None else self._parents.get(beside)
        account = self._state.accounts.by_id[_newcomer_in(parent)]
        account.fair[r] = self._state.resources.capacity[r]
        workload = Workload(
            id=WorkloadId(""),
            project=account.id,
            kind=Kind.INTERACTIVE,
            priority=0,
            is_preemptible=False,
            submitted=0.0,
            gpu=GpuRequest(1, 1),
            cpu_milli=0,
            memory_mib=0,
            min_replicas=1,
            replicas=(),
        )
        return Item(workload, account, self._state.shapes.of(workload))

    def _option(self, item: Item, resource: ResourceKey, r: int) -> Option:
        """All ready nodes whose GPUs count towards the resource."""
        pools = tuple(
            pool
            for pool in self._state.ledger.pools
            if pool.gpu_key == resource and pool.has_gpus and pool.nodes
        )
        option = Option(len(item.shape.options), None, pools)
        option.amounts = ((r, 1),)
        option.is_possible = option.is_first = True
        return option

    def _number(self, resource: ResourceKey) -> int | None:
        return self._state.resources.number.get(resource)


def _newcomer_in(parent: ProjectId | None) -> ProjectId:
    """The project of an imaginary claimant in a department: no name begins with a space."""
    return ProjectId(f" {parent or ''}")


def next_to_give_way(
    snapshot: Snapshot,
    policy: Policy,
    now_s: float,
    resource: ResourceKey,
    beside: ProjectId | None = None,
) -> tuple[GivingWay, ...]:
    """Who would stop next for a guarantee, first victim first; see `Outlook`."""
    return Outlook(snapshot, policy, now_s).next_to_give_way(resource, beside)


def _step(account: Account, siblings: Sequence[Account], capacity: int, r: int) -> ShareStep:
    guarantee = _guarantee(account, capacity, r)
    guarantees = sum(_guarantee(other, capacity, r) for other in siblings)
    ahead = sum(
        other.fair[r] - _guarantee(other, capacity, r)
        for other in siblings
        if other.priority > account.priority
    )
    weights = sum(
        other.weight[r]
        for other in siblings
        if other.priority == account.priority and other.wanted(r) > _guarantee(other, capacity, r)
    )
    return ShareStep(
        id=account.id,
        capacity=capacity,
        quota=account.quota[r],
        limit=account.limit[r],
        weight=account.weight[r],
        requested=account.requested[r],
        wanted=account.wanted(r),
        guarantee=guarantee,
        surplus=max(0, capacity - guarantees - ahead),
        weights=weights,
        fair_share=account.fair[r],
        allocated=account.allocated[r],
        past_use_ppm=account.past_use_ppm[r],
    )


def _guarantee(account: Account, capacity: int, r: int) -> int:
    quota = account.quota[r]
    return min(capacity if quota is None else quota, account.wanted(r))


def _amount(victim: Victim, r: int) -> int:
    placed = (*victim.replicas, *victim.held)
    return sum(amount for place in placed for number, amount in place.amounts if number == r)
