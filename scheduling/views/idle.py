"""Idle now: who holds a GPU and does nothing with it, for how long and at what cost."""

from __future__ import annotations

import csv
import io
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from projects import access
from projects.models import User
from scheduling.analytics import idle as idleness
from scheduling.analytics import unmeasured
from scheduling.analytics.idle import Holding
from scheduling.analytics.table import harmless
from scheduling.idle_now import LOOK_BACK
from scheduling.idle_sessions import obstacle_of
from scheduling.live import QUEUE_TOPIC
from scheduling.models import Phase, Workload
from scheduling.services.notifying import notified_lately
from scheduling.states import IDLE, state_of
from scheduling.views.choices import Choices, refusal
from scheduling.views.pages import PageRequest, page

MAX_ROWS = 500


@login_required
@require_safe
def idle(request: PageRequest) -> HttpResponse:
    """The list, longest first, and apart from it who cannot be judged."""
    now = timezone.now()
    choices = Choices(request.GET)
    project = choices.project(request.user)
    found = [] if choices.problems else _found(request.user, project, now)
    costs = [holding.cost for holding in found if holding.cost is not None]
    context = {
        "topics": [QUEUE_TOPIC],
        "problems": choices.problems,
        "rows": _rows(request.user, found[:MAX_ROWS], now),
        "num_rows": len(found),
        "is_cut": len(found) > MAX_ROWS,
        "total_milli": sum(holding.gpu_milli for holding in found),
        "total_cost": sum(costs, Decimal(0)) if costs else None,
        "unmeasured": [
            item
            for item in unmeasured.now(request.user, now)
            if not project or (item.workload and item.workload.project.name == project)
        ][:MAX_ROWS],
        "projects": list(access.visible_projects(request.user)),
        "project": project,
    }
    return page(request, "scheduling/idle.html", context, choices.status)


@dataclass(frozen=True, slots=True)
class Row:
    """An idle holding, and what the person may do about it.

    Attributes:
        is_longer: It idles for longer than one can see.
        notified_at: When its owner was notified, if that was so lately that it may not be again.
    """

    holding: Holding
    is_longer: bool
    may_notify: bool = False
    notified_at: datetime | None = None
    may_swap_out: bool = False
    may_stop: bool = False


def _rows(user: User, holdings: Sequence[Holding], now: datetime) -> list[Row]:
    changeable = _changeable(user, holdings)
    notified = notified_lately(changeable, now)
    rows = []
    for holding in holdings:
        workload = holding.workload
        is_longer = now - holding.idle_since >= LOOK_BACK
        if workload is None or workload.pk not in changeable:
            rows.append(Row(holding, is_longer))
            continue
        notified_at = notified.get(workload.pk)
        may_ask = workload.owner_id != user.pk and workload.phase == Phase.RUNNING
        rows.append(
            Row(
                holding,
                is_longer,
                may_notify=may_ask and notified_at is None,
                notified_at=notified_at,
                may_swap_out=_is_swappable(workload),
                may_stop=workload.phase != Phase.STOPPING,
            )
        )
    return rows


def _is_swappable(workload: Workload) -> bool:
    """Whether *Swap out now* would do anything."""
    attempt = workload.current
    if not workload.is_session or attempt is None or state_of(workload) != IDLE:
        return False
    return attempt.lend_asked_at is None and not obstacle_of(workload, attempt)


def _changeable(user: User, holdings: Sequence[Holding]) -> set[uuid.UUID]:
    """What the person may stop; asked once per project, and for own work apart."""
    known: dict[tuple[int, bool], bool] = {}
    found = set()
    for workload in (holding.workload for holding in holdings):
        if workload is None:
            continue
        key = (workload.project_id, workload.owner_id == user.pk)
        if key not in known:
            known[key] = access.may_change_workload(user, workload)
        if known[key]:
            found.add(workload.pk)
    return found


def _found(viewer: User, project: str, now: datetime) -> list[Holding]:
    found = idleness.now(viewer, now)
    if not project:
        return found
    return [item for item in found if item.workload and item.workload.project.name == project]


@login_required
@require_safe
def idle_csv(request: PageRequest) -> HttpResponse:
    """The list as CSV; what the reader may not see is empty."""
    now = timezone.now()
    choices = Choices(request.GET)
    project = choices.project(request.user)
    if choices.problems:
        return refusal(choices.problems)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(
        [_("Workload"), _("Owner"), _("Project"), _("Node"), _("GPU"), _("Idle, s"), _("Cost")]
    )
    for item in _found(request.user, project, now):
        workload = item.workload
        named = [workload.name, workload.owner.username, workload.project.name] if workload else []
        cells = [
            *(named or ["", "", ""]),
            item.node,
            f"{item.gpu_milli / 1000:g}",
            f"{item.idle_s(now):.0f}",
            "" if item.cost is None else f"{item.cost:.4f}",
        ]
        writer.writerow([harmless(cell) for cell in cells])
    response = HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="idle.csv"'
    return response
