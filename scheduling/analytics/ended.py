"""Statistics of what ended in a period: waits, attempts and workloads, in one statement each.

Percentiles are those of the values themselves, and ratios those of sums; the database makes them
by bucket, for each group and for all together, so nothing is averaged twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction
from django.utils.translation import gettext as _
from psycopg import sql

from scheduling.analytics.metrics import Group
from scheduling.analytics.query import Query
from scheduling.analytics.sight import WHOLE, Named, Sight

Values = tuple[float | None, ...]

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
# A price holds until the next of its node type; each allocation is split where one changes.
_COSTS = """
SELECT done.ended_at AS at, done.id AS workload_id, 1 AS weight, COALESCE(sum(
        EXTRACT(EPOCH FROM LEAST(held.ended_at, price.valid_until)
            - GREATEST(held.started_at, price.valid_from))::float8 / 3600
        * (held.gpu_milli / 1000.0::float8 * price.gpu + held.cpu_milli / 1000.0::float8 * price.cpu
            + held.memory_mib / 1024.0::float8 * price.memory)), 0) AS value
FROM scheduling_workload done
LEFT JOIN (scheduling_allocation held
    JOIN scheduling_node node ON node.id = held.node_id
    JOIN (SELECT node_type_id, valid_from, gpu_price_per_hour::float8 AS gpu,
            cpu_price_per_hour::float8 AS cpu, memory_price_per_hour::float8 AS memory,
            lead(valid_from, 1, 'infinity') OVER (PARTITION BY node_type_id
                ORDER BY valid_from, id) AS valid_until FROM projects_pricechange) price
        ON price.node_type_id = node.node_type_id AND price.valid_from < held.ended_at
        AND price.valid_until > held.started_at)
    ON held.workload_id = done.id
WHERE done.ended_at >= %(since)s AND done.ended_at < %(until)s
    AND done.kind = 'training' AND done.phase = 'completed'
GROUP BY done.id
"""

_MEAN, _SUM, _COUNT = "avg(value)", "sum(value)", "count(*)"
_PERCENT = "100 * sum(value) / NULLIF(sum(weight), 0)"
_RATIO = "sum(value) / NULLIF(sum(weight), 0)"


def _percentile(part: float) -> str:
    return f"percentile_cont({part}) WITHIN GROUP (ORDER BY value)"


@dataclass(frozen=True, slots=True)
class _Statistic:
    """Rows, and what is made of them.

    Attributes:
        of_none: Of no rows at all: a count is 0 then, a mean is nothing.
    """

    rows: str
    value: str
    of_none: float | None = None


STATISTICS = {
    "wait_s_p50": _Statistic(_WAITS, _percentile(0.5)),
    "wait_s_p90": _Statistic(_WAITS, _percentile(0.9)),
    "wait_s_p95": _Statistic(_WAITS, _percentile(0.95)),
    "run_s_p50": _Statistic(_RUNS, _percentile(0.5)),
    "run_s_p95": _Statistic(_RUNS, _percentile(0.95)),
    "expansion_factor": _Statistic(_EXPANSION, _RATIO),
    "preemptions": _Statistic(_EVICTED, _COUNT, of_none=0.0),
    "lost_work_s": _Statistic(_LOST, _SUM, of_none=0.0),
    "checkpoint_success": _Statistic(_CHECKPOINTS, _PERCENT),
    "completion_s": _Statistic(_COMPLETED, _MEAN),
    "no_lost_progress": _Statistic(_NO_LOSS, _PERCENT),
    "checkpoint_overhead": _Statistic(_OVERHEAD, _PERCENT),
    "cost_per_training": _Statistic(_COSTS, _MEAN),
}

_KEYS = {
    Group.TOTAL: "''",
    Group.PROJECT: "workload.project_id::text",
    Group.DEPARTMENT: "COALESCE(project.department_id, 0)::text",
    Group.USER: "workload.owner_id::text",
    Group.NODE_TYPE: "COALESCE(workload.node_type_id::text, '')",
    Group.KIND: "workload.kind",
    Group.TEMPLATE: "workload.template_name",
}
_NAMELESS = (Group.TOTAL, Group.NODE_TYPE, Group.KIND)

_STATEMENT = """
WITH told AS (
    SELECT width_bucket(at, %(edges)s::timestamptz[]) - 1 AS bucket, value::float8, weight::float8,
        workload.project_id AS project,
        CASE WHEN %(is_nameless)s OR workload.project_id = ANY(%(named)s) THEN {key}
            ELSE '' END AS key,
        %(is_nameless)s OR workload.project_id = ANY(%(named)s) AS is_named
    FROM ({rows}) ended
    JOIN scheduling_workload workload ON workload.id = ended.workload_id
    JOIN projects_project project ON project.id = workload.project_id
    WHERE (%(project)s::bigint IS NULL OR workload.project_id = %(project)s)
        AND (%(managed)s::bigint[] IS NULL OR workload.project_id = ANY(%(managed)s)
            OR (workload.owner_id = %(own)s AND workload.project_id = ANY(%(named)s)))
)
SELECT GROUPING(bucket), GROUPING(key), bucket, min(project), key, is_named, {value}
FROM told GROUP BY GROUPING SETS ((bucket, key, is_named), (key, is_named), (bucket), ())
"""


def statistics(query: Query, seen: Sight) -> dict[Named, tuple[Values, float | None]]:
    """A metric of what ended, per group and (under `WHOLE`) of everything the viewer sees."""
    statistic = STATISTICS[query.metric.name]
    statement = sql.SQL(_STATEMENT).format(
        key=sql.SQL(_KEYS[query.group_by]),
        rows=sql.SQL(statistic.rows),
        value=sql.SQL(statistic.value),
    )
    managed = None if seen.managed is None else sorted(seen.managed)
    # `Any`: lists of several types.
    params: dict[str, Any] = {
        "since": query.since,
        "until": query.until,
        "edges": list(query.edges),
        "is_nameless": query.group_by in _NAMELESS,
        "named": sorted(seen.named),
        "project": None if query.project is None else query.project.pk,
        "managed": managed,
        "own": int(seen.own_user or 0),
    }
    num_buckets = len(query.edges) - 1
    empty: list[float | None] = [statistic.of_none] * num_buckets
    whole = Named(WHOLE, _("All"))
    values: dict[Named, list[float | None]] = {whole: list(empty)}
    totals: dict[Named, float | None] = {whole: statistic.of_none}
    with transaction.atomic(), connection.cursor() as cursor:
        # A year's values are sorted several times: in memory, and sooner than code is compiled.
        cursor.execute("SET LOCAL work_mem = '64MB'; SET LOCAL jit = off")
        cursor.execute(statement, params)
        for all_time, all_groups, bucket, project, key, is_named, value in cursor.fetchall():
            name = whole if all_groups else seen.name_of(project if is_named else 0, key)
            if all_time:
                totals[name] = statistic.of_none if value is None else float(value)
            else:
                values.setdefault(name, list(empty))[bucket] = float(value)
    return {name: (tuple(values.get(name, empty)), totals.get(name)) for name in [*values, *totals]}
