"""Series to Plotly figures, as plain dicts; pure.

The `plotly` package checks the structure, the browser's `charts.js` draws it. Colours are not
here: a trace names its place in the page's palette (`meta.series`), so that light and dark pages
share a figure. Where there is no data the line has a gap; nothing is joined over it or set to 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import plotly.graph_objects as go

Points = list[tuple[datetime, float | None]]

NUM_COLOURS = 6
_LEGEND_HEIGHT = 20
_NAMES_PER_ROW = 4
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its name in the legend, its points with their gaps."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds the lines.

    Attributes:
        ceiling: Top of the axis where the unit has one (100 %).
    """

    since: datetime
    until: datetime
    zone: ZoneInfo
    unit: str
    ceiling: float | None = None


def with_gaps(
    times: Sequence[datetime], values: Sequence[float | None], longest_s: float
) -> Points:
    """Break a line where samples are missing: a point without a value in each long silence."""
    points: Points = []
    for at, value in zip(times, values, strict=True):
        if points and (at - points[-1][0]).total_seconds() > longest_s:
            points.append((points[-1][0] + timedelta(seconds=longest_s / 2), None))
        points.append((at, value))
    return points


# `Any`: Plotly's figures are JSON of many shapes.
def figure(lines: Iterable[Line], frame: Frame) -> dict[str, Any]:
    """Build the figure of one chart; its title and sentence stand beside it as text."""
    drawn = list(lines)
    built = go.Figure(
        data=[_trace(line, number, frame) for number, line in enumerate(drawn)],
        layout=go.Layout(
            # Plotly's own template has colours of its own.
            template=go.layout.Template(),
            # Fixed: a margin that fits itself to the labels may go back and forth for ever.
            margin={"l": 60, "r": 8, "t": _LEGEND_HEIGHT * _legend_rows(drawn) + 8, "b": 44},
            height=220,
            hovermode="x unified",
            showlegend=len(drawn) > 1,
            # Above the lines: below them are the times.
            legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
            xaxis={
                "type": "date",
                "range": [wall(t, frame.zone) for t in (frame.since, frame.until)],
            },
            yaxis=_y_axis(frame),
        ),
    )
    return dict(built.to_plotly_json())


def _legend_rows(drawn: list[Line]) -> int:
    """Rows of the legend in a narrow chart: without room for them Plotly would look for it long."""
    return -(-len(drawn) // _NAMES_PER_ROW) if len(drawn) > 1 else 0


def _trace(line: Line, number: int, frame: Frame) -> go.Scatter:
    return go.Scatter(
        name=line.name,
        x=[wall(at, frame.zone) for at, _ in line.points],
        y=[value for _, value in line.points],
        mode="lines",
        connectgaps=False,
        line={"width": 1.5, "dash": _DASHES[number // NUM_COLOURS % len(_DASHES)]},
        meta={"series": number % NUM_COLOURS + 1},
        hovertemplate=f"%{{y:.3~g}} {frame.unit}",
    )


def _y_axis(frame: Frame) -> dict[str, Any]:
    axis: dict[str, Any] = {
        # Clear of the labels, however long they grow.
        "title": {"text": frame.unit, "standoff": 6},
        "rangemode": "tozero",
        "fixedrange": True,
    }
    if frame.ceiling is not None:
        axis["range"] = [0, frame.ceiling]
    return axis


def wall(at: datetime, zone: ZoneInfo) -> str:
    """The time on the wall of a zone: Plotly knows none, so it is given this."""
    return at.astimezone(zone).replace(tzinfo=None).isoformat(timespec="milliseconds")


def zone_label(zone: ZoneInfo, at: datetime) -> str:
    """Such as `Europe/Moscow (UTC+3)`, with the offset in force at that time."""
    offset = at.astimezone(zone).utcoffset() or timedelta()
    minutes = round(abs(offset).total_seconds() / 60)
    sign = "−" if offset < timedelta() else "+"
    tail = f":{minutes % 60:02d}" if minutes % 60 else ""
    return f"{zone.key} (UTC{sign}{minutes // 60}{tail})"
