"""Projects with their quota, and templates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rest_framework import serializers

from projects import idle_rules
from projects.departments import DepartmentTree
from projects.models import DepartmentQuota, Project, Template
from scheduling.models import ProjectUsage


class ProjectSchema(serializers.ModelSerializer[Project]):
    """A project that the person may see."""

    department = serializers.CharField(source="department.name", allow_null=True, default=None)

    department_path = serializers.SerializerMethodField(
        help_text="Names from the top down to `department`; empty without one."
    )

    class Meta:
        model = Project
        fields = (
            "name",
            "title",
            "description",
            "department",
            "department_path",
            "priority",
            "is_personal",
        )

    def get_department_path(self, row: Project) -> list[str]:
        """By the tree that the view has read once."""
        tree: DepartmentTree = self.context["tree"]
        return [level.name for level in tree.path(row.department_id)]


class GpuQuotaSchema(serializers.Serializer[Any]):
    """A project's GPUs of one node type; what was planned last."""

    node_type = serializers.CharField()
    quota_gpu_milli = serializers.IntegerField()
    limit_gpu_milli = serializers.IntegerField(allow_null=True)
    weight = serializers.IntegerField()
    fair_share_gpu_milli = serializers.IntegerField()
    requested_gpu_milli = serializers.IntegerField()
    allocated_gpu_milli = serializers.IntegerField()
    non_preemptible_gpu_milli = serializers.IntegerField()


class DepartmentBoundSchema(serializers.Serializer[Any]):
    """What a department above is bounded by. Null: the sum of what is below it, or no limit."""

    department = serializers.CharField()
    node_type = serializers.CharField()
    quota_gpu_milli = serializers.IntegerField(allow_null=True)
    limit_gpu_milli = serializers.IntegerField(allow_null=True)
    weight = serializers.IntegerField(allow_null=True)


class ProjectQuotaSchema(serializers.Serializer[Any]):
    """What a project is promised. Null for CPU and memory means: not counted."""

    project = serializers.CharField()
    gpu = GpuQuotaSchema(many=True)
    departments = DepartmentBoundSchema(
        many=True, help_text="Bounds of the departments above, from the top down."
    )
    cpu_quota_milli = serializers.IntegerField(allow_null=True)
    cpu_limit_milli = serializers.IntegerField(allow_null=True)
    memory_quota_mib = serializers.IntegerField(allow_null=True)
    memory_limit_mib = serializers.IntegerField(allow_null=True)


def quota_of(project: Project) -> dict[str, Any]:
    """A project's quota with the last cycle's numbers, and what bounds it from above; four
    queries."""
    usage = {row.resource: row for row in ProjectUsage.objects.filter(project=project)}
    quotas = project.gpu_quotas.select_related("node_type").order_by("node_type__name")
    rows = []
    for quota in quotas:
        used = usage.get(f"gpu:{quota.node_type.name}")
        rows.append(
            {
                "node_type": quota.node_type.name,
                "quota_gpu_milli": quota.quota_milli,
                "limit_gpu_milli": quota.limit_milli,
                "weight": quota.weight,
                "fair_share_gpu_milli": used.fair_share if used else 0,
                "requested_gpu_milli": used.requested if used else 0,
                "allocated_gpu_milli": used.allocated if used else 0,
                "non_preemptible_gpu_milli": used.non_preemptible if used else 0,
            }
        )
    return {
        "project": project.name,
        "gpu": rows,
        "departments": list(_bounds_above(project)),
        "cpu_quota_milli": project.cpu_quota_milli,
        "cpu_limit_milli": project.cpu_limit_milli,
        "memory_quota_mib": project.memory_quota_mib,
        "memory_limit_mib": project.memory_limit_mib,
    }


def _bounds_above(project: Project) -> Iterator[dict[str, Any]]:
    path = [level.pk for level in DepartmentTree().path(project.department_id)]
    found = DepartmentQuota.objects.filter(department__in=path)
    rows = found.select_related("department", "node_type").order_by("node_type__name")
    for row in sorted(rows, key=lambda each: path.index(each.department_id)):
        yield {
            "department": row.department.name,
            "node_type": row.node_type.name,
            "quota_gpu_milli": row.quota_milli,
            "limit_gpu_milli": row.limit_milli,
            "weight": row.weight,
        }


class RuleInForceSchema(serializers.Serializer[Any]):
    """What counts as idle in a project, what follows, and how long work may run. Times are in
    seconds."""

    idle_window_s = serializers.IntegerField(min_value=300, max_value=86_400)
    idle_gpu_percent = serializers.FloatField(min_value=0, max_value=100)
    idle_cpu_percent = serializers.FloatField(
        min_value=0, max_value=100, help_text="Of the cores asked for."
    )
    idle_network_kib_s = serializers.FloatField(min_value=0)
    idle_may_lack_network = serializers.BooleanField(
        help_text="Where the network cannot be measured, the other signals are enough."
    )
    lends_idle = serializers.BooleanField(help_text="Idle sessions' GPUs are lent.")
    lending_window_s = serializers.IntegerField(min_value=30, max_value=86_400)
    idle_stop_after_s = serializers.IntegerField(
        allow_null=True,
        max_value=2_592_000,
        help_text="Idle for so long, it is saved and stopped; at least the window and the first "
        "warning. Null: never.",
    )
    idle_first_warning_s = serializers.IntegerField(min_value=120, max_value=86_400)
    idle_last_warning_s = serializers.IntegerField(
        min_value=60, max_value=86_400, help_text="Less than the first."
    )
    idle_max_extension_s = serializers.IntegerField(min_value=3600, max_value=604_800)
    max_run_interactive_s = serializers.IntegerField(
        allow_null=True,
        min_value=60,
        max_value=2_592_000,
        help_text="So long a session may run; more than `idle_stop_after_s`. Null: without limit.",
    )
    max_run_training_s = serializers.IntegerField(
        allow_null=True,
        min_value=60,
        max_value=2_592_000,
        help_text="So long a training may run, all starts together and waits apart; more than "
        "`idle_stop_after_s`. Null: without limit.",
    )


class IdleRuleSchema(RuleInForceSchema):
    """A change of a rule."""

    rule_applies_to = serializers.ChoiceField(
        choices=["new", "running"],
        required=False,
        help_text="`new`, without it: the change holds for what is submitted afterwards. "
        "`running`: the whole rule holds for unfinished work too, which is warned before it is "
        "ended by it.",
    )


class IdleRuleAnswerSchema(RuleInForceSchema):
    """A rule in force, and where it comes from."""

    source = serializers.ChoiceField(  # type: ignore[assignment]  # DRF's field has one of its own
        choices=["default", "project"],
        help_text="`default`: Allot's own; whether devices are lent is each project's choice.",
    )


def idle_rule_of(project: Project) -> dict[str, Any]:
    """A project's rule as the API sends it."""
    source = "default" if idle_rules.is_default(project) else "project"
    return {**asdict(idle_rules.rule_of(project)), "source": source}


class TemplateSchema(serializers.ModelSerializer[Template]):
    """A saved form: values by the page's field names, in the page's units."""

    project = serializers.CharField(source="project.name", allow_null=True, default=None)

    class Meta:
        model = Template
        fields = ("id", "name", "description", "kind", "scope", "project", "spec")
