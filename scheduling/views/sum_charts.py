"""Charts of what is held and what it costs: of one workload, one node, the whole cluster.

Figures are those of analytics (`scheduling.analytics.facts`): what lies on a node that is down is
held by nobody and costs nothing. The lines go on with each sample until something is taken or given
back; then the page reads them again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import urlencode

import numpy as np
from django.contrib.auth.decorators import login_required
from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext
from django.views.decorators.http import require_safe

from projects import access
from projects.models import User
from scheduling import formats
from scheduling.analytics import facts
from scheduling.analytics.facts import Holders, Piece
from scheduling.analytics.intervals import Floats, cut
from scheduling.live import CLUSTER_TOPIC, NODES_TOPIC, workload_topic
from scheduling.models import Node, Workload
from scheduling.selectors import managed_project_ids
from scheduling.views.charts import Numbered, Range, numbered, range_of
from scheduling.views.pages import PageRequest
from telemetry import history
from telemetry.charts import Chart, Ready, View, Words, chart_from
from telemetry.figures import Line, Points
from telemetry.live import topic_for
from telemetry.views import chart_response

CLUSTER_MINUTES = 60
NUM_BINS = 240
HOUR_S = 3600.0


def _by_bins(
    pieces: Sequence[Piece], weights: Sequence[float], since: datetime, until: datetime
) -> tuple[Floats, Floats]:
    """Edges of even bins, and the mean of what was held in each."""
    edges = np.linspace(since.timestamp(), until.timestamp(), NUM_BINS + 1)
    starts = np.array([piece.start for piece in pieces])
    ends = np.array([piece.end for piece in pieces])
    cuts = cut(starts, ends, edges)
    sums = np.bincount(cuts.bin, np.array(weights)[cuts.item] * cuts.seconds, NUM_BINS)
    means: Floats = sums / (edges[1] - edges[0])
    return edges, means


def _points(edges: Floats, values: Floats) -> Points:
    """Each bin's value at its end."""
    return [
        (datetime.fromtimestamp(at, UTC), value)
        for at, value in zip(edges[1:].tolist(), values.tolist(), strict=True)
    ]


def _rate_now(pieces: Sequence[Piece], now: datetime) -> float:
    return sum(piece.per_hour for piece in pieces if piece.end >= now.timestamp())


def _rates(pieces: Sequence[Piece], topic: str, since: datetime, now: datetime) -> Ready:
    """Cost per hour over time."""
    edges, means = _by_bins(pieces, [piece.per_hour for piece in pieces], since, now)
    line = Line(_("Cost per hour"), _points(edges, means))
    return Ready(line, topic, amount=_rate_now(pieces, now))


# ---------------------------------------------------------------- one workload


def workload_cost_chart(workload: Workload, zone: str, chosen: Range) -> Numbered:
    """What a workload has cost, growing; its number is the whole."""
    now = timezone.now()
    since = now - timedelta(minutes=chosen.minutes)
    pieces = facts.held_by(Holders(workloads=[workload.pk]), None, now).charged
    edges, means = _by_bins(pieces, [piece.per_hour for piece in pieces], since, now)
    total = sum(piece.cost for piece in pieces)
    grown = np.cumsum(means) * (edges[1] - edges[0]) / HOUR_S
    # Before the range it had cost something already.
    points = _points(edges, grown + (total - grown[-1]))
    began = min((piece.start for piece in pieces), default=now.timestamp())
    line = Line(_("Cost so far"), [point for point in points if point[0].timestamp() >= began])
    words = Words(
        "chart-cost",
        _("Cost so far"),
        _("GPUs, cores and memory held, at the prices in force at each moment."),
        pgettext("currency", "RUB"),
    )
    ready = Ready(
        line,
        topic_for(f"workload:{workload.pk}"),
        amount=total,
        per_hour=_rate_now(pieces, now),
    )
    address = reverse("scheduling:workload-cost-series", args=[workload.pk])
    view = View(chosen.minutes, zone, source=f"{address}?range={chosen.name}")
    chart = chart_from(words, [ready], view, changes_with=workload_topic(workload.pk))
    return Numbered(chart, formats.money(Decimal(total)), is_whole=True)


@login_required
@require_safe
def workload_cost_series(request: PageRequest, workload_id: uuid.UUID) -> HttpResponse:
    """A workload's cost again, for who may see it."""
    row = get_object_or_404(Workload.objects.select_related("project"), pk=workload_id)
    if not access.may_see_cost(request.user, row):
        return JsonResponse({"error": _("You may not see this cost.")}, status=403)
    chosen = range_of(request.GET)
    if chosen.problems:
        return _refused_range(chosen)
    chart = workload_cost_chart(row, request.user.time_zone, chosen).chart
    return chart_response(request, chart)


