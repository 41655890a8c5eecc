"""A chart's data again, for a page that was hidden or cut off."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, JsonResponse
from django.utils.translation import gettext
from django.views.decorators.http import require_GET

from telemetry.charts import DEFAULT_MINUTES, MAX_MINUTES, ChartError, LineSpec, View, chart_of
from telemetry.metrics import Kind

MAX_SUBJECTS = 64


@login_required
@require_GET
def series(request: HttpRequest) -> JsonResponse:
    """Charts of devices and nodes, which everybody with a login may see.

    Who may see a workload is not known here: its data has an address of its own.
    """
    subjects = request.GET.getlist("subject")
    if any(subject.startswith(f"{Kind.WORKLOAD}:") for subject in subjects):
        refused = gettext("A workload's data is at the workload's own address.")
        return JsonResponse({"field": "subject", "error": refused}, status=403)
    return series_response(request, *subjects)


def series_response(request: HttpRequest, *subjects: str) -> JsonResponse:
    """Answer `?metric=…&metric=…&minutes=…&zone=…` for subjects that the reader may see."""
    try:
        chart = chart_of(_specs(request, subjects), _view(request))
    except ChartError as error:
        return JsonResponse({"field": error.field, "error": str(error)}, status=400)
    return JsonResponse({"title": chart.title, "zone_label": chart.zone, **chart.payload})


def _specs(request: HttpRequest, subjects: Sequence[str]) -> list[LineSpec]:
    metrics = request.GET.getlist("metric")
    if not 1 <= len(subjects) * max(1, len(metrics)) <= MAX_SUBJECTS:
        raise ChartError("subject", f"is named {len(subjects)} times: 1 to {MAX_SUBJECTS} lines")
    return [LineSpec(subject, metric) for subject in subjects for metric in metrics]


def _view(request: HttpRequest) -> View:
    minutes = request.GET.get("minutes", str(DEFAULT_MINUTES))
    if not (minutes.isascii() and minutes.isdigit() and len(minutes) < 7):
        raise ChartError("minutes", f"is {minutes[:80]!r}: it must be 1 to {MAX_MINUTES}")
    return View(
        minutes=int(minutes),
        zone=request.GET.get("zone", ""),
        source=request.get_full_path(),
    )
