"""How soon a swapped-out session has its GPU back, beyond the time that copying its bytes takes.

Real: the agent's runner, loans and gate, shims with their views, the proxy library in a session and
in a training. Simulated: the driver, whose copies take bytes by bandwidth. A wake is timed in the
session itself, around the CUDA call that waits: the datagram, the borrower's leaving, the restore
and the call are all in it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.conf import settings

from scheduling.agent import isolation, node
from scheduling.agent.folders import Folders
from scheduling.agent.fraction.install import Fractions
from scheduling.agent.protocol import (
    AttemptSpec,
    Desired,
    ExitCause,
    Goal,
    GrantedDevice,
    IdleReport,
    Loan,
    LoanEnd,
    LoanState,
)
from scheduling.agent.runner import Runner
from scheduling.agent.site import Site
from scheduling.agent.swap import machine
from scheduling.agent.swap.gate import Gates
from scheduling.agent.swap.loans import Loans
from scheduling.agent.swap.movers import Movers
from scheduling.agent.swap.moves import Ground
from scheduling.management.benches import week
from scheduling.management.benches.figures import Bench, Report, at_least, figure

TARGET_S = 0.1
LENDER_MIB, BORROWER_MIB = 256, 512
_NODE = "sim-t4-1"
_TICK_S, _PATIENCE_S = 0.01, 60.0
_CUDA = """
import ctypes as c, os, sys, time
l = c.CDLL("libcuda.so.1")
x, p = c.c_void_p(), c.c_uint64()
assert l.cuInit(0) == 0 and l.cuDevicePrimaryCtxRetain(c.byref(x), 0) == 0
assert l.cuCtxSetCurrent(x) == 0
assert l.cuMemAlloc_v2(c.byref(p), c.c_size_t(int(sys.argv[1]) << 20)) == 0
def call():
    assert l.cuMemAlloc_v2(c.byref(p), c.c_size_t(4096)) == 0 and l.cuMemFree_v2(p) == 0
"""
# At each line from the pipe, one timed call.
_LENDER = f"""{_CUDA}
os.mkfifo(sys.argv[2])
print("ready", flush=True)
while True:
    for line in open(sys.argv[2]):
        began = time.perf_counter(); call()
        print("woke", time.perf_counter() - began, flush=True)
"""
_BORROWER = f"""{_CUDA}
print("ready", flush=True)
while True:
    call(); time.sleep(0.005)
"""


class _Bench:
    """One node's agent, a session that lends and a training that borrows."""

    def __init__(self, root: Path) -> None:
        self.folders = Folders(root / "var", root / "run")
        found = isolation.probe(self.folders)
        inventory = node.find("bench", found, "demo")
        # Built once, beside what the agent of this data folder has built.
        builds = settings.ALLOT.var / "agent" / "fraction"
        fractions = Fractions(self.folders, inventory, found, builds=builds)
        if fractions.lacking:
            raise SystemExit(fractions.lacking)
        nodes = tuple(fractions.described(each) for each in inventory.nodes)
        inventory = replace(inventory, nodes=nodes)
        self.device = next(each for each in nodes if each.name == _NODE).devices[0]
        self.bandwidth_mib_s = inventory.declared[_NODE].bandwidth_mib_s
        self.site = Site(
            self.folders,
            found,
            settings.ALLOT.workload_python,
            is_simulated=inventory.is_simulated,
            fractions=fractions,
        )
        self.runner = Runner(self.site, [_NODE])
        self.runner.adopt()
        self.movers = Movers(inventory, self.folders.run, fractions)
        self.loans = Loans(
            self.folders.root / "loans",
            Ground(self.runner.attempts, self.movers.of, _idle, _nothing, self.runner.order_again),
        )
        self.gates = Gates(fractions.gate, self._wake)
        self.runner.may_start = self.loans.moves.may_start
        self.lender = self._spec(_LENDER, LENDER_MIB, "interactive", "pipe")
        self.borrower = self._spec(_BORROWER, BORROWER_MIB, "training")

    def _wake(self, attempt_id: str) -> None:
        self.loans.wake(attempt_id, LoanEnd.CUDA_CALL)

    def _spec(self, program: str, mib: int, kind: str, *arguments: str) -> AttemptSpec:
        device = GrantedDevice(
            self.device.uuid, 0, self.device.model, 1000, self.device.memory_mib, True
        )
        return AttemptSpec(
            attempt_id=str(uuid.uuid4()), workload_id=str(uuid.uuid4()), number=1, name="bench",
            kind=kind, project="bench", project_number=1, owner="bench", user_number=1,
            node=_NODE, goal=Goal.RUN, cpu_milli=1000, memory_mib=1024, devices=[device],
            command=["python", "-c", program, str(mib), *arguments], grace_s=1.0,
        )  # fmt: skip

    # ------------------------------------------------------------------ as the controller's loops

    def order(self, *loans: Loan) -> None:
        """Let loans and attempts be what is wanted."""
        self.loans.apply(loans, {})
        specs = [self.lender, self.borrower] if loans else [self.lender]
        self.runner.apply(Desired("bench", specs, loans=list(loans)))

    async def until(self, is_true: Callable[[], object], what: str) -> None:
        """Tick until something holds."""
        deadline = time.monotonic() + _PATIENCE_S
        while not is_true():
            if time.monotonic() > deadline:
                raise SystemExit(f"{what} did not happen: {self.loans.reports()}")
            self.runner.tick()
            self.loans.tick()
            self.gates.keep([self.lender.attempt_id] if self.is_begun(self.lender) else [])
            await asyncio.sleep(_TICK_S)

    def is_begun(self, spec: AttemptSpec) -> bool:
        attempt = self.runner.attempts.get(spec.attempt_id)
        return attempt is not None and attempt.is_begun

    def said(self, spec: AttemptSpec, word: str) -> list[str]:
        """Lines of an attempt's log that begin with a word."""
        path = self.runner.log_path(spec.attempt_id)
        lines = path.read_text().splitlines() if path else []
        return [line for line in lines if line.startswith(word)]

    # ------------------------------------------------------------------ what is measured

    async def start(self) -> None:
        await self.loans.adopt()
        self.order()
        await self.until(lambda: self.said(self.lender, "ready"), "the session's start")

    async def wake(self, pipe: Path) -> float:
        """Lend, have the borrower come, then time a call of the session."""
        loan = Loan(
            str(uuid.uuid4()), self.lender.attempt_id, self.borrower.attempt_id, [self.device.uuid]
        )
        self.order(loan)
        await self.until(lambda: self._state(loan) == LoanState.LENT, "the loan")
        await self.until(lambda: self.said(self.borrower, "ready"), "the borrower's start")
        await self.until(self._is_borrower_back, "the borrower's return")
        num_woken = len(self.said(self.lender, "woke"))
        pipe.write_text("now\n")
        await self.until(lambda: len(self.said(self.lender, "woke")) > num_woken, "the wake")
        await self.until(lambda: self._state(loan) == LoanState.ENDED, "the loan's end")
        self._check(loan)
        self.loans.settle([loan.loan_id])
        return float(self.said(self.lender, "woke")[-1].split()[1])

    def _state(self, loan: Loan) -> LoanState | None:
        found = [each for each in self.loans.reports() if each.loan_id == loan.loan_id]
        return found[0].state if found else None

    def _is_borrower_back(self) -> bool:
        return not self.loans.moves.is_away(self.borrower.attempt_id)

    def _check(self, loan: Loan) -> None:
        """What was moved is what was to be moved, and the call was what ended the loan."""
        (report,) = [each for each in self.loans.reports() if each.loan_id == loan.loan_id]
        if report.swapped_out_bytes < LENDER_MIB << 20 or report.ended_by != LoanEnd.CUDA_CALL:
            raise SystemExit(f"not the wake that was to be measured: {report}")

    async def stop(self) -> None:
        for attempt in self.runner.attempts.values():
            attempt.stop(ExitCause.STOPPED)
        self.loans.shut_down()
        await self.until(lambda: self.runner.num_running == 0, "the end")
        self.gates.close()
        self.loans.close()
        self.movers.close()
        self.runner.close()


