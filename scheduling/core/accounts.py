"""Projects as a tree of sums: what each may have, holds and asks for.

Everything is summed up the tree, so that a department's figures are those of all its projects.
Resources are numbered once per cycle (`Resources`), and amounts travel as short tuples of (number,
amount), because these sums are touched for every workload of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduling.core.decisions import ProjectNumbers
from scheduling.core.errors import SnapshotError
from scheduling.core.fair_share import Want, divide
from scheduling.core.types import (
    CPU,
    MEMORY,
    UNCOUNTED,
    WHOLE_GPU_MILLI,
    Node,
    Project,
    ProjectId,
    ResourceKey,
    Share,
)

Amounts = tuple[tuple[int, int], ...]
"""Pairs of a resource's number and an amount > 0."""


class Resources:
    """The resources that quota counts separately, numbered: CPU, memory, then each pool of GPUs."""

    __slots__ = ("capacity", "keys", "number", "units")

    def __init__(self, nodes: Iterable[Node], projects: Iterable[Project]) -> None:
        nodes = list(nodes)
        gpu_keys = {node.gpu_key for node in nodes if node.num_devices}
        for project in projects:
            gpu_keys.update(key for key in project.shares if key not in (CPU, MEMORY))
        if not gpu_keys:
            gpu_keys.add(ResourceKey("gpu"))
        self.keys: tuple[ResourceKey, ...] = (CPU, MEMORY, *sorted(gpu_keys))
        self.number = {key: number for number, key in enumerate(self.keys)}
        self.units = [1, 1] + [WHOLE_GPU_MILLI] * len(gpu_keys)
        self.capacity = [0] * len(self.keys)
        for node in nodes:
            if node.is_ready:
                self.capacity[0] += node.cpu_milli
                self.capacity[1] += node.memory_mib
                if node.num_devices:
                    number = self.number[node.gpu_key]
                    self.capacity[number] += node.num_devices * WHOLE_GPU_MILLI


class Account:
    """One project or department. Lists are indexed by resource number.

    Attributes:
        path: From the root of its tree down to itself.
        past_use_ppm: What it used lately, in millionths of the capacity over that time.
        allocatable: min(limit, max(quota, fair share)); the limit where quota is unlimited; None is
            no bound.
        is_limited: It, or one above it, has a limit for something.
    """

    __slots__ = (
        "allocatable",
        "allocated",
        "children",
        "created",
        "depth",
        "fair",
        "id",
        "is_limited",
        "limit",
        "non_preemptible",
        "parent",
        "past_use_ppm",
        "path",
        "priority",
        "quota",
        "requested",
        "weight",
    )

    def __init__(self, project: Project, resources: Resources) -> None:
        shares = [_share(project, key) for key in resources.keys]
        zeros = [0] * len(shares)
        self.id = project.id
        self.priority = project.priority
        self.created = project.created
        self.parent: Account | None = None
        self.children: list[Account] = []
        self.path: tuple[Account, ...] = (self,)
        self.depth = 0
        self.is_limited = False
        self.quota: list[int | None] = [share.quota for share in shares]
        self.limit: list[int | None] = [share.limit for share in shares]
        self.weight: list[int] = [share.weight for share in shares]
        self.allocated = zeros.copy()
        self.non_preemptible = zeros.copy()
        self.requested = zeros.copy()
        self.fair = zeros.copy()
        self.past_use_ppm = [project.past_use_ppm.get(key, 0) for key in resources.keys]
        self.allocatable: list[int | None] = list(zeros)

    def note(
        self, amounts: Amounts, count: int, *, is_allocated: bool, is_preemptible: bool
    ) -> None:
        """Note, before `Accounts.sum_up`, what one of its workloads holds or waits for."""
        for r, amount in amounts:
            self.requested[r] += amount * count
            if is_allocated:
                self.allocated[r] += amount * count
                if not is_preemptible:
                    self.non_preemptible[r] += amount * count

    def borrowed(self, r: int) -> int:
        quota = self.quota[r]
        return 0 if quota is None else max(0, self.allocated[r] - quota)

    def wanted(self, r: int) -> int:
        """What it holds and asks for, as far as its limit lets it."""
        limit = self.limit[r]
        return self.requested[r] if limit is None else min(limit, self.requested[r])

    def over_ratio(self, r: int) -> float:
        """Borrowed over fair share: infinite where nothing is its share, 0 where nothing is
        borrowed.

        Division of integers is correctly rounded, so equal ratios compare equal.
        """
        borrowed = self.borrowed(r)
        if borrowed == 0:
            return 0.0
        return borrowed / self.fair[r] if self.fair[r] else float("inf")

    def is_above_allocatable(self, r: int) -> bool:
        bound = self.allocatable[r]
        return bound is not None and self.allocated[r] > bound

    def is_above_quota(self, r: int) -> bool:
        quota = self.quota[r]
        return quota is not None and self.allocated[r] > quota


def _share(project: Project, key: ResourceKey) -> Share:
    share = project.shares.get(key)
    if share is not None:
        return share
    return UNCOUNTED if key in (CPU, MEMORY) else Share(quota=0, limit=None, weight=1)


