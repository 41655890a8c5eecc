"""All of Swap that one agent does: idleness watched, loans carried out, wakes heard, cells held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from scheduling.agent.cells import Cells
from scheduling.agent.fraction.install import Fractions
from scheduling.agent.idle import IdleWatch
from scheduling.agent.node import Inventory
from scheduling.agent.protocol import (
    Acknowledged,
    AttemptReport,
    Desired,
    IdleReport,
    LoanEnd,
    LoanReport,
    Sample,
)
from scheduling.agent.runner import Runner
from scheduling.agent.swap.gate import Gates
from scheduling.agent.swap.loans import Loans
from scheduling.agent.swap.movers import Movers
from scheduling.agent.swap.moves import Ground

_LOOK_EVERY_S = 10.0
_WATCH_LENDERS_EVERY_S = 2.0


class Swapping:
    """Between the runner's attempts and what is done with their device memory."""

    def __init__(
        self,
        runner: Runner,
        inventory: Inventory,
        fractions: Fractions | None,
        changed: Callable[[], None],
    ) -> None:
        """Set up.

        Args:
            runner: Of the agent; from now on it starts nothing whose devices are not free.
            inventory: The nodes, with how each swaps.
            fractions: Knows where each session's gate is.
            changed: Something is to be reported.
        """
        folders = runner.site.folders
        self._runner = runner
        self._fractions = fractions
        self.idle = IdleWatch()
        self.cells = Cells(self)
        self._movers = Movers(inventory, folders.run, fractions)
        self.loans = Loans(
            folders.root / "loans",
            Ground(
                attempts=runner.attempts,
                memory_of=self._movers.of,
                look=self._look_at,
                changed=changed,
                order_again=runner.order_again,
            ),
        )
        self._gates = Gates(self._gate_of, self._wake_for_call)
        runner.may_start = self.loans.moves.may_start

    # ------------------------------------------------------------------ with the orchestrator

    def apply(self, desired: Desired) -> None:
        """Take over the loans that are wanted; before the attempts, which depend on them."""
        self.loans.apply(desired.loans, desired.swap_host_mib)

    def settle(self, acknowledged: Acknowledged) -> None:
        """Forget what is recorded."""
        self.loans.settle(acknowledged.settled_loans)

    def reports(self) -> list[LoanReport]:
        """What is told of loans."""
        return self.loans.reports()

    def of_attempts(self, reports: Iterable[AttemptReport]) -> list[AttemptReport]:
        """Reports of attempts with their idleness and device memory."""
        return [
            replace(
                report,
                idle=self._idle_report(report.attempt_id),
                swap=self.loans.moves.report_of(report.attempt_id),
            )
            for report in reports
        ]

    # ------------------------------------------------------------------ while the agent runs

    def sampled(self, samples: Iterable[Sample], now: float) -> None:
        """Take over what was just measured."""
        self.idle.sampled(self._runner.watched(), samples, now)

    def tick(self) -> None:
        """Look at what may have changed."""
        self._gates.keep(
            attempt.spec.attempt_id
            for attempt in self._runner.attempts.values()
            if attempt.spec.kind == "interactive" and attempt.spec.devices
            if attempt.is_begun and not attempt.is_over
        )
        self.loans.tick()

    async def look_forever(self) -> None:
        """Ask all sessions for what they do."""
        while True:
            watched = [each.view.attempt_id for each in self._runner.watched()]
            self.idle.keep(watched)
            await self._runner.look_for_idleness(self.idle, watched)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def watch_lenders_forever(self) -> None:
        """Wake sessions that turn busy by themselves: a widget's callback, a program in a terminal.

        Twice seen, since a command that has ended by the second look needed no GPU.
        """
        seen: set[str] = set()
        while True:
            lenders = self.loans.lenders()
            await self._runner.look_for_idleness(self.idle, lenders)
            busy = {each for each in lenders if self.idle.is_at_work(each)}
            for attempt_id in busy & seen:
                self.loans.wake(attempt_id, LoanEnd.ACTIVITY)
            seen = busy
            await asyncio.sleep(_WATCH_LENDERS_EVERY_S)

    def shut_down(self) -> None:
        """All attempts are being stopped."""
        self.loans.shut_down()

    def close(self) -> None:
        """Leave everything to the next agent."""
        self._gates.close()
        self.loans.close()
        self._movers.close()

    async def _look_at(self, attempt_id: str) -> IdleReport | None:
        """A fresh look at one session."""
        await self._runner.look_for_idleness(self.idle, [attempt_id])
        return self._idle_report(attempt_id)

    def _idle_report(self, attempt_id: str) -> IdleReport | None:
        return self.idle.report(attempt_id, self.cells.num_held(attempt_id))

    def _gate_of(self, attempt_id: str) -> Path | None:
        return None if self._fractions is None else self._fractions.gate(attempt_id)

    def _wake_for_call(self, attempt_id: str) -> None:
        self.loans.wake(attempt_id, LoanEnd.CUDA_CALL)

    # ------------------------------------------------------------------ what the relay asks

    async def wake(self, attempt_id: str) -> bool:
        """Somebody pressed the button. False if there is no such attempt.

        Unlike a call or a cell nobody asks twice, so it outlives this agent once it is answered.
        """
        self.loans.wake(attempt_id, LoanEnd.BUTTON)
        await self.loans.kept()
        return attempt_id in self._runner.attempts

    def is_away(self, attempt_id: str) -> bool:
        """See `SessionGpus`."""
        return self.loans.moves.is_away(attempt_id)

    def wake_for_cell(self, attempt_id: str) -> None:
        """See `SessionGpus`."""
        self.loans.wake(attempt_id, LoanEnd.CELL)

    async def until_back(self, attempt_id: str) -> bool:
        """See `SessionGpus`."""
        return await self.loans.moves.until_back(attempt_id)

    def expected_wake_s(self, attempt_id: str) -> float | None:
        """See `SessionGpus`."""
        return self.loans.moves.expected_wake_s(attempt_id)

    def language(self, attempt_id: str) -> str:
        """See `SessionGpus`."""
        attempt = self._runner.attempts.get(attempt_id)
        return "" if attempt is None else attempt.spec.language
