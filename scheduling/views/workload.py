"""One workload: what it does, why it waits, what displaced it, and what can be done about it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from projects import access
from projects.models import NodeType, User
from scheduling import costs, endings, formats, services, states, texts, time_limits
from scheduling.forms.idle_rule import ExtendForm
from scheduling.idle_sessions import obstacle_of
from scheduling.live import workload_topic
from scheduling.models import (
    ACTIVE_PHASES,
    ENDED_PHASES,
    LEADER,
    Attempt,
    Checkpoint,
    Loan,
    Phase,
    Workload,
)
from scheduling.selectors import examined_at, summed
from scheduling.services import ActionRefusedError
from scheduling.states import IDLE, SWAPPED_OUT, SWAPPING_IN, state_of
from scheduling.texts import idle_events, idleness
from scheduling.texts import swap as swap_texts
from scheduling.views.charts import Numbered, Range, range_of, workload_charts
from scheduling.views.pages import PageRequest, page
from scheduling.views.preferences import safe_next
from scheduling.views.sessions import is_connectable
from scheduling.views.sum_charts import workload_cost_chart
from telemetry.csp import allows_charts
from telemetry.views import series_response

MAX_EVENTS = 60
MAX_WAITS = 60
MAX_CHECKPOINTS = 20
MAX_ATTEMPTS = 128

MAX_WAKES = 3
RELATED = (
    "project__department",
    "owner",
    "node_type",
    "node__zone",
    "current__resumed_from",
    "current__allocation__node__node_type",
    "claimant__project",
)


def find_workload(user: User, workload_id: uuid.UUID) -> Workload:
    """The workload, if the person may see it.

    Raises:
        Http404: there is none.
        PermissionDenied: it is another project's.
    """
    workload = Workload.objects.select_related(*RELATED).filter(pk=workload_id).first()
    if workload is None:
        raise Http404
    if not access.may_view_workload(user, workload):
        raise PermissionDenied
    return workload


@login_required
@require_safe
@allows_charts
def workload(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Everything about one workload on one page."""
    row = find_workload(request.user, workload_id)
    now = timezone.now()
    chosen = range_of(request.GET)
    waits = list(row.waits.select_related("claimant__project").order_by("-started_at")[:MAX_WAITS])
    attempts = list(row.attempts.select_related("node").order_by("-number", "replica"))
    leaders = [attempt for attempt in attempts if attempt.replica == LEADER]
    may_see_cost = access.may_see_cost(request.user, row)
    cost = costs.spent([row.pk] if may_see_cost else [], now).get(row.pk, costs.NOTHING)
    context = {
        "workload": row,
        "topics": [workload_topic(row.pk)],
        "actions": _actions(row, request.user),
        "is_waiting": row.is_waiting,
        "is_ended": row.phase in ENDED_PHASES,
        "reason": texts.why(row),
        "examined_at": examined_at(row),
        "per_node_type": texts.per_node_type(row.reason),
        "offers": texts.offers(row.reason, row),
        "waits": [(wait, texts.wait_cause(wait)) for wait in waits],
        "waited": summed([(wait.started_at, wait.ended_at) for wait in waits], now),
        "events": list(row.events.select_related("actor").order_by("-at", "-id")[:MAX_EVENTS]),
        "attempts": attempts[:MAX_ATTEMPTS],
        "num_attempts": len(attempts),
        "num_starts": len(leaders),
        "attempt": leaders[0] if leaders else None,
        "replicas": _replicas(row, attempts),
        "growth": _growth(row),
        "checkpoints": list(row.checkpoints.select_related("attempt")[:MAX_CHECKPOINTS]),
        "may_see_cost": may_see_cost,
        "rate": costs.rate_now(row, cost) if may_see_cost else None,
        "cost": costs.cost_now(row, cost, now) if may_see_cost else None,
        "node_types": _titles(row),
        "swap": _swap(row, request.user),
        **_ends(row, request.user, now),
        "question": endings.questions([row]).get(row.pk),
        "is_ended_by_rule": endings.was_ended_by_rule(row),
        "state": state_of(row),
        "state_since": states.since(row),
        "range": chosen,
        "charts": [] if chosen.problems else _charts(row, request.user, chosen),
        "now": now,
    }
    return page(request, "scheduling/workload.html", context, chosen.status)


def _charts(row: Workload, user: User, chosen: Range) -> list[Numbered]:
    """What it uses and, for who may see that, costs; nothing before it has ever run."""
    found = workload_charts(row, user.time_zone, chosen)
    if found and access.may_see_cost(user, row):
        found.insert(1, workload_cost_chart(row, user.time_zone, chosen))
    return found


