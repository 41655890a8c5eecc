"""The shape of a tree that is given as parents by id: what lies above and below a level.

Knows no rows, so that models, checks and pages can share it. A loop, which the schema refuses, ends
a walk instead of going on for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

Parents = Mapping[int, int | None]

MAX_LEVELS = 8
"""Levels of departments: more than any organisation chart that people can still read as a path."""


def path(level: int | None, parents: Parents) -> list[int]:
    """A level and those above it, the top first; empty for None."""
    found: list[int] = []
    while level is not None and level not in found:
        found.append(level)
        level = parents.get(level)
    return found[::-1]


def below(level: int, parents: Parents) -> set[int]:
    """A level and all below it."""
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for child, parent in parents.items():
        children[parent].append(child)
    found, open_ends = {level}, [level]
    while open_ends:
        new = [child for child in children[open_ends.pop()] if child not in found]
        found.update(new)
        open_ends += new
    return found


def num_levels(level: int, parents: Parents) -> int:
    """How many levels there are from this one down to the lowest below it, itself included."""
    own = len(path(level, parents))
    return max(len(path(other, parents)) for other in below(level, parents)) - own + 1
