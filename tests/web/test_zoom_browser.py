"""Every chart zooms and moves without dragging, by real keys; its table has what it draws."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from tests.web.history_scene import Past
from tests.web.test_accessibility import DRAWN, hindrances, running
from tests.web.test_analytics_browser import PERIOD, past
from tests.web.test_browser import LOOK_MS, OVERFLOW, Site, chromium, site

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]

__all__ = ["chromium", "past", "site"]

RANGES = "[...document.querySelectorAll('.chart-plot')].map(p => [...p.layout.xaxis.range])"
FOCUSED = "document.activeElement.dataset.zoom || ''"
CHANGED = f"before => JSON.stringify({RANGES}) !== JSON.stringify(before)"
NOTHING = ("no data", "—", "")


def addresses(past: Past) -> list[str]:
    """Each page with charts, over something to show."""
    node, work = running(past)
    analyses = [
        f"/analytics?{PERIOD}",
        f"/analytics?metric=utilisation&{PERIOD}",
        f"/cost?{PERIOD}",
    ]
    return [*analyses, f"/nodes/{node.name}", f"/workloads/{work.pk}", "/"]


def drawn(page: Page) -> None:
    page.wait_for_function(DRAWN, timeout=LOOK_MS)
    assert page.evaluate("document.querySelectorAll('.chart-plot').length") > 0


def press(page: Page, action: str, key: str = "Tab") -> None:
    """Go on to the next button of that name and press it."""
    for _ in range(200):
        page.keyboard.press(key)
        if page.evaluate(FOCUSED) == action:
            break
    before = page.evaluate(RANGES)
    page.keyboard.press("Enter")
    page.wait_for_function(CHANGED, arg=before, timeout=LOOK_MS)


def pressed(page: Page, action: str, key: str = "Tab") -> list[float]:
    """Press it.

    Returns:
        First and last moment that the page's charts, which follow each other, show then; seconds.
    """
    press(page, action, key)
    page.wait_for_function(
        f"() => new Set({RANGES}.map(([from]) => from.slice(0, 19).replace(' ', 'T'))).size === 1",
        timeout=LOOK_MS,
    )
    first: list[str] = page.evaluate(RANGES)[0]
    # On the wall of the chart's zone, whichever that is.
    return [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in first]


def test_keys_zoom_and_move_every_chart(site: Site, past: Past) -> None:
    visit = site.visit(past.admin, theme="light")
    for address in addresses(past):
        visit.go(address)
        drawn(visit.page)
        charts = visit.page.locator(".chart-plot").count()
        assert visit.page.locator(".zoom:visible").count() == charts, address
        near = pressed(visit.page, "in")
        later = pressed(visit.page, "later")
        assert near[0] < later[0] < near[1] < later[1], address
        earlier = pressed(visit.page, "earlier", "Shift+Tab")
        assert earlier[0] < later[0], address
        far = pressed(visit.page, "out")
        width = near[1] - near[0]
        assert far[1] - far[0] == pytest.approx(2 * width, rel=0.02), address
        press(visit.page, "in", "Shift+Tab")
        whole = pressed(visit.page, "whole")
        assert whole[1] - whole[0] == pytest.approx(2 * width, rel=0.02), address
    assert visit.said == []


ARRIVE = """([name, at]) => document.dispatchEvent(new CustomEvent("allot:samples", {detail: {
    topic: `telemetry:node:${name}`, at, values: {cpu_cores: 7}}}))"""


def test_a_zoomed_chart_stays_where_it_is_and_goes_on_when_whole(site: Site, past: Past) -> None:
    visit = site.visit(past.admin, theme="light")
    page, now = visit.page, timezone.now().timestamp()
    node, _ = running(past)
    visit.go(f"/nodes/{node.name}")
    drawn(page)
    press(page, "in")
    near = page.evaluate(RANGES)
    page.evaluate(ARRIVE, [node.name, now + 60])
    newest = "[...document.querySelectorAll('.chart-plot')].some(p => p.data[0].y.at(-1) === 7)"
    page.wait_for_function(newest, timeout=LOOK_MS)
    assert page.evaluate(RANGES) == near
    press(page, "whole")
    whole = page.evaluate(RANGES)
    page.evaluate(ARRIVE, [node.name, now + 600])
    page.wait_for_function(CHANGED, arg=whole, timeout=LOOK_MS)
    assert max(last for _, last in page.evaluate(RANGES)) > max(last for _, last in whole)


OPENED = """async () => {
  const figures = [...document.querySelectorAll("figure.chart")];
  for (const figure of figures) figure.querySelector("details").open = true;
  await new Promise(resolve => setTimeout(resolve, 500));
  const texts = row => [...row.cells].map(cell => cell.textContent.trim());
  // At once: samples may arrive.
  return figures.flatMap(figure => {
    const [head, ...rows] = [...figure.querySelectorAll(".chart-table tr")].map(texts);
    return figure.querySelector(".chart-plot").data.map(({ name, x, y }) => {
      const isIts = (text, at) => at && (text === name || text.startsWith(`${name}, `));
      const place = head.findIndex(isIts);
      // What is sent while the page is made may fall into a second that it has; a row is a second.
      const seconds = x.map((at, i) => [typeof at === "string" ? at.slice(0, 19) : at, y[i]]);
      return [name, [...new Map(seconds).values()], rows.map(row => row[place])];
    });
  });
}"""


def differing(page: Page) -> list[str]:
    """Lines whose table has other figures than are drawn."""
    found = []
    for name, values, cells in page.evaluate(OPENED):
        known = [value for value in values if value is not None]
        texts = [cell.split("\u00a0")[0].replace(",", "") for cell in cells]
        shown = [float(text) for text in texts if text not in NOTHING]
        # As they are rounded for reading, newest first or last.
        if len(shown) != len(known) or sorted(shown) != pytest.approx(
            sorted(known), rel=2e-3, abs=6e-3
        ):
            found.append(name)
    return found


def test_a_table_has_what_its_chart_draws(site: Site, past: Past) -> None:
    visit = site.visit(past.admin, theme="light")
    for address in addresses(past):
        visit.go(address)
        drawn(visit.page)
        # Charts that stream may have taken a sample in that the table gets with the next drawing.
        for _ in range(5):
            if not (found := differing(visit.page)):
                break
        assert found == [], address


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_with_charts_fit_a_narrow_screen(site: Site, past: Past, theme: str) -> None:
    visit = site.visit(past.admin, width=320, language="ru", theme=theme)
    for address in addresses(past):
        visit.go(address)
        assert hindrances(visit.page) == [], address
        assert visit.page.evaluate(OVERFLOW) <= 0, address
    assert visit.said == []
