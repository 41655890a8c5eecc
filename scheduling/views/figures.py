"""Answers of analytics as figures: bars that add up, or lines; pure.

The `plotly` package checks the structure, `analytics.js` draws it. Colours are named by their place
in the page's palette, as in `telemetry.figures`. No data is a gap, a bucket that is not whole is
paler, and no bucket is drawn over another: where clocks go back, the hour that comes twice is drawn
as two halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import plotly.graph_objects as go
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from scheduling.analytics.answer import Answer, Bucket, Series
from scheduling.analytics.metrics import Form
from scheduling.analytics.sight import OTHERS, UNALLOCATED
from scheduling.palette import GREY, Tint

MAX_DRAWN = 12
"""So many groups are drawn by themselves; smaller ones are one."""
SMALLER = "smaller"
MANY = 60
"""More points than this have small marks."""
HEIGHT = 380
_PALE, _FULL = 0.45, 1.0
_QUARTER = timedelta(minutes=15)
_NO_GROUPS = (OTHERS, UNALLOCATED, SMALLER)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One group as the legend and the chart show it.

    Attributes:
        is_hidden: The reader closed its eye.
    """

    series: Series
    tint: Tint
    is_hidden: bool


def drawn(answer: Answer, tints: Mapping[str, Tint], hidden: frozenset[str]) -> list[Drawn]:
    """The groups of an answer, the smaller ones of many as one."""
    named = [one for one in answer.series if one.key not in _NO_GROUPS]
    rest = [one for one in answer.series if one.key in _NO_GROUPS]
    shown, small = named[:MAX_DRAWN], named[MAX_DRAWN:]
    if small and answer.query.metric.form is Form.SUM:
        shown.append(_together(small))
    return [
        Drawn(one, GREY if one.key in _NO_GROUPS else tints.get(one.key, GREY), one.key in hidden)
        for one in (*shown, *rest)
    ]


def _together(small: Sequence[Series]) -> Series:
    label = _("%(count)s smaller ones") % {"count": len(small)}
    values = tuple(_sum(column) for column in zip(*(one.values for one in small), strict=True))
    return Series(SMALLER, label, values, _sum([one.total for one in small]))


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# `Any`: Plotly's figures are JSON of many shapes.
def figure(answer: Answer, groups: Sequence[Drawn], unit: str) -> dict[str, Any]:
    """The chart of an answer.

    Returns:
        A figure, in which `shared` holds what all traces have alike: places in time are most of it.
    """
    columns = _columns(answer.buckets, answer.query.zone)
    make = _bars if answer.query.metric.form is Form.SUM else _line
    traces = [make(one) for one in groups]
    built = go.Figure(data=traces, layout=_layout(answer, unit)).to_plotly_json()
    shared: dict[str, Any] = {"customdata": columns.marks}
    if make is _bars:
        shared |= {"x": columns.starts, "width": columns.widths}
        shared["marker"] = {"opacity": columns.opacities}
    else:
        size = 4 if len(answer.buckets) > MANY else 6
        shared |= {"x": columns.middles, "marker": {"symbol": columns.symbols, "size": size}}
    return {**built, "shared": shared}


def _layout(answer: Answer, unit: str) -> go.Layout:
    zone = answer.query.zone
    ends = [place(at, zone).isoformat() for at in (answer.query.since, answer.query.until)]
    return go.Layout(
        # Plotly's own template has colours of its own.
        template=go.layout.Template(),
        margin={"l": 56, "r": 8, "t": 8, "b": 44},
        height=HEIGHT,
        hovermode="x unified",
        hoverlabel={"namelength": 28},
        showlegend=False,
        barmode="stack",
        bargap=0,
        xaxis={"type": "date", "range": ends},
        yaxis={
            "title": {"text": unit},
            "rangemode": "tozero",
            "fixedrange": True,
            "automargin": True,
        },
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """What each bucket is, once for all groups."""

    starts: list[str]
    middles: list[str]
    widths: list[float]
    opacities: list[float]
    symbols: list[str]
    marks: list[str]


def _columns(buckets: Sequence[Bucket], zone: ZoneInfo) -> _Columns:
    starts = [place(bucket.start, zone) for bucket in buckets]
    ends = [place(bucket.end, zone) for bucket in buckets]
    middles = [place(bucket.start + (bucket.end - bucket.start) / 2, zone) for bucket in buckets]
    mark = " · " + pgettext("bucket", "not whole")
    return _Columns(
        starts=[at.isoformat() for at in starts],
        middles=[at.isoformat() for at in middles],
        widths=[
            (end - start) / timedelta(milliseconds=1)
            for start, end in zip(starts, ends, strict=True)
        ],
        opacities=[_PALE if bucket.is_partial else _FULL for bucket in buckets],
        symbols=["circle-open" if bucket.is_partial else "circle" for bucket in buckets],
        marks=[mark if bucket.is_partial else "" for bucket in buckets],
    )


def _bars(one: Drawn) -> go.Bar:
    return go.Bar(
        offset=0,
        marker={"pattern": {"shape": one.tint.pattern}, "line": {"width": 0}},
        **_common(one),
    )


def _line(one: Drawn) -> go.Scatter:
    """Each value stands in the middle of its bucket; what is not whole has a hollow mark."""
    return go.Scatter(
        mode="lines+markers",
        connectgaps=False,
        line={"width": 1.75, "dash": one.tint.dash},
        **_common(one),
    )


def _common(one: Drawn) -> dict[str, Any]:
    return {
        "name": one.series.label,
        "y": [None if value is None else float(f"{value:.6g}") for value in one.series.values],
        "hovertemplate": "%{y:,.4~g}%{customdata}",
        "meta": {"series": one.tint.series, "key": one.series.key},
        "visible": not one.is_hidden,
    }


def place(at: datetime, zone: ZoneInfo) -> datetime:
    """Where a moment stands on an axis of wall-clock time, without an offset.

    Invariant: never earlier for a later moment. An hour that comes twice is drawn as two halves.
    """
    local = at.astimezone(zone)
    wall = local.replace(tzinfo=None, fold=0)
    repeated = _repeated(wall, zone)
    if not repeated:
        return wall
    # Clocks go back to a whole quarter-hour.
    start = wall.replace(minute=wall.minute // 15 * 15, second=0, microsecond=0)
    while _repeated(start - _QUARTER, zone):
        start -= _QUARTER
    half = (wall - start) / 2
    return start + half + (repeated / 2 if local.fold else timedelta())


def _repeated(wall: datetime, zone: ZoneInfo) -> timedelta:
    """By how much clocks go back if this time of day comes twice; otherwise nothing."""
    first, second = (
        wall.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1)
    )
    return max(first - second, timedelta())
