"""The text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its series; without any it is not written.

    Attributes:
        kind: `gauge`, `counter` or `histogram`.
        series: (suffix, labels, value).
    """

    name: str
    kind: str
    about: str
    series: list[tuple[str, Labels, float]] = field(default_factory=list)

    def add(self, value: float | None, labels: Labels, suffix: str = "") -> None:
        """Add one series; no data is left out, never written as 0."""
        if value is not None:
            self.series.append((suffix, labels, value))


def lines(families: Iterable[Family]) -> Iterator[str]:
    """Every line of an answer."""
    for family in families:
        if not family.series:
            continue
        yield f"# HELP {family.name} {family.about}\n"
        yield f"# TYPE {family.name} {family.kind}\n"
        for suffix, labels, value in family.series:
            yield f"{family.name}{suffix}{_labels(labels)} {value:.12g}\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def histogram(
    family: Family,
    labels: Labels,
    limits: Iterable[float],
    values: Mapping[float, int],
    total: float,
) -> None:
    """Add a histogram.

    Args:
        family: What to add to.
        labels: Of all its series.
        limits: Upper limits of the buckets, ascending.
        values: How many values each bucket has, those above the last limit under infinity.
        total: Sum of the values.
    """
    count = 0
    for limit in limits:
        count += values.get(limit, 0)
        family.add(count, {**labels, "le": f"{limit:g}"}, "_bucket")
    count += values.get(float("inf"), 0)
    family.add(count, {**labels, "le": "+Inf"}, "_bucket")
    family.add(total, labels, "_sum")
    family.add(count, labels, "_count")
