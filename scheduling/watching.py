"""Has agents measure every second what the open pages of this web process show.

Pages say what is on their screen (nodes, devices, workloads); while there is any, each zone's
relay is asked every few seconds for the nodes behind it, for a little longer than until the next
time (`protocol.WatchRequest`). So nothing needs to be ended: when the last page or the whole web is
gone, the agents go back to every five seconds by themselves. A relay that does not answer is
nobody's error: its nodes are measured more slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import weakref
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

import httpx
from channels.db import database_sync_to_async
from django.db import Error as DatabaseError
from django.db.models import Q

from scheduling.models import Attempt, AttemptPhase, Node, Zone
from scheduling.relay_client import AgentAwayError, address_of, headers_for
from telemetry.metrics import Kind, split_subject

logger = logging.getLogger(__name__)

RENEW_EVERY_S = 4.0
FOR_S = 10.0
"""Outlives two renewals that did not arrive."""
MIN_GAP_S = 0.5
"""Scrolling changes what is shown many times a second."""
TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What one page shows: nodes by their number, and subjects of telemetry."""

    nodes: frozenset[int] = frozenset()
    subjects: frozenset[str] = frozenset()


NOTHING = Shown()


class Screens:
    """What all pages of this process show, and who is told of it."""

    def __init__(self) -> None:
        self._shown: dict[object, Shown] = {}
        self._is_news = asyncio.Event()
        self._is_over = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    def show(self, page: object, shown: Shown) -> None:
        """From now on the page shows this; the first one begins to ask the agents."""
        if self._shown.get(page, NOTHING) == shown:
            return
        self._shown[page] = shown
        self._is_news.set()
        if self._renewing is None or self._renewing.done():
            self._is_over = asyncio.Event()
            self._renewing = asyncio.create_task(self._renew(self._is_over))

    async def leave(self, page: object) -> None:
        """The page is gone; the last one waits until the database is left alone."""
        if self._shown.pop(page, None) is None or self._shown or self._renewing is None:
            return
        renewing, self._renewing = self._renewing, None
        self._is_over.set()
        self._is_news.set()
        await renewing

    async def _renew(self, is_over: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            relays = _Relays(stack)
            while not is_over.is_set():
                self._is_news.clear()
                wanted = Shown(
                    frozenset().union(*(shown.nodes for shown in self._shown.values())),
                    frozenset().union(*(shown.subjects for shown in self._shown.values())),
                )
                if wanted != NOTHING:
                    await _ask(relays, wanted)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(is_over.wait(), MIN_GAP_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_news.wait(), RENEW_EVERY_S - MIN_GAP_S)


class _Relays:
    """One client per relay; making one costs more than asking it."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._tls = ssl.create_default_context()

    async def watch(self, zone: Zone, nodes: Collection[str]) -> None:
        """Ask a zone's agent; one that is away measures more slowly."""
        try:
            base_url, path = address_of(zone)
            client = self._clients.get(zone.relay_url)
            if client is None:
                transport = httpx.AsyncHTTPTransport(uds=path, verify=self._tls)
                client = await self._stack.enter_async_context(
                    httpx.AsyncClient(base_url=base_url, transport=transport, timeout=TIMEOUT_S)
                )
                self._clients[zone.relay_url] = client
            wish = {"nodes": sorted(nodes), "for_s": FOR_S}
            response = await client.post("/watch", json=wish, headers=headers_for(zone))
            response.raise_for_status()
        except (AgentAwayError, httpx.HTTPError) as error:
            logger.debug("the agent of %s measures as ever: %s", zone, error)


async def _ask(relays: _Relays, wanted: Shown) -> None:
    try:
        by_zone = await nodes_behind(wanted)
    except DatabaseError:
        # It restarts: the next renewal comes before the agents forget.
        logger.warning("what pages show could not be looked up", exc_info=True)
        return
    await asyncio.gather(*(relays.watch(zone, nodes) for zone, nodes in by_zone.items()))


@database_sync_to_async
def nodes_behind(shown: Shown) -> Mapping[Zone, set[str]]:
    """Names of the nodes on which lies what is shown, by zone; two queries."""
    names: dict[Kind, set[str]] = defaultdict(set)
    for subject in shown.subjects:
        kind, name = split_subject(subject)
        names[kind].add(name)
    # Subjects come from topics that were checked: names of workloads are UUIDs.
    attempts = (
        Attempt.objects.filter(workload__in=[UUID(name) for name in names[Kind.WORKLOAD]])
        .exclude(phase=AttemptPhase.ENDED)
        .values_list("node_id", flat=True)
    )
    nodes = shown.nodes | (set(attempts) if names[Kind.WORKLOAD] else set())
    rows = Node.objects.filter(
        Q(pk__in=nodes) | Q(name__in=names[Kind.NODE]) | Q(devices__in=names[Kind.DEVICE])
    )
    found: dict[Zone, set[str]] = defaultdict(set)
    for node in rows.select_related("zone").distinct():
        found[node.zone].add(node.name)
    return found


_screens: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Screens] = (
    weakref.WeakKeyDictionary()
)


def screens() -> Screens:
    """Those of this process: one per event loop, and a web process has one."""
    return _screens.setdefault(asyncio.get_running_loop(), Screens())
