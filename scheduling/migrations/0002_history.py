"""When nodes and devices were ready, and the sums of past days.

Nodes that are there already count from their first allocation, or from now.
"""

import django.db.models.deletion
from django.db import migrations, models

FORWARDS = """
INSERT INTO scheduling_capacityinterval
    (node_id, node_type_id, device, gpu_milli, cpu_milli, memory_mib, started_at)
SELECT node.id, node.node_type_id, part.device, part.gpu_milli, part.cpu_milli, part.memory_mib,
    COALESCE((SELECT min(started_at) FROM scheduling_allocation WHERE node_id = node.id), now())
FROM scheduling_node node
JOIN (
    SELECT id AS node_id, '' AS device, 0 AS gpu_milli, cpu_milli, memory_mib FROM scheduling_node
    UNION ALL
    SELECT node_id, uuid, 1000, 0, 0 FROM scheduling_device WHERE is_healthy
) part ON part.node_id = node.id
WHERE node.state <> 'lost';
"""


class Migration(migrations.Migration):
    dependencies = [("projects", "0003_history"), ("scheduling", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="UsageDay",
            fields=[
                ("day", models.DateField(primary_key=True, serialize=False)),
                ("computed_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="UsageVector",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "scope",
                        "measure",
                        "day",
                        "project_id",
                        "key",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("scope", models.SmallIntegerField()),
                ("measure", models.SmallIntegerField()),
                ("day", models.DateField()),
                ("project_id", models.IntegerField()),
                ("key", models.CharField(max_length=100)),
                ("values", models.BinaryField()),
            ],
        ),
        migrations.CreateModel(
            name="CapacityInterval",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("device", models.CharField(blank=True, max_length=64)),
                ("gpu_milli", models.PositiveIntegerField(default=0)),
                ("cpu_milli", models.PositiveIntegerField(default=0)),
                ("memory_mib", models.PositiveIntegerField(default=0)),
                ("started_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="capacity_intervals",
                        to="scheduling.node",
                    ),
                ),
                (
                    "node_type",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.nodetype",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["started_at", "ended_at"], name="capacity_interval_time")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=("node", "device"),
                        name="capacity_interval_one_open",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("ended_at__isnull", True),
                            ("ended_at__gte", models.F("started_at")),
                            _connector="OR",
                        ),
                        name="capacity_interval_valid",
                    ),
                ],
            },
        ),
        migrations.RunSQL(FORWARDS, migrations.RunSQL.noop),
    ]
