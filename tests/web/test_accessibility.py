"""Pages of telemetry and lending in a real browser: axe looks through them, no console error."""

from __future__ import annotations

import time
from datetime import timedelta
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from projects.models import NodeType, Project, User
from scheduling.agent.protocol import LoanState
from scheduling.models import Allocation, Attempt, Node, Workload
from scheduling.services import notify_owner
from scheduling.services.ending import watch_ending
from scheduling.services.idleness import watch_idle
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from tests import lending_scene
from tests.scheduling.conftest import Organisation, organisation
from tests.scheduling.history import Cluster, held, workload
from tests.web.history_scene import Past
from tests.web.test_analytics_browser import PERIOD, past
from tests.web.test_browser import ANSWERED, LOOK_MS, Site, Visit, chromium, elsewhere, site
from tests.web.test_idle_pages import measured

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]

__all__ = ["chromium", "organisation", "past", "site"]

FOUND = """async () => {
  const { violations } = await axe.run({ resultTypes: ["violations"] });
  return violations.flatMap(({ id, nodes }) => nodes.map(
    ({ target, failureSummary }) => `${id}: ${target.join(" ")}: ${failureSummary}`));
}"""
DRAWN = """() => [...document.querySelectorAll(".chart-plot")]
  .every(plot => plot.querySelector(".main-svg"))"""

THEMES = pytest.mark.parametrize("theme", ["light", "dark"])


def hindrances(page: Page) -> list[str]:
    """What axe finds, once all charts are drawn and the planner has answered."""
    page.wait_for_function(ANSWERED, timeout=LOOK_MS)
    page.wait_for_function(DRAWN, timeout=LOOK_MS)
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    found: list[str] = page.evaluate(FOUND)
    return found


def look_through(visit: Visit, addresses: list[str]) -> None:
    found = []
    for address in addresses:
        visit.go(address)
        found += [f"{address}: {text}" for text in hindrances(visit.page)]
    assert not found, "\n".join(found)
    assert visit.said == []


def running(past: Past) -> tuple[Node, Workload]:
    """A node that works now, and on it an idle session with its samples."""
    since = timezone.now() - timedelta(hours=3)
    node = Cluster(since=since).node(past.t4)
    Node.objects.update(last_report_at=timezone.now())
    work = workload(past.vision, past.vera, name="sleeper", phase="running")
    attempt = held(work, node, (since, None), devices=1, milli=500)
    Workload.objects.filter(pk=work.pk).update(
        current=attempt, node=node, node_type=NodeType.objects.get(), num_devices=1, gpu_milli=500
    )
    measured(work, 0.5, 0.01)
    now = timezone.now().timestamp()
    values: dict[str, dict[str, float | None]] = {
        f"device:GPU-{node.name}-0": {"gpu_util_percent": 40.0, "memory_used_mib": 7000.0},
        f"workload:{work.pk}": {"gpu_util_percent": 0.5, "cpu_cores": 0.01},
        f"node:{node.name}": {"cpu_cores": 3.0},
    }
    samples = [
        Sample(subject, now - age, measures)
        for age in range(300, 0, -5)
        for subject, measures in values.items()
    ]
    ingest(SampleBatch("history", node.name, "b", samples), nodes={node.name})
    return node, work


@THEMES
def test_nothing_keeps_people_out_of_telemetry(site: Site, past: Past, theme: str) -> None:
    node, work = running(past)
    look_through(
        site.visit(past.admin, theme=theme),
        [
            "/",
            "/live",
            f"/analytics?{PERIOD}",
            f"/analytics?metric=utilisation&group_by=user&{PERIOD}",
            f"/cost?{PERIOD}",
            "/idle",
            f"/nodes/{node.name}",
            f"/workloads/{work.pk}",
        ],
    )


def lent(organisation: Organisation) -> lending_scene.Scene:
    """A session's GPU, in another's hands for half an hour."""
    scene = lending_scene.make_scene(organisation)
    loan = scene.lend()
    scene.run_training()
    began = time.time() - 1800
    scene.say(loan, LoanState.LENT, swapped_out_bytes=3 * 1024**3, out_s=0.5, lent_at=began)
    return scene


@THEMES
def test_nothing_keeps_people_out_of_lent_gpus(
    site: Site, organisation: Organisation, admin_user: User, theme: str
) -> None:
    scene = elsewhere(lambda: lent(organisation))
    look_through(
        site.visit(admin_user, theme=theme),
        [
            "/swap",
            f"/workloads/{scene.session.pk}",
            f"/workloads/{scene.training.pk}/why",
            "/projects/language/why",
        ],
    )


def warned(organisation: Organisation) -> lending_scene.Scene:
    """A session whose owner was warned of its end, for idling and by its time limit, and notified
    by an administrator."""
    scene = lending_scene.make_scene(organisation)
    scene.rest(minutes=9 * 60)
    Project.objects.update(max_run_interactive_s=9 * 3600)
    began = timezone.now() - timedelta(hours=9)
    Attempt.objects.update(started_at=began)
    Allocation.objects.filter(workload=scene.session).update(started_at=began)
    measured(scene.session, 0.4, 0.01)
    watch_idle(timezone.now())
    watch_ending(timezone.now())
    notify_owner(scene.session, actor=User.objects.get(is_superuser=True))
    return scene


@THEMES
def test_nothing_keeps_people_out_of_idle_rules_and_warnings(
    site: Site, organisation: Organisation, admin_user: User, theme: str
) -> None:
    scene = elsewhere(lambda: warned(organisation))
    own = ["/sessions", f"/workloads/{scene.session.pk}"]
    look_through(site.visit(organisation.vera, theme=theme), own)
    rules = ["/projects/vision", "/projects/vision/idle-rule", "/idle"]
    look_through(site.visit(admin_user, theme=theme), rules)


BESIDE_NO_LABEL = """() => {
  const left = (one) => one.getBoundingClientRect().left;
  return [...document.querySelectorAll(".table.stack td[data-label] > *")]
    .filter((one) => left(one) < left(one.closest("td")) + 110)
    .map((one) => `${one.closest("td").dataset.label}: ${one.textContent}`);
}"""


def test_on_a_narrow_screen_values_stand_beside_their_labels(
    site: Site, organisation: Organisation, admin_user: User
) -> None:
    scene = elsewhere(lambda: warned(organisation))
    visit = site.visit(admin_user, theme="light", width=320)
    for address, label in (("/idle", "Node"), (f"/workloads/{scene.session.pk}", "Now")):
        visit.go(address)
        assert visit.page.locator(f"td[data-label={label}] > *").count()
        assert visit.page.evaluate(BESIDE_NO_LABEL) == []


def test_a_warned_session_is_extended_by_the_keyboard(
    site: Site, organisation: Organisation, admin_user: User
) -> None:
    scene = elsewhere(lambda: warned(organisation))
    visit = site.visit(organisation.vera, theme="light")
    visit.go("/sessions")
    visit.page.locator("[data-idle-ending] button").nth(1).focus()
    visit.page.keyboard.press("Enter")
    visit.page.locator(".messages").wait_for(timeout=LOOK_MS)
    assert visit.page.locator("[data-idle-ending], [data-limit-ending]").count() == 0
    visit.go(f"/workloads/{scene.session.pk}")
    assert visit.page.locator("[data-kept-until]").count() == 1
    assert visit.said == []
