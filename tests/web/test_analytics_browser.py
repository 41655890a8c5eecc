"""Analytics, Cost, Live, Idle now and the node page in a real browser under the strict policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import connection
from django.utils import timezone
from playwright.sync_api import TimeoutError as PageTimeoutError
from psycopg import sql

from scheduling.agent.forward import SERVER_OPTIONS
from scheduling.live import announce, workload_topic
from scheduling.models import Node, Workload
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from telemetry.partitions import MINUTE_TABLES, QUARTER_TABLES
from tests.factories import make_node_type
from tests.scheduling.history import Cluster, held, workload
from tests.web.history_scene import DAY, NEXT, Past, make_past
from tests.web.test_browser import LOOK_MS, OVERFLOW, Site, chromium, elsewhere, site

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]

__all__ = ["SERVER_OPTIONS", "chromium", "site"]

PERIOD = f"from={DAY:%Y-%m-%d}&to={NEXT:%Y-%m-%d}&tz=UTC"
USE = "square => document.querySelector(`[data-gpu$='${square}'] .use`).getAttribute('height')"


@pytest.fixture
def past() -> Iterator[Past]:
    yield make_past()
    # Tables without models are not emptied with the others.
    tables = sql.SQL(", ").join(map(sql.Identifier, MINUTE_TABLES + QUARTER_TABLES))
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL("TRUNCATE {}").format(tables))


def only_node() -> Node:
    return Node.objects.get()


def measure(percent: float) -> None:
    """The first GPU was measured just now."""
    name, now = only_node().name, timezone.now().timestamp()
    samples = [Sample(f"device:GPU-{name}-0", now, {"gpu_util_percent": percent})]
    ingest(SampleBatch("history", name, f"b{now}", samples), nodes={name})


def visible(page: Page) -> list[object]:
    found: list[object] = page.evaluate(
        "[...document.querySelector('.chart-plot').data].map(trace => trace.visible)"
    )
    return found


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("ru", "dark")])
def test_pages_fit_and_the_console_is_silent(
    site: Site, past: Past, width: int, language: str, theme: str
) -> None:
    visit = site.visit(past.admin, width=width, language=language, theme=theme)
    for path in (
        f"/analytics?{PERIOD}",
        f"/analytics?metric=utilisation&{PERIOD}",
        "/analytics?tz=Nowhere",
        f"/cost?{PERIOD}",
        "/live",
        "/idle",
        f"/nodes/{only_node().name}?range=7d",
    ):
        visit.go(path)
        assert visit.page.evaluate(OVERFLOW) <= 0, path
    # A browser says itself that an answer was a refusal.
    assert [text for text in visit.said if "422" not in text] == []


def test_eyes_close_groups_and_the_address_keeps_it(site: Site, past: Past) -> None:
    visit = site.visit(past.admin, theme="light")
    visit.go(f"/analytics?{PERIOD}")
    assert visible(visit.page) == [True, True, True]
    visit.page.click("[data-key=unallocated] .eye")
    assert visible(visit.page) == [True, True, False]
    assert "hide=unallocated" in visit.page.url
    visit.page.reload()
    assert visible(visit.page) == [True, True, False]
    assert visit.said == []


def test_a_group_stands_out_while_its_entry_has_the_focus(site: Site, past: Past) -> None:
    visit = site.visit(past.admin, theme="light")
    visit.go(f"/analytics?{PERIOD}")
    visit.page.focus("[data-key=vision] .eye")
    opacities = "[...document.querySelector('.chart-plot').data].map(trace => trace.opacity)"
    assert sorted(visit.page.evaluate(opacities)) == [0.25, 0.25, 1]


def test_squares_follow_what_is_measured_and_pause(site: Site, past: Past) -> None:
    visit = site.visit(past.admin, theme="light")
    visit.go("/live")
    assert visit.page.evaluate(USE, ".0") == "0.0"
    elsewhere(lambda: measure(50))
    changed = f"square => ({USE})(square) === '11.0'"
    visit.page.wait_for_function(changed, arg=".0", timeout=LOOK_MS)
    visit.page.click("#squares-pause")
    assert visit.page.get_attribute("#squares-pause", "aria-pressed") == "true"
    elsewhere(lambda: measure(100))
    visit.page.click("#squares-pause")
    changed = f"square => ({USE})(square) === '22.0'"
    visit.page.wait_for_function(changed, arg=".0", timeout=LOOK_MS)
    assert visit.said == []


REMEMBER_SOCKETS = """
window.sockets = [];
window.WebSocket = class extends WebSocket {
  constructor(...parts) {
    super(...parts);
    window.sockets.push(this);
  }
};
"""


def test_after_a_dropped_connection_the_page_gets_what_it_missed(site: Site, past: Past) -> None:
    visit = site.visit(past.admin, theme="light")
    visit.page.add_init_script(REMEMBER_SOCKETS)
    visit.go("/live")
    is_open = "state => document.getElementById('squares-state').dataset.state === state"
    visit.page.wait_for_function(is_open, arg="open", timeout=LOOK_MS)
    visit.page.evaluate("window.sockets.at(-1).close()")
    visit.page.wait_for_function(is_open, arg="away", timeout=LOOK_MS)
    elsewhere(lambda: measure(50))
    changed = f"square => ({USE})(square) === '11.0'"
    visit.page.wait_for_function(changed, arg=".0", timeout=LOOK_MS)
    visit.page.wait_for_function(is_open, arg="open", timeout=LOOK_MS)
    assert visit.page.evaluate("window.sockets.length") == 2
    assert visit.said == []


def test_squares_change_as_something_is_held(site: Site, past: Past) -> None:
    visit = site.visit(past.vera, theme="dark")
    visit.go("/live")
    parts = "document.querySelectorAll('[data-gpu] .part').length"
    assert visit.page.evaluate(parts) == 0
    now = timezone.now()
    elsewhere(lambda: held(workload(past.vision, past.vera), only_node(), (now, None), devices=2))
    visit.page.wait_for_function(f"() => {parts} === 2", timeout=LOOK_MS)
    visit.page.click("#squares-table summary")
    visit.page.wait_for_function(
        "() => document.querySelector('[data-row] td:nth-of-type(3)').textContent === '2'",
        timeout=LOOK_MS,
    )


def test_bars_of_a_node_without_gpus_follow_what_is_held_and_used(site: Site, past: Past) -> None:
    def use() -> None:
        held(workload(past.vision, past.vera), host, (timezone.now(), None))
        now = timezone.now().timestamp()
        samples = [Sample(f"node:{host.name}", now, {"cpu_cores": 16.0, "memory_mib": 65_536.0})]
        ingest(SampleBatch("history", host.name, f"b{now}", samples), nodes={host.name})

    host = Cluster(since=timezone.now()).node(make_node_type("cpu", gpus=0), gpus=0)
    visit = site.visit(past.admin, theme="light", width=320)
    visit.go("/live")
    assert visit.page.evaluate(OVERFLOW) <= 0
    figures = "[...document.querySelectorAll('a [data-figure]')].map(one => one.textContent).join()"
    assert visit.page.evaluate(figures) == "0,no data,0,no data"
    elsewhere(use)
    visit.page.wait_for_function(f"() => {figures} === '4,16,8,64'", timeout=LOOK_MS)
    widths = "[...document.querySelectorAll('[data-width]')].map(one => one.getAttribute('width'))"
    assert visit.page.evaluate(widths) == ["12.5%", "50%", "6.25%", "50%"]
    visit.page.click("#squares-table summary")
    row = visit.page.locator("tr[data-host]").inner_text().split()
    assert row[1:] == ["CPU", "4", "/", "32", "16", "8", "/", "128", "GiB", "64"]
    assert visit.said == []


def test_bands_stand_below_the_charts_and_follow_their_range(site: Site, past: Past) -> None:
    node = Cluster(since=timezone.now() - timedelta(hours=5)).node(past.t4)
    since = timezone.now() - timedelta(minutes=10)
    held(workload(past.vision, past.vera, name="shown"), node, (since, None), devices=1)
    visit = site.visit(past.admin, theme="light")
    visit.go(f"/nodes/{node.name}")
    band = "document.querySelector('.bands[data-bands=devices] .part').getBBox()"
    visit.page.wait_for_selector(".bands[data-bands=devices] .part", timeout=LOOK_MS)
    before = visit.page.evaluate(f"({band}).width")
    plot = "document.querySelectorAll('.chart-plot')[1]"
    visit.page.evaluate(
        f"Plotly.relayout({plot}, {{'xaxis.range[0]': {plot}.layout.xaxis.range[0],"
        f" 'xaxis.range[1]': '2100-01-01'}})"
    )
    visit.page.wait_for_function(f"() => ({band}).width < {before} / 2", timeout=LOOK_MS)
    assert visit.said == []


def last_of(chart: str, line: int) -> str:
    """The newest value of a chart's line, as an expression."""
    return f"document.querySelector('#{chart} .chart-plot').data[{line}].y.at(-1)"


