"""A chart's data again, for a page that was hidden or cut off, or as CSV."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext
from django.views.decorators.http import require_GET

from telemetry.charts import (
    DEFAULT_MINUTES,
    MAX_MINUTES,
    Chart,
    ChartError,
    LineSpec,
    View,
    chart_of,
)
from telemetry.metrics import Kind

MAX_SUBJECTS = 64


@login_required
@require_GET
def series(request: HttpRequest) -> HttpResponse:
    """Charts of devices and nodes, which everybody with a login may see.

    Who may see a workload is not known here: its data has an address of its own.
    """
    subjects = request.GET.getlist("subject")
    if any(subject.startswith(f"{Kind.WORKLOAD}:") for subject in subjects):
        refused = gettext("A workload's data is at the workload's own address.")
        return JsonResponse({"field": "subject", "error": refused}, status=403)
    return series_response(request, *subjects)


def series_response(request: HttpRequest, *subjects: str) -> HttpResponse:
    """Answer `?metric=…&metric=…&minutes=…&zone=…` for subjects that the reader may see."""
    try:
        chart = chart_of(_specs(request, subjects), _view(request))
    except ChartError as error:
        return JsonResponse({"field": error.field, "error": str(error)}, status=400)
    return chart_response(request, chart)


def chart_response(request: HttpRequest, chart: Chart) -> HttpResponse:
    """What a page draws, or with `?format=csv` the same figures; no data is an empty cell."""
    if request.GET.get("format") != "csv":
        return JsonResponse({"title": chart.title, "zone_label": chart.zone, **chart.payload})
    lines = chart.payload["figure"]["data"]
    rows: dict[str, list[float | None]] = defaultdict(lambda: [None] * len(lines))
    for number, line in enumerate(lines):
        for at, value in zip(line["x"], line["y"], strict=True):
            rows[at][number] = value
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{chart.id}.csv"'
    writer = csv.writer(response)
    names = [f"{line['name']}, {chart.unit}" for line in lines]
    writer.writerow([f"{chart.payload['labels']['time']}, {chart.zone}", *names])
    for at in sorted(rows):
        cells = ("" if value is None else f"{value:.6g}" for value in rows[at])
        writer.writerow([at, *cells])
    return response


def _specs(request: HttpRequest, subjects: Sequence[str]) -> list[LineSpec]:
    metrics = request.GET.getlist("metric")
    if not 1 <= len(subjects) * max(1, len(metrics)) <= MAX_SUBJECTS:
        raise ChartError("subject", f"is named {len(subjects)} times: 1 to {MAX_SUBJECTS} lines")
    # A page has names of its own for them.
    names = dict.fromkeys(subjects, "") if len(subjects) == 1 else {one: one for one in subjects}
    return [LineSpec(subject, metric, names[subject]) for subject in subjects for metric in metrics]


def _view(request: HttpRequest) -> View:
    minutes = request.GET.get("minutes", str(DEFAULT_MINUTES))
    if not (minutes.isascii() and minutes.isdigit() and len(minutes) < 7):
        raise ChartError("minutes", f"is {minutes[:80]!r}: it must be 1 to {MAX_MINUTES}")
    return View(
        minutes=int(minutes),
        zone=request.GET.get("zone", ""),
        source=request.get_full_path(),
    )
