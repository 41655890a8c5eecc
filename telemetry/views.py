"""A chart's data again, for a page that was hidden or cut off."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, JsonResponse
from django.utils.translation import gettext
from django.views.decorators.http import require_GET

from telemetry.charts import DEFAULT_MINUTES, ChartError, figure_for
from telemetry.metrics import Kind, split_subject


@login_required
@require_GET
def series(request: HttpRequest) -> JsonResponse:
    """A device's or node's chart, which everybody with a login may see.

    Who may see a workload is not known here: its data has an address of its own.
    """
    subject = request.GET.get("subject", "")
    try:
        kind, _ = split_subject(subject)
    except ValueError as error:
        return JsonResponse({"field": "subject", "error": str(error)}, status=400)
    if kind is Kind.WORKLOAD:
        refused = gettext("A workload's data is at the workload's own address.")
        return JsonResponse({"field": "subject", "error": refused}, status=403)
    return series_response(request, subject)


def series_response(request: HttpRequest, subject: str) -> JsonResponse:
    """Answer `?metric=…&metric=…&minutes=…&zone=…` for a subject that the reader may see."""
    minutes = request.GET.get("minutes", str(DEFAULT_MINUTES))
    try:
        chart = figure_for(
            subject,
            request.GET.getlist("metric"),
            int(minutes) if minutes.isascii() and minutes.isdigit() and len(minutes) < 7 else 0,
            zone=request.GET.get("zone", ""),
            source=request.get_full_path(),
        )
    except ChartError as error:
        return JsonResponse({"field": error.field, "error": str(error)}, status=400)
    return JsonResponse({"title": chart.title, "zone_label": chart.zone, **chart.payload})
