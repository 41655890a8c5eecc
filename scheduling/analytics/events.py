"""What ended, one by one: waits, attempts and workloads, each with its moment and a value.

Percentiles need the values themselves, so these are kept by day as they are, beside the sums: three
floats each (moment in Unix seconds, value, weight).
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import IntEnum
from typing import Any

import numpy as np
from django.db import connection
from psycopg import sql

from scheduling.analytics import facts
from scheduling.analytics.intervals import Floats
from scheduling.analytics.measures import NO_KEY, NO_PROJECT, Scope


class Source(IntEnum):
    """Kinds of events; numbers are stored beside those of `Measure`: never reuse one."""

    WAITS = 100
    RUNS = 101
    EXPANSION = 102
    EVICTED = 103
    LOST = 104
    CHECKPOINTS = 105
    COMPLETED = 106
    NO_LOSS = 107
    OVERHEAD = 108
    COSTS = 109
    MIGRATIONS = 110


# Each gives `at`, `workload_id`, `value` and `weight`; the period is applied outside.
_RUNS = """
SELECT ended_at AS at, workload_id, EXTRACT(EPOCH FROM ended_at - started_at) AS value, 1 AS weight
FROM scheduling_attempt WHERE ended_at >= %(since)s AND ended_at < %(until)s
    AND started_at <= ended_at
"""
# A wait that ends together with its workload led to no start.
_WAITS = """
SELECT wait.ended_at AS at, workload_id, 1 AS weight,
    EXTRACT(EPOCH FROM wait.ended_at - wait.started_at) AS value
FROM scheduling_wait wait JOIN scheduling_workload stopped ON stopped.id = workload_id
    AND stopped.ended_at IS DISTINCT FROM wait.ended_at
WHERE wait.ended_at >= %(since)s AND wait.ended_at < %(until)s
"""
_EXPANSION = """
SELECT workload.ended_at AS at, workload.id AS workload_id, run_s + wait_s AS value, run_s AS weight
FROM scheduling_workload workload,
    LATERAL (SELECT COALESCE(sum(EXTRACT(EPOCH FROM ended_at - started_at)), 0) AS run_s
        FROM scheduling_attempt WHERE workload_id = workload.id AND started_at <= ended_at) runs,
    LATERAL (SELECT COALESCE(sum(EXTRACT(EPOCH FROM ended_at - started_at)), 0) AS wait_s
        FROM scheduling_wait WHERE workload_id = workload.id) waits
WHERE workload.ended_at >= %(since)s AND workload.ended_at < %(until)s AND run_s > 0
"""
_EVICTED = """
SELECT ended_at AS at, workload_id, 1 AS value, 1 AS weight FROM scheduling_attempt
WHERE ended_at >= %(since)s AND ended_at < %(until)s AND exit_cause = 'evicted'
"""
_LOST = """
SELECT ended_at AS at, workload_id, lost_progress_s AS value, 1 AS weight FROM scheduling_attempt
WHERE ended_at >= %(since)s AND ended_at < %(until)s AND exit_cause NOT IN ('own', 'stopped')
    AND lost_progress_s IS NOT NULL
"""
_CHECKPOINTS = """
SELECT attempt.ended_at AS at, attempt.workload_id, 1 AS weight,
    EXISTS (SELECT FROM scheduling_checkpoint saved WHERE saved.attempt_id = attempt.id
        AND saved.saved_at >= attempt.goal_at)::int AS value
FROM scheduling_attempt attempt JOIN scheduling_workload workload ON workload.id = workload_id
WHERE attempt.ended_at >= %(since)s AND attempt.ended_at < %(until)s
    AND exit_cause = 'evicted' AND checkpoint_mode <> 'none'
"""
_COMPLETED = """
SELECT ended_at AS at, id AS workload_id, 1 AS weight,
    EXTRACT(EPOCH FROM ended_at - submitted_at) AS value
FROM scheduling_workload WHERE ended_at >= %(since)s AND ended_at < %(until)s
    AND kind = 'training' AND phase = 'completed'
"""
_NO_LOSS = """
SELECT attempt.ended_at AS at, workload_id, 1 AS weight,
    (COALESCE(lost_progress_s, 0) < 60)::int AS value
FROM scheduling_attempt attempt JOIN scheduling_workload workload ON workload.id = workload_id
WHERE attempt.ended_at >= %(since)s AND attempt.ended_at < %(until)s AND kind = 'training'
"""
_OVERHEAD = """
SELECT attempt.ended_at AS at, workload_id,
    EXTRACT(EPOCH FROM attempt.ended_at - started_at) AS weight,
    CASE WHEN exit_cause = 'evicted' THEN EXTRACT(EPOCH FROM attempt.ended_at - goal_at) ELSE 0 END
        + COALESCE(lost_progress_s, 0) AS value
