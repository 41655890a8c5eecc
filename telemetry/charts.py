"""The charts that pages show: which metrics, in which words, for which subject.

`figure_for` reads a subject's samples and returns a `Chart`, for `telemetry/_chart.html`. Whoever
calls it has checked that the reader may see the subject. The figure itself is made in
`telemetry.figures`; with `lines` in the payload `charts.js` appends what arrives live.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext

from telemetry import history, live
from telemetry.figures import Frame, Line, figure, with_gaps, zone_label
from telemetry.metrics import Kind, split_subject
from telemetry.texts import WORDS, MetricWords, Unit

DEFAULT_MINUTES = 30
MAX_MINUTES = 366 * 24 * 60

# Longer than this many usual distances without a sample, and the line breaks.
_GAP_DISTANCES = 3


class ChartError(ValueError):
    """A chart that cannot be drawn; says which field, its value and what is possible."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field} {problem}")


@dataclass(frozen=True, slots=True)
class LineSpec:
    """One line of a chart; without a name it is called as its metric."""

    subject: str
    metric: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """Over which period and in which zone a chart is read.

    Attributes:
        zone: A zone's name; empty for the organisation's.
        source: Address that answers with this chart's payload again, for a page that was away;
            needed for workloads only, devices and nodes have one here.
    """

    minutes: int = DEFAULT_MINUTES
    zone: str = ""
    is_simulated: bool = False
    source: str = ""
    clock: Callable[[], datetime] = field(default=timezone.now)


@dataclass(frozen=True, slots=True)
class Chart:
    """What `telemetry/_chart.html` shows; `payload` is what `charts.js` draws.

    Attributes:
        id: Unique on a page, the same each time: it is made from the lines.
        topics: What the page must listen to.
    """

    id: str
    title: str
    sentence: str
    unit: str
    zone: str
    is_simulated: bool
    has_data: bool
    topics: tuple[str, ...]
    payload: dict[str, Any]

    @property
    def data_id(self) -> str:
        """Id of the element that holds the payload."""
        return f"{self.id}-data"

    @property
    def csv_address(self) -> str:
        """Where its figures are as CSV; empty where it cannot be read again."""
        source: str = self.payload["source"]
        return f"{source}&format=csv" if source else ""


def figure_for(
    subject: str, metrics: Sequence[str], minutes: int = DEFAULT_MINUTES, **options: Any
) -> Chart:
    """The chart of a subject's metrics, which must share a unit, over the last minutes.

    Args:
        subject: `device:<uuid>`, `workload:<id>` or `node:<name>`.
        metrics: Names as in `telemetry.metrics`.
        minutes: 1 to 527,040 (366 days).
        options: Further fields of `View`.

    Raises:
        ChartError: one of them is not possible; says what is.
    """
    specs = [LineSpec(subject, metric) for metric in metrics]
    return chart_of(specs, View(minutes=minutes, **options))


def devices_chart(
    devices: Mapping[str, str], metric: str = "gpu_util_percent", view: View | None = None
) -> Chart:
    """One line per device of a node, for its page; `devices` has a label per UUID."""
    specs = [LineSpec(f"device:{uuid}", metric, name) for uuid, name in devices.items()]
    return chart_of(specs, view or View())


def chart_of(specs: Sequence[LineSpec], view: View) -> Chart:
    """The chart of any lines that share a unit.

    Raises:
        ChartError: no line, an unknown subject, metric or zone, a period out of range.
    """
    words = [_words_of(spec) for spec in specs]
    unit = _common_unit(specs, words)
    frame = _frame(view, unit)
    gap_s = _GAP_DISTANCES * history.width_for(frame.until - frame.since)
    lines = [
        _line(spec, spec.name or str(own.title), unit.scale, frame, gap_s)
        for spec, own in zip(specs, words, strict=True)
    ]
    return Chart(
        id="chart-" + hashlib.sha256(repr(list(specs)).encode()).hexdigest()[:12],
        title=" · ".join(dict.fromkeys(str(own.title) for own in words)),
        sentence=_sentence(specs, words, view),
        unit=frame.unit,
        zone=zone_label(frame.zone, frame.until),
        is_simulated=view.is_simulated,
        has_data=any(value is not None for line in lines for _, value in line.points),
        topics=tuple(dict.fromkeys(live.topic_for(spec.subject) for spec in specs)),
        payload={
            "figure": figure(lines, frame),
            "lines": [
                _live_line(spec, line, unit) for spec, line in zip(specs, lines, strict=True)
            ],
            "zone": frame.zone.key,
            "minutes": view.minutes,
            "gap_s": gap_s,
            "source": view.source or _source(specs, view),
            "labels": {
                "time": gettext("Time"),
                "no_data": gettext("no data"),
                "unit": frame.unit,
            },
        },
    )


@dataclass(frozen=True, slots=True)
class Ready:
    """A line whose points are known already.

    Attributes:
        topic: Whose samples go on with it.
        metric: The value of a sample that it takes; empty where the sample only tells the time, and
            the line goes on by itself: `amount` at its last point, `per_hour` more since.
    """

    line: Line
    topic: str = ""
    metric: str = ""
    amount: float = 0.0
    per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Words:
    """What stands around a chart of ready lines; `id` is unique on its page."""

    id: str
    title: str
    sentence: str
    unit: str


