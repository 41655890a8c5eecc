"""The device memory of one attempt: out to the host and back, all its processes or none.

    RUNNING → LOCKING → LOCKED → CHECKPOINTING → SWAPPED → WAITING → RESTORING → RUNNING
                                                                    ↘ FAILED

Each phase is on disk before what it names is begun, so that an agent that is killed at any moment
leaves word for the next one (`recover`). All methods that move memory block.

The rules (`gpu-fractions-and-swap.md` §7.4), by number: 1 in
`_see_that_there_is_room`, 2 and 3 in `swap_out`, 4 in
`_find` and `_roll_back`, 5 in `_bring_back`, 7 in `swap_out`. 6 is `driver`'s, 8 is `loans`'.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from scheduling.agent.processes import start_ticks
from scheduling.agent.protocol import SwapObstacle, SwapReport
from scheduling.agent.swap.body import Body
from scheduling.agent.swap.memory import DeviceMemory, DriverError, ProcessState
from scheduling.agent.swap.record import REPORTED, SWAP, Phase, Saved, SwapRecord, read, write

log = logging.getLogger(__name__)

MARGIN_BYTES: Final = 2**30
"""Free beyond what comes back, or the restore is not begun (rule 1)."""

MIN_RESIDENCE_S: Final = 30.0
_LOCK_TIMEOUT_S = 2.0
_SETTLE_TRIES, _SETTLE_PAUSE_S = 600, 0.1
_LOWER_TRIES, _LOWER_PAUSE_S = 10, 0.1
_MIB = 2**20

NOT_IDLE, TOO_SHORT, NO_ROOM = "not_idle", "resident_too_short", "no_room_to_return"


class NotSwappedError(Exception):
    """It was not moved and runs on; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class NoRoomError(Exception):
    """Its devices are not free for it yet; nothing was begun."""


class LostError(Exception):
    """Its device memory is lost or in doubt. It stays as it is, and nothing is tried again."""


