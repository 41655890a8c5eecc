"""Kinds of nodes, and which of them a project may use."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from projects.models.names import (
    DEFAULT_LABEL_KEY,
    validate_label_key,
    validate_label_value,
    validate_slug,
)
from projects.models.owners import Project

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


def _price(
    title: StrOrPromise, decimal_places: int
) -> models.DecimalField[str | float | Decimal, Decimal]:
    return models.DecimalField(
        title,
        max_digits=10,
        decimal_places=decimal_places,
        default=0,
        validators=[MinValueValidator(0)],
    )


class NodeType(models.Model):
    """A kind of node, for quota, price and choice.

    Attributes:
        capacity_gpu_milli: What the registered nodes of this type offer; written by `scheduling`
            when nodes register, read here so that quotas cannot promise more.
        shares_strictly: A workload alone on a device keeps to its share of the device's time as
            well, instead of using what nobody else asks for.
        swap_enabled: Idle sessions may be swapped out on its nodes.
        swap_host_mib: Of a node's memory, so much may hold what was swapped out.
    """

    name = models.CharField(_("name"), max_length=40, unique=True, validators=[validate_slug])
    title = models.CharField(_("title"), max_length=80)
    label_key = models.CharField(
        _("label key"), max_length=63, default=DEFAULT_LABEL_KEY, validators=[validate_label_key]
    )
    label_value = models.CharField(
        _("label value"),
        max_length=63,
        validators=[validate_label_value],
        help_text=_("Nodes whose label has this value are of this type."),
    )
    gpu_model = models.CharField(_("GPU model"), max_length=80, blank=True)
    gpu_memory_mib = models.PositiveIntegerField(_("usable memory of a GPU, MiB"), default=0)
    capacity_gpu_milli = models.PositiveIntegerField(
        _("there are, thousandths of a GPU"), default=0, editable=False
    )
    min_runtime_s = models.PositiveIntegerField(
        _("minimum runtime, s"),
        default=0,
        help_text=_("Work runs for so long before it may be displaced for others."),
    )
    shares_strictly = models.BooleanField(
        _("a share of a GPU's time is never exceeded"),
        default=False,
        db_default=False,
        help_text=_("Otherwise work that is alone on a GPU may use all of its time."),
    )
    swap_enabled = models.BooleanField(
        _("swaps idle sessions out"),
        default=False,
        help_text=_("So that their GPUs can be lent, where their project lends them."),
    )
    swap_host_mib = models.PositiveIntegerField(
        _("memory for what is swapped out, MiB a node"),
        default=102_400,
        help_text=_("So much at most, on each node with Swap."),
    )
    gpu_price_per_hour = _price(_("price of a GPU per hour"), decimal_places=2)
    cpu_price_per_hour = _price(_("price of a core per hour"), decimal_places=4)
    memory_price_per_hour = _price(_("price of a GiB per hour"), decimal_places=4)
    rank = models.PositiveSmallIntegerField(
        _("order"), default=100, help_text=_("In lists and forms, and which is tried first.")
    )

    class Meta:
        ordering = ("rank", "name")
        verbose_name = _("node type")
        verbose_name_plural = _("node types")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["label_key", "label_value"], name="node_type_selector_unique"
            ),
            models.CheckConstraint(
                condition=Q(
                    gpu_price_per_hour__gte=0,
                    cpu_price_per_hour__gte=0,
                    memory_price_per_hour__gte=0,
                ),
                name="node_type_prices_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return self.title

    def clean(self) -> None:
        """Refuse a GPU without memory, of which nobody could have a part, and none where nodes have
        some.

        Raises:
            ValidationError: keyed by `gpu_memory_mib` or `gpu_model`, naming value and limit.
        """
        if self.has_gpu and self.gpu_memory_mib == 0:
            message = _("“%(name)s” with %(value)s MiB of memory: a GPU has at least %(limit)s.")
            params = {"name": self.gpu_model, "value": self.gpu_memory_mib, "limit": 1}
            raise ValidationError(
                {"gpu_memory_mib": ValidationError(message, "no_gpu_memory", params)}
            )
        if not self.has_gpu and self.capacity_gpu_milli:
            message = _("Nodes of this type have %(value)s GPU: their model cannot be left out.")
            params = {"value": self.capacity_gpu_milli // 1000}
            raise ValidationError({"gpu_model": ValidationError(message, "has_gpu", params)})

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpu_model)


class WorkloadKind(models.TextChoices):
    INTERACTIVE = "interactive", _("session")
    TRAINING = "training", _("training")


class AllowedNodeType(models.Model):
    """A node type that a project's sessions or trainings may use, in order of preference.

    A project and kind without any row may use all.
    """

    project = models.ForeignKey(
        Project,
        on_delete=models.CASCADE,
        related_name="allowed_node_types",
        verbose_name=_("project"),
    )
    node_type = models.ForeignKey(
        NodeType, on_delete=models.PROTECT, related_name="+", verbose_name=_("node type")
    )
    kind = models.CharField(_("kind of work"), max_length=16, choices=WorkloadKind.choices)
    rank = models.PositiveSmallIntegerField(_("order"), default=100)

    class Meta:
        ordering = ("rank", "node_type__rank", "node_type__name")
        verbose_name = _("allowed node type")
        verbose_name_plural = _("allowed node types")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["project", "node_type", "kind"], name="allowed_node_type_unique"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=WorkloadKind.values), name="allowed_node_type_kind_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.project} · {self.kind} · {self.node_type}"
