"""Samples, partitioned by day, and the ledger of batches.

Django cannot make partitioned tables, so their SQL is here and its state beside it. Values are
four-byte floats: seven digits are more than any sensor has.
"""

import django.db.models.deletion
from django.db import migrations, models


TABLES = {
    "telemetry_devicesample": (
        "gpu_util_percent",
        "memory_util_percent",
        "memory_used_mib",
        "power_w",
        "temperature_c",
        "sm_clock_mhz",
        "memory_clock_mhz",
    ),
    "telemetry_workloadsample": (
        "cpu_cores",
        "cpu_throttled_s_per_s",
        "memory_mib",
        "net_rx_bytes_per_s",
        "net_tx_bytes_per_s",
        "gpu_util_percent",
        "gpu_memory_mib",
    ),
    "telemetry_nodesample": (
        "cpu_cores",
        "memory_mib",
        "net_rx_bytes_per_s",
        "net_tx_bytes_per_s",
    ),
}


def _create(table, columns):
    values = "".join(f"{column} real, " for column in columns)
    return (
        f"CREATE TABLE {table} (subject_id integer NOT NULL, at timestamptz NOT NULL, {values}"
        "PRIMARY KEY (subject_id, at)) PARTITION BY RANGE (at)"
    )


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Batch",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("node", models.CharField(max_length=63)),
                ("batch_id", models.CharField(max_length=64)),
                ("received_at", models.DateTimeField(db_index=True)),
                ("num_samples", models.PositiveIntegerField()),
                ("num_stored", models.PositiveIntegerField(default=0)),
                ("num_refused", models.PositiveIntegerField(default=0)),
                ("num_dropped", models.PositiveIntegerField(default=0)),
                ("note", models.TextField(blank=True)),
            ],
            options={
                "verbose_name": "batch of samples",
                "verbose_name_plural": "batches of samples",
                "ordering": ("-received_at",),
                "constraints": [
                    models.UniqueConstraint(fields=("node", "batch_id"), name="batch_unique")
                ],
            },
        ),
        migrations.CreateModel(
            name="Subject",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[("device", "device"), ("workload", "workload"), ("node", "node")],
                        max_length=16,
                    ),
                ),
                ("name", models.CharField(max_length=100)),
            ],
            options={
                "verbose_name": "subject",
                "verbose_name_plural": "subjects",
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "name"), name="subject_unique"),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["device", "workload", "node"])),
                        name="subject_kind_known",
                    ),
                ],
            },
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(_create(table, columns), f"DROP TABLE {table}")
                for table, columns in TABLES.items()
            ],
            state_operations=[
                migrations.CreateModel(
                    name="NodeSample",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "subject_id",
                                "at",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("at", models.DateTimeField()),
                        ("cpu_cores", models.FloatField(null=True)),
                        ("memory_mib", models.FloatField(null=True)),
                        ("net_rx_bytes_per_s", models.FloatField(null=True)),
                        ("net_tx_bytes_per_s", models.FloatField(null=True)),
                        (
                            "subject",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="telemetry.subject",
                            ),
                        ),
                    ],
                    options={
                        "abstract": False,
                    },
                ),
                migrations.CreateModel(
                    name="DeviceSample",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "subject_id",
                                "at",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("at", models.DateTimeField()),
                        ("gpu_util_percent", models.FloatField(null=True)),
                        ("memory_util_percent", models.FloatField(null=True)),
                        ("memory_used_mib", models.FloatField(null=True)),
                        ("power_w", models.FloatField(null=True)),
                        ("temperature_c", models.FloatField(null=True)),
                        ("sm_clock_mhz", models.FloatField(null=True)),
                        ("memory_clock_mhz", models.FloatField(null=True)),
                        (
                            "subject",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="telemetry.subject",
                            ),
                        ),
                    ],
                    options={
                        "abstract": False,
                    },
                ),
                migrations.CreateModel(
                    name="WorkloadSample",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "subject_id",
                                "at",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("at", models.DateTimeField()),
                        ("cpu_cores", models.FloatField(null=True)),
                        ("cpu_throttled_s_per_s", models.FloatField(null=True)),
                        ("memory_mib", models.FloatField(null=True)),
                        ("net_rx_bytes_per_s", models.FloatField(null=True)),
                        ("net_tx_bytes_per_s", models.FloatField(null=True)),
                        ("gpu_util_percent", models.FloatField(null=True)),
                        ("gpu_memory_mib", models.FloatField(null=True)),
                        (
                            "subject",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="telemetry.subject",
                            ),
                        ),
                    ],
                    options={
                        "abstract": False,
                    },
                ),
            ],
        ),
    ]