def chart_from(
    words: Words,
    ready: Sequence[Ready],
    view: View,
    *,
    changes_with: str = "",
    is_lazy: bool = False,
) -> Chart:
    """A chart of ready lines.

    Args:
        words: Around it.
        ready: Its lines.
        view: Its period; `source` answers with it again.
        changes_with: Topic whose changes mean that all of it must be read again.
        is_lazy: The lines are only named here; the page reads them once it is there.
    """
    until = view.clock()
    frame = Frame(
        until - timedelta(minutes=view.minutes), until, _zone(view.zone), words.unit, None
    )
    topics = [one.topic for one in ready if one.topic] + ([changes_with] if changes_with else [])
    return Chart(
        id=words.id,
        title=words.title,
        sentence=words.sentence,
        unit=words.unit,
        zone=zone_label(frame.zone, until),
        is_simulated=view.is_simulated,
        has_data=any(value is not None for one in ready for _, value in one.line.points),
        topics=tuple(dict.fromkeys(topics)),
        payload={
            "figure": figure([one.line for one in ready], frame),
            "lines": [_going_on(one, until) for one in ready],
            "zone": frame.zone.key,
            "minutes": view.minutes,
            "gap_s": _GAP_DISTANCES * max(60, history.width_for(until - frame.since)),
            "source": view.source,
            "changes_with": changes_with,
            "is_lazy": is_lazy,
            "labels": {
                "time": gettext("Time"),
                "no_data": gettext("no data"),
                "unit": words.unit,
            },
        },
    )


def _going_on(ready: Ready, until: datetime) -> dict[str, Any]:
    points = ready.line.points
    found: dict[str, Any] = {
        "topic": ready.topic,
        "metric": ready.metric,
        "scale": 1.0,
        "last_at": points[-1][0].timestamp() if points else None,
    }
    if not ready.metric:
        found |= {
            "amount": ready.amount,
            "per_hour": ready.per_hour,
            "amount_at": until.timestamp(),
        }
    return found


def _common_unit(specs: Sequence[LineSpec], words: Sequence[MetricWords]) -> Unit:
    if not words:
        raise ChartError("metric", "is missing: a chart needs at least one")
    unit = words[0].unit
    if any(other.unit.label != unit.label for other in words):
        names = ", ".join(spec.metric for spec in specs)
        raise ChartError("metric", f"is {names}: these have several units")
    return unit


def _frame(view: View, unit: Unit) -> Frame:
    if not 1 <= view.minutes <= MAX_MINUTES:
        raise ChartError("minutes", f"is {view.minutes}: it must be 1 to {MAX_MINUTES}")
    until = view.clock()
    return Frame(
        since=until - timedelta(minutes=view.minutes),
        until=until,
        zone=_zone(view.zone),
        unit=str(unit.label),
        ceiling=unit.ceiling,
    )


def _sentence(specs: Sequence[LineSpec], words: Sequence[MetricWords], view: View) -> str:
    """What the chart shows; for a simulated device also where its figures come from."""
    sentence = str(words[0].sentence)
    if view.is_simulated and any(
        spec.subject.startswith(f"{Kind.DEVICE}:") or spec.metric.startswith("gpu_")
        for spec in specs
    ):
        sentence += " " + gettext(
            "The device is simulated: this is the real use of CPU and memory by the processes "
            "that hold it."
        )
    return sentence


def _live_line(spec: LineSpec, line: Line, unit: Unit) -> dict[str, Any]:
    """What the page needs to append to a line."""
    return {
        "topic": live.topic_for(spec.subject),
        "metric": spec.metric,
        "scale": unit.scale,
        "last_at": line.points[-1][0].timestamp() if line.points else None,
    }


def _source(specs: Sequence[LineSpec], view: View) -> str:
    """Where devices' and nodes' charts are read again; workloads are not ours to show."""
    if any(split_subject(spec.subject)[0] is Kind.WORKLOAD for spec in specs):
        return ""
    query: dict[str, str | int | list[str]] = {
        "subject": list(dict.fromkeys(spec.subject for spec in specs)),
        "metric": list(dict.fromkeys(spec.metric for spec in specs)),
        "minutes": view.minutes,
        "zone": view.zone,
    }
    return f"{reverse('telemetry:series')}?{urlencode(query, doseq=True)}"


def _words_of(spec: LineSpec) -> MetricWords:
    try:
        kind, _ = split_subject(spec.subject)
    except ValueError as error:
        raise ChartError("subject", str(error).removeprefix("subject ")) from error
    words = WORDS[kind].get(spec.metric)
    if words is None:
        known = ", ".join(WORDS[kind])
        raise ChartError("metric", f"is {spec.metric[:80]!r}: a {kind} has {known}")
    return words


def _zone(name: str) -> ZoneInfo:
    name = name or settings.TIME_ZONE
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ChartError("zone", f"is {name[:80]!r}: no such time zone is known") from error


def _line(spec: LineSpec, name: str, scale: float, frame: Frame, gap_s: float) -> Line:
    series = history.read(spec.subject, [spec.metric], frame.since, frame.until)
    values = [None if v is None else v * scale for v in series.columns[spec.metric]]
    return Line(name=name, points=with_gaps(series.times, values, gap_s))
