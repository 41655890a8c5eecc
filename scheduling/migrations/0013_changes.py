"""Every change that a plan depends on leaves a row, so that a planner that keeps its picture in
memory knows whether anything but arrivals has happened since. Written by the database itself: by
whatever way a row changes, also by hand.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

WORKLOAD = (
    "project_id",
    "kind",
    "num_devices",
    "gpu_milli",
    "gpu_memory_mib",
    "cpu_milli",
    "memory_mib",
    "node_types",
    "node_labels",
    "priority",
    "is_preemptible",
    "min_replicas",
    "max_replicas",
    "submitted_at",
    "not_before",
    "num_failures",
    "succeeded_replicas",
    "incomplete_since",
)
ATTEMPT = ("workload_id", "node_id", "replica", "goal", "swap_state")
NODE = ("name", "zone_id", "node_type_id", "labels", "cpu_milli", "memory_mib", "state")
DEVICE = ("node_id", "index", "memory_mib", "is_healthy")
PART = ("allocation_id", "device_id", "gpu_milli", "is_open", "is_lent")
ANYTHING = (
    ("scheduling_devicehold", "hold"),
    ("scheduling_loan", "loan"),
    ("scheduling_plannerpolicy", "policy"),
    ("projects_project", "project"),
    ("projects_department", "department"),
    ("projects_gpuquota", "quota"),
    ("projects_nodetype", "node_type"),
)
WAITING = "('queued', 'preempted')"
ENDED = "('stopped', 'completed', 'failed')"

FUNCTION = """
CREATE FUNCTION scheduling_note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduling_change (xid, at, kind, operation, key)
    VALUES (
        pg_current_xact_id()::text::bigint, clock_timestamp(), TG_ARGV[0], lower(TG_OP),
        CASE WHEN TG_ARGV[0] <> 'workload' THEN ''
             WHEN TG_OP = 'DELETE' THEN to_jsonb(OLD) ->> 'id'
             ELSE to_jsonb(NEW) ->> 'id' END
    );
    RETURN NULL;
END $$;
"""


def _differ(columns: tuple[str, ...]) -> str:
    return " OR ".join(f'OLD."{name}" IS DISTINCT FROM NEW."{name}"' for name in columns)


def _triggers(table: str, kind: str, when: str, *, on_insert: bool = True) -> str:
    """Rows that come and go, and changes that matter."""
    comes = "INSERT OR DELETE" if on_insert else "DELETE"
    call = f"FOR EACH ROW %s EXECUTE FUNCTION scheduling_note_change('{kind}')"
    return (
        f"CREATE TRIGGER note_{kind} AFTER {comes} ON {table} {call % ''};"
        f"CREATE TRIGGER note_{kind}_change AFTER UPDATE ON {table} {call % f'WHEN ({when})'};"
    )


PHASES = " OR ".join(
    f"(OLD.phase IN {group}) IS DISTINCT FROM (NEW.phase IN {group})" for group in (WAITING, ENDED)
)
TRIGGERS = "".join(
    (
        _triggers("scheduling_workload", "workload", f"{PHASES} OR {_differ(WORKLOAD)}"),
        _triggers(
            "scheduling_attempt",
            "attempt",
            f"(OLD.phase = 'ended') IS DISTINCT FROM (NEW.phase = 'ended') OR {_differ(ATTEMPT)}",
        ),
        _triggers("scheduling_node", "node", _differ(NODE)),
        _triggers("scheduling_device", "device", _differ(DEVICE)),
        # Parts of a device come with their attempt.
        _triggers("scheduling_deviceallocation", "part", _differ(PART), on_insert=False),
        "CREATE TRIGGER note_zone AFTER UPDATE OF is_stopping ON scheduling_zone FOR EACH ROW"
        " WHEN (OLD.is_stopping IS DISTINCT FROM NEW.is_stopping)"
        " EXECUTE FUNCTION scheduling_note_change('zone');",
        *(
            f"CREATE TRIGGER note_{kind} AFTER INSERT OR UPDATE OR DELETE ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION scheduling_note_change('{kind}');"
            for table, kind in ANYTHING
        ),
    )
)
TABLES = (
    ("scheduling_workload", ("note_workload", "note_workload_change")),
    ("scheduling_attempt", ("note_attempt", "note_attempt_change")),
    ("scheduling_node", ("note_node", "note_node_change")),
    ("scheduling_device", ("note_device", "note_device_change")),
    ("scheduling_deviceallocation", ("note_part", "note_part_change")),
    ("scheduling_zone", ("note_zone",)),
    *((table, (f"note_{kind}",)) for table, kind in ANYTHING),
)
DROP = (
    "".join(f"DROP TRIGGER {name} ON {table};" for table, names in TABLES for name in names)
    + "DROP FUNCTION scheduling_note_change();"
)


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("scheduling", "0012_planner_policy"),
        ("projects", "0004_lending"),
    ]

    operations: ClassVar = [
        migrations.CreateModel(
            name="Change",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("xid", models.BigIntegerField(db_index=True)),
                ("at", models.DateTimeField()),
                ("kind", models.CharField(max_length=16)),
                ("operation", models.CharField(max_length=8)),
                ("key", models.CharField(max_length=36)),
            ],
        ),
        migrations.RunSQL(FUNCTION + TRIGGERS, DROP),
    ]
