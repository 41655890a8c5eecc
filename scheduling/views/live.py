"""Live: every GPU as a square, cores and memory of the nodes without any, the bar of the whole
cluster, and how each collector is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from projects import access
from scheduling import formats, palette, squares
from scheduling.bars import Bar
from scheduling.models import Node
from scheduling.palette import Tint
from scheduling.selectors import gpu_bar
from scheduling.squares import Host, Picture, Square, Totals
from scheduling.views.pages import PageRequest, page

STALE_S = 30.0
"""A node from which no sample came for so long is shown as one that is not measured."""


@dataclass(frozen=True, slots=True)
class HostPart:
    """Cores or memory of a node without GPUs, in thousandths or MiB.

    Attributes:
        used: None is no data.
        scale: So much is one of the unit in which it is shown.
    """

    name: str
    title: str
    total: int
    held: int
    used: int | None
    scale: int
    unit: str = ""

    def text(self, amount: int | None) -> str:
        """As the page's script writes it too."""
        return _("no data") if amount is None else formats.decimal(amount / self.scale, 1)

    def width(self, amount: int | None) -> str:
        """Its part of the bar."""
        return f"{min(100 * (amount or 0) / max(self.total, 1), 100):.1f}%"

    @property
    def total_text(self) -> str:
        return self.text(self.total)

    @property
    def held_text(self) -> str:
        return self.text(self.held)

    @property
    def used_text(self) -> str:
        return self.text(self.used)

    @property
    def held_width(self) -> str:
        return self.width(self.held)

    @property
    def used_width(self) -> str:
        return self.width(self.used)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """The squares of one node, and its row of a table.

    Attributes:
        used: Mean use of its devices in per cent; None is no data.
        heard_at: Unix seconds of its newest sample.
        host: What is shown of a node without GPUs; else empty.
    """

    node: Node
    squares: list[Square]
    used: float | None
    heard_at: float | None
    host: list[HostPart]

    @property
    def total_milli(self) -> int:
        return len(self.squares) * squares.DEVICE_MILLI

    @property
    def totals(self) -> Totals:
        return squares.totals_of(tuple(self.squares))


@dataclass(frozen=True, slots=True)
class TypeGroup:
    title: str
    nodes: list[NodeGroup]


@login_required
@require_safe
def live(request: PageRequest) -> HttpResponse:
    """The picture as it is now; the page's script keeps it current."""
    now = timezone.now()
    picture = squares.picture(now, squares.idle_allocations(now))
    groups = _by_node(picture)
    tints = palette.project_tints()
    visible = list(access.visible_projects(request.user).order_by("pk"))
    named = {project.pk: (str(project), tints[project.pk]) for project in visible}
    context = {
        "types": _by_type(groups),
        "groups": groups,
        "with_gpus": [group for group in groups if not group.host],
        "hosts": [group for group in groups if group.host],
        "bar": bar_of(picture.totals),
        "totals": picture.totals,
        "named": named.values(),
        "stale_s": STALE_S,
        "now_s": now.timestamp(),
        "payload": {**_payload(picture, named), "sizes": _sizes(groups)},
    }
    return page(request, "scheduling/live.html", context)


def bar_of(totals: Totals) -> Bar:
    """The whole cluster: used inside allocated, what is lent dotted."""
    bar = gpu_bar(totals.total, totals.held, totals.lent, totals.beside)
    return replace(bar, used=totals.used)


def _by_node(picture: Picture) -> list[NodeGroup]:
    by_node: dict[int, list[Square]] = defaultdict(list)
    for square in picture.squares:
        by_node[square.node].append(square)
    return [
        NodeGroup(
            node,
            by_node[node.pk],
            _mean_use(by_node[node.pk]),
            picture.heard.get(node.pk),
            _host(node, picture.hosts.get(node.pk)),
        )
        for node in squares.nodes_in_order()
    ]


def _host(node: Node, host: Host | None) -> list[HostPart]:
    if host is None:
        return []
    cpu, memory, cpu_used, memory_used = host
    scale, unit = formats.memory_unit(node.memory_mib)
    return [
        HostPart("cpu", _("CPU"), node.cpu_milli, cpu, cpu_used, 1000),
        HostPart("memory", _("Memory"), node.memory_mib, memory, memory_used, scale, unit),
    ]


def _sizes(groups: list[NodeGroup]) -> dict[int, list[tuple[int, int]]]:
    """Of each node without GPUs the whole of its parts, and their scale."""
    return {
        group.node.pk: [(part.total, part.scale) for part in group.host]
        for group in groups
        if group.host
    }


def _mean_use(found: list[Square]) -> float | None:
    """In per cent, as a fraction of one."""
    known = [square.use[0] for square in found if square.use[0] is not None]
    return sum(known) / len(known) / 100 if known else None


def _by_type(groups: list[NodeGroup]) -> list[TypeGroup]:
    found: dict[str, list[NodeGroup]] = defaultdict(list)
    for group in groups:
        found[group.node.node_type.title if group.node.node_type else _("Other")].append(group)
    return [TypeGroup(title, nodes) for title, nodes in found.items()]


def _payload(picture: Picture, tints: dict[int, tuple[str, Tint]]) -> dict[str, object]:
    """What the script draws first; the same shapes as in `scheduling.streams`."""
    return {
        "url": "/ws/squares",
        "at": picture.at.timestamp(),
        "stale_s": STALE_S,
        "projects": {pk: [name, tint.series, tint.round] for pk, (name, tint) in tints.items()},
        "memory": {square.key: square.memory_mib for square in picture.squares},
        "use": {square.key: square.use for square in picture.squares},
        "parts": {
            square.key: [
                [part.project if part.project in tints else 0, part.milli, part.state]
                for part in square.parts
            ]
            for square in picture.squares
        },
        "heard": picture.heard,
        "hosts": picture.hosts,
        "unhealthy": [square.key for square in picture.squares if not square.is_healthy],
        "words": {
            "others": _("other projects"),
            "free": _("free"),
            "states": ["", _("idle"), _("lent"), _("beside what is lent")],
            "no_data": _("no data"),
            "pause": _("Pause"),
            "resume": _("Go on"),
            "live": _("Live"),
            "paused": _("Paused"),
            "away": _("Reconnecting…"),
            "unhealthy": _("not healthy"),
            "never": _("never"),
            "gib": _("GiB"),
        },
    }