class Accounts:
    """The whole tree."""

    __slots__ = ("by_id", "history_factor_milli", "resources", "roots")

    def __init__(
        self,
        projects: Iterable[Project],
        resources: Resources,
        history_factor_milli: int = 0,
    ) -> None:
        self.resources = resources
        self.history_factor_milli = history_factor_milli
        ordered = sorted(projects, key=lambda project: project.id)
        self.by_id: dict[ProjectId, Account] = {}
        for project in ordered:
            if project.id in self.by_id:
                raise SnapshotError(f"project {project.id!r} is there twice")
            self.by_id[project.id] = Account(project, resources)
        self.roots: list[Account] = []
        for project in ordered:
            self._hang(project)
        for account in self.by_id.values():
            account.path = _path(account)
            account.depth = len(account.path) - 1
            account.is_limited = any(
                bound is not None for level in account.path for bound in level.limit
            )

    def _hang(self, project: Project) -> None:
        account = self.by_id[project.id]
        if project.parent is None:
            self.roots.append(account)
            return
        parent = self.by_id.get(project.parent)
        if parent is None:
            raise SnapshotError(
                f"project {project.id!r} names the parent {project.parent!r}, which is not there"
            )
        account.parent = parent
        parent.children.append(account)

    def charge(
        self, account: Account, amounts: Amounts, sign: int, *, is_preemptible: bool
    ) -> None:
        """Count amounts as allocated (sign 1) or no longer (-1), up the tree."""
        for level in account.path:
            allocated = level.allocated
            for r, amount in amounts:
                allocated[r] += sign * amount
            if not is_preemptible:
                for r, amount in amounts:
                    level.non_preemptible[r] += sign * amount

    def sum_up(self) -> None:
        """Add what projects hold and ask for to the departments above them, once all is noted."""
        for account in sorted(self.by_id.values(), key=lambda account: -account.depth):
            parent = account.parent
            if parent is not None:
                for r, amount in enumerate(account.allocated):
                    parent.allocated[r] += amount
                    parent.non_preemptible[r] += account.non_preemptible[r]
                    parent.requested[r] += account.requested[r]
                    parent.past_use_ppm[r] += account.past_use_ppm[r]

    def settle_shares(self, resources: Iterable[int] | None = None) -> None:
        """Set every account's fair and allocatable share of these resources (None: of all), from
        the top of the tree down."""
        numbers = range(len(self.resources.capacity)) if resources is None else list(resources)
        for r in numbers:
            self._divide(self.roots, r, self.resources.capacity[r])
        for account in self.by_id.values():
            for r in numbers:
                account.allocatable[r] = _allocatable(account, r)

    def _divide(
        self, siblings: Sequence[Account], r: int, capacity: int, *, has_surplus: bool = True
    ) -> None:
        """Divide among siblings, then each one's share among its children.

        Where more is promised than there is, what children leave of their parent's quota is no
        surplus: it does not exist.
        """
        wants = [
            Want(
                id=account.id,
                quota=account.quota[r],
                weight=account.weight[r],
                priority=account.priority,
                created=account.created,
                request=account.wanted(r),
                usage_ppm=account.past_use_ppm[r],
            )
            for account in siblings
        ]
        unit = self.resources.units[r]
        shares = divide(
            capacity,
            wants,
            unit,
            history_factor_milli=self.history_factor_milli,
            has_surplus=has_surplus,
        )
        promised = sum(
            share
            for account, share in zip(siblings, shares, strict=True)
            if account.quota[r] is not None
        )
        is_covered = has_surplus and promised <= capacity
        for account, share in zip(siblings, shares, strict=True):
            account.fair[r] = share
            if account.children:
                self._divide(account.children, r, share, has_surplus=is_covered)

    def numbers(
        self, accounts: Iterable[Account] | None = None
    ) -> Mapping[ProjectId, Mapping[ResourceKey, ProjectNumbers]]:
        """What pages show of these projects; None: of every one."""
        return {
            account.id: {
                key: ProjectNumbers(
                    quota=account.quota[r],
                    limit=account.limit[r],
                    fair_share=account.fair[r],
                    requested=account.requested[r],
                    allocated=account.allocated[r],
                    non_preemptible=account.non_preemptible[r],
                )
                for r, key in enumerate(self.resources.keys)
            }
            for account in (self.by_id.values() if accounts is None else accounts)
        }


def _path(account: Account) -> tuple[Account, ...]:
    path = [account]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
        if path[-1] is account:
            raise SnapshotError(f"project {account.id!r} is its own ancestor")
        if len(path) > 1000:
            raise SnapshotError(f"the ancestors of project {account.id!r} form a circle")
    return tuple(reversed(path))


def _allocatable(account: Account, r: int) -> int | None:
    quota, limit = account.quota[r], account.limit[r]
    if quota is None:
        return limit
    share = max(quota, account.fair[r])
    return share if limit is None else min(limit, share)


def parting(claimant: Account, other: Account) -> tuple[Account, Account] | None:
    """The pair of ancestors where the two paths part; None where one lies above the other."""
    for mine, theirs in zip(claimant.path, other.path, strict=False):
        if mine is not theirs:
            return mine, theirs
    return None


def gpu_milli(amounts: Amounts) -> int:
    """The GPUs among these amounts, of whatever type, in thousandths."""
    return sum(amount for r, amount in amounts if r >= 2)
