"""The activity of a scenario file: when sessions are used, how long trainings run."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.errors import ScenarioError
from scheduling.core.scenario.json_object import JsonObject, shown
from scheduling.core.scenario.swapping import Activity, Use, Work
from scheduling.core.types import WorkloadId


def read_activity(entry: JsonObject, names: Sequence[WorkloadId], now_s: float) -> Activity:
    """The activity; sessions and trainings must be workloads of the file."""
    default = Activity(now_s, {})
    sessions = entry.child("sessions")
    uses = {
        _known(sessions, name, names): _use(JsonObject(value, sessions.at(name)))
        for name, value in sessions.entries()
    }
    works = {}
    if entry.has("trainings"):
        trainings = entry.child("trainings")
        works = {
            _known(trainings, name, names): _work(JsonObject(value, trainings.at(name)))
            for name, value in trainings.entries()
        }
    activity = Activity(
        until_s=entry.number("until_s", 0),
        uses=uses,
        works=works,
        period_s=entry.number("period_s", 1) if entry.has("period_s") else default.period_s,
        parks=entry.truth("parks") if entry.has("parks") else default.parks,
        start_s=entry.number("start_s", 0) if entry.has("start_s") else default.start_s,
    )
    if activity.until_s <= now_s:
        raise entry.fail("until_s", f"{activity.until_s} is not after the file's now_s, {now_s}")
    entry.close()
    return activity


def _known(entry: JsonObject, name: str, names: Sequence[WorkloadId]) -> WorkloadId:
    if name not in names:
        raise entry.fail(name, f"there is no workload {name!r}")
    return WorkloadId(name)


def _use(entry: JsonObject) -> Use:
    spans: list[tuple[float, float]] = []
    for value, path in entry.items("used"):
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(isinstance(edge, int | float) for edge in value)
            or value[0] >= value[1]
            or (spans and value[0] < spans[-1][1])
        ):
            raise ScenarioError(
                path, f"[from, to] in seconds is needed, after the one before, not {shown(value)}"
            )
        spans.append((float(value[0]), float(value[1])))
    past: list[float] = []
    if entry.has("past_idle_s"):
        for value, path in entry.items("past_idle_s"):
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ScenarioError(path, f"seconds are needed, not {shown(value)}")
            past.append(float(value))
    entry.close()
    return Use(tuple(spans), tuple(past))


def _work(entry: JsonObject) -> Work:
    work = Work(
        entry.number("run_s", 0),
        entry.integer("memory_mib", 0) if entry.has("memory_mib") else 0,
    )
    entry.close()
    return work
