"""A few days of use, written down directly, for tests of analytics' pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any

from django.utils import timezone

from projects.models import NodeType, Project, Role, User, WorkloadKind
from scheduling.models import Workload
from tests.factories import make_member, make_node_type, make_project
from tests.scheduling.history import Cluster, held, measured, priced, workload

NOW = timezone.now()
DAY = NOW.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
"""The day of the work; pages ask the real clock, so it is never long ago."""
SINCE = DAY - timedelta(days=2)
NEXT = DAY + timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Past:
    """Vision trained on two GPUs for a day, speech kept half of one idle; language is a stranger.

    Attributes:
        vera, max: Researcher and manager of vision.
    """

    t4: NodeType
    vision: Project
    speech: Project
    vera: User
    max: User
    sergey: User
    admin: User
    training: Workload
    session: Workload


def make_past() -> Past:
    """Four GPUs since two days before; the price doubles at noon of the day."""
    t4 = make_node_type("t4", gpus=4)
    priced(t4, SINCE - timedelta(days=365), gpu=10)
    priced(t4, DAY + timedelta(hours=12), gpu=20)
    vision, speech = make_project("vision"), make_project("speech")
    node = Cluster(since=SINCE).node(t4)
    vera, sergey = make_member(vision, "vera"), make_member(speech, "sergey")
    training = workload(vision, vera, name="train", template="resnet")
    session = workload(speech, sergey, name="notebook", kind=WorkloadKind.INTERACTIVE)
    day = (DAY, NEXT)
    held(training, node, day, devices=2)
    held(session, node, day, devices=1, milli=500, first=2)
    usual: dict[str, Any] = {"cpu_cores": 2.0, "memory_mib": 4096.0}
    measured(training, day[0], day[0] + timedelta(hours=12), gpu_util_percent=60.0, **usual)
    measured(session, *day, gpu_util_percent=0.5, cpu_cores=0.1, memory_mib=2048.0)
    return Past(
        t4=t4,
        vision=vision,
        speech=speech,
        vera=vera,
        max=make_member(vision, "max", Role.MANAGER),
        sergey=sergey,
        admin=User.objects.create_superuser("admin"),
        training=training,
        session=session,
    )
