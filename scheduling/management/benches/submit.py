"""How soon what was submitted runs, on a whole Allot of the bench's own.

Times are the system's own records: from the submission to the start of the process, as the node
saw it, and to the moment at which it is recorded as running (a session's page answers).
"""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import httpx

from scheduling.management.benches.figures import Bench, Report, at_least, figure
from scheduling.management.stack import Stack, running, until

READY_LIMIT_S = 120.0
TARGET_S = 1.5

TRAINING: Mapping[str, object] = {
    "kind": "training",
    "project": "vision",
    "node_types": ["cpu"],
    "cpu_milli": 500,
    "memory_mib": 256,
    "command": ["sleep", "600"],
    "is_preemptible": True,
    "priority": "medium",
    "checkpoint_mode": "none",
    "checkpoint_path": "checkpoints",
    "grace_s": 1,
    "backoff_limit": 0,
}
SAVING: Mapping[str, object] = {
    **TRAINING,
    "node_types": ["t4"],
    "num_devices": 1,
    "gpu_milli": 1000,
    "command": ["python", "train.py", "--steps", "1000000", "--step-delay", "0.2"],
    "working_dir": "examples",
    "checkpoint_mode": "signal",
    "checkpoint_signal": "SIGUSR1",
    "grace_s": 60,
}
SESSION: Mapping[str, object] = {
    "kind": "interactive",
    "project": "vision",
    "node_types": ["t4"],
    "num_devices": 1,
    "gpu_milli": 50,
    "cpu_milli": 1000,
    "memory_mib": 1024,
}


def submit(options: Mapping[str, Any]) -> Report:
    """Trainings and sessions, one after another, each stopped once it ran."""
    with running(Stack) as stack:
        with stack.client("vera") as client:
            trainings = [_one(stack, client, TRAINING) for _ in range(options["count"])]
            sessions = [_one(stack, client, SESSION) for _ in range(options["sessions"])]
        reclaims = _reclaims(stack, options["reclaims"])
    processes = [times[0] for times in (*trainings, *sessions)]
    return Report(
        params={name: options[name] for name in ("count", "sessions", "reclaims")},
        figures={
            "submit_to_process_s": figure(processes, "s", TARGET_S),
            "submit_to_ready_s": figure([times[1] for times in trainings], "s"),
            "submit_to_session_ready_s": figure([times[1] for times in sessions], "s"),
            "reclaim_to_process_s": figure([times[-1] for times in reclaims], "s"),
        },
        phases={
            **_phases(
                [(times[2], times[0]) for times in (*trainings, *sessions)],
                ("decide_and_record", "wake_and_start"),
            ),
            **_phases(reclaims, ("reclaim_decide", "victim_saves_and_stops", "claimant_starts")),
        },
    )


def _one(stack: Stack, client: httpx.Client, values: Mapping[str, object]) -> Sequence[float]:
    """Submit one, wait until it runs, stop it; its times in seconds since the submission."""
    workload = _submit(client, values)
    query = (
        "SELECT extract(epoch FROM a.started_at - w.submitted_at)::float8,"
        " extract(epoch FROM a.ready_at - w.submitted_at)::float8,"
        " extract(epoch FROM a.placed_at - w.submitted_at)::float8"
        " FROM scheduling_attempt a JOIN scheduling_workload w ON w.id = a.workload_id"
        " WHERE w.id = %s AND a.ready_at IS NOT NULL"
    )
    (times,) = until(
        lambda: stack.rows(query, workload), "the workload runs", READY_LIMIT_S, every_s=0.1
    )
    _stop(stack, client, workload)
    return [float(str(value)) for value in times]


def _submit(client: httpx.Client, values: Mapping[str, object]) -> str:
    answer = client.post(
        "/api/v1/workloads",
        json={**values, "name": f"bench-{uuid.uuid4().hex[:8]}"},
        headers={"Idempotency-Key": str(uuid.uuid4())},
    )
    answer.raise_for_status()
    return str(answer.json()["id"])


def _stop(stack: Stack, client: httpx.Client, workload: str) -> None:
    client.post(f"/api/v1/workloads/{workload}/stop").raise_for_status()
    ended = "SELECT 1 FROM scheduling_workload WHERE id = %s AND ended_at IS NOT NULL"
    until(lambda: stack.rows(ended, workload), "the workload ends")


def _reclaims(stack: Stack, count: int) -> list[Sequence[float]]:
    """One project borrows every T4; another claims one of its own, again and again.

    Returns:
        For each claim, seconds since its submission at which its victim was told, its victim had
        saved and stopped, and its own process ran.
    """
    with stack.client("lena") as borrower, stack.client("sergey") as owner:
        for _ in range(8):
            _submit(borrower, {**SAVING, "project": "language"})
        until(lambda: _num_running(stack) == 8, "every T4 is borrowed")
        return [_claim(stack, owner) for _ in range(count)]


def _claim(stack: Stack, owner: httpx.Client) -> Sequence[float]:
    workload = _submit(owner, {**SAVING, "project": "speech"})
    query = (
        "SELECT extract(epoch FROM v.goal_at - w.submitted_at)::float8,"
        " extract(epoch FROM v.ended_at - w.submitted_at)::float8,"
        " extract(epoch FROM a.started_at - w.submitted_at)::float8"
        " FROM scheduling_workload w JOIN scheduling_attempt a ON a.workload_id = w.id"
        " JOIN scheduling_attempt v ON v.goal = 'evict' AND v.goal_at >= w.submitted_at"
        " WHERE w.id = %s AND a.started_at IS NOT NULL AND v.ended_at IS NOT NULL"
    )
    (times,) = until(lambda: stack.rows(query, workload), "the claimant runs", READY_LIMIT_S)
    _stop(stack, owner, workload)
    until(lambda: _num_running(stack) == 8, "the borrower is back")
    return [float(str(value)) for value in times]


def _num_running(stack: Stack) -> int:
    return len(stack.rows("SELECT 1 FROM scheduling_workload WHERE phase = 'running'"))


def _phases(all_times: Sequence[Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    """Where the time goes, by medians of the differences between consecutive moments."""
    found = {}
    for number, name in enumerate(names):
        lengths = [times[number] - (times[number - 1] if number else 0.0) for times in all_times]
        found[name] = round(median(lengths), 4)
    return found


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--count", type=at_least(1), default=20, help="so many trainings")
    parser.add_argument("--sessions", type=at_least(0), default=5, help="so many sessions")
    parser.add_argument("--reclaims", type=at_least(0), default=5, help="so many GPUs taken back")


BENCHES = {
    "submit": Bench(
        "from a submission to its process, on a whole Allot", _add_arguments, submit, 1, 0
    )
}
