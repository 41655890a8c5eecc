"""The rule by which a workload is judged: its project's, where nothing else holds for it.

A change of a project's rule holds for what is submitted afterwards, unless it was made for running
work too. What a workload keeps of the rule under which it was submitted is in its row
(`kept_rule`), and only where that has changed since.
"""

from __future__ import annotations

from dataclasses import asdict

from django.db.models import Case, F, FloatField, When
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from projects.idle_rules import Rule, rule_of
from scheduling.models import Workload


def rule_for(workload: Workload) -> Rule:
    """The rule that holds for a workload, read with its project."""
    rule = rule_of(workload.project)
    return Rule(**{**asdict(rule), **workload.kept_rule}) if workload.kept_rule else rule


def in_force(name: str, workload: str) -> Combinable:
    """The same for one field that is a number, in a query; null where it is None.

    Args:
        name: Field of the rule.
        workload: Lookup of the workload, as `workload__`; empty for a query of workloads.
    """
    kept = Cast(KeyTextTransform(name, f"{workload}kept_rule"), FloatField())
    return Case(
        When(**{f"{workload}kept_rule__has_key": name}, then=kept),
        default=Cast(F(f"{workload}project__{name}"), FloatField()),
        output_field=FloatField(),
    )