async def _idle(_attempt_id: str) -> IdleReport:
    """The look before a loan is no part of a wake."""
    long_ago = time.time() - 3600
    return IdleReport(long_ago, long_ago, long_ago, long_ago, long_ago)


def _nothing() -> None:
    pass


@contextmanager
def _always_resident() -> Iterator[None]:
    """Without the rule that a session stays on its device for half a minute."""
    before = machine.MIN_RESIDENCE_S
    machine.MIN_RESIDENCE_S = 0.0  # type: ignore[misc]
    try:
        yield
    finally:
        machine.MIN_RESIDENCE_S = before  # type: ignore[misc]


def swap(options: Mapping[str, Any]) -> Report:
    """Wakes one after another, each of which sends a borrower away; with `--days` also what
    lending gains in so many (`week`), and with `--wakes 0` only that.
    """
    wakes = _wakes(options) if options["wakes"] else Report({"wakes": 0}, {}, {})
    if not options["days"]:
        return wakes
    params = {name: options[name] for name in ("days", "sessions", "devices", "seed")}
    gained = week.measure(**params)
    return Report({**wakes.params, **params}, {**wakes.figures, **gained}, wakes.phases)


def _wakes(options: Mapping[str, Any]) -> Report:
    root = Path(tempfile.mkdtemp(prefix="allot-bench-"))
    for name in ("var", "run"):
        (root / name).mkdir()
    try:
        with _always_resident():
            bench, waked = asyncio.run(_measure(root, options["wakes"], options["warmup"]))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    copying_s = (LENDER_MIB + BORROWER_MIB) / bench.bandwidth_mib_s
    return Report(
        params={"wakes": options["wakes"], "lender_mib": LENDER_MIB, "borrower_mib": BORROWER_MIB},
        figures={
            "wake_overhead_s": figure([wake_s - copying_s for wake_s in waked], "s", TARGET_S),
            "wake_s": figure(waked, "s"),
        },
        phases={"copying": round(copying_s, 4)},
    )


async def _measure(root: Path, num_wakes: int, warmup: int) -> tuple[_Bench, list[float]]:
    bench = _Bench(root)
    await bench.start()
    try:
        pipe = bench.folders.home("bench", "bench") / "pipe"
        waked = [await bench.wake(pipe) for _ in range(warmup + num_wakes)]
    finally:
        await bench.stop()
    return bench, waked[warmup:]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--wakes", type=at_least(0), default=500)
    parser.add_argument(
        "--days", type=at_least(0), default=0, help="of sessions whose GPUs are lent"
    )
    parser.add_argument("--sessions", type=at_least(1), default=40)
    parser.add_argument("--devices", type=at_least(1), default=4)
    parser.add_argument("--seed", type=int, default=1)


BENCHES = {
    "swap": Bench("a swapped-out session's wake-up, beyond copying", _arguments, swap, runs=1)
}
