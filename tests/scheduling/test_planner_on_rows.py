"""What the planner decides about requests by memory and about sessions, recorded on real rows."""

from __future__ import annotations

import pytest

from scheduling.cycle import run_cycle
from scheduling.models import Device, Phase
from tests.factories import session_spec, submitted, training_spec
from tests.scheduling.conftest import Organisation

pytestmark = pytest.mark.django_db


def test_three_thirds_by_memory_fill_one_device(organisation: Organisation) -> None:
    """Each is a third rounded up to 334 thousandths; what is recorded is 1000, not 1002."""
    third = Device.objects.filter(node__node_type__name="t4")[0].memory_mib // 3
    rows = [
        submitted(
            session_spec(organisation.speech, gpu_milli=None, gpu_memory_mib=third),
            organisation.sergey,
        )
        for _ in range(3)
    ]
    run_cycle()
    for row in rows:
        row.refresh_from_db()
        assert row.phase == Phase.STARTING
    held = [device.allocated_milli for device in Device.objects.all() if device.allocated_milli]
    assert len(held) == 1
    assert 999 <= held[0] <= 1000


def test_a_session_takes_the_place_of_its_own_projects_training(
    organisation: Organisation,
) -> None:
    """Inside quota it starts at once, though its project borrows with work of any priority."""
    for _ in range(2):
        borrower = submitted(
            training_spec(organisation.language, num_devices=4, priority=90), organisation.lena
        )
        run_cycle()
        organisation.agent.run(borrower)
    session = submitted(session_spec(organisation.language, gpu_milli=500), organisation.lena)
    run_cycle()
    borrower.refresh_from_db()
    session.refresh_from_db()
    assert borrower.phase == Phase.CHECKPOINTING
    assert session.reason["code"] == "awaiting_release"