def _titles(row: Workload) -> list[str]:
    """The node types that it accepts, by title, in its order of preference."""
    titles = dict(NodeType.objects.filter(name__in=row.node_types).values_list("name", "title"))
    return [titles.get(name, name) for name in row.node_types]


@dataclass(frozen=True, slots=True)
class Replica:
    """One of several replicas, by its latest attempt."""

    attempt: Attempt
    is_leader: bool


def _replicas(row: Workload, attempts: list[Attempt]) -> list[Replica]:
    """The replicas of a workload that may have several, the leader first: each with its last start,
    `attempts` being in order of starts, last first.
    """
    if row.max_replicas == 1:
        return []
    latest: dict[int, Attempt] = {}
    for attempt in attempts:
        latest.setdefault(attempt.replica, attempt)
    return [Replica(latest[index], index == LEADER) for index in sorted(latest)[:MAX_ATTEMPTS]]


def _growth(row: Workload) -> str:
    """Why a running workload has no more replicas than it has."""
    reason = row.reason.get("growth")
    if row.phase != Phase.RUNNING or not reason or row.succeeded_replicas:
        return ""
    return texts.reason_sentence(reason)


@dataclass(frozen=True, slots=True)
class Actions:
    """What the person may do with it now."""

    is_connectable: bool = False
    may_stop: bool = False
    may_save: bool = False
    may_retry: bool = False
    may_wake: bool = False
    may_swap_out: bool = False
    may_clone: bool = False


def _actions(row: Workload, user: User) -> Actions:
    may_change = access.may_change_workload(user, row)
    state = state_of(row)
    return Actions(
        is_connectable=is_connectable(row) and access.may_connect(user, row),
        may_stop=may_change and row.phase not in (*ENDED_PHASES, Phase.STOPPING),
        may_save=may_change
        and row.phase == Phase.RUNNING
        and not row.is_session
        and row.checkpoint_mode != "none",
        may_retry=may_change and row.phase in ENDED_PHASES,
        may_wake=may_change and row.is_session and state in (SWAPPED_OUT, SWAPPING_IN),
        may_swap_out=may_change and row.is_session and state == IDLE and _is_swappable(row),
        may_clone=access.may_submit(user, row.project_id),
    )


def _is_swappable(row: Workload) -> bool:
    attempt: Attempt | None = row.current
    return attempt is not None and not obstacle_of(row, attempt)


@dataclass(frozen=True, slots=True)
class Idleness:
    """By which rule it is judged, and what each signal says now."""

    rule: idleness.RuleInWords
    lines: list[idleness.SignalLine]
    end_at: datetime | None
    kept_until: datetime | None


def _idleness(row: Workload, now: datetime) -> Idleness | None:
    """None where it does not run."""
    attempt: Attempt | None = row.current
    if attempt is None or row.phase != Phase.RUNNING:
        return None
    kept_until = attempt.idle_kept_until
    return Idleness(
        rule=idleness.rule_for_workload(row),
        lines=idleness.signal_lines(row, attempt.idle_signals),
        end_at=endings.end_at(row, now),
        kept_until=kept_until if kept_until is not None and kept_until > now else None,
    )


def _ends(row: Workload, user: User, now: datetime) -> dict[str, object]:
    """What ends it by a rule, and by how much the person may put that off."""
    idle = _idleness(row, now)
    limit = None if row.phase in ENDED_PHASES else time_limits.standings([row], now).get(row.pk)
    limit_end_at = limit.end_at if limit is not None and row.phase == Phase.RUNNING else None
    idle_end_at = None if idle is None else idle.end_at
    return {
        "idleness": idle,
        "time_limit": limit,
        "endings": endings.warned(row, user, limit_end_at, now),
        "extending": endings.extending(row, user, idle_end_at, limit_end_at, now),
    }


@dataclass(frozen=True, slots=True)
class Swap:
    """What a page says of a workload's device memory.

    Attributes:
        obstacle: Why it cannot be swapped, told beforehand; empty where it can.
        not_lent: Why its device is not lent though it idles.
        given: The loan under which others use its device.
        taken: Loans under which it uses others' devices.
        last: Its last wakes.
    """

    obstacle: str
    not_lent: str
    given: Loan | None
    taken: list[Loan]
    last: list[Loan]
    named: frozenset[int]

    @property
    def has_something(self) -> bool:
        return bool(self.obstacle or self.not_lent or self.given or self.taken or self.last)


