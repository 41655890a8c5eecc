"""More values per sample, roll-ups to minutes and quarter-hours, and what is yet to be rolled up.

A roll-up has, per metric, the mean and the seconds for which there is data (`_s`), the highest
value where that says something (`_peak`), or only the last for counters and codes. Time is found
by BRIN: rows arrive in its order, so the index is a few pages instead of a second table.
"""

from django.db import migrations, models

NEW_COLUMNS = {
    "telemetry_devicesample": (
        "encoder_util_percent",
        "decoder_util_percent",
        "memory_temperature_c",
        "throttled_percent",
        "pcie_rx_bytes_per_s",
        "pcie_tx_bytes_per_s",
        "pcie_replays",
        "ecc_corrected",
        "ecc_uncorrected",
        "remapped_rows_corrected",
        "remapped_rows_uncorrected",
        "xid",
    ),
    "telemetry_workloadsample": (),
    "telemetry_nodesample": (
        "disk_read_bytes_per_s",
        "disk_write_bytes_per_s",
        "disk_used_mib",
        "disk_free_mib",
    ),
}
MODELS = {
    "telemetry_devicesample": "devicesample",
    "telemetry_nodesample": "nodesample",
}
# mean, peak or last, as `telemetry.metrics.Fold` was when this was written.
ROLLED = {
    "device": {
        "gpu_util_percent": "mean",
        "memory_util_percent": "mean",
        "memory_used_mib": "peak",
        "power_w": "peak",
        "temperature_c": "peak",
        "sm_clock_mhz": "mean",
        "memory_clock_mhz": "mean",
        "encoder_util_percent": "mean",
        "decoder_util_percent": "mean",
        "memory_temperature_c": "peak",
        "throttled_percent": "mean",
        "pcie_rx_bytes_per_s": "mean",
        "pcie_tx_bytes_per_s": "mean",
        "pcie_replays": "last",
        "ecc_corrected": "last",
        "ecc_uncorrected": "last",
        "remapped_rows_corrected": "last",
        "remapped_rows_uncorrected": "last",
        "xid": "last",
    },
    "workload": {
        "cpu_cores": "mean",
        "cpu_throttled_s_per_s": "mean",
        "memory_mib": "peak",
        "net_rx_bytes_per_s": "mean",
        "net_tx_bytes_per_s": "mean",
        "gpu_util_percent": "mean",
        "gpu_memory_mib": "peak",
    },
    "node": {
        "cpu_cores": "mean",
        "memory_mib": "peak",
        "net_rx_bytes_per_s": "mean",
        "net_tx_bytes_per_s": "mean",
        "disk_read_bytes_per_s": "mean",
        "disk_write_bytes_per_s": "mean",
        "disk_used_mib": "peak",
        "disk_free_mib": "mean",
    },
}


def _columns(metrics):
    for name, fold in metrics.items():
        yield f"{name} real"
        if fold != "last":
            yield f"{name}_s smallint"
        if fold == "peak":
            yield f"{name}_peak real"


def _create(table, metrics):
    columns = ", ".join(_columns(metrics))
    return (
        f"CREATE TABLE {table} (subject_id integer NOT NULL, at timestamptz NOT NULL, {columns}, "
        "PRIMARY KEY (subject_id, at)) PARTITION BY RANGE (at);"
        f"CREATE INDEX {table}_time ON {table} USING brin (at) WITH (pages_per_range = 16);"
    )


def _rollups():
    for kind, metrics in ROLLED.items():
        for width in ("minute", "quarter"):
            table = f"telemetry_{kind}_{width}"
            yield migrations.RunSQL(_create(table, metrics), f"DROP TABLE {table}")


def _new_columns():
    for table, columns in NEW_COLUMNS.items():
        yield migrations.RunSQL(
            f"CREATE INDEX {table}_time ON {table} USING brin (at) WITH (pages_per_range = 16)",
            f"DROP INDEX {table}_time",
        )
        if columns:
            added = ", ".join(f"ADD COLUMN {column} real" for column in columns)
            dropped = ", ".join(f"DROP COLUMN {column}" for column in columns)
            yield migrations.RunSQL(
                f"ALTER TABLE {table} {added}",
                f"ALTER TABLE {table} {dropped}",
                state_operations=[
                    migrations.AddField(MODELS[table], column, models.FloatField(null=True))
                    for column in columns
                ],
            )


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0001_samples")]

    operations = [
        *_new_columns(),
        *_rollups(),
        migrations.AddField("batch", "first_at", models.DateTimeField(null=True)),
        migrations.AddField("batch", "last_at", models.DateTimeField(null=True)),
        migrations.AddField("batch", "is_rolled", models.BooleanField(default=True)),
        migrations.AddIndex(
            "batch",
            models.Index(
                condition=models.Q(("is_rolled", False)), fields=["last_at"], name="batch_to_roll"
            ),
        ),
        migrations.CreateModel(
            name="RolledQuarter",
            fields=[
                ("at", models.DateTimeField(primary_key=True, serialize=False)),
                ("rolled_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "verbose_name": "rolled quarter-hour",
                "verbose_name_plural": "rolled quarter-hours",
            },
        ),
    ]