FROM scheduling_attempt attempt JOIN scheduling_workload workload ON workload.id = workload_id
WHERE attempt.ended_at >= %(since)s AND attempt.ended_at < %(until)s AND kind = 'training'
    AND started_at <= attempt.ended_at
"""
# What moving it took: saving at the stop, work lost by it, and, where this attempt follows one that
# was evicted, the time without a place and until it ran again. Over the run time of all attempts.
_MIGRATIONS = """
SELECT attempt.ended_at AS at, attempt.workload_id,
    EXTRACT(EPOCH FROM attempt.ended_at - attempt.started_at) AS weight,
    CASE WHEN attempt.exit_cause = 'evicted'
        THEN COALESCE(EXTRACT(EPOCH FROM attempt.ended_at - attempt.goal_at), 0)
            + COALESCE(attempt.lost_progress_s, 0) ELSE 0 END
    + COALESCE(EXTRACT(EPOCH FROM COALESCE(attempt.ready_at, attempt.started_at)
        - before.ended_at), 0) AS value
FROM scheduling_attempt attempt JOIN scheduling_workload workload ON workload.id = workload_id
LEFT JOIN scheduling_attempt before ON before.workload_id = attempt.workload_id
    AND before.replica = attempt.replica AND before.number = attempt.number - 1
    AND before.exit_cause = 'evicted' AND before.ended_at <= attempt.started_at
WHERE attempt.ended_at >= %(since)s AND attempt.ended_at < %(until)s AND kind = 'training'
    AND attempt.started_at <= attempt.ended_at
"""
# Their costs are added in `read`: they follow from what was held, by the rules of `facts`.
_COSTS = """
SELECT ended_at AS at, id AS workload_id, 1 AS weight, 0 AS value FROM scheduling_workload
WHERE ended_at >= %(since)s AND ended_at < %(until)s AND kind = 'training' AND phase = 'completed'
"""

_SOURCES = {
    Source.WAITS: _WAITS,
    Source.RUNS: _RUNS,
    Source.EXPANSION: _EXPANSION,
    Source.EVICTED: _EVICTED,
    Source.LOST: _LOST,
    Source.CHECKPOINTS: _CHECKPOINTS,
    Source.COMPLETED: _COMPLETED,
    Source.NO_LOSS: _NO_LOSS,
    Source.OVERHEAD: _OVERHEAD,
    Source.COSTS: _COSTS,
    Source.MIGRATIONS: _MIGRATIONS,
}
_STATEMENT = """
SELECT workload.id, EXTRACT(EPOCH FROM at)::float8, value::float8, weight::float8,
    workload.project_id, workload.owner_id::text, workload.kind, workload.template_name,
    COALESCE(workload.node_type_id::text, '')
FROM ({rows}) ended JOIN scheduling_workload workload ON workload.id = ended.workload_id
WHERE value IS NOT NULL ORDER BY at, workload.id
"""

Events = dict[tuple[Scope, Source, int, str], Floats]


def read(since: datetime, until: datetime) -> Events:
    """Everything that ended in a period, by every scope; shape (events, 3) each."""
    found: dict[tuple[Scope, Source, int, str], list[tuple[float, float, float]]] = defaultdict(
        list
    )
    with connection.cursor() as cursor:
        for source, rows in _SOURCES.items():
            statement = sql.SQL(_STATEMENT).format(rows=sql.SQL(rows))
            cursor.execute(statement, {"since": since, "until": until})
            rows_found = cursor.fetchall()
            costs = _costs(rows_found, until) if source is Source.COSTS else {}
            for workload, at, value, weight, project, *names in rows_found:
                value = costs.get(workload, value)
                for scope, number, key in _places(project, *names):
                    found[scope, source, number, key].append((at, value, weight))
    return {name: np.array(events) for name, events in found.items()}


# `Any`: rows of `_STATEMENT`, which begin with the workload.
def _costs(rows: Sequence[tuple[Any, ...]], until: datetime) -> dict[uuid.UUID, float]:
    """What each workload cost, all its attempts together."""
    found: dict[uuid.UUID, float] = defaultdict(float)
    if rows:
        wanted = facts.Holders(workloads=[row[0] for row in rows])
        for piece in facts.held_by(wanted, None, until).held:
            found[uuid.UUID(piece.workload)] += piece.cost
    return dict(found)


def _places(
    project: int, user: str, kind: str, template: str, node_type: str
) -> Iterator[tuple[Scope, int, str]]:
    """Where an event is kept: as sums are."""
    yield Scope.PROJECT, project, NO_KEY
    yield Scope.USER, project, user
    for scope, key in (
        (Scope.NODE_TYPE, node_type),
        (Scope.KIND, kind),
        (Scope.TEMPLATE, template),
    ):
        yield scope, project, key
        yield scope, NO_PROJECT, key
