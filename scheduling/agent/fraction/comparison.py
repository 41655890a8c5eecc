"""What a node's NVML says of workloads' processes, against what their accounting regions say.

Two things come of it. What the driver takes beside what it is asked for (*contexts*, and what it
keeps for kernels) is charged to the process that has it, and the least that was seen of it on a
kind of device is charged to each new process there at once. And memory that no region counts, past
the share, says that a program goes *around* the proxy library.

A process is named by its PID namespace and its number in it, as it names itself in its region.
"""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from scheduling.agent.fraction.region import Reading, Region, RegionError
from scheduling.agent.protocol import AroundShare
from telemetry.nvml import NvmlReader

log = logging.getLogger(__name__)

MIB = 2**20
DRIVERS_OWN_BYTES: Final = 2**30
"""More than a context was seen to take (0.25 to 0.8 GiB, NVIDIA's guide to memory limits)."""
_STEP_BYTES: Final = MIB

Key = tuple[int, int]
Use = Mapping[Key, int]


class UseReader(Protocol):
    """What the processes on a device hold of it."""

    def used(self, device_uuid: str) -> Use | None:
        """Bytes by process; those of whom the driver does not tell are absent, None: it tells of
        nobody."""
        ...


@dataclass(frozen=True, slots=True)
class Compared:
    """One attempt.

    Attributes:
        pids: All its processes, as the agent numbers them.
        kinds: Per device, in the order of its limits: driver and model.
        is_held_by_driver: The driver itself knows its limit, so that nobody gets around it.
    """

    attempt_id: str
    region: Region
    pids: Collection[int]
    device_uuids: tuple[str, ...]
    kinds: tuple[str, ...]
    is_held_by_driver: bool = False


def key_of(pid: int) -> Key | None:
    """How a process would name itself; None if it has ended."""
    space = _space_of(pid)
    if space is not None:
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("NSpid:"):
                    return space, int(line.split()[-1])
    return None


