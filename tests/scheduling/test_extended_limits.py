"""Time limits that are put off: by how much, by whom and how often."""

from __future__ import annotations

import pytest
from django.utils import timezone

from projects.models import AuditEntry, Project, Role
from scheduling import time_limits
from scheduling.models import Attempt, Workload
from scheduling.services import (
    ActionRefusedError,
    extend,
)
from tests.factories import make_member
from tests.scheduling.conftest import Organisation
from tests.scheduling.limits import HOUR, limits, look, run_on, started, told
from tests.scheduling.planned import seen

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("limits")]
__all__ = ["limits"]


# ---------------------------------------------------------------- extending


def test_extend_lengthens_it_and_is_warned_anew(organisation: Organisation) -> None:
    row = started(organisation, hours=3.9)
    look()
    extend(row, actor=organisation.vera, for_s=2 * HOUR)
    row.refresh_from_db()
    now_s = timezone.now().timestamp()
    assert row.current is not None
    assert row.current.limit_end_at is row.current.limit_warned_at is None
    assert row.extended_s == pytest.approx(1.9 * HOUR, abs=120)
    assert seen(row).expected_end_s == pytest.approx(now_s + 2 * HOUR, abs=120)
    assert look(after_min=104) == 0
    assert look(after_min=106) == 1
    assert told(row) == ["limit_warning", "limit_extended", "limit_warning"]
    (entry,) = AuditEntry.objects.filter(action="workload.extended")
    assert entry.before is not None
    assert entry.after is not None
    assert entry.before["extended_s"] == 0
    assert entry.after["extended_s"] == row.extended_s


def test_an_extension_that_ends_before_the_limit_is_refused_and_costs_nothing(
    organisation: Organisation,
) -> None:
    row = started(organisation)
    with pytest.raises(ActionRefusedError, match=r"4.h at the earliest, so extending it by 2.h"):
        extend(row, actor=organisation.vera, for_s=2 * HOUR)
    row.refresh_from_db()
    assert (row.extended_s, row.num_extensions) == (0, 0)


def test_pressed_twice_it_costs_one_of_the_ten(organisation: Organisation) -> None:
    row = started(organisation, hours=3.9)
    extend(row, actor=organisation.vera, for_s=2 * HOUR)
    with pytest.raises(ActionRefusedError, match="puts nothing off"):
        extend(row, actor=organisation.vera, for_s=2 * HOUR)
    row.refresh_from_db()
    assert row.num_extensions == 1


def test_idleness_is_put_off_up_to_the_limit_without_costing_any_of_the_ten(
    organisation: Organisation,
) -> None:
    Project.objects.update(idle_stop_after_s=HOUR)
    row = started(organisation)
    Workload.objects.update(num_extensions=time_limits.MAX_EXTENSIONS)
    extend(row, actor=organisation.vera, for_s=2 * HOUR)
    row.refresh_from_db()
    assert (row.extended_s, row.num_extensions) == (0, time_limits.MAX_EXTENSIONS)
    with pytest.raises(ActionRefusedError, match="only managers of project Vision"):
        extend(row, actor=organisation.vera, for_s=5 * HOUR)


def test_its_owner_extends_ten_times_and_a_manager_goes_on(organisation: Organisation) -> None:
    row = started(organisation, hours=3.9)
    manager = make_member(organisation.vision, "mila", Role.MANAGER)
    for n in range(time_limits.MAX_EXTENSIONS):
        run_on(row, 3.9 + n)
        extend(row, actor=organisation.vera, for_s=HOUR)
    run_on(row, 13.9)
    with pytest.raises(ActionRefusedError, match="only managers of project Vision"):
        extend(row, actor=organisation.vera, for_s=HOUR)
    extend(row, actor=manager, for_s=HOUR)
    row.refresh_from_db()
    assert row.num_extensions == time_limits.MAX_EXTENSIONS + 1


def test_one_press_puts_off_both_ends(organisation: Organisation) -> None:
    Project.objects.update(idle_stop_after_s=3 * HOUR)
    row = started(organisation, hours=3.9)
    extend(row, actor=organisation.vera, for_s=2 * HOUR)
    attempt = Attempt.objects.get(workload=row)
    row.refresh_from_db()
    assert attempt.idle_kept_until is not None
    assert row.extended_s > 0


def test_what_nothing_ends_is_not_extended(organisation: Organisation) -> None:
    row = started(organisation)
    Project.objects.update(max_run_training_s=None)
    with pytest.raises(ActionRefusedError, match="never stops idle work, and it has no time"):
        extend(row, actor=organisation.vera, for_s=HOUR)
