"""What agents report of loans. They wake sessions on their own: it is recorded, never asked for."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from scheduling.models import Attempt, AttemptGoal, AttemptPhase, Loan, LoanState, Workload
from scheduling.services.events import announce_workload, record_event, wake_planner
from scheduling.services.reported import time_of, uuid_of

if TYPE_CHECKING:
    from scheduling.agent import protocol

FINAL_STATES = (LoanState.ENDED, LoanState.REFUSED)
RECALLS = ("lending_off", "room_taken", "over_limit", "placed_elsewhere")
"""For what a borrower may be called back: the true cause of the end that its agent saw."""


def record_loans(zone_id: int, reports: Sequence[protocol.LoanReport]) -> list[str]:
    """Bring each loan up to what is reported.

    Args:
        zone_id: Whose agent reports; loans of other zones' nodes are left alone.
        reports: One per loan.

    Returns:
        Ids of loans recorded as over, or unknown here: the agent may forget them.
    """
    settled: list[str] = []
    ids = [uuid_of(report.loan_id) for report in reports]
    known = {
        str(row.pk): row
        for row in Loan.objects.filter(pk__in=ids, lender__node__zone=zone_id).select_related(
            "lender__workload", "borrower__workload"
        )
    }
    for report in reports:
        row = known.get(report.loan_id)
        is_over = report.state.value in FINAL_STATES
        if row is not None and row.ended_at is None and _differs(row, report):
            _record_loan(row.pk, report)
        if is_over:
            settled.append(report.loan_id)
    return settled


def _differs(row: Loan, report: protocol.LoanReport) -> bool:
    """Of what ended it, only whether anything did: the cause kept may be a nearer one."""
    return (row.state, bool(row.ended_by), row.lent_at is None) != (
        report.state,
        bool(report.ended_by),
        report.lent_at is None,
    )


def _cause_of(row: Loan, seen: str) -> str:
    """What ended a loan: an agent sees that its borrower ended, or that the loan is ordered no
    longer, but not why. That is known here.
    """
    if seen not in ("borrower_ended", "orchestrator"):
        return seen
    borrower = row.borrower
    if borrower.goal == AttemptGoal.EVICT and borrower.goal_detail in RECALLS:
        return borrower.goal_detail
    # Loans that were decided together: once one lender is back, the borrower leaves the others.
    others = Loan.objects.filter(borrower=borrower, started_at=row.started_at).exclude(pk=row.pk)
    is_back = Q(state=LoanState.REFUSED) | ~Q(
        ended_by__in=("", "borrower_ended", "orchestrator", *RECALLS)
    )
    if others.filter(is_back).exists():
        return "other_lender"
    return "borrower_ended" if borrower.phase == AttemptPhase.ENDED else seen


@transaction.atomic
def _record_loan(pk: uuid.UUID, report: protocol.LoanReport) -> None:
    rows = Loan.objects.select_for_update(no_key=True, of=("self",))
    row = rows.select_related("lender__workload", "borrower__workload", "device").get(pk=pk)
    if row.ended_at is not None:
        return
    now = timezone.now()
    before = row.state
    was_lent = row.lent_at is not None
    row.state = LoanState(report.state)
    row.swapped_out_bytes = report.swapped_out_bytes or row.swapped_out_bytes
    row.out_s, row.in_s = report.out_s or row.out_s, report.in_s or row.in_s
    row.wake_s = report.wake_s if report.wake_s is not None else row.wake_s
    row.ended_by = _cause_of(row, report.ended_by)[:20]
    row.error = report.error[:500]
    row.lent_at = row.lent_at or time_of(report.lent_at)
    if row.state in FINAL_STATES:
        row.is_wanted = False
        row.ended_at = max(time_of(report.ended_at) or now, row.lent_at or row.started_at)
    row.save()
    lender, borrower = row.lender.workload, row.borrower.workload
    told = _numbers(row, borrower)
    if _answers_its_lender(row, report.ended_by):
        asked = Attempt.objects.filter(pk=row.lender_id, lend_asked_at__isnull=False)
        if asked.update(lend_asked_at=None) and row.state == LoanState.REFUSED:
            record_event(lender, "lend_refused", at=now, attempt=row.lender, details=told)
    if row.lent_at and not was_lent:
        record_event(lender, "swapped_out", at=now, attempt=row.lender, details=told)
    is_ending = row.state in (LoanState.WAKING, *FINAL_STATES)
    if is_ending and before != LoanState.WAKING:
        # One of its lenders is back: the borrower has left all of them.
        Loan.objects.wanted().filter(borrower=row.borrower_id).update(is_wanted=False)
    if row.state == LoanState.ENDED and row.lent_at:
        record_event(lender, "swapped_in", at=now, attempt=row.lender, details=told)
    if row.state == LoanState.REFUSED:
        told = _numbers(row, lender)
        record_event(borrower, "loan_refused", at=now, attempt=row.borrower, details=told)
    if is_ending:
        wake_planner("loan")
    announce_workload(lender)
    announce_workload(borrower)


def _answers_its_lender(row: Loan, seen: str) -> bool:
    """Whether what its lender's owner asked for is done, or cannot be; no if the borrower left.

    Args:
        row: The loan.
        seen: What ended it, as its agent saw it.
    """
    if row.state in FINAL_STATES and seen not in ("borrower_ended", "orchestrator"):
        return True
    return row.lent_at is not None


def _numbers(row: Loan, other: Workload) -> dict[str, object]:
    """What an event tells; names only where both are of one project."""
    is_own = row.lender.workload.project_id == row.borrower.workload.project_id
    return {
        "other": other.name if is_own else "",
        "bytes": row.swapped_out_bytes,
        "out_s": row.out_s,
        "in_s": row.in_s,
        "wake_s": row.wake_s,
        "ended_by": row.ended_by,
        "error": row.error,
    }


def close_loans_of(attempt: Attempt, at: datetime) -> None:
    """An attempt is over: what it lent is the borrower's, what it borrowed goes back."""
    given = Loan.objects.open().filter(lender=attempt)
    for loan in given.select_for_update(no_key=True):
        loan.state, loan.ended_by = LoanState.ENDED, "lender_ended"
        loan.is_wanted, loan.ended_at = False, max(at, loan.lent_at or loan.started_at)
        loan.save()
    Loan.objects.wanted().filter(borrower=attempt).update(is_wanted=False)
