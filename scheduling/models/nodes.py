"""Zones, nodes and devices, as their agents declare them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from projects.models import NodeType, User, validate_slug

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager


SKEWED_FROM_S = 2.0
"""So far a clock may differ from ours before times of its samples mislead."""


class Zone(models.Model):
    """Nodes under one Resource Controller (agent).

    Attributes:
        token_hash: SHA-256 of the agent's bearer token.
        relay_url, relay_secret: Where the agent's relay listens, and what it expects; both come in
            each report.
        clock_skew_s: The agent's clock minus ours at the last report.
        agent_id, agent_host: The agent that holds the zone (`services.claims`).
        rival, rival_at: The machine of another that claimed it in vain, and when it last did.
    """

    name = models.CharField(_("name"), max_length=40, unique=True, validators=[validate_slug])
    token_hash = models.CharField(max_length=64)
    relay_url = models.CharField(max_length=200, blank=True)
    relay_secret = models.CharField(max_length=100, blank=True)
    last_report_at = models.DateTimeField(_("last report"), null=True, blank=True)
    clock_skew_s = models.FloatField(_("agent's clock ahead, s"), default=0.0)
    is_stopping = models.BooleanField(_("stopping"), default=False)
    agent_id = models.CharField(max_length=64, blank=True, db_default="")
    agent_host = models.CharField(max_length=255, blank=True, db_default="")
    rival = models.CharField(max_length=255, blank=True, db_default="")
    rival_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        nodes: RelatedManager[Node]

    class Meta:
        verbose_name = _("zone")
        verbose_name_plural = _("zones")

    def __str__(self) -> str:
        return self.name

    @property
    def is_skewed(self) -> bool:
        """Whether the agent's clock differs so much that times mislead."""
        return abs(self.clock_skew_s) >= SKEWED_FROM_S


class NodeState(models.TextChoices):
    READY = "ready", pgettext_lazy("node", "Ready")
    CORDONED = "cordoned", pgettext_lazy("node", "Cordoned")
    LOST = "lost", pgettext_lazy("node", "Lost")


class Node(models.Model):
    """A machine, real or simulated, as its agent declares it.

    Attributes:
        cordon: Why it is closed, as `core.decisions.Reason` in JSON; empty where nobody closed it.
        cordoned_by: The admin who did; None where the planner did.
        opened_at: When an admin opened it again; starts that failed before do not count.
        rival, rival_at: Zone and machine of another agent that claimed its name in vain, and when
            it last did (`services.claims`).
    """

    name = models.CharField(_("name"), max_length=63, unique=True)
    zone = models.ForeignKey(
        Zone, on_delete=models.PROTECT, related_name="nodes", verbose_name=_("zone")
    )
    node_type = models.ForeignKey(
        NodeType,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="nodes",
        verbose_name=_("node type"),
    )
    labels = models.JSONField(default=dict)
    cpu_milli = models.PositiveIntegerField(_("CPU, millicores"))
    memory_mib = models.PositiveIntegerField(_("memory, MiB"))
    state = models.CharField(
        _("state"), max_length=16, choices=NodeState.choices, default=NodeState.READY
    )
    cordon = models.JSONField(default=dict, blank=True)
    cordoned_at = models.DateTimeField(null=True, blank=True)
    cordoned_by = models.ForeignKey(
        User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    opened_at = models.DateTimeField(null=True, blank=True)
    is_simulated = models.BooleanField(_("simulated"), default=False)
    is_isolated = models.BooleanField(default=False)
    isolation_note = models.CharField(max_length=500, blank=True)
    fraction_mechanism = models.CharField(max_length=200, blank=True)
    fraction_note = models.CharField(max_length=40, blank=True, db_default="")
    shares_gpu_time = models.BooleanField(default=False, db_default=False)
    swap_mechanism = models.CharField(max_length=40, blank=True, db_default="")
    swap_note = models.CharField(max_length=40, blank=True, db_default="")
    driver = models.CharField(max_length=40, blank=True)
    last_report_at = models.DateTimeField(null=True, blank=True)
    rival = models.CharField(max_length=300, blank=True, db_default="")
    rival_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        devices: RelatedManager[Device]

    class Meta:
        ordering = ("name",)
        verbose_name = _("node")
        verbose_name_plural = _("nodes")
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(state__in=NodeState.values), name="node_state_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Device(models.Model):
    """One GPU.

    Attributes:
        memory_mib: Usable memory.
        allocated_milli: Held now, by all attempts that have not ended.
    """

    uuid = models.CharField(primary_key=True, max_length=64)
    node = models.ForeignKey(
        Node, on_delete=models.CASCADE, related_name="devices", verbose_name=_("node")
    )
    index = models.PositiveSmallIntegerField(_("number"))
    model = models.CharField(_("model"), max_length=80)
    memory_mib = models.PositiveIntegerField(_("memory, MiB"))
    allocated_milli = models.PositiveIntegerField(_("allocated, thousandths"), default=0)
    is_healthy = models.BooleanField(_("healthy"), default=True)

    class Meta:
        ordering = ("node", "index")
        verbose_name = _("device")
        verbose_name_plural = _("devices")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["node", "index"], name="device_index_unique"),
            models.CheckConstraint(
                condition=Q(allocated_milli__lte=1000), name="device_not_over_allocated"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node_id}/{self.index}"