def _swap(row: Workload, viewer: User) -> Swap | None:
    """None where it has no device, or does not run; `named` are the projects whose names may be
    shown."""
    attempt: Attempt | None = row.current
    if attempt is None or row.phase not in ACTIVE_PHASES or not row.num_devices:
        return None
    loans = Loan.objects.select_related("lender__workload__project", "borrower__workload__project")
    given = loans.filter(lender=attempt)
    is_running_session = row.is_session and row.phase == Phase.RUNNING
    return Swap(
        obstacle=swap_texts.obstacle(obstacle_of(row, attempt)) if is_running_session else "",
        not_lent=swap_texts.not_lent(attempt.not_lent) if attempt.idle_since else "",
        given=given.filter(ended_at__isnull=True).first(),
        taken=list(loans.open().filter(borrower__workload=row, borrower__ended_at__isnull=True)),
        last=list(given.filter(wake_s__isnull=False)[:MAX_WAKES]),
        named=frozenset(access.visible_projects(viewer).values_list("pk", flat=True)),
    )


@login_required
@require_safe
def series(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """A chart's data again, for a page that was hidden or cut off."""
    row = find_workload(request.user, workload_id)
    return series_response(request, f"workload:{row.pk}")


# ---------------------------------------------------------------- what can be done


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def stop(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Ask first, naming what would be lost; then stop."""
    row = find_workload(request.user, workload_id)
    if not access.may_change_workload(request.user, row):
        raise PermissionDenied
    if request.method == "POST":
        return _act(request, row, services.stop, _("“%(name)s” is being stopped."))
    checkpoint = row.checkpoints.filter(is_kept=True).first()
    context = {
        "workload": row,
        "losses": _losses(row, checkpoint, timezone.now()),
        "next": safe_next(request, reverse("scheduling:workload", args=[row.pk])),
    }
    return page(request, "scheduling/stop.html", context)


def _losses(row: Workload, checkpoint: Checkpoint | None, now: datetime) -> list[str]:
    """What stopping would lose, in sentences."""
    attempt: Attempt | None = row.current
    if row.phase not in ACTIVE_PHASES or attempt is None or attempt.started_at is None:
        return [_("It does not run, so nothing is lost but its place in the queue.")]
    running = _("It has run for %(time)s.") % {
        "time": formats.duration(formats.seconds_since(attempt.started_at, now))
    }
    if row.is_session:
        return [running, idle_events.session_loss()]
    if checkpoint is None:
        saved = _("It has not saved yet: all progress may be lost.")
    else:
        saved = _("Its last checkpoint is %(ago)s.") % {
            "ago": formats.ago(checkpoint.saved_at, now)
        }
    if row.checkpoint_mode == "none":
        return [running, _("It has no way to save: all progress is lost.")]
    grace = _("It is asked to save first and has %(time)s for that.") % {
        "time": formats.duration(row.grace_s)
    }
    return [running, saved, grace]


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def retry(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Back into the queue with the same settings and folder; of a session, say what is not there
    any more."""
    row = find_workload(request.user, workload_id)
    if request.method != "POST":
        if not access.may_change_workload(request.user, row):
            raise PermissionDenied
        own_page = reverse("scheduling:workload", args=[row.pk])
        context = {"workload": row, "next": safe_next(request, own_page)}
        return page(request, "scheduling/retry.html", context)
    return _act(request, row, services.retry, _("“%(name)s” is in the queue again."))


@login_required
@require_POST
def extend(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Keep it longer, though it idles or its time is over."""
    row = find_workload(request.user, workload_id)
    form = ExtendForm(request.POST, workload=row)
    if not form.is_valid():
        messages.error(request, " ".join(map(str, form.errors["extend_s"])))
        return redirect(safe_next(request, reverse("scheduling:workload", args=[row.pk])))
    action = partial(services.extend, for_s=form.cleaned_data["extend_s"])
    return _act(request, row, action, _("“%(name)s” is kept longer."))


@login_required
@require_POST
def notify_owner(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Ask its owner whether it is still needed."""
    row = find_workload(request.user, workload_id)
    done = _("The owner of “%(name)s” is notified.")
    return _act(request, row, services.notify_owner, done)


@login_required
@require_POST
def checkpoint(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Save now and go on."""
    row = find_workload(request.user, workload_id)
    return _act(request, row, services.checkpoint_now, _("“%(name)s” was asked to save."))


@login_required
@require_POST
def wake(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Bring a swapped-out session's GPU back now."""
    row = find_workload(request.user, workload_id)
    return _act(request, row, services.wake, _("“%(name)s” is getting its GPU back."))


@login_required
@require_POST
def swap_out(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """Let an idle session's GPU be lent at once."""
    row = find_workload(request.user, workload_id)
    done = _("“%(name)s” is swapped out as soon as a training waits for its GPU.")
    return _act(request, row, services.swap_out, done)


def _act(
    request: PageRequest, row: Workload, action: Callable[..., Workload], done: str
) -> HttpResponse:
    try:
        action(row, actor=request.user)
    except ActionRefusedError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, done % {"name": row.name})
    return redirect(safe_next(request, reverse("scheduling:workload", args=[row.pk])))
