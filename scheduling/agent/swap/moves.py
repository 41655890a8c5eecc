"""Who is on which device: moves attempts' memory away and back, one at a time and never too much.

Two sums keep memory from being given twice:

* *promised*: what ordinary attempts hold of a device, those that are swapped out included;
* *present*: what all attempts hold of it whose memory is there, or on its way there.

A borrower goes where there is room beside those present; whoever a device was promised to makes
borrowers leave it. A borrower that leaves is *parked*, its memory on the host, and goes on from
there when there is room again; where it cannot be parked it saves, stops and returns to the queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from scheduling.agent.attempt import Attempt
from scheduling.agent.protocol import (
    AttemptPhase,
    AttemptSpec,
    ExitCause,
    Goal,
    IdleReport,
    SwapReport,
)
from scheduling.agent.swap.body import AttemptBody, HostMemory
from scheduling.agent.swap.machine import LostError, Machine, NoRoomError, NotSwappedError
from scheduling.agent.swap.memory import DeviceMemory
from scheduling.agent.swap.record import Phase

log = logging.getLogger(__name__)

GPU_MILLI = 1000
# While somebody waits for a device: how often it is looked at.
_PAUSE_S = 0.005
_SAY_AFTER_S = 30.0
_LEAVING = (AttemptPhase.SAVING, AttemptPhase.STOPPING)


@dataclass(frozen=True, slots=True)
class Ground:
    """What loans need of the agent.

    Attributes:
        attempts: All of them, by id.
        memory_of: The way to a node's driver; None where it cannot swap.
        look: A fresh look at a session's idleness.
        changed: Something is to be reported.
        order_again: Attempts that wait for a device may be started now.
    """

    attempts: Mapping[str, Attempt]
    memory_of: Callable[[str], DeviceMemory | None]
    look: Callable[[str], Awaitable[IdleReport | None]]
    changed: Callable[[], None]
    order_again: Callable[[], None]


class Ties(Protocol):
    """What loans say of attempts."""

    def borrows(self, attempt_id: str) -> bool:
        """Whether devices were lent to it."""
        ...

    def is_called_back(self, attempt_id: str) -> bool:
        """Whether one of its lenders is on its way back."""
        ...

    def lends(self, attempt_id: str) -> bool:
        """Whether a loan of its devices is under way."""
        ...


class Moves:
    """The device memory of all attempts of one agent."""

    def __init__(self, ground: Ground, ties: Ties) -> None:
        self._ground = ground
        self._ties = ties
        self.host = HostMemory()
        self._machines: dict[str, Machine] = {}
        self._returning: dict[str, asyncio.Task[None]] = {}
        self._yielding: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    # ------------------------------------------------------------------ machines

    def machine(self, attempt_id: str) -> Machine | None:
        """An attempt's device memory; None if it has no device or is not there."""
        attempt = self._ground.attempts.get(attempt_id)
        if attempt is None or attempt.is_over or not attempt.spec.devices:
            return None
        found = self._machines.get(attempt_id)
        if found is None or found.memory is None:
            memory = self._ground.memory_of(attempt.spec.node)
            if found is None:
                found = Machine(AttemptBody(attempt, self.host), memory)
                self._machines[attempt_id] = found
            found.memory = memory
        return found

    def report_of(self, attempt_id: str) -> SwapReport | None:
        """What is told of an attempt's device memory."""
        machine = self.machine(attempt_id)
        return None if machine is None else machine.report()

    def is_away(self, attempt_id: str) -> bool:
        """Whether a session's cells have to wait."""
        machine = self._machines.get(attempt_id)
        return machine is not None and machine.is_away

    def has_failed(self, attempt_id: str) -> bool:
        """Whether its device memory is lost."""
        machine = self._machines.get(attempt_id)
        return machine is not None and machine.phase == Phase.FAILED

    async def until_back(self, attempt_id: str) -> bool:
        """Wait until a session has its GPU again; False once it never will."""
        while self.is_away(attempt_id):
            attempt = self._ground.attempts.get(attempt_id)
            if attempt is None or attempt.is_over:
                return False
            await asyncio.sleep(_PAUSE_S)
        return not self.has_failed(attempt_id)

    def expected_wake_s(self, attempt_id: str) -> float | None:
        """How long bringing a session back will take about; None where nothing is known."""
        machine = self._machines.get(attempt_id)
        if machine is None or machine.record.out_s is None:
            return None
        return machine.record.in_s or machine.record.out_s

    # ------------------------------------------------------------------ restart

    async def adopt(self) -> None:
        """Take over what an earlier agent left."""
        machines = [
            machine
            for attempt_id in self._ground.attempts
            if (machine := self.machine(attempt_id)) is not None
        ]
        for machine in machines:
            if extra_mib := machine.record.extra_mib:
                with suppress(OSError):
                    machine.body.reserve(extra_mib)
        await asyncio.gather(*(asyncio.to_thread(_recover, machine) for machine in machines))

    def shut_down(self) -> None:
        """All attempts are being stopped: bring none back but borrowers, where there is room."""
        self._is_closed = True

    def close(self) -> None:
        """Begin nothing more; what moves goes on to its next record."""
        self._is_closed = True
        for task in (*self._returning.values(), *self._yielding.values()):
            task.cancel()

    # ------------------------------------------------------------------ what happens

    def tick(self) -> None:
        """Forget who has ended; bring back whoever is off a device without a reason."""
        for attempt_id in list(self._machines):
            attempt = self._ground.attempts.get(attempt_id)
            if attempt is None or attempt.is_over:
                self._forget(attempt_id)
        self._bring_parked_back()

    def is_leaving(self, attempt_id: str) -> bool:
        """Whether it is being stopped, and needs no device to end."""
        attempt = self._ground.attempts.get(attempt_id)
        return (
            self._is_closed
            or attempt is None
            or attempt.spec.goal in (Goal.STOP, Goal.EVICT)
            or attempt.phase in _LEAVING
        )

    def _forget(self, attempt_id: str) -> None:
        """Its processes are gone, and with them what they held on a device or the host."""
        del self._machines[attempt_id]
        self.host.give_back(attempt_id)

    def _bring_parked_back(self) -> None:
        """Borrowers that wait in memory, once there is room for them."""
        for attempt_id, machine in list(self._machines.items()):
            attempt = self._ground.attempts.get(attempt_id)
            if attempt is None or attempt_id in self._returning or attempt_id in self._yielding:
                continue
            if machine.is_away and self._is_to_come(attempt_id, attempt.spec):
                self.bring_back_soon(attempt_id)

    def _is_to_come(self, attempt_id: str, spec: AttemptSpec) -> bool:
        if not self._is_borrower(attempt_id):
            # Nobody's loan any more, and off its devices: its record was lost.
            return not self._is_closed and not self._ties.lends(attempt_id)
        if self._is_closed:
            # A CUDA call that waits would keep it from saving, and nobody else begins any more.
            return self._fits(spec)
        return not self.is_leaving(attempt_id) and self._may_come(spec)

    # ------------------------------------------------------------------ room

    def may_start(self, spec: AttemptSpec) -> bool:
        """Whether an attempt's devices are free for it now; whoever borrows them is sent away."""
        if not self._is_borrower(spec.attempt_id):
            promised = self._held(
                attempt
                for attempt_id, attempt in self._ground.attempts.items()
                if attempt_id != spec.attempt_id and not self._is_borrower(attempt_id)
            )
            if not _has_room(spec, promised):
                return False
        if self._may_come(spec):
            return True
        self.send_borrowers_away(spec.attempt_id, spec)
        return False

    def send_borrowers_away(self, attempt_id: str, spec: AttemptSpec | None = None) -> None:
        """Have those leave who borrow an attempt's devices, if it does not fit beside them."""
        for borrower in self._in_the_way(attempt_id, spec):
            self._yield_soon(borrower)

    def _may_come(self, spec: AttemptSpec) -> bool:
        """Whether it fits, and would not have to leave at once: a lender that is wanted again may
        just have come to rest in memory."""
        return self._fits(spec) and not self._ties.is_called_back(spec.attempt_id)

    def _fits(self, spec: AttemptSpec) -> bool:
        """Whether there is room beside all whose memory is on the devices."""
        present = self._held(
            attempt
            for attempt_id, attempt in self._ground.attempts.items()
            if attempt_id != spec.attempt_id and not self._leaves_devices(attempt_id)
        )
        return _has_room(spec, present)

    def _held(self, attempts: Iterable[Attempt]) -> Counter[str]:
        held: Counter[str] = Counter()
        for attempt in attempts:
            if attempt.holds_devices:
                for device in attempt.spec.devices:
                    held[device.uuid] += device.gpu_milli
        return held

    def _leaves_devices(self, attempt_id: str) -> bool:
        machine = self._machines.get(attempt_id)
        return machine is not None and machine.leaves_devices and attempt_id not in self._returning

    def _in_the_way(self, attempt_id: str, spec: AttemptSpec | None = None) -> list[str]:
        """Borrowers on an attempt's devices, if it does not fit beside them."""
        attempt = self._present(attempt_id)
        spec = spec or (attempt.spec if attempt else None)
        if spec is None or self._is_borrower(attempt_id) or self._fits(spec):
            return []
        uuids = {device.uuid for device in spec.devices}
        return [
            other_id
            for other_id, other in self._ground.attempts.items()
            if other.holds_devices
            and self._is_borrower(other_id)
            and not self._leaves_devices(other_id)
            and uuids & {device.uuid for device in other.spec.devices}
        ]

    def _is_borrower(self, attempt_id: str) -> bool:
        machine = self._machines.get(attempt_id)
        has_borrowed = machine is not None and machine.record.has_borrowed
        return has_borrowed or self._ties.borrows(attempt_id)

    # ------------------------------------------------------------------ moves

    async def bring_back(self, attempt_id: str) -> None:
        """Give an attempt its devices back; returns once it has them, is lost or has ended."""
        self.bring_back_soon(attempt_id)
        await asyncio.shield(self._returning[attempt_id])

    def bring_back_soon(self, attempt_id: str) -> None:
        """The same, without waiting."""
        if attempt_id not in self._returning:
            task = asyncio.get_running_loop().create_task(self._bring_back(attempt_id))
            self._returning[attempt_id] = task
            task.add_done_callback(lambda _: self._returning.pop(attempt_id, None))

    async def _bring_back(self, attempt_id: str) -> None:
        """Wait until an attempt's devices are free for it, then restore it."""
        machine, began_s, is_said = self._machines.get(attempt_id), time.monotonic(), False
        if machine is None:
            return
        await asyncio.to_thread(machine.want)
        while machine.is_away:
            attempt = self._ground.attempts.get(attempt_id)
            if attempt is None or attempt.is_over:
                return
            self.send_borrowers_away(attempt_id)
            why = "its devices are in use"
            if self._fits(attempt.spec):
                try:
                    await asyncio.to_thread(machine.restore)
                except NoRoomError as error:
                    why = str(error)
                except LostError:
                    break
            if machine.is_away:
                if not is_said and time.monotonic() - began_s > _SAY_AFTER_S:
                    is_said = True
                    log.warning("attempt %s waits for its GPU: %s", attempt_id, why)
                await asyncio.sleep(_PAUSE_S)
        self._ground.changed()

    def _yield_soon(self, attempt_id: str) -> None:
        if attempt_id not in self._yielding:
            task = asyncio.get_running_loop().create_task(self._yield(attempt_id))
            self._yielding[attempt_id] = task
            task.add_done_callback(lambda _: self._yielding.pop(attempt_id, None))

    async def _yield(self, attempt_id: str) -> None:
        """Have a borrower leave its devices: into memory, or for good."""
        if (coming := self._returning.get(attempt_id)) is not None:
            # It was just coming back; a move that has begun ends before the next begins.
            coming.cancel()
            await asyncio.wait([coming])
        while (attempt := self._present(attempt_id)) is not None:
            if attempt.is_begun and attempt.phase != AttemptPhase.STARTING:
                break
            await asyncio.sleep(_PAUSE_S)
        machine = self.machine(attempt_id)
        if attempt is None or machine is None:
            return
        machine.mark_borrower()
        if not self.is_leaving(attempt_id):
            await self._park_or_evict(attempt, machine)
        while not machine.leaves_devices and self._present(attempt_id) is not None:
            await asyncio.sleep(_PAUSE_S)
        self._ground.changed()
        self._ground.order_again()

    async def _park_or_evict(self, attempt: Attempt, machine: Machine) -> None:
        try:
            await asyncio.to_thread(machine.park)
        except (NotSwappedError, LostError) as error:
            name = attempt.spec.attempt_id
            log.info("attempt %s cannot wait in memory (%s): it saves and stops", name, error)
            if not self.is_leaving(name):
                attempt.stop(ExitCause.EVICTED)

    def _present(self, attempt_id: str) -> Attempt | None:
        """An attempt that has not ended."""
        attempt = self._ground.attempts.get(attempt_id)
        return None if attempt is None or attempt.is_over else attempt


def _recover(machine: Machine) -> None:
    with suppress(LostError):
        machine.recover()


def _has_room(spec: AttemptSpec, held: Counter[str]) -> bool:
    return all(held[each.uuid] + each.gpu_milli <= GPU_MILLI for each in spec.devices)
