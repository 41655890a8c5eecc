"""What a workload's page says of its idleness: by which rule, and what each signal says."""

from __future__ import annotations

import pytest
from django.utils import timezone

from projects.models import Project
from scheduling.services.lending import watch_idle
from scheduling.states import state_of
from tests.lending_scene import Scene, make_scene
from tests.scheduling.conftest import Organisation
from tests.scheduling.conftest import organisation as organisation
from tests.web.test_swap_pages import page_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene(organisation: Organisation) -> Scene:
    return make_scene(organisation)


def says(page: str) -> dict[str, str]:
    """What each signal says, by name."""
    rows = page.split('data-signal="')[1:]
    return {row.partition('"')[0]: row.split('data-says="')[1].partition('"')[0] for row in rows}


def test_a_session_says_by_which_rule_and_what_each_signal_says(
    scene: Scene,
) -> None:
    address = f"/workloads/{scene.session.pk}"
    scene.rest(minutes=12, missing=["network"], network_idle_since=None, cpu_idle_since=None)
    page = page_of(scene.organisation.vera, address)
    assert says(page) == {
        "gpu": "quiet",
        "cpu": "busy",
        "network": "left_out",
        "kernels": "quiet",
        "terminals": "quiet",
    }
    assert "below 10 % of 2 cores" in page
    assert "signal missing: the others are enough" in page
    assert "Allot’s defaults, not changed in project Vision." in page
    Project.objects.update(idle_may_lack_network=False)
    assert says(page_of(scene.organisation.vera, address))["network"] == "missing"
    scene.use()
    assert "1 cell waits" in page_of(scene.organisation.vera, address)
    assert "ждёт 1 ячейка" in page_of(scene.organisation.vera, address, "ru")


def test_without_network_figures_it_is_idle_only_where_the_project_says_so(
    scene: Scene,
) -> None:
    Project.objects.update(idle_may_lack_network=False)
    scene.rest(missing=["network"], network_idle_since=None)
    assert watch_idle(timezone.now()) == 0
    Project.objects.update(idle_may_lack_network=True)
    assert watch_idle(timezone.now()) == 1
    Project.objects.update(idle_may_lack_network=False)
    assert watch_idle(timezone.now()) == 0
    scene.refresh()
    assert state_of(scene.session) == "running"
