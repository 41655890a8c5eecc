"""Bands below a node's charts: who ran when, on which device.

Other projects appear without a name for who may not see them. Places are parts of a row's height,
times those on the wall of the charts' zone, as Plotly is given them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db.models import Q
from django.urls import reverse
from django.utils.translation import gettext as _

from projects.access import visible_projects
from projects.models import User
from scheduling import formats, palette
from scheduling.models import Allocation, Device, DeviceAllocation, Node
from scheduling.palette import GREY, Tint
from telemetry.figures import wall

MAX_BANDS = 1000
WHOLE = 1000
NODE_ROW = "node"


@dataclass(frozen=True, slots=True)
class Band:
    """A workload's time on the node.

    Attributes:
        allocation: None where the reader may not see whose it is.
        places: By row (index of a device, or the node): from where to where, 0 to 1.
    """

    start: datetime
    end: datetime | None
    gpu_milli: int
    tint: Tint
    allocation: Allocation | None
    places: Mapping[str, tuple[float, float]]

    @property
    def name(self) -> str:
        """Whose it is."""
        if self.allocation is None:
            return _("another project")
        return self.allocation.workload.name

    @property
    def devices(self) -> str:
        """Indices of its devices."""
        return ", ".join(row for row in self.places if row != NODE_ROW)


def bands_of(node: Node, viewer: User, since: datetime, until: datetime) -> list[Band]:
    """Who held anything of the node in a period, oldest first; four queries."""
    rows = list(
        node.allocations.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=since))
        .filter(started_at__lt=until)
        .select_related("workload", "project")
        .order_by("-started_at", "-pk")[:MAX_BANDS]
    )[::-1]
    indices: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    parts = DeviceAllocation.objects.filter(allocation__in=rows).order_by("device__index")
    for allocation, index, milli in parts.values_list(
        "allocation_id", "device__index", "gpu_milli"
    ):
        indices[allocation].append((str(index), milli))
    visible = set(visible_projects(viewer).values_list("pk", flat=True))
    tints = palette.project_tints()
    places = _placed(rows, indices, until)
    return [
        Band(
            start=max(row.started_at, since),
            end=row.ended_at,
            gpu_milli=row.gpu_milli,
            tint=tints[row.project_id] if row.project_id in visible else GREY,
            allocation=row if row.project_id in visible else None,
            places=places[row.pk],
        )
        for row in rows
    ]


Taken = tuple[datetime, datetime, float, float]


def _placed(
    rows: Sequence[Allocation],
    indices: Mapping[int, Sequence[tuple[str, int]]],
    until: datetime,
) -> dict[int, dict[str, tuple[float, float]]]:
    """Where each stands in its rows, so that none covers another."""
    lanes = _num_lanes(rows, until)
    taken: defaultdict[str, list[Taken]] = defaultdict(list)
    found: dict[int, dict[str, tuple[float, float]]] = {}
    for row in rows:
        wanted = [(index, milli / WHOLE) for index, milli in indices.get(row.pk, ())]
        found[row.pk] = {}
        for name, height in (*wanted, (NODE_ROW, 1 / lanes)):
            end = row.ended_at or until
            low = _lowest(taken[name], row.started_at, end, height)
            taken[name].append((row.started_at, end, low, low + height))
            found[row.pk][name] = (low, low + height)
    return found


def _lowest(taken: Iterable[Taken], start: datetime, end: datetime, height: float) -> float:
    """The lowest place of this height that is free all the time."""
    others = sorted(
        (low, high) for since, until, low, high in taken if since < end and until > start
    )
    place = 0.0
    for low, high in others:
        if low - place > height - 1e-9:
            break
        place = max(place, high)
    return min(place, max(1.0 - height, 0.0))


def _num_lanes(rows: Sequence[Allocation], until: datetime) -> int:
    """The most that ran at one time."""
    moments = sorted(
        [(row.started_at, 1) for row in rows] + [(row.ended_at or until, -1) for row in rows],
        key=lambda moment: (moment[0], moment[1]),
    )
    running, highest = 0, 1
    for _at, change in moments:
        running += change
        highest = max(highest, running)
    return highest


def payload(
    bands: Sequence[Band], devices: Sequence[Device], zone_name: str, now: datetime
) -> dict[str, object]:
    """What `synced-charts.js` draws; what has no end goes on from `now`."""
    zone = ZoneInfo(zone_name or settings.TIME_ZONE)
    return {
        "now": wall(now, zone),
        "rows": {
            "devices": [[str(device.index), f"GPU {device.index}"] for device in devices],
            "node": [[NODE_ROW, _("work")]],
        },
        "bands": [_shown(band, zone) for band in bands],
    }


def _shown(band: Band, zone: ZoneInfo) -> dict[str, object]:
    words = [band.name]
    if band.allocation is not None:
        words.append(str(band.allocation.project))
    if band.gpu_milli:
        words.append(f"{formats.gpus(band.gpu_milli)} GPU")
    return {
        "from": wall(band.start, zone),
        "to": wall(band.end, zone) if band.end else None,
        "series": band.tint.series,
        "round": band.tint.round,
        "name": band.name,
        "title": " · ".join(words),
        "url": reverse("scheduling:workload", args=[band.allocation.workload_id])
        if band.allocation
        else "",
        "places": {name: list(place) for name, place in band.places.items()},
    }