def test_use_and_cost_stream_on_the_overview(site: Site, past: Past) -> None:
    # A cluster that has been there for a while; half a GPU of it is held, at its price.
    node = Cluster(since=timezone.now() - timedelta(hours=5)).node(past.t4, gpus=1)
    Node.objects.update(last_report_at=timezone.now())
    since = timezone.now() - timedelta(minutes=10)
    held(workload(past.vision, past.vera), node, (since, None), devices=1, milli=500)
    visit = site.visit(past.admin, theme="light")
    visit.go("/")
    visit.page.wait_for_function(
        f"() => {last_of('chart-cluster', 0)} === 0.5 && {last_of('chart-cluster-cost', 0)} > 0",
        timeout=LOOK_MS,
    )
    count = "document.querySelector('#chart-cluster-cost .chart-plot').data[0].y.length"
    before = visit.page.evaluate(count)
    name, now = node.name, timezone.now().timestamp()
    samples = [Sample(f"device:GPU-{name}-0", now, {"gpu_util_percent": 30.0})]
    elsewhere(lambda: ingest(SampleBatch("history", name, "b", samples), nodes={name}))
    visit.page.wait_for_function(
        f"() => {last_of('chart-cluster', 1)} === 0.3 && {count} > {before}", timeout=LOOK_MS
    )
    assert visit.said == []


