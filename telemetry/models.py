"""Samples as rows, and the ledger of the batches in which they came.

One table per kind of subject, one column per metric, NULL where there is no data; the columns are
those of `telemetry.metrics`. The sample tables are partitioned by day (UTC), so that expiry drops
tables instead of deleting rows: the migration creates them, `telemetry.partitions` their parts.
They have no foreign-key constraint: checking it for each row costs more than writing the row.

The roll-ups to minutes and quarter-hours are tables of the same kind without models: only the SQL
in `telemetry.rollups` reads and writes them.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from telemetry.metrics import Kind


class Subject(models.Model):
    """What samples are about, as a small number: names would outweigh the values."""

    id = models.AutoField(primary_key=True)
    kind = models.CharField(max_length=16, choices=[(kind.value, kind.value) for kind in Kind])
    name = models.CharField(max_length=100)

    class Meta:
        verbose_name = _("subject")
        verbose_name_plural = _("subjects")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["kind", "name"], name="subject_unique"),
            models.CheckConstraint(
                condition=Q(kind__in=[kind.value for kind in Kind]), name="subject_kind_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class SampleRow(models.Model):
    """What the three sample tables share: at most one row per subject and time."""

    pk = models.CompositePrimaryKey("subject_id", "at")
    subject = models.ForeignKey(
        Subject, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    at = models.DateTimeField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.subject_id} {self.at:%Y-%m-%d %H:%M:%S}"


def _value() -> models.FloatField[float | None, float | None]:
    return models.FloatField(null=True)


class DeviceSample(SampleRow):
    gpu_util_percent = _value()
    memory_util_percent = _value()
    memory_used_mib = _value()
    power_w = _value()
    temperature_c = _value()
    sm_clock_mhz = _value()
    memory_clock_mhz = _value()
    encoder_util_percent = _value()
    decoder_util_percent = _value()
    memory_temperature_c = _value()
    throttled_percent = _value()
    pcie_rx_bytes_per_s = _value()
    pcie_tx_bytes_per_s = _value()
    pcie_replays = _value()
    ecc_corrected = _value()
    ecc_uncorrected = _value()
    remapped_rows_corrected = _value()
    remapped_rows_uncorrected = _value()
    xid = _value()


class WorkloadSample(SampleRow):
    cpu_cores = _value()
    cpu_throttled_s_per_s = _value()
    memory_mib = _value()
    net_rx_bytes_per_s = _value()
    net_tx_bytes_per_s = _value()
    gpu_util_percent = _value()
    gpu_memory_mib = _value()


class NodeSample(SampleRow):
    cpu_cores = _value()
    memory_mib = _value()
    net_rx_bytes_per_s = _value()
    net_tx_bytes_per_s = _value()
    disk_read_bytes_per_s = _value()
    disk_write_bytes_per_s = _value()
    disk_used_mib = _value()
    disk_free_mib = _value()


SAMPLE_MODELS: dict[Kind, type[SampleRow]] = {
    Kind.DEVICE: DeviceSample,
    Kind.WORKLOAD: WorkloadSample,
    Kind.NODE: NodeSample,
}


class Batch(models.Model):
    """A batch that was taken in; the row that makes taking it in again harmless.

    Attributes:
        num_stored: New rows.
        num_refused: Samples and single values that were not believed; `note` says the first ones.
        num_dropped: Samples that the node could not keep until it could send them.
        first_at, last_at: Times of its first and last sample; None when none was stored.
        is_rolled: Whether the roll-ups contain it.
    """

    node = models.CharField(_("node"), max_length=63)
    batch_id = models.CharField(max_length=64)
    received_at = models.DateTimeField(_("received"), db_index=True)
    num_samples = models.PositiveIntegerField(_("samples"))
    num_stored = models.PositiveIntegerField(_("stored"), default=0)
    num_refused = models.PositiveIntegerField(_("refused"), default=0)
    num_dropped = models.PositiveIntegerField(_("dropped"), default=0)
    note = models.TextField(blank=True)
    first_at = models.DateTimeField(null=True)
    last_at = models.DateTimeField(null=True)
    is_rolled = models.BooleanField(default=True)

    class Meta:
        ordering = ("-received_at",)
        verbose_name = _("batch of samples")
        verbose_name_plural = _("batches of samples")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["node", "batch_id"], name="batch_unique"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["last_at"], name="batch_to_roll", condition=Q(is_rolled=False)),
        ]

    def __str__(self) -> str:
        return f"{self.node} {self.batch_id}"


class RolledQuarter(models.Model):
    """When the samples of a quarter-hour were last rolled up: later sums of it are made anew."""

    at = models.DateTimeField(primary_key=True)
    rolled_at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name = _("rolled quarter-hour")
        verbose_name_plural = _("rolled quarter-hours")

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M}"
