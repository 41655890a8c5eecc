"""The metrics that can be asked for, and the groups by which each can be told apart.

Definitions are those of the product: integrals over time, ratios of integrals (never means of
means), and statistics of what ended in a period.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from scheduling.analytics.measures import Measure, Scope

Words = str | Promise


class Group(StrEnum):
    """By what sums are told apart."""

    TOTAL = "total"
    PROJECT = "project"
    DEPARTMENT = "department"
    USER = "user"
    NODE_TYPE = "node_type"
    NODE = "node"
    KIND = "kind"
    TEMPLATE = "template"


GROUP_TITLES: dict[Group, Words] = {
    Group.TOTAL: _("whole cluster"),
    Group.PROJECT: _("project"),
    Group.DEPARTMENT: _("department"),
    Group.USER: _("user"),
    Group.NODE_TYPE: _("node type"),
    Group.NODE: _("node"),
    Group.KIND: _("kind"),
    Group.TEMPLATE: _("template"),
}
SCOPES: dict[Group, Scope] = {
    Group.TOTAL: Scope.NODE_TYPE,
    Group.PROJECT: Scope.PROJECT,
    Group.DEPARTMENT: Scope.PROJECT,
    Group.NODE_TYPE: Scope.NODE_TYPE,
    Group.USER: Scope.USER,
    Group.NODE: Scope.NODE,
    Group.KIND: Scope.KIND,
    Group.TEMPLATE: Scope.TEMPLATE,
}
ALL = tuple(Group)
_HARDWARE = (Group.TOTAL, Group.NODE_TYPE, Group.NODE)
_QUOTAS = (Group.TOTAL, Group.PROJECT, Group.DEPARTMENT, Group.NODE_TYPE)
_PROJECTS = (Group.TOTAL, Group.PROJECT, Group.DEPARTMENT)
_WORK = tuple(group for group in Group if group is not Group.NODE)


class Form(StrEnum):
    """How a metric comes from measures."""

    SUM = "sum"
    RATIO = "ratio"
    """100 × numerator / denominator; no data without a denominator."""
    PEAK = "peak"
    ENDED = "ended"
    """A statistic of attempts, waits or trainings that ended in the period."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        of: The measure that is shown; for a ratio, what is divided.
        by: For a ratio: by what.
        cover: For what samples tell: what is measured, of what. Coverage is the one over the other;
            where something was held and nothing measured there is no data.
        whole: What the groups and *unallocated* add up to.
        is_cost: Only for those who may see cost.
    """

    name: str
    title: Words
    sentence: Words
    unit: Words
    form: Form = Form.SUM
    of: Measure | None = None
    by: Measure | None = None
    cover: tuple[Measure, Measure] | None = None
    whole: Measure | None = None
    groups: tuple[Group, ...] = ALL
    is_cost: bool = False

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All that must be read."""
        wanted = (self.of, self.by, *(self.cover or ()), self.whole)
        return tuple(dict.fromkeys(measure for measure in wanted if measure is not None))


_GPU_H, _CORE_H, _GIB_H = _("GPU-hours"), _("core-hours"), _("GiB-hours")
_PERCENT, _S, _MONEY = "%", _("s"), _("money")
_TIMES, _COUNT = _("times"), _("count")
_M = Measure


# (measured, allocated)
_GPU = (_M.GPU_MEASURED, _M.GPU_ALLOCATED)
_CPU = (_M.CPU_MEASURED, _M.CPU_ALLOCATED)
_MEMORY = (_M.MEMORY_MEASURED, _M.MEMORY_ALLOCATED)

