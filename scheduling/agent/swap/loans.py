"""Carries the orchestrator's loans out, and wakes lenders without asking it.

A loan is carried out by a task, from wherever its record on disk says that it is. A wake is decided
here alone and at once; a loan that it has ended is never begun again, and is forgotten once the
orchestrator has recorded its end and names it no more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from scheduling.agent.folders import safe_name
from scheduling.agent.idle import is_idle
from scheduling.agent.protocol import Loan, LoanEnd, LoanReport, LoanState
from scheduling.agent.swap.machine import NOT_IDLE, LostError, Machine, NotSwappedError
from scheduling.agent.swap.moves import Ground, Moves
from scheduling.agent.swap.record import LoanRecord, Phase, read, write

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """A loan that is being carried out."""

    record: LoanRecord
    wanted: asyncio.Event = field(default_factory=asyncio.Event)


class Loans:
    """All loans of one agent."""

    def __init__(self, folder: Path, ground: Ground) -> None:
        """Take nothing over yet; `folder` holds a file per loan."""
        self._folder = folder
        self._ground = ground
        self.moves = Moves(ground, self)
        self._loans: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        # One thread, so that of two records of a loan the later one stays.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="loans")

    # ------------------------------------------------------------------ restart

    async def adopt(self) -> None:
        """Take over what an earlier agent left; before anything else is ordered."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._folder.glob("*.json")):
            record = read(path, LoanRecord)
            if record is None:
                log.warning("%s holds no loan that this version can read", path)
                continue
            running = self._loans[record.loan.loan_id] = _Running(record)
            if record.wanted_at is not None:
                running.wanted.set()
        await self.moves.adopt()
        for running in self._active():
            self._take_over(running)
            self._begin(running)

    def _take_over(self, running: _Running) -> None:
        """A lender that is no longer out was on its way back when the agent was killed."""
        machine = self.moves.machine(running.record.loan.lender_attempt_id)
        if running.record.state == LoanState.LENT and (
            machine is None or machine.phase != Phase.SWAPPED
        ):
            self._want(running, LoanEnd.ACTIVITY)

    def shut_down(self) -> None:
        """All attempts are being stopped: lend and bring back nothing more."""
        self._is_closed = True
        self.moves.shut_down()

    def close(self) -> None:
        """Begin nothing more; what moves goes on to its next record."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        self.moves.close()
        self._disk.shutdown(wait=True)

    # ------------------------------------------------------------------ wanted

    def apply(self, loans: Iterable[Loan], host_mib: Mapping[str, int]) -> None:
        """Begin what is new, and end what is named no more."""
        self.moves.host.limits_mib = dict(host_mib)
        wanted = {loan.loan_id: loan for loan in loans}
        for loan_id, running in list(self._loans.items()):
            if loan_id in wanted:
                continue
            if running.record.is_dropped:
                self._disk.submit(self._path(loan_id).unlink, missing_ok=True)
                del self._loans[loan_id]
            elif not running.record.is_over:
                self._want(running, LoanEnd.ORCHESTRATOR)
        if self._is_closed:
            return
        for loan_id, loan in wanted.items():
            if loan_id not in self._loans:
                running = _Running(LoanRecord(loan, started_at=time.time()))
                self._loans[loan_id] = running
                self._write(running.record)
                self._begin(running)

    def settle(self, loan_ids: Iterable[str]) -> None:
        """Report these no more; they are forgotten once nobody wants them either."""
        for loan_id in loan_ids:
            running = self._loans.get(loan_id)
            if running is not None and running.record.is_over and not running.record.is_dropped:
                running.record.is_dropped = True
                self._write(running.record)

    def reports(self) -> list[LoanReport]:
        """What is to be told of each loan."""
        return [
            _reported(running.record)
            for running in self._loans.values()
            if not running.record.is_dropped
        ]

    # ------------------------------------------------------------------ wake

    def wake(self, attempt_id: str, by: LoanEnd) -> bool:
        """A session is wanted again: begin at once. False if its GPU is not away."""
        if self.moves.is_leaving(attempt_id):
            return False
        for running in self._active():
            if running.record.loan.lender_attempt_id == attempt_id:
                self._want(running, by)
                return True
        if not self.moves.is_away(attempt_id):
            return False
        # Out without a loan: its record was lost.
        self.moves.bring_back_soon(attempt_id)
        return True

    async def kept(self) -> None:
        """Wait until all that was decided so far is on disk."""
        await asyncio.wrap_future(self._disk.submit(lambda: None))

    def lenders(self) -> list[str]:
        """Sessions that are off their devices now, and may turn busy by themselves."""
        return [
            running.record.loan.lender_attempt_id
            for running in self._active()
            if running.record.state == LoanState.LENT
        ]

    def _want(self, running: _Running, by: LoanEnd) -> None:
        record = running.record
        if record.wanted_at is not None:
            return
        record.wanted_at, record.ended_by = time.time(), by
        if record.state == LoanState.LENT:
            record.state = LoanState.WAKING
        running.wanted.set()
        self.moves.send_borrowers_away(record.loan.lender_attempt_id)
        self._write(record)
        self._ground.changed()

    def _active(self) -> list[_Running]:
        return [running for running in self._loans.values() if not running.record.is_over]

    def borrows(self, attempt_id: str) -> bool:
        """Whether devices were lent to an attempt, or are about to be.

        Who was refused waits for the orchestrator to take it back: it must not slip onto the same
        devices when they are lent to another.
        """
        return any(
            running.record.loan.borrower_attempt_id == attempt_id
            and running.record.state != LoanState.REFUSED
            for running in self._loans.values()
        )

    def is_called_back(self, attempt_id: str) -> bool:
        """Whether one of those who lend to an attempt is on its way back."""
        return any(
            running.record.loan.borrower_attempt_id == attempt_id
            and running.record.wanted_at is not None
            for running in self._active()
        )

    def lends(self, attempt_id: str) -> bool:
        """Whether a loan of an attempt's devices is under way."""
        return any(
            running.record.loan.lender_attempt_id == attempt_id for running in self._active()
        )

    # ------------------------------------------------------------------ what happens

    def tick(self) -> None:
        """Look at whatever ended by itself, and at who waits for room."""
        for running in self._active():
            self._look_at(running)
        self.moves.tick()

    def _look_at(self, running: _Running) -> None:
        record = running.record
        lender = self._ground.attempts.get(record.loan.lender_attempt_id)
        borrower = self._ground.attempts.get(record.loan.borrower_attempt_id)
        if lender is None or lender.is_over:
            self._want(running, LoanEnd.LENDER_ENDED)
        elif borrower is not None and borrower.is_over:
            self._want(running, LoanEnd.BORROWER_ENDED)
        elif borrower is not None and borrower.folder.is_dir():
            machine = self.moves.machine(record.loan.borrower_attempt_id)
            if machine is not None:
                machine.mark_borrower()

    # ------------------------------------------------------------------ a loan

    def _begin(self, running: _Running) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, running: _Running) -> None:
        record = running.record
        try:
            if record.state == LoanState.SWAPPING_OUT:
                await self._lend(running)
            if record.state == LoanState.LENT:
                await running.wanted.wait()
            if record.state == LoanState.WAKING:
                await self._return(running)
        except Exception as error:  # the outermost frame of a task: it is told, not lost
            log.exception("loan %s", record.loan.loan_id)
            self._end(running, LoanEnd.FAILED, str(error))

    async def _lend(self, running: _Running) -> None:
        """Swap the lender out if it is idle by a fresh look."""
        record = running.record
        lender_id = record.loan.lender_attempt_id
        machine = self.moves.machine(lender_id)
        refusal = await self._why_not(running, machine)
        if refusal or machine is None:
            self._refuse(running, refusal or NOT_IDLE)
            return
        try:
            await asyncio.to_thread(machine.swap_out, lambda: not running.wanted.is_set())
        except NotSwappedError as error:
            if machine.is_away:
                # It came to rest half-way: bring it back as soon as there is room.
                self._want(running, LoanEnd.FAILED)
                record.state = LoanState.WAKING
            elif record.wanted_at is not None:
                self._end(running, LoanEnd(record.ended_by))
            else:
                self._refuse(running, error.code)
            return
        except LostError as error:
            self._end(running, LoanEnd.FAILED, str(error))
            return
        record.swapped_out_bytes, record.out_s = machine.record.saved_bytes, machine.record.out_s
        # Wanted meanwhile: the devices never were the borrower's.
        is_wanted = record.wanted_at is not None
        record.lent_at = None if is_wanted else time.time()
        record.state = LoanState.WAKING if is_wanted else LoanState.LENT
        self._write(record)
        self._ground.changed()
        if not is_wanted:
            self._ground.order_again()

    async def _why_not(self, running: _Running, machine: Machine | None) -> str:
        loan = running.record.loan
        attempt = self._ground.attempts.get(loan.lender_attempt_id)
        if machine is None or attempt is None or attempt.is_over:
            return NOT_IDLE
        if machine.phase == Phase.SWAPPED:
            # An earlier agent had moved it when it was killed.
            return ""
        if obstacle := machine.obstacle():
            return obstacle
        if any(
            other is not running and other.record.loan.lender_attempt_id == loan.lender_attempt_id
            for other in self._active()
        ):
            return NOT_IDLE
        report = await self._ground.look(loan.lender_attempt_id)
        return "" if is_idle(report, loan.idle_s, time.time()) else NOT_IDLE

    async def _return(self, running: _Running) -> None:
        """Give the lender its devices back."""
        record = running.record
        lender_id = record.loan.lender_attempt_id
        await self.moves.bring_back(lender_id)
        machine = self.moves.machine(lender_id)
        if machine is None:
            self._end(running, LoanEnd.LENDER_ENDED)
            return
        record.in_s = machine.record.in_s
        if machine.phase == Phase.FAILED:
            self._end(running, LoanEnd.FAILED, machine.record.error)
        else:
            self._end(running, LoanEnd(record.ended_by))

    def _refuse(self, running: _Running, code: str) -> None:
        record = running.record
        record.error, record.state, record.ended_at = code, LoanState.REFUSED, time.time()
        self._write(record)
        self._ground.changed()

    def _end(self, running: _Running, by: LoanEnd, error: str = "") -> None:
        record = running.record
        record.ended_by, record.state, record.ended_at = by, LoanState.ENDED, time.time()
        record.error = error
        self._write(record)
        self._ground.changed()

    # ------------------------------------------------------------------ on disk

    def _path(self, loan_id: str) -> Path:
        return self._folder / f"{safe_name(loan_id, 'loan')}.json"

    def _write(self, record: LoanRecord) -> None:
        """Keep it soon: a wake must not wait for a disk.

        A record that is lost with its agent is made good by the lender's own (`_take_over`).
        """
        with suppress(RuntimeError):
            self._disk.submit(_keep, self._path(record.loan.loan_id), replace(record))


def _keep(path: Path, record: LoanRecord) -> None:
    try:
        write(path, record)
    except OSError as error:
        log.warning("loan %s cannot be kept: %s", record.loan.loan_id, error)


def _reported(record: LoanRecord) -> LoanReport:
    wake_s = None
    if record.ended_at is not None and record.wanted_at is not None:
        wake_s = record.ended_at - record.wanted_at
    return LoanReport(
        loan_id=record.loan.loan_id,
        state=record.state,
        swapped_out_bytes=record.swapped_out_bytes,
        out_s=record.out_s,
        in_s=record.in_s,
        wake_s=wake_s,
        ended_by=record.ended_by,
        error=record.error,
        lent_at=record.lent_at,
        ended_at=record.ended_at,
    )
