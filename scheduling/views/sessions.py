"""My sessions: is it ready, how do I get in, what did I ask for, what does it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from projects import access
from projects.models import WorkloadKind
from scheduling import costs, endings, texts, time_limits
from scheduling.costs import Spent
from scheduling.endings import Ending
from scheduling.live import project_topic
from scheduling.models import ENDED_PHASES, Event, Phase, Workload
from scheduling.selectors import NOTHING_WAITED, Waited, waited
from scheduling.time_limits import Standing
from scheduling.views.pages import PageRequest, page

KEPT_AFTER_END = timedelta(days=14)
MAX_CARDS = 60


@dataclass(frozen=True, slots=True)
class Card:
    """A session as its owner sees it."""

    workload: Workload
    is_connectable: bool
    is_ended: bool
    rate_per_hour: Decimal | None
    cost: Decimal
    waited: Waited
    offers: list[texts.Offer]
    endings: list[Ending]
    time_limit: Standing | None
    question: Event | None
    is_ended_by_rule: bool


@login_required
@require_safe
def sessions(request: PageRequest) -> HttpResponse:
    """Cards, newest first; ended ones stay for two weeks, to be started again."""
    now = timezone.now()
    rows = list(
        Workload.objects.filter(owner=request.user, kind=WorkloadKind.INTERACTIVE)
        .filter(~Q(phase__in=ENDED_PHASES) | Q(ended_at__gt=now - KEPT_AFTER_END))
        .select_related("project", "owner", "node_type", "node", "current", "claimant__project")[
            :MAX_CARDS
        ]
    )
    projects = dict(access.projects_for_submit(request.user).values_list("pk", "name"))
    context = {
        "topics": [project_topic(name) for name in projects.values()],
        "cards": _cards(rows, set(projects), now),
        "may_submit": bool(projects),
    }
    return page(request, "scheduling/sessions.html", context)


def _cards(rows: list[Workload], member_of: set[int], now: datetime) -> list[Card]:
    ids = [row.pk for row in rows]
    spent = costs.spent(ids, now)
    waits = waited(ids, now)
    asked = endings.questions(rows)
    running = [row for row in rows if row.phase == Phase.RUNNING]
    limits = time_limits.standings(running, now)
    return [
        replace(
            _card(row, member_of, spent, waits),
            question=asked.get(row.pk),
            time_limit=limits.get(row.pk),
            endings=_endings(row, limits.get(row.pk), now),
        )
        for row in rows
    ]


def _endings(row: Workload, limit: Standing | None, now: datetime) -> list[Ending]:
    return endings.warned(row, row.owner, None if limit is None else limit.end_at, now)


def _card(
    row: Workload,
    member_of: Iterable[int],
    spent: Mapping[UUID, Spent],
    waits: Mapping[UUID, Waited],
) -> Card:
    cost = spent.get(row.pk, costs.NOTHING)
    return Card(
        workload=row,
        is_connectable=is_connectable(row) and row.project_id in member_of,
        is_ended=row.phase in ENDED_PHASES,
        rate_per_hour=costs.rate_now(row, cost),
        cost=cost.amount,
        waited=waits.get(row.pk, NOTHING_WAITED),
        offers=texts.offers(row.reason, row) if row.phase == Phase.QUEUED else [],
        endings=[],
        time_limit=None,
        question=None,
        is_ended_by_rule=row.phase in ENDED_PHASES and endings.was_ended_by_rule(row),
    )


def is_connectable(workload: Workload) -> bool:
    """Whether its page answers now; the caller checks who asks."""
    attempt = workload.current
    return (
        workload.is_session
        and workload.phase == Phase.RUNNING
        and attempt is not None
        and attempt.is_ready
    )
