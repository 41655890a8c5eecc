"""Idle signals of real sessions; a signal that cannot be read is never taken for idle."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduling.agent.idle import Endpoint, IdleWatch, Watched, is_idle
from scheduling.agent.protocol import AttemptSpec, IdleReport, IdleThresholds, Sample, Signal
from telemetry.sampling import AttemptView
from tests.agent.driver import Driver
from tests.agent.test_sessions import call, connect, execution, session

__all__ = ["session"]

# Fields of a report by name, hence Any.
ALL: dict[str, Any] = {name: 100.0 for name in IdleReport.__slots__ if name.endswith("_since")}


def uncounted() -> float | None:
    raise FileNotFoundError


def watched(
    *,
    last_call: Callable[[], float | None] = uncounted,
    is_simulated: bool = True,
    is_session: bool = True,
) -> Watched:
    view = AttemptView("a", "w", "node", [], cgroup=SimpleNamespace(), cpu_milli=2000)
    return Watched(view, is_session, IdleThresholds(), True, is_simulated, last_call)


def sampled(watch: IdleWatch, one: Watched, at: float, **values: float | None) -> IdleReport:
    defaults: dict[str, float | None] = {"cpu_cores": 0.0, "gpu_util_percent": 0.0}
    watch.sampled([one], [Sample("workload:w", at, defaults | values)], at)
    report = watch.report("a", 0)
    assert report is not None
    return report


# ---------------------------------------------------------------- rates


def test_use_below_the_threshold_is_idle_from_then_on() -> None:
    watch, one = IdleWatch(), watched()
    assert sampled(watch, one, 100.0, cpu_cores=0.19).cpu_idle_since == 100.0
    assert sampled(watch, one, 105.0, cpu_cores=0.1).cpu_idle_since == 100.0
    assert sampled(watch, one, 110.0, cpu_cores=1.9).cpu_idle_since is None


def test_one_burst_is_judged_by_the_mean_of_a_minute() -> None:
    watch, one = IdleWatch(), watched()
    for at in range(100, 150, 5):
        sampled(watch, one, float(at), cpu_cores=0.01)
    assert sampled(watch, one, 150.0, cpu_cores=0.9).cpu_idle_since == 100.0


@pytest.mark.parametrize("name", ["cpu_cores", "gpu_util_percent"])
def test_a_value_that_is_lacking_is_missing_and_begins_the_window_anew(name: str) -> None:
    watch, one = IdleWatch(), watched()
    signal = {"cpu_cores": "cpu", "gpu_util_percent": "gpu"}[name]
    assert signal not in sampled(watch, one, 100.0).missing
    assert signal in sampled(watch, one, 105.0, **{name: None}).missing
    report = sampled(watch, one, 110.0)
    assert getattr(report, f"{signal}_idle_since") == 110.0


def test_without_a_cuda_call_a_simulated_device_is_idle_whatever_the_cpu_does() -> None:
    called_s = time.monotonic() - 500
    report = sampled(IdleWatch(), watched(last_call=lambda: called_s), 7.0, gpu_util_percent=90.0)
    assert report.gpu_idle_since == pytest.approx(time.time() - 500, abs=2)
    never = sampled(IdleWatch(), watched(last_call=lambda: None), 7.0)
    assert never.gpu_idle_since == pytest.approx(time.time(), abs=2)


def test_on_hardware_both_the_last_call_and_the_driver_must_say_idle() -> None:
    def long_ago() -> float:
        return time.monotonic() - 500

    one = watched(last_call=long_ago, is_simulated=False)
    now = time.time()
    watch = IdleWatch()
    assert sampled(watch, one, now - 60).gpu_idle_since == now - 60
    assert sampled(watch, one, now, gpu_util_percent=100.0).gpu_idle_since is None
    assert "gpu" in sampled(IdleWatch(), one, now, gpu_util_percent=None).missing
    fresh = sampled(IdleWatch(), watched(last_call=time.monotonic, is_simulated=False), now - 60)
    assert fresh.gpu_idle_since == pytest.approx(now, abs=2)


def test_a_training_has_neither_kernels_nor_terminals_that_could_be_missing() -> None:
    report = sampled(IdleWatch(), watched(is_session=False), 100.0)
    assert report.missing == ["network"]
    assert (report.kernels_idle_since, report.terminals_idle_since) == (None, None)
    assert (report.gpu_idle_since, report.cpu_idle_since) == (100.0, 100.0)
    assert sampled(IdleWatch(), watched(), 100.0).missing == ["kernels", "network", "terminals"]


# ---------------------------------------------------------------- the verdict


def test_all_signals_must_be_idle_for_the_whole_window() -> None:
    assert is_idle(IdleReport(**ALL), 120.0, now=220.0)
    assert not is_idle(IdleReport(**ALL), 121.0, now=220.0)
    assert not is_idle(None, 0.0, now=220.0)
    assert not is_idle(IdleReport(**ALL, held_cells=1), 0.0, now=220.0)


@pytest.mark.parametrize("signal", list(Signal))
def test_one_busy_signal_is_enough(signal: Signal) -> None:
    assert not is_idle(IdleReport(**(ALL | {f"{signal}_idle_since": None})), 0.0, now=220.0)


@pytest.mark.parametrize("signal", list(Signal))
def test_a_missing_signal_is_not_idle_but_for_the_network(signal: Signal) -> None:
    report = IdleReport(**(ALL | {f"{signal}_idle_since": None}), missing=[signal])
    assert is_idle(report, 0.0, now=220.0) == (signal == Signal.NETWORK)


# ---------------------------------------------------------------- a real session


class Looker:
    """Looks at one real session."""

    def __init__(self, driver: Driver, wanted: AttemptSpec) -> None:
        self.driver, self.wanted, self.watch = driver, wanted, IdleWatch()

    def look(self) -> IdleReport:
        attempt_id = self.wanted.attempt_id
        asyncio.run(self.driver.runner.look_for_idleness(self.watch, [attempt_id]))
        report = self.watch.report(attempt_id, 0)
        assert report is not None
        return report

    def until(self, is_true: Callable[[IdleReport], object]) -> IdleReport:
        deadline = time.monotonic() + 30
        while not is_true(report := self.look()):
            assert time.monotonic() < deadline, report
            time.sleep(0.05)
        return report


def test_kernels_of_a_session_are_idle_busy_and_idle_again(
    driver: Driver, session: AttemptSpec
) -> None:
    looker = Looker(driver, session)
    began = looker.look()
    assert began.kernels_idle_since == pytest.approx(time.time(), abs=10)
    kernel = call(driver, session, "POST", "api/kernels").json()["id"]
    # Until somebody connects Jupyter says that it is starting, for ever.
    assert looker.look().kernels_idle_since is not None
    with connect(driver, session, f"api/kernels/{kernel}/channels") as channels:
        channels.send(json.dumps(execution("import time; time.sleep(2)")))
        busy = looker.until(lambda report: report.kernels_idle_since is None)
        assert "kernels" not in busy.missing
        assert looker.watch.is_at_work(session.attempt_id)
        idle = looker.until(lambda report: report.kernels_idle_since is not None)
    assert idle.kernels_idle_since == pytest.approx(time.time(), abs=3)
    assert not looker.watch.is_at_work(session.attempt_id)


def test_what_runs_in_a_terminal_is_work_and_an_open_terminal_is_none(
    driver: Driver, session: AttemptSpec
) -> None:
    looker = Looker(driver, session)
    name = call(driver, session, "POST", "api/terminals").json()["name"]
    with connect(driver, session, f"terminals/websocket/{name}") as terminal:
        looker.until(lambda report: report.terminals_idle_since is not None)
        terminal.send(json.dumps(["stdin", "sleep 3\r"]))
        looker.until(lambda report: report.terminals_idle_since is None)
        assert looker.watch.is_at_work(session.attempt_id)
        idle = looker.until(lambda report: report.terminals_idle_since is not None)
    assert idle.terminals_idle_since == pytest.approx(time.time(), abs=5)


def _idle_since(text: str) -> bytes:
    """As a server answers that names a time."""
    kernel = {"execution_state": "idle", "last_activity": text}
    return b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps([kernel]).encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\n[{}]",
        b"HTTP/1.0 403 No\r\n\r\n[]",
        b"",
        b"x" * 2**21,
        b"HTTP/1.0 200 OK\r\n\r\n" + b'[{"x":' + b"[" * 500_000,
        _idle_since("0001-01-01T00:00:00"),
        _idle_since("0001-01-01T00:00:00+14:00"),
    ],
    ids=["other fields", "refused", "nothing", "too much", "too deep", "no time", "long ago"],
)
def test_a_server_that_does_not_answer_or_lies_is_missing(tmp_path: Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    async def look() -> IdleReport | None:
        watch, path = IdleWatch(), tmp_path / "s"
        async with await asyncio.start_unix_server(serve, path):
            await watch.look(Endpoint("a", path, "/s/", "t"), [])
        return watch.report("a", 0)

    report = asyncio.run(look())
    assert report is not None
    assert {"kernels", "terminals"} <= set(report.missing)
