"""What prices and quotas were; written by the database itself."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from projects.models.node_types import NodeType
from projects.models.owners import Project


class PriceChange(models.Model):
    """What a node type costs from a moment on. Append-only, written by the database itself.

    A node type's first price holds from the beginning, a new one never rewrites the past.
    """

    id = models.BigAutoField(primary_key=True)
    node_type = models.ForeignKey(
        NodeType, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    valid_from = models.DateTimeField()
    gpu_price_per_hour = models.DecimalField(max_digits=10, decimal_places=2)
    cpu_price_per_hour = models.DecimalField(max_digits=10, decimal_places=4)
    memory_price_per_hour = models.DecimalField(max_digits=10, decimal_places=4)

    class Meta:
        ordering = ("valid_from", "id")
        verbose_name = _("change of price")
        verbose_name_plural = _("changes of price")

    def __str__(self) -> str:
        return f"{self.node_type_id} {self.valid_from:%Y-%m-%d %H:%M}"


class QuotaChange(models.Model):
    """A project's quota from a moment on. Append-only, written by the database itself.

    Attributes:
        node_type: Whose GPUs `gpu_milli` counts; null for CPU and memory.
        cpu_milli, memory_mib: Null means that none is counted.
    """

    id = models.BigAutoField(primary_key=True)
    project = models.ForeignKey(
        Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    node_type = models.ForeignKey(
        NodeType, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+", null=True
    )
    valid_from = models.DateTimeField()
    gpu_milli = models.PositiveIntegerField(null=True)
    cpu_milli = models.PositiveIntegerField(null=True)
    memory_mib = models.PositiveIntegerField(null=True)

    class Meta:
        ordering = ("valid_from", "id")
        verbose_name = _("change of quota")
        verbose_name_plural = _("changes of quota")

    def __str__(self) -> str:
        return f"{self.project_id} {self.valid_from:%Y-%m-%d %H:%M}"
