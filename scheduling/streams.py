"""The live picture of all GPUs for many open pages: read once a second, sent as differences.

One `Board` per web process reads `scheduling.squares` while at least one page looks. Each page says
which nodes are on its screen; `Board.message` has what changed of them since the version that the
page has seen. A page that is slow, paused or hidden just stays at an older version, so it gets the
newest state later and never a queue.

    {"type": "squares", "at": 1790000000.5, "use": {"3.0": [41, 6144, 55, 120]},
     "parts": {"3.0": [[7, 500, 0]]}, "heard": {"3": 1790000000.1},
     "hosts": {"5": [2000, 4096, 130, 2210]}, "totals": [8000, 500, 0, 410, 0, 0]}

`parts` are (project, thousandths, `squares.PartState`); project 0 is one whose name the reader may
not see. `use` is that of `squares.Use`, `hosts` are `squares.Host`; null is no data. `totals` are
those of `squares.Totals`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field

from channels.db import database_sync_to_async
from django.db import Error as DatabaseError
from django.utils import timezone

from scheduling import squares
from scheduling.squares import Part, Picture, Square

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
IDLE_EVERY = 30
"""So many pictures share one look at who is idle."""
UNSEEN = 0


@dataclass(slots=True)
class _Cell:
    """A square as it is sent, with the versions in which its halves last changed."""

    square: Square
    use: str
    use_version: int
    parts_version: int


@dataclass(eq=False, slots=True)
class Viewer:
    """One open page.

    Attributes:
        named: Projects that the reader may see by name.
        seen: The version that the page has, by node on its screen.
        fresh: Set whenever there may be something to send.
    """

    named: frozenset[int]
    seen: dict[int, int] = field(default_factory=dict)
    heard_version: int = UNSEEN
    is_paused: bool = False
    fresh: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(self, nodes: Iterable[int]) -> None:
        """These nodes are on the screen now; those that stay are not sent anew."""
        self.seen = {node: self.seen.get(node, UNSEEN) for node in nodes}
        self.fresh.set()

    def forget(self) -> None:
        """The page has nothing: all must be sent."""
        self.seen = dict.fromkeys(self.seen, UNSEEN)
        self.heard_version = UNSEEN
        self.fresh.set()


@dataclass(slots=True)
class Board:
    """The newest picture, and who looks at it."""

    version: int = 0
    picture: Picture | None = None
    viewers: set[Viewer] = field(default_factory=set)
    _cells: dict[int, dict[str, _Cell]] = field(default_factory=lambda: defaultdict(dict))
    _changed_use: dict[int, str] = field(default_factory=dict)
    _parts_version: dict[int, int] = field(default_factory=dict)
    _heard_version: dict[int, int] = field(default_factory=dict)
    _host_version: dict[int, int] = field(default_factory=dict)
    _reader: asyncio.Task[None] | None = None
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)

    # ------------------------------------------------------------ who looks

    def join(self, viewer: Viewer) -> None:
        """From now on the viewer is told of news; the first one starts the reading."""
        self.viewers.add(viewer)
        if self._reader is None or self._reader.done():
            self._is_over = asyncio.Event()
            self._reader = asyncio.create_task(self._read(self._is_over))

    async def leave(self, viewer: Viewer) -> None:
        """The last one ends the reading, and waits until the database is left alone."""
        self.viewers.discard(viewer)
        if not self.viewers and self._reader is not None:
            reader, self._reader = self._reader, None
            self._is_over.set()
            await reader

    async def _read(self, is_over: asyncio.Event) -> None:
        """Read once a second, by the clock: a slow reading does not delay all later ones."""
        number, idle = 0, frozenset[int]()
        loop = asyncio.get_running_loop()
        while not is_over.is_set():
            began = loop.time()
            try:
                if number % IDLE_EVERY == 0:
                    idle = await database_sync_to_async(squares.idle_allocations)(timezone.now())
                found = await database_sync_to_async(squares.picture)(timezone.now(), idle)
                self.take(found)
                number += 1
            except DatabaseError:
                # The database restarts: pages keep what they show, its age tells.
                logger.warning("the picture of all GPUs could not be read", exc_info=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), max(0.0, began + PERIOD_S - loop.time()))

    # ------------------------------------------------------------ what changed

    def take(self, picture: Picture) -> None:
        """A newer picture: note what differs, wake everybody."""
        self.version += 1
        changed: dict[int, list[str]] = defaultdict(list)
        gone = {(node, key) for node, cells in self._cells.items() for key in cells}
        for square in picture.squares:
            gone.discard((square.node, square.key))
            use = json.dumps(square.use, separators=(",", ":"))
            cell = self._cells[square.node].get(square.key)
            if cell is None:
                cell = _Cell(square, "", self.version, self.version)
                self._parts_version[square.node] = self.version
                self._cells[square.node][square.key] = cell
            if cell.use != use:
                cell.use, cell.use_version = use, self.version
                changed[square.node].append(f'"{square.key}":{use}')
            if cell.square.parts != square.parts:
                cell.parts_version = self._parts_version[square.node] = self.version
            cell.square = square
        for node, key in gone:
            del self._cells[node][key]
        self._changed_use = {node: ",".join(parts) for node, parts in changed.items()}
        before = self.picture
        for node in _differing(picture.heard, before.heard if before else {}):
            self._heard_version[node] = self.version
        for node in _differing(picture.hosts, before.hosts if before else {}):
            self._host_version[node] = self.version
        self.picture = picture
        for viewer in self.viewers:
            viewer.fresh.set()

    def message(self, viewer: Viewer) -> str | None:
        """What this page lacks, as JSON; None when it has everything. Notes it as seen."""
        picture = self.picture
        if picture is None:
            return None
        uses = [self._uses(node, seen) for node, seen in viewer.seen.items()]
        parts = [
            text
            for node, seen in viewer.seen.items()
            if seen < self._parts_version.get(node, UNSEEN)
            for text in self._parts(node, seen, viewer.named)
        ]
        heard = [
            f'"{node}":{picture.heard[node]:.1f}'
            for node, version in self._heard_version.items()
            if version > viewer.heard_version and node in picture.heard
        ]
        hosts = {
            node: picture.hosts[node]
            for node, seen in viewer.seen.items()
            if node in picture.hosts and seen < self._host_version[node]
        }
        if viewer.heard_version == self.version and not (any(uses) or parts or hosts):
            return None
        viewer.seen = dict.fromkeys(viewer.seen, self.version)
        viewer.heard_version = self.version
        totals = picture.totals
        sums = json.dumps(astuple(totals))
        return (
            f'{{"type":"squares","at":{picture.at.timestamp():.3f},'
            f'"use":{{{",".join(text for text in uses if text)}}},'
            f'"parts":{{{",".join(parts)}}},"heard":{{{",".join(heard)}}},'
            f'"hosts":{json.dumps(hosts, separators=(",", ":"))},"totals":{sums}}}'
        )

    def sums(self) -> dict[str, object] | None:
        """The whole cluster in GPUs, as a sample of charts; None while nothing is known."""
        if self.picture is None:
            return None
        totals = self.picture.totals
        used = None if totals.used is None else totals.used / squares.DEVICE_MILLI
        return {
            "at": self.picture.at.timestamp(),
            "values": {"gpu_held": totals.held / squares.DEVICE_MILLI, "gpu_used": used},
        }

    def _uses(self, node: int, seen: int) -> str:
        if seen >= self.version:
            return ""
        if seen == self.version - 1:
            return self._changed_use.get(node, "")
        return ",".join(
            f'"{key}":{cell.use}'
            for key, cell in self._cells[node].items()
            if cell.use_version > seen
        )

    def _parts(self, node: int, seen: int, named: Collection[int]) -> Iterable[str]:
        for key, cell in self._cells[node].items():
            if cell.parts_version > seen:
                shown = [_shown(part, named) for part in cell.square.parts]
                yield f'"{key}":{json.dumps(shown, separators=(",", ":"))}'


def _differing(now: Mapping[int, object], before: Mapping[int, object]) -> list[int]:
    return [node for node, value in now.items() if before.get(node) != value]


def _shown(part: Part, named: Collection[int]) -> tuple[int, int, int]:
    project = part.project if part.project in named else 0
    return project, part.milli, part.state


_boards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Board] = weakref.WeakKeyDictionary()


def board() -> Board:
    """The board of this process: one per event loop, and a web process has one."""
    return _boards.setdefault(asyncio.get_running_loop(), Board())
