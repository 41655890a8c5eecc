"""Machines and their devices: what each has, what is held, and by whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from projects import access
from projects.models import User
from scheduling import formats, texts
from scheduling.bars import Bar
from scheduling.lent import lent_now
from scheduling.live import NODES_TOPIC
from scheduling.models import Allocation, Device, DeviceAllocation, Node
from scheduling.selectors import DEVICE_MILLI, NOTHING_THERE, OnNode, gpu_bar, on_nodes
from scheduling.services import nodes as services_nodes
from scheduling.services.claims import GIVEN_UP_AFTER_S, rival_of
from scheduling.texts import mechanisms
from scheduling.views import bands
from scheduling.views.charts import Numbered, Range, node_charts, range_of
from scheduling.views.pages import PageRequest, page
from scheduling.views.sum_charts import node_cost_chart
from telemetry.csp import allows_charts

MAX_NODES = 200
Change = Callable[..., Node]
# So many allocations a node page names; a node rarely holds more.
MAX_HOLDERS = 200


@dataclass(frozen=True, slots=True)
class Row:
    """A node of the list."""

    node: Node
    there: OnNode

    @property
    def free_milli(self) -> int:
        return self.there.num_devices * DEVICE_MILLI - self.there.allocated_milli

    @property
    def bar(self) -> Bar:
        total_milli = self.there.num_devices * DEVICE_MILLI
        there = self.there
        return gpu_bar(total_milli, there.allocated_milli, there.lent_milli, there.beside_milli)


@login_required
@require_safe
def nodes(request: PageRequest) -> HttpResponse:
    """All nodes; whom they serve is shown on a node's page only."""
    search = request.GET.get("search", "").replace("\0", "").strip()[:63]
    found = Node.objects.select_related("zone", "node_type").order_by("node_type__rank", "name")
    if search:
        found = found.filter(name__icontains=search)
    rows = list(found[: MAX_NODES + 1])
    context = {
        "topics": [NODES_TOPIC],
        "rows": _rows(rows[:MAX_NODES]),
        "has_driver": any(row.driver for row in rows),
        "search": search,
        "is_cut": len(rows) > MAX_NODES,
        "max_nodes": MAX_NODES,
    }
    return page(request, "scheduling/nodes.html", context)


def _rows(found: list[Node]) -> list[Row]:
    there = on_nodes()
    return [Row(node, there.get(node.pk, NOTHING_THERE)) for node in found]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a part of a device; `allocation` is None where the person may not see the name."""

    milli: int
    allocation: Allocation | None


@dataclass(frozen=True, slots=True)
class DeviceCard:
    device: Device
    lent_milli: int
    beside_milli: int
    holders: list[Holder] = field(default_factory=list)

    @property
    def bar(self) -> Bar:
        held = self.device.allocated_milli
        return gpu_bar(DEVICE_MILLI, held, self.lent_milli, self.beside_milli)

    @property
    def free_milli(self) -> int:
        return DEVICE_MILLI - self.device.allocated_milli - self.beside_milli


@login_required
@require_safe
@allows_charts
def node(request: PageRequest, name: str) -> HttpResponse:
    """One node: devices with who holds which fraction, CPU and memory, charts."""
    row = get_object_or_404(Node.objects.select_related("zone", "node_type"), name=name)
    devices = list(row.devices.order_by("index"))
    allocations = list(
        row.allocations.filter(ended_at__isnull=True)
        .select_related("workload__owner", "project", "attempt")
        .order_by("started_at", "pk")[:MAX_HOLDERS]
    )
    visible = set(access.visible_projects(request.user).values_list("pk", flat=True))
    cpu = sum(allocation.cpu_milli for allocation in allocations)
    memory = sum(allocation.memory_mib for allocation in allocations)
    chosen = range_of(request.GET)
    now = timezone.now()
    since = now - timedelta(minutes=chosen.minutes)
    found = [] if chosen.problems else bands.bands_of(row, request.user, since, now)
    context = {
        "topics": [NODES_TOPIC],
        "node": row,
        "cordon": texts.cordon(row),
        "may_cordon": request.user.is_superuser,
        "rival": rival_of(row, now),
        "around": [item for item in allocations if item.attempt and item.attempt.around_share],
        "given_up_s": GIVEN_UP_AFTER_S,
        "cards": _cards(devices, allocations, visible),
        "without_gpu": [item for item in allocations if not item.gpu_milli],
        "visible": visible,
        "fraction_text": mechanisms.describe_fraction(
            row.fraction_mechanism, row.fraction_note, shares_time=row.shares_gpu_time
        ),
        "swap_text": mechanisms.describe_swap(row.swap_mechanism, row.swap_note),
        "cpu_bar": _cpu_bar(row, cpu),
        "memory_bar": _memory_bar(row, memory),
        "range": chosen,
        # A part that asks for itself again has no charts: those hear of samples themselves.
        "charts": []
        if request.htmx or chosen.problems
        else _charts(row, devices, request.user, chosen),
        "bands": found[::-1],
        "bands_payload": bands.payload(found, devices, request.user.time_zone, now),
    }
    return page(request, "scheduling/node.html", context, chosen.status)


@login_required
@require_POST
def cordon(request: PageRequest, name: str) -> HttpResponse:
    """Let nothing new start there."""
    return _change(request, name, services_nodes.cordon, _("Nothing new starts on %(name)s."))


@login_required
@require_POST
def uncordon(request: PageRequest, name: str) -> HttpResponse:
    """Open it again."""
    return _change(request, name, services_nodes.uncordon, _("%(name)s takes new work again."))


def _change(request: PageRequest, name: str, change: Change, message: str) -> HttpResponse:
    row = get_object_or_404(Node, name=name)
    if not request.user.is_superuser:
        raise PermissionDenied
    change(row, actor=request.user)
    messages.success(request, message % {"name": row.name})
    return redirect("scheduling:node", row.name)


def _charts(row: Node, devices: list[Device], user: User, chosen: Range) -> list[Numbered]:
    found = node_charts(row, devices, user.time_zone, chosen)
    # After the devices' own, before those of the machine.
    return [*found[:1], node_cost_chart(row, user, chosen), *found[1:]]


def _cards(
    devices: list[Device], allocations: list[Allocation], visible: set[int]
) -> list[DeviceCard]:
    by_id = {allocation.pk: allocation for allocation in allocations}
    parts = DeviceAllocation.objects.filter(allocation__in=by_id, is_open=True).order_by("pk")
    holders: dict[str, list[Holder]] = defaultdict(list)
    for part in parts:
        allocation = by_id[part.allocation_id]
        shown = allocation if allocation.project_id in visible else None
        holders[part.device_id].append(Holder(part.gpu_milli, shown))
    lent = lent_now()
    beside = lent.beside_by_device
    return [
        DeviceCard(device, lent.by_device[device.pk], beside[device.pk], holders[device.pk])
        for device in devices
    ]


def _cpu_bar(node: Node, held: int) -> Bar:
    label = _("%(allocated)s of %(total)s cores allocated") % {
        "allocated": formats.cores(held),
        "total": formats.cores(node.cpu_milli),
    }
    return Bar(node.cpu_milli, held, label)


def _memory_bar(node: Node, held: int) -> Bar:
    label = _("%(allocated)s of %(total)s memory allocated") % {
        "allocated": formats.memory(held),
        "total": formats.memory(node.memory_mib),
    }
    return Bar(node.memory_mib, held, label)