def _refused_range(chosen: Range) -> HttpResponse:
    return JsonResponse({"field": "range", "error": " ".join(chosen.problems)}, status=400)


# ---------------------------------------------------------------- one node


def node_cost_chart(node: Node, user: User, chosen: Range) -> Numbered:
    """What is held on a node costs so much an hour, as far as the reader may see cost."""
    now = timezone.now()
    since = now - timedelta(minutes=chosen.minutes)
    who = _seen_by(user)
    pieces = facts.held_by(Holders(None, [node.pk], who.projects, who.owner), since, now).charged
    words = Words("chart-cost", _("Cost per hour"), _cost_sentence(who), _per_hour())
    address = reverse("scheduling:node-cost-series", args=[node.name])
    view = View(chosen.minutes, user.time_zone, source=f"{address}?range={chosen.name}")
    ready = _rates(pieces, topic_for(f"node:{node.name}"), since, now)
    return numbered(chart_from(words, [ready], view, changes_with=NODES_TOPIC), "node")


def _seen_by(user: User) -> Holders:
    """Cost: one's own, that of the projects one manages, all for admins."""
    managed = managed_project_ids(user)
    if managed is None:
        return Holders()
    return Holders(projects=managed, owner=user.pk)


def _per_hour() -> str:
    return pgettext("currency", "RUB per hour")


def _cost_sentence(who: Holders) -> str:
    if who.projects is None:
        return _("What all that is held costs, at the prices in force at each moment.")
    return _("What you hold, and the projects that you manage, at the prices in force then.")


@login_required
@require_safe
def node_cost_series(request: PageRequest, name: str) -> HttpResponse:
    """A node's cost again."""
    node = get_object_or_404(Node, name=name)
    chosen = range_of(request.GET)
    if chosen.problems:
        return _refused_range(chosen)
    return chart_response(request, node_cost_chart(node, request.user, chosen).chart)


# ---------------------------------------------------------------- the whole cluster


def cluster_charts(user: User, *, is_lazy: bool = True) -> list[Chart]:
    """How much of the cluster is held and used, and what it costs an hour.

    Cost: none while lazy: the page comes first and reads them then.
    """
    return [_use_chart(user, is_lazy=is_lazy), _cluster_cost_chart(user, is_lazy=is_lazy)]


def _view(user: User, which: str) -> View:
    address = reverse("scheduling:cluster-series")
    return View(CLUSTER_MINUTES, user.time_zone, source=f"{address}?{urlencode({'of': which})}")


def _use_chart(user: User, *, is_lazy: bool) -> Chart:
    now = timezone.now()
    since = now - timedelta(minutes=CLUSTER_MINUTES)
    held: Points = []
    used: Points = []
    if not is_lazy:
        pieces = [piece for piece in facts.held_by(Holders(), since, now).held if piece.is_device]
        held = _points(*_by_bins(pieces, [piece.gpu for piece in pieces], since, now))
        used = list(history.devices_together(since, now))
    words = Words(
        "chart-cluster",
        _("GPUs held and used"),
        _("GPUs held by workloads of all projects, and how much of them was used."),
        _("GPU"),
    )
    ready = [
        Ready(Line(_("held"), held), CLUSTER_TOPIC, "gpu_held"),
        Ready(Line(pgettext("GPU", "used"), used), CLUSTER_TOPIC, "gpu_used"),
    ]
    return chart_from(words, ready, _view(user, "use"), is_lazy=is_lazy)


def _cluster_cost_chart(user: User, *, is_lazy: bool) -> Chart:
    now = timezone.now()
    since = now - timedelta(minutes=CLUSTER_MINUTES)
    who = _seen_by(user)
    words = Words("chart-cluster-cost", _("Cost per hour"), _cost_sentence(who), _per_hour())
    ready = Ready(Line(_("Cost per hour"), []), CLUSTER_TOPIC)
    if not is_lazy:
        ready = _rates(facts.held_by(who, since, now).charged, CLUSTER_TOPIC, since, now)
    view = _view(user, "cost")
    return chart_from(words, [ready], view, changes_with=NODES_TOPIC, is_lazy=is_lazy)


@login_required
@require_safe
def cluster_series(request: PageRequest) -> HttpResponse:
    """One of the overview's charts: `?of=use` or `?of=cost`."""
    made = {"use": _use_chart, "cost": _cluster_cost_chart}.get(request.GET.get("of", ""))
    if made is None:
        limit = "use, cost"
        return JsonResponse({"field": "of", "error": f"of: it must be one of {limit}"}, status=400)
    return chart_response(request, made(request.user, is_lazy=False))
