"""What the planner decided, cycle by cycle, for admins; each can be taken away as a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import Func, IntegerField
from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from projects.models import User
from scheduling import texts
from scheduling.live import QUEUE_TOPIC
from scheduling.models import CycleRecord, Workload
from scheduling.organisation import titles_of_all
from scheduling.views.pages import PageRequest, page

ROWS = 50
SHOWN = ("quota", "limit", "fair_share", "requested", "allocated")
DEFERRED = ("packed_scenario", "decisions", "numbers")


def _only_admins(user: User) -> None:
    """Cycles show every project's work by name.

    Raises:
        PermissionDenied: the person is no admin.
    """
    if not user.is_superuser:
        raise PermissionDenied


@login_required
@require_safe
def cycles(request: PageRequest) -> HttpResponse:
    """The newest cycles that decided something."""
    _only_admins(request.user)
    before = request.GET.get("before", "")
    found = (
        CycleRecord.objects.defer(*DEFERRED)
        .annotate(
            num_decisions=Func(
                "decisions", function="jsonb_array_length", output_field=IntegerField()
            )
        )
        .order_by("-pk")
    )
    if before.isascii() and before.isdigit() and len(before) < 19:
        found = found.filter(pk__lt=int(before))
    rows = list(found[: ROWS + 1])
    context = {
        "topics": [QUEUE_TOPIC],
        "rows": rows[:ROWS],
        "next": rows[ROWS - 1].pk if len(rows) > ROWS else None,
        "is_first": not before,
    }
    return page(request, "scheduling/cycles.html", context)


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision as the page shows it."""

    kind: str
    workload: Workload | None
    name: str
    code: str
    sentence: str


@login_required
@require_safe
def cycle(request: PageRequest, cycle_id: int) -> HttpResponse:
    """One cycle: its decisions with their reasons, and where its time went."""
    _only_admins(request.user)
    row = get_object_or_404(CycleRecord.objects.defer("packed_scenario"), pk=cycle_id)
    context = {
        "cycle": row,
        "decisions": _decisions(row.decisions),
        "numbers": _numbers(row.numbers),
        "total_s": row.snapshot_s + row.plan_s + row.record_s,
    }
    return page(request, "scheduling/cycle.html", context)


def _decisions(stored: Iterable[Mapping[str, Any]]) -> list[DecisionRow]:
    """Stored decisions with their workloads' names; one query."""
    items = list(stored)
    ids = [str(item.get("workload", "")) for item in items]
    known = {
        str(row.pk): row
        for row in Workload.objects.filter(
            pk__in=[key for key in ids if _is_uuid(key)]
        ).select_related("project")
    }
    return [_decision(item, known) for item in items]


def _decision(item: Mapping[str, Any], known: Mapping[str, Workload]) -> DecisionRow:
    identity = str(item.get("workload", ""))
    workload = known.get(identity)
    reason = item.get("reason") or {}
    return DecisionRow(
        kind=str(item.get("kind") or item.get("type") or ""),
        workload=workload,
        name=workload.name if workload else identity or str(item.get("node", "")),
        code=str(reason.get("code", "")),
        sentence=texts.reason_sentence(reason) if reason else "",
    )


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _numbers(stored: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per project and resource of which it has or wants something, in a stable order."""
    named = {"titles": titles_of_all()}
    return [
        {
            "project": texts.level_word(project, named),
            "resource": resource,
            **{name: texts.amount_of(resource, values[name]) for name in SHOWN},
        }
        for project, by_resource in sorted(stored.items())
        for resource, values in sorted(by_resource.items())
        if values["quota"] or values["requested"] or values["allocated"]
    ]


@login_required
@require_safe
def scenario(request: PageRequest, cycle_id: int) -> HttpResponse:
    """The cycle's snapshot as a scenario file, to be replayed elsewhere."""
    _only_admins(request.user)
    row = get_object_or_404(CycleRecord.objects.only("packed_scenario"), pk=cycle_id)
    response = JsonResponse(
        row.scenario, safe=False, json_dumps_params={"indent": 2, "ensure_ascii": False}
    )
    response["Content-Disposition"] = f'attachment; filename="allot-cycle-{cycle_id}.json"'
    return response