_LIST = (
    Metric(
        "capacity_gpu_hours",
        _("GPU capacity"),
        _("GPUs that were ready, over time; what was down is not counted."),
        _GPU_H,
        of=_M.GPU_CAPACITY,
        groups=_HARDWARE,
    ),
    Metric(
        "quota_gpu_hours",
        pgettext_lazy("metric", "GPU quota"),
        _("GPUs guaranteed to projects, over time."),
        _GPU_H,
        of=_M.GPU_QUOTA,
        groups=_QUOTAS,
    ),
    Metric(
        "allocated_gpu_hours",
        pgettext_lazy("metric", "Allocated GPU"),
        _("GPUs and parts of GPUs held by workloads, over time."),
        _GPU_H,
        of=_M.GPU_ALLOCATED,
        whole=_M.GPU_CAPACITY,
    ),
    Metric(
        "lent_gpu_hours",
        _("Lent GPU"),
        _("The part of allocated that was lent to another's training while idle."),
        _GPU_H,
        of=_M.GPU_LENT,
    ),
    Metric(
        "borrowed_gpu_hours",
        _("Borrowed GPU"),
        _("GPUs that projects held beyond their quota of a node type, over time."),
        _GPU_H,
        of=_M.GPU_BORROWED,
        groups=_QUOTAS,
    ),
    Metric(
        "allocation_ratio",
        _("Allocated of quota"),
        _("Allocated GPUs in per cent of quota; over 100 is borrowing."),
        _PERCENT,
        Form.RATIO,
        of=_M.GPU_ALLOCATED,
        by=_M.GPU_QUOTA,
        groups=_QUOTAS,
    ),
    Metric(
        "used_gpu_hours",
        _("Used GPU"),
        _("Share of the allocated GPUs in which workloads computed, over time."),
        _GPU_H,
        of=_M.GPU_USED,
        cover=_GPU,
    ),
    Metric(
        "utilisation",
        _("GPU utilisation"),
        _("Used in per cent of allocated GPUs, over the time with data."),
        _PERCENT,
        Form.RATIO,
        of=_M.GPU_USED,
        by=_M.GPU_MEASURED,
        cover=_GPU,
    ),
    Metric(
        "idle_gpu_hours",
        _("Idle GPU"),
        _("Allocated GPUs of workloads that did nothing for half an hour or longer."),
        _GPU_H,
        of=_M.GPU_IDLE,
        cover=_GPU,
    ),
    *(
        Metric(
            f"gpu_hours_{low}_{high}",
            title,
            _("Allocated GPU time by how much of it was used."),
            _GPU_H,
            of=band,
            cover=_GPU,
        )
        for low, high, band, title in (
            (0, 25, _M.GPU_BAND_0, _("Used below 25 %")),
            (25, 50, _M.GPU_BAND_25, _("Used 25 to 50 %")),
            (50, 75, _M.GPU_BAND_50, _("Used 50 to 75 %")),
            (75, 100, _M.GPU_BAND_75, _("Used above 75 %")),
        )
    ),
    Metric(
        "capacity_core_hours",
        _("CPU capacity"),
        _("Cores of nodes that were ready, over time."),
        _CORE_H,
        of=_M.CPU_CAPACITY,
        groups=_HARDWARE,
    ),
    Metric(
        "quota_core_hours",
        _("CPU quota"),
        _("Cores guaranteed to projects, over time; projects without such a quota count as none."),
        _CORE_H,
        of=_M.CPU_QUOTA,
        groups=_PROJECTS,
    ),
    Metric(
        "requested_core_hours",
        _("Requested CPU"),
        _("Cores held by workloads, over time."),
        _CORE_H,
        of=_M.CPU_ALLOCATED,
        whole=_M.CPU_CAPACITY,
    ),
    Metric(
        "used_core_hours",
        _("Used CPU"),
        _("Cores that workloads kept busy, over time."),
        _CORE_H,
        of=_M.CPU_USED,
        cover=_CPU,
    ),
    Metric(
        "cpu_utilisation",
        _("CPU utilisation"),
        _("Used in per cent of requested cores, over the time with data."),
        _PERCENT,
        Form.RATIO,
        of=_M.CPU_USED,
        by=_M.CPU_MEASURED,
        cover=_CPU,
    ),
    Metric(
        "idle_core_hours",
        _("Idle CPU"),
        _("Requested cores that were not used, over the time with data."),
        _CORE_H,
        of=_M.CPU_IDLE,
        cover=_CPU,
    ),
    Metric(
        "throttled_s",
        _("CPU throttled"),
        _("Time for which workloads were held back at their CPU limit."),
        _S,
        of=_M.CPU_THROTTLED_S,
        cover=_CPU,
    ),
    Metric(
        "capacity_gib_hours",
        _("Memory capacity"),
        _("Main memory of nodes that were ready, over time."),
        _GIB_H,
        of=_M.MEMORY_CAPACITY,
        groups=_HARDWARE,
    ),
    Metric(
        "quota_gib_hours",
        _("Memory quota"),
        _("Memory guaranteed to projects, over time; without such a quota it counts as none."),
        _GIB_H,
        of=_M.MEMORY_QUOTA,
        groups=_PROJECTS,
    ),
    Metric(
        "requested_gib_hours",
        _("Requested memory"),
        _("Main memory held by workloads, over time."),
        _GIB_H,
        of=_M.MEMORY_ALLOCATED,
        whole=_M.MEMORY_CAPACITY,
    ),
    Metric(
        "used_gib_hours",
        _("Used memory"),
        _("Main memory that workloads filled, over time."),
        _GIB_H,
        of=_M.MEMORY_USED,
        cover=_MEMORY,
    ),
    Metric(
        "memory_utilisation",
        _("Memory utilisation"),
        _("Used in per cent of requested memory, over the time with data."),
        _PERCENT,
        Form.RATIO,
        of=_M.MEMORY_USED,
        by=_M.MEMORY_MEASURED,
        cover=_MEMORY,
    ),
    Metric(
        "idle_gib_hours",
        _("Idle memory"),
        _("Requested memory that was not used, over the time with data."),
        _GIB_H,
        of=_M.MEMORY_IDLE,
        cover=_MEMORY,
    ),
    Metric(
        "peak_memory_gib",
        _("Peak memory"),
        _("Most main memory that one workload held."),
        _("GiB"),
        Form.PEAK,
        of=_M.MEMORY_PEAK,
        cover=_MEMORY,
    ),
    Metric(
        "cost",
        _("Cost"),
        _("GPUs, cores and memory held, at the prices in force at each moment."),
        _MONEY,
        of=_M.COST,
        whole=_M.CAPACITY_COST,
        is_cost=True,
    ),
    Metric(
        "idle_cost",
        _("Cost of idleness"),
        _("The part of the cost for workloads that did nothing for half an hour or longer."),
        _MONEY,
        of=_M.IDLE_COST,
        is_cost=True,
        cover=_GPU,
    ),
    *(
        Metric(name, title, sentence, unit, Form.ENDED, groups=_WORK)
        for name, title, sentence, unit in (
            ("wait_s_p50", _("Wait, median"), _("From queued to started."), _S),
            ("wait_s_p90", _("Wait, 90th percentile"), _("From queued to started."), _S),
            ("wait_s_p95", _("Wait, 95th percentile"), _("From queued to started."), _S),
            ("run_s_p50", _("Run time, median"), _("Of attempts that ended."), _S),
            ("run_s_p95", _("Run time, 95th percentile"), _("Of attempts that ended."), _S),
            (
                "expansion_factor",
                _("Expansion factor"),
                _("Wait and run time over run time, of workloads that ended."),
                _TIMES,
            ),
            ("preemptions", _("Preemptions"), _("Trainings that lost their place."), _COUNT),
            (
                "lost_work_s",
                _("Lost work"),
                _("Time since the last checkpoint of attempts that were stopped."),
                _S,
            ),
            (
                "checkpoint_success",
                _("Checkpoints in time"),
                _("Preemptions before which a checkpoint was saved, in per cent."),
                _PERCENT,
            ),
            (
                "completion_s",
                _("Time to completion, mean"),
                _("From submission to completion, of trainings that completed."),
                _S,
            ),
            (
                "no_lost_progress",
                _("Ended without lost progress"),
                _("Attempts of trainings that lost less than a minute of work, in per cent."),
                _PERCENT,
            ),
            (
                "checkpoint_overhead",
                _("Overhead of checkpoints"),
                _("Time spent saving before a stop, and work lost by it, in per cent of run time."),
                _PERCENT,
            ),
            (
                "migration_overhead",
                _("Overhead of migrations"),
                _("Saving, lost work, waiting and restart of what was moved, of run time."),
                _PERCENT,
            ),
        )
    ),
    Metric(
        "cost_per_training",
        _("Cost of a training, mean"),
        _("Of trainings that completed, all their attempts together."),
        _MONEY,
        Form.ENDED,
        groups=_WORK,
        is_cost=True,
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _LIST}
