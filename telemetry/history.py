"""Reads one subject's samples over a period, thinned so that a chart stays drawable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Avg, DateTimeField, F, Func, Value

from telemetry.metrics import metric_names, split_subject
from telemetry.models import SAMPLE_MODELS

SAMPLE_EVERY_S = 5
MAX_POINTS = 1000

# Widths of means that people read easily, in seconds.
_WIDTHS_S = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
_ORIGIN = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one subject over time, oldest first.

    Attributes:
        columns: By metric; as long as `times`; None is no data.
        width_s: Each value is the mean over so many seconds; that of single samples is 5.
    """

    times: tuple[datetime, ...]
    columns: dict[str, tuple[float | None, ...]]
    width_s: int


def width_for(period: timedelta) -> int:
    """Narrowest width that yields at most `MAX_POINTS` points."""
    needed = period.total_seconds() / MAX_POINTS
    return next((width for width in _WIDTHS_S if width >= needed), _WIDTHS_S[-1])


def read(subject: str, metrics: Sequence[str], since: datetime, until: datetime) -> Series:
    """Read a subject's metrics from `since` up to `until`.

    Raises:
        ValueError: the subject or a metric does not exist; says which there are.
    """
    kind, name = split_subject(subject)
    known = metric_names(kind)
    for metric in metrics:
        if metric not in known:
            raise ValueError(f"metric is {metric!r}: a {kind} has {', '.join(known)}")
    width_s = width_for(until - since)
    samples = SAMPLE_MODELS[kind]._default_manager.filter(
        subject__kind=kind, subject__name=name, at__gte=since, at__lt=until
    )
    if width_s == SAMPLE_EVERY_S:
        rows = samples.order_by("at").values_list("at", *metrics)
    else:
        bucket = Func(
            Value(timedelta(seconds=width_s)),
            F("at"),
            Value(_ORIGIN),
            function="date_bin",
            output_field=DateTimeField(),
        )
        # Means leave out NULL: a time without data is not a time of nothing.
        rows = (
            samples.annotate(bucket=bucket)
            .values_list("bucket")
            .annotate(**{f"mean_{metric}": Avg(metric) for metric in metrics})
            .order_by("bucket")
        )
    found = list(rows)
    return Series(
        times=tuple(row[0] for row in found),
        columns={
            metric: tuple(row[number] for row in found) for number, metric in enumerate(metrics, 1)
        },
        width_s=width_s,
    )