def test_a_workloads_first_charts_come_without_a_reload(site: Site, past: Past) -> None:
    row = workload(past.vision, past.vera, phase="starting", num_devices=1, gpu_milli=1000)
    visit = site.visit(past.vera, theme="light")
    visit.go(f"/workloads/{row.pk}")
    assert visit.page.locator("#metrics .chart-plot").count() == 0

    def start() -> None:
        attempt = held(row, only_node(), (timezone.now(), None), devices=1)
        Workload.objects.filter(pk=row.pk).update(
            current=attempt, node=only_node(), node_type=past.t4, phase="running"
        )
        announce(workload_topic(row.pk))

    elsewhere(start)
    visit.page.wait_for_selector("#metrics .chart-plot .main-svg", timeout=LOOK_MS)

    def sample(number: int) -> None:
        at = timezone.now().timestamp()
        samples = [Sample(f"workload:{row.pk}", at, {"cpu_cores": 0.5})]
        batch = SampleBatch("history", only_node().name, f"w{number}", samples)
        elsewhere(lambda: ingest(batch, nodes={only_node().name}))

    drawn = "[...document.querySelectorAll('#metrics .chart-plot')].map(p => p.data[0].y.at(-1))"
    # As an agent does, again and again: the page subscribes a moment after its charts are there.
    for number in range(LOOK_MS // 1000):
        sample(number)
        with suppress(PageTimeoutError):
            visit.page.wait_for_function(f"() => {drawn}.includes(0.5)", timeout=1000)
            break
    else:
        pytest.fail("the chart does not show what was measured")
    assert visit.page.locator("#metrics #chart-cost").count() == 1
    assert visit.said == []
