"""Swap: what lending idle sessions' GPUs brought, loan by loan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from projects.access import visible_projects
from scheduling.analytics import loans
from scheduling.live import QUEUE_TOPIC
from scheduling.models import Loan
from scheduling.texts import swap as swap_texts
from scheduling.views.choices import Choices
from scheduling.views.pages import PageRequest, page

DAYS = (1, 7, 30)
DEFAULT_DAYS = 7
MAX_ROWS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """A loan as the reader may see it: names of other projects' work stay out."""

    loan: Loan
    shows_lender: bool
    shows_borrower: bool
    gpu_hours: float
    ended_by: str


@login_required
@require_safe
def swap(request: PageRequest) -> HttpResponse:
    """Figures of a period, and its newest loans."""
    now = timezone.now()
    choices = Choices(request.GET)
    days = choices.one_of("days", map(str, DAYS), str(DEFAULT_DAYS))
    since = now - timedelta(days=DEFAULT_DAYS if choices.problems else int(days))
    named = set(visible_projects(request.user).values_list("pk", flat=True))
    rows = loans.of_period(since, now).select_related(
        "lender__workload__project", "borrower__workload__project", "device__node"
    )
    context = {
        "topics": [QUEUE_TOPIC],
        "gain": loans.gained(since, now),
        "rows": [_row(loan, named, since, now) for loan in rows[:MAX_ROWS]],
        "days": days,
        "choices": [(str(n), _title(n)) for n in DAYS],
        "problems": choices.problems,
    }
    return page(request, "scheduling/swap.html", context, choices.status)


def _title(days: int) -> str:
    return _("24 hours") if days == 1 else _("%(n)s days") % {"n": days}


def _row(loan: Loan, named: set[int], since: datetime, now: datetime) -> Row:
    return Row(
        loan=loan,
        shows_lender=loan.lender.workload.project_id in named,
        shows_borrower=loan.borrower.workload.project_id in named,
        gpu_hours=loans.hours(loan.lent_at, loan.ended_at, loan.gpu_milli, since, now),
        ended_by=swap_texts.ended_by(loan.ended_by) if loan.ended_by else "",
    )