def _space_of(pid: int | str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None


class SimulatedUse:
    """Of a simulated node's devices: the file that is their memory."""

    def __init__(self, memory: Path) -> None:
        self._memory = Region(memory)

    def used(self, device_uuid: str) -> Use | None:
        """See `UseReader`."""
        with suppress(RegionError):
            found = self._memory.read()
            place = found.place_of(device_uuid)
            if place is not None:
                return {
                    each.key: each.used_bytes[place]
                    for each in found.processes
                    if each.used_bytes[place]
                }
        return None


class RealUse:
    """Of real devices, through NVML; whoever asks must see the machine's processes as it does."""

    def __init__(self) -> None:
        self._reader = NvmlReader()

    def used(self, device_uuid: str) -> Use | None:
        """See `UseReader`."""
        found = self._reader.processes(device_uuid)
        if found is None or (found and all(each.memory_mib is None for each in found)):
            return None
        return {
            key: round(each.memory_mib * MIB)
            for each in found
            if each.memory_mib is not None and (key := key_of(each.pid)) is not None
        }


class Contexts:
    """The least that a process was seen to have taken on each kind of device; kept on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes: dict[str, int] = {}
        with suppress(OSError, ValueError, AttributeError):
            kept = json.loads(path.read_text()).items()
            self._bytes = {str(kind): int(num) for kind, num in kept}

    def of(self, kind: str) -> int:
        """Bytes to charge for a new process; 0 as long as nothing was seen."""
        return self._bytes.get(kind, 0)

    def saw(self, kind: str, num_bytes: int) -> None:
        """A process takes so much."""
        before = self._bytes.get(kind)
        if 0 < num_bytes <= DRIVERS_OWN_BYTES and (before is None or num_bytes < before):
            self._bytes[kind] = num_bytes
            temporary = self._path.with_suffix(".tmp")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_text(json.dumps(self._bytes))
                temporary.replace(self._path)
            except OSError as error:
                log.warning("what contexts take cannot be kept: %s", error)


@dataclass(frozen=True, slots=True)
class _Found:
    """One attempt's processes on one device, at one look.

    Attributes:
        beside: Bytes by region's process that the driver takes beside what it counts.
        uncounted: Bytes of those that no region knows.
        total: Of all of them.
    """

    beside: Mapping[Key, int]
    uncounted: int
    total: int


class Comparison:
    """Compares every few seconds. What it finds counts once it was seen twice in a row.

    Once might be chance: the region and NVML are not read at the same moment.
    """

    def __init__(self, contexts: Contexts) -> None:
        self.contexts = contexts
        self._before: dict[tuple[str, str], _Found] = {}
        self._around: dict[str, AroundShare] = {}

    def around(self, attempt_id: str) -> AroundShare | None:
        """What an attempt takes around the proxy library, as seen last."""
        return self._around.get(attempt_id)

    def update(self, attempts: Iterable[Compared], reader: UseReader) -> None:
        """Compare these attempts of one node; a device is read once."""
        wanted = list(attempts)
        uuids = {uuid for each in wanted for uuid in each.device_uuids}
        # Twice, around NVML's: a process that has just freed or taken much is not misjudged.
        first = {each.attempt_id: _read(each.region) for each in wanted}
        used = {uuid: reader.used(uuid) for uuid in sorted(uuids)}
        for each in wanted:
            before, after = first[each.attempt_id], _read(each.region)
            self._around.pop(each.attempt_id, None)
            for uuid, kind in zip(each.device_uuids, each.kinds, strict=True):
                on_device, place = used[uuid], None if after is None else after.place_of(uuid)
                if before is None or after is None or on_device is None or place is None:
                    self._before.pop((each.attempt_id, uuid), None)
                    continue
                own = _owned(on_device, each.pids)
                found = _found(own, place, before, after)
                earlier = self._before.get((each.attempt_id, uuid))
                self._before[each.attempt_id, uuid] = found
                if earlier is not None:
                    self._charge(each.region, kind, place, after, (earlier, found))
                    if not each.is_held_by_driver:
                        self._judge(each.attempt_id, uuid, after.limit_bytes[place], earlier, found)

    def keep(self, attempt_ids: Collection[str]) -> None:
        """Forget all others."""
        self._around = {a: found for a, found in self._around.items() if a in attempt_ids}
        self._before = {key: f for key, f in self._before.items() if key[0] in attempt_ids}

    def _charge(
        self, region: Region, kind: str, place: int, reading: Reading, looks: tuple[_Found, _Found]
    ) -> None:
        """Have each process count what the driver takes beside what it is asked for."""
        earlier, found = looks
        for process in reading.processes:
            if process.key not in found.beside or process.key not in earlier.beside:
                continue
            num_bytes = min(found.beside[process.key], earlier.beside[process.key])
            self.contexts.saw(kind, num_bytes)
            if abs(num_bytes - process.context_bytes[place]) >= _STEP_BYTES:
                with suppress(RegionError):
                    region.set_measured(process, place, num_bytes)

    def _judge(
        self, attempt_id: str, uuid: str, limit: int, earlier: _Found, found: _Found
    ) -> None:
        total = min(found.total, earlier.total)
        most = max([*found.beside.values(), found.uncounted], default=0)
        is_past = total > limit and most > DRIVERS_OWN_BYTES
        if is_past or min(found.uncounted, earlier.uncounted) > 0:
            self._around[attempt_id] = AroundShare(
                device_uuid=uuid,
                used_mib=total // MIB,
                share_mib=limit // MIB,
                uncounted_mib=found.uncounted // MIB,
            )


def _read(region: Region) -> Reading | None:
    try:
        return region.read()
    except RegionError:
        return None


def _owned(used: Use, pids: Collection[int]) -> Use:
    """Those of the processes on a device that are an attempt's."""
    if not used:
        return {}
    own_space = _space_of("self")
    spaces = {_space_of(pid) for pid in pids} - {own_space}
    return {
        key: num
        for key, num in used.items()
        if key[0] in spaces or (key[0] == own_space and key[1] in pids)
    }


def _found(own: Use, place: int, before: Reading, after: Reading) -> _Found:
    counted: dict[Key, int] = defaultdict(int)
    for reading in (before, after):
        for process in reading.processes:
            driver_asked = process.used_bytes[place] - process.context_bytes[place]
            counted[process.key] = max(counted[process.key], driver_asked)
    return _Found(
        beside={key: max(0, num - counted[key]) for key, num in own.items() if key in counted},
        uncounted=sum(num for key, num in own.items() if key not in counted),
        total=sum(own.values()),
    )