class Machine:
    """One attempt's device memory. One move at a time; the record may be read at any time."""

    def __init__(self, body: Body, memory: DeviceMemory | None) -> None:
        """Take over what is on disk; `memory` is None on a node that cannot swap."""
        self.body = body
        self.memory = memory
        self.record = read(body.folder / SWAP, SwapRecord) or SwapRecord()
        self._moving = threading.Lock()
        self._writing = threading.Lock()

    # ------------------------------------------------------------------ looks

    @property
    def phase(self) -> Phase:
        """Where its memory is."""
        return self.record.phase

    @property
    def is_away(self) -> bool:
        """Whether its CUDA calls wait."""
        return self.phase not in (Phase.RUNNING, Phase.FAILED)

    @property
    def leaves_devices(self) -> bool:
        """Whether its devices are free of it."""
        return self.phase == Phase.SWAPPED

    def obstacle(self) -> str:
        """Why it cannot be swapped; empty if it can."""
        if self.phase == Phase.FAILED:
            return SwapObstacle.FAILED
        if self.memory is None:
            return SwapObstacle.NO_MECHANISM
        return self.body.obstacle()

    def report(self) -> SwapReport:
        """What the orchestrator is told."""
        is_out = self.phase in (Phase.SWAPPED, Phase.WAITING, Phase.RESTORING, Phase.FAILED)
        return SwapReport(
            state=REPORTED[self.phase],
            reason=self.obstacle(),
            bytes_on_device=0 if is_out else self.body.used_bytes(),
            bytes_on_host=self.record.saved_bytes if is_out else 0,
        )

    # ------------------------------------------------------------------ out

    def swap_out(self, is_still_wanted: Callable[[], bool], *, is_yielding: bool = False) -> None:
        """Move everything to the host.

        Args:
            is_still_wanted: Asked between the steps; once it says no, everything is taken back.
            is_yielding: A borrower leaves its lender's device: it need not have been idle, nor
                resident for a while.

        Raises:
            NotSwappedError: it runs on as before; or is WAITING, where even that has no room.
            LostError: a step failed, and so did taking it back.
        """
        with self._moving:
            if self.phase == Phase.SWAPPED:
                return
            if self.phase != Phase.RUNNING:
                raise NotSwappedError(self.phase)
            self._check(is_yielding)
            began_s = time.monotonic()
            try:
                self.record.processes = self._find()
            except DriverError as error:
                raise NotSwappedError(str(error)) from error
            self._reserve()
            try:
                self._lock_all()
                if not is_yielding:
                    self._see_that_none_slipped(began_s)
                if not is_still_wanted():
                    raise NotSwappedError(NOT_IDLE)
                self._enter(Phase.CHECKPOINTING)
                for process in self.record.processes:
                    self._memory.checkpoint(process.pid)
                self.record.out_s = time.monotonic() - began_s
                self._enter(Phase.SWAPPED)
            except (DriverError, NotSwappedError, OSError) as error:
                with suppress(NoRoomError):
                    self._roll_back()
                raise _not_swapped(error) from error

    @property
    def _memory(self) -> DeviceMemory:
        if self.memory is None:
            raise DriverError("libcuda", 0, "this node cannot swap")
        return self.memory

    def _check(self, is_yielding: bool) -> None:
        if obstacle := self.obstacle():
            raise NotSwappedError(obstacle)
        back_at = self.record.back_at
        if not is_yielding and back_at is not None and time.time() - back_at < MIN_RESIDENCE_S:
            raise NotSwappedError(TOO_SHORT)

    def _find(self) -> list[Saved]:
        """Its processes that use its devices, each of which the driver must be able to move."""
        pids = set(self.body.pids())
        used: dict[int, dict[str, int]] = {}
        for uuid in self.body.device_uuids():
            use = self._memory.use(uuid)
            if use is None:
                raise NotSwappedError(SwapObstacle.NO_DEVICE)
            mine = {pid: num for pid, num in use.used_by_pid.items() if pid in pids}
            if mine and use.free_bytes < MARGIN_BYTES:
                # It could not come back to the very device that it leaves.
                raise NotSwappedError(NO_ROOM)
            for pid, num_bytes in mine.items():
                used.setdefault(pid, {})[uuid] = num_bytes
        found = []
        for pid in sorted(used):
            ticks = start_ticks(pid)
            if ticks is None:
                continue
            if self._memory.state(pid) != ProcessState.RUNNING:
                raise NotSwappedError(SwapObstacle.NO_MECHANISM)
            found.append(Saved(pid, ticks, used[pid]))
        return found

    def _reserve(self) -> None:
        extra_mib = -(-self.record.saved_bytes // _MIB)
        try:
            is_reserved = self.body.reserve(extra_mib)
        except OSError as error:
            raise NotSwappedError(str(error)) from error
        if not is_reserved:
            raise NotSwappedError(SwapObstacle.NO_HOST_MEMORY)
        self.record.extra_mib = extra_mib

    def _lock_all(self) -> None:
        self._enter(Phase.LOCKING)
        for process in self.record.processes:
            self._memory.lock(process.pid, _LOCK_TIMEOUT_S)
        self._enter(Phase.LOCKED)
        known = {process.pid for process in self.record.processes}
        if any(process.pid not in known for process in self._find_others(known)):
            raise NotSwappedError(NOT_IDLE)

    def _find_others(self, known: set[int]) -> list[Saved]:
        """Processes that began to use the devices while the others were being locked."""
        others = set(self.body.pids()) - known
        found = []
        for uuid in self.body.device_uuids():
            use = self._memory.use(uuid)
            if use is not None:
                found += [
                    Saved(pid, 0, {uuid: num})
                    for pid, num in use.used_by_pid.items()
                    if pid in others
                ]
        return found

    def _see_that_none_slipped(self, began_s: float) -> None:
        """A call that passed the gate just before it closed waits in the driver: it was busy."""
        called_s = None
        with suppress(OSError):
            called_s = self.body.last_call_s()
        if called_s is not None and called_s >= began_s:
            raise NotSwappedError(NOT_IDLE)

    def _roll_back(self) -> None:
        """Undo what was done of a move out; the devices are its own all the while."""
        processes = self._alive()
        try:
            self._see_that_there_is_room(processes)
            self._bring_back(processes)
        except NoRoomError:
            # Somebody from outside took what was just given up. It stays as it is until there is.
            self._come_to(Phase.WAITING)
            raise
        self._settle()

    def park(self) -> None:
        """A borrower leaves its lender's device, and waits in memory.

        Raises:
            NotSwappedError, LostError: as `swap_out`.
        """
        with self._moving:
            if self.phase == Phase.WAITING:
                # It had not come back yet.
                self._come_to(Phase.SWAPPED)
        self.swap_out(lambda: True, is_yielding=True)

    # ------------------------------------------------------------------ back

    def want(self) -> None:
        """It is wanted again, and its devices are not its own yet."""
        if self.phase == Phase.SWAPPED:
            self._come_to(Phase.WAITING)

    def restore(self) -> None:
        """Bring everything back. The caller holds the devices for it, and nobody else is on them.

        Raises:
            NoRoomError: NVML says otherwise (rule 1), or it cannot be recorded: nothing was begun.
            LostError: the driver failed; nothing is tried again (rule 5).
        """
        with self._moving:
            if self.phase in (Phase.RUNNING, Phase.FAILED):
                return
            began_s = time.monotonic()
            processes = self._alive()
            self._see_that_there_is_room(processes)
            try:
                self._enter(Phase.RESTORING)
            except OSError as error:
                raise NoRoomError(str(error)) from error
            try:
                self._bring_back(processes)
            except NoRoomError:
                self._come_to(Phase.WAITING)
                raise
            self.record.in_s = time.monotonic() - began_s
            self.record.back_at = time.time()
            self._settle()

    def _alive(self) -> list[Saved]:
        """Those that have not ended meanwhile; a number alone may be another's by now."""
        return [
            process
            for process in self.record.processes
            if start_ticks(process.pid) == process.start_ticks
        ]

    def _see_that_there_is_room(self, processes: list[Saved]) -> None:
        """Rule 1. Those that an earlier agent had brought back already need no more."""
        try:
            gone = [
                process
                for process in processes
                if self._settled_state(process) == ProcessState.CHECKPOINTED
            ]
            for uuid in self.body.device_uuids():
                needed = sum(process.num_bytes.get(uuid, 0) for process in gone)
                use = self._memory.use(uuid) if needed else None
                if needed and (use is None or use.free_bytes < needed + MARGIN_BYTES):
                    free = "unknown" if use is None else f"{use.free_bytes // _MIB} MiB"
                    raise NoRoomError(f"{uuid}: {free} free for {needed // _MIB} MiB")
        except DriverError as error:
            raise NoRoomError(str(error)) from error

    def _bring_back(self, processes: list[Saved]) -> None:
        """From wherever each process is to RUNNING: restore all, then let all go on."""
        for step in (self._restore_one, self._unlock_one):
            for process in processes:
                try:
                    step(process)
                except DriverError as error:
                    if start_ticks(process.pid) != process.start_ticks:
                        continue
                    if error.code == 0:
                        # The driver did not refuse; it was not reached, or did not answer.
                        raise NoRoomError(str(error)) from error
                    raise self._fail(error) from error

    def _restore_one(self, process: Saved) -> None:
        state = self._settled_state(process)
        if state == ProcessState.FAILED:
            raise DriverError("state", 304, f"process {process.pid} has failed")
        if state == ProcessState.CHECKPOINTED:
            self._memory.restore(process.pid)

    def _unlock_one(self, process: Saved) -> None:
        if self._settled_state(process) == ProcessState.LOCKED:
            self._memory.unlock(process.pid)

    def _settled_state(self, process: Saved) -> ProcessState | None:
        """Its state once the driver has ended what an earlier agent began."""
        for _ in range(_SETTLE_TRIES):
            state = self._memory.state(process.pid)
            if state not in (ProcessState.CHECKPOINTING, ProcessState.RESTORING):
                return state
            time.sleep(_SETTLE_PAUSE_S)
        raise DriverError("state", 0, f"process {process.pid} does not come to rest")

    def _settle(self) -> None:
        """It runs again, and needs no more memory than before."""
        self.record.processes = []
        self._come_to(Phase.RUNNING)
        self.lower_limit()

    def lower_limit(self) -> None:
        """Take back what its memory limit was raised by, once the kernel lets us."""
        for _ in range(_LOWER_TRIES):
            if not self.record.extra_mib:
                return
            with suppress(OSError):
                if self.body.reserve(0):
                    self.record.extra_mib = 0
                    self._write()
                    return
            time.sleep(_LOWER_PAUSE_S)

    def _fail(self, error: DriverError) -> LostError:
        self.record.error = str(error)
        self._come_to(Phase.FAILED)
        log.error("%s: its device memory is lost: %s", self.body.folder.name, error)
        self.body.say(f"the GPU memory of this workload could not be brought back: {error}")
        return LostError(str(error))

    # ------------------------------------------------------------------ a new agent

    def recover(self) -> None:
        """Go on where an earlier agent was killed.

        What had not left the devices stays on them: nobody was given them before SWAPPED. What was
        on its way back is left to `restore`, which the loan's end asks for.

        Raises:
            LostError: see there.
        """
        with self._moving:
            self.body.close_gate(self.phase)
            if self.phase in (Phase.LOCKING, Phase.LOCKED, Phase.CHECKPOINTING):
                with suppress(NoRoomError):
                    self._roll_back()
            elif self.phase == Phase.RUNNING and self.record.extra_mib:
                self.lower_limit()

    # ------------------------------------------------------------------ on disk

    def mark_borrower(self) -> None:
        """Remember that its devices are not its own."""
        if not self.record.has_borrowed:
            self.record.has_borrowed = True
            self._note()

    def _enter(self, phase: Phase) -> None:
        """Begin a phase once it is on disk.

        Raises:
            OSError: it cannot be written; what was before goes on.
        """
        before = self.record.phase, self.record.at
        self.record.phase, self.record.at = phase, time.time()
        try:
            self._write()
        except OSError:
            self.record.phase, self.record.at = before
            raise
        self.body.close_gate(phase)

    def _come_to(self, phase: Phase) -> None:
        """Where it is now, whether or not the disk takes it: the next agent finds that out."""
        self.record.phase, self.record.at = phase, time.time()
        self._note()
        self.body.close_gate(phase)

    def _note(self) -> None:
        try:
            self._write()
        except OSError as error:
            log.warning("%s: its record cannot be kept: %s", self.body.folder.name, error)

    def _write(self) -> None:
        with self._writing:
            write(self.body.folder / SWAP, self.record)


def _not_swapped(error: DriverError | NotSwappedError | OSError) -> NotSwappedError:
    if isinstance(error, NotSwappedError):
        return error
    is_busy = isinstance(error, DriverError) and error.is_busy
    return NotSwappedError(NOT_IDLE if is_busy else str(error))
