"""One colour per project, the same on every chart and square, light and dark.

A project's place in the order of creation gives its series; the page's tokens give the colour
(`--series-1` to `--series-6`). After six the same colours come again with dashes or patterns, and
what has no series is grey: all others together, and what nobody held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from projects.models import Project

NUM_COLOURS = 6
DASHES = ("solid", "dash", "dot", "dashdot")
PATTERNS = ("", "/", ".", "x")


@dataclass(frozen=True, slots=True)
class Tint:
    """How a group is drawn.

    Attributes:
        series: 1 to 6, a colour of the page; 0 is grey.
        round: How often all colours were given before: 0 to 3, a dash and a pattern.
    """

    series: int = 0
    round: int = 0

    @property
    def dash(self) -> str:
        return DASHES[self.round]

    @property
    def pattern(self) -> str:
        return PATTERNS[self.round]


GREY = Tint()


def nth(number: int) -> Tint:
    """The tint of the n-th of some groups, from 0; beyond all combinations they come again."""
    return Tint(number % NUM_COLOURS + 1, number // NUM_COLOURS % len(DASHES))


def project_tints() -> dict[int, Tint]:
    """Every project's tint by id; one query."""
    ids = Project.objects.order_by("pk").values_list("pk", flat=True)
    return {pk: nth(number) for number, pk in enumerate(ids)}


def project_tints_by_name() -> dict[str, Tint]:
    """Every project's tint by name; one query."""
    names = Project.objects.order_by("pk").values_list("name", flat=True)
    return {name: nth(number) for number, name in enumerate(names)}


def tints_of(keys: Iterable[str]) -> Mapping[str, Tint]:
    """Tints of other groups: by their names' order, so that no rank changes a colour."""
    return {key: nth(number) for number, key in enumerate(sorted(set(keys)))}
