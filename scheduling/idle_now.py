"""Who holds a GPU now and does nothing with it.

Idle by the rule that holds for each workload (`scheduling.rules`): for its whole window GPU, CPU
and network below its thresholds, read from the newest minutes, and a session's kernels and
terminals quiet, as its agent says. A missing signal is not idle; the network may be missing where
the rule allows that.
"""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta

from django.db import connection

from scheduling.idle_signals import idle_since

LOOK_BACK = timedelta(hours=24)
"""How long an idleness can be seen; a longer one shows as this."""
MAX_SILENCE = timedelta(minutes=5)
"""Without a newer minute than this nothing is known, so nobody is idle."""
UNMEASURED_MINUTES = 6
"""Of a window so many minutes may lack, half of it at most: the newest are not rolled up yet."""

_IDLE = """
WITH asked AS (
    SELECT held.id AS allocation, held.started_at, subject.id AS subject, workload.cpu_milli,
        rule.idle_gpu_percent, rule.idle_cpu_percent, rule.idle_window_s,
        1024 * rule.idle_network_kib_s AS idle_network_bytes_s,
        rule.idle_may_lack_network AS may_lack,
        CASE WHEN rule.idle_may_lack_network THEN 0.0 END AS lacking,
        CASE WHEN workload.kind = 'interactive' THEN attempt.idle_signals END AS signals
    FROM scheduling_allocation held
    JOIN scheduling_workload workload ON workload.id = held.workload_id
    JOIN projects_project project ON project.id = held.project_id
    -- The project's rule, but for what the workload keeps of an earlier one.
    CROSS JOIN LATERAL jsonb_populate_record(project, workload.kept_rule) rule
    JOIN scheduling_attempt attempt ON attempt.id = held.attempt_id
    JOIN telemetry_subject subject
        ON subject.kind = 'workload' AND subject.name = workload.id::text
    WHERE held.ended_at IS NULL AND held.gpu_milli > 0 AND NOT held.is_lent
        AND held.workload_id = COALESCE(%(workload)s, held.workload_id)
)
SELECT allocation, GREATEST(started_at, %(oldest)s, (
        SELECT max(at) + interval '1 minute' FROM telemetry_workload_minute minute
        WHERE minute.subject_id = subject AND at >= %(oldest)s AND NOT COALESCE(
            gpu_util_percent < idle_gpu_percent
            AND cpu_cores < idle_cpu_percent / 100 * cpu_milli / 1000.0
            AND COALESCE(net_rx_bytes_per_s + net_tx_bytes_per_s, lacking) < idle_network_bytes_s,
            false)
    ), (
        SELECT min(at) FROM telemetry_workload_minute minute
        WHERE minute.subject_id = subject AND at >= %(oldest)s
    )), newest.gpu_memory_mib, idle_window_s, signals, may_lack
FROM asked, LATERAL (
    SELECT at, gpu_memory_mib FROM telemetry_workload_minute minute
    WHERE minute.subject_id = subject AND at >= %(recent)s ORDER BY at DESC LIMIT 1
) newest
WHERE (SELECT count(*) FROM telemetry_workload_minute minute
    WHERE minute.subject_id = subject AND at >= %(now)s - make_interval(secs => idle_window_s))
    >= GREATEST(idle_window_s / 60 - %(unmeasured)s, idle_window_s / 120)
"""


def found(
    at: datetime, workload: uuid.UUID | None = None
) -> dict[int, tuple[datetime, float | None]]:
    """Allocations that are idle, of all workloads or of one, with the time since when and the GPU
    memory held; one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            _IDLE,
            {
                "oldest": at - LOOK_BACK,
                "recent": at - MAX_SILENCE,
                "now": at,
                "unmeasured": UNMEASURED_MINUTES,
                "workload": workload,
            },
        )
        rows = cursor.fetchall()
    idle = {}
    for allocation, measured_since, memory_mib, window_s, signals, may_lack in rows:
        since = _since(measured_since, signals, may_lack)
        if since is not None and (at - since).total_seconds() >= window_s:
            idle[allocation] = (since, memory_mib)
    return idle


def _since(measured: datetime, signals: str | None, may_lack_network: bool) -> datetime | None:
    """Since when it idles by what was measured and by a session's own signals: a cell that only
    waits uses nothing, and a short one is lost in a minute's mean; None while one is busy."""
    report = json.loads(signals) if signals else {}
    if not report:
        return measured
    told = idle_since(report, may_lack_network=may_lack_network)
    return None if told is None else max(measured, told)
