"""The chart as a person sees it: a real browser, the strict policy, samples that arrive."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from csp.utils import build_policy
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from telemetry import charts
from telemetry.cost import CostNow
from telemetry.csp import allows_charts
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from tests.telemetry.noon import DAY, NOON

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.e2e, pytest.mark.django_db]

LOOK_MS = 30_000
ARRIVE = """detail => document.dispatchEvent(new CustomEvent("allot:samples", {detail}))"""
LINE = """number => document.querySelector(".chart-plot").data[number].y"""


class Site(SimpleHTTPRequestHandler):
    """Serves one page at `/`, and the repository's static files."""

    page = ""
    policy = ""

    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        body = self.page.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Security-Policy", self.policy)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


def policy_of_chart_pages() -> str:
    """The header that a view with the decorator yields."""

    @allows_charts
    def view(_request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    return build_policy(update=view(HttpRequest())._csp_update)


def page_of(chart: charts.Chart) -> str:
    head = render_to_string("telemetry/_chart_head.html")
    head += render_to_string("telemetry/_cost_head.html")
    body = render_to_string("telemetry/_chart.html", {"chart": chart})
    growing = CostNow("1,234.50 RUB", Decimal("1234.5"), Decimal(36), NOON, "telemetry:workload:w")
    body += render_to_string("telemetry/_running_cost.html", {"cost": growing})
    return (
        f'<!doctype html><html lang="en"><head><title>Chart</title><link rel="icon" href="data:,">'
        f'<link rel="stylesheet" href="/static/css/tokens.css">{head}</head>'
        f"<body>{body}</body></html>"
    )


@pytest.fixture
def page() -> Iterator[Page]:
    """A page with the chart of two devices; fails the test on anything in its console."""
    # Only who runs these tests has a browser's driver.
    from playwright.sync_api import sync_playwright

    silence_s = range(120, 180)
    samples = [
        Sample(f"device:G{n}", NOON.timestamp() - s, {"gpu_util_percent": 10.0 * (n + 1)})
        for s in range(5, 600, 5)
        if s not in silence_s
        for n in range(2)
    ]
    ingest(SampleBatch("z", "n", "b", samples), nodes={"n"}, now=NOON)
    view = charts.View(minutes=10, zone="Asia/Kolkata", clock=lambda: NOON)
    chart = charts.devices_chart({"G0": "GPU 0", "G1": "GPU 1"}, view=view)
    chart.payload["source"] = ""
    site = type("ThisSite", (Site,), {"page": page_of(chart), "policy": policy_of_chart_pages()})
    directory = str(settings.STATICFILES_DIRS[0].parent)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(site, directory=directory))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    said: list[str] = []
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"),
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            page = browser.new_page()
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            # Level lines have no height, so a browser does not call them visible.
            page.wait_for_selector(".scatterlayer .trace path", state="attached", timeout=LOOK_MS)
            yield page
            browser.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert said == []


def test_a_chart_shows_gaps_and_what_arrives(page: Page) -> None:
    values = page.evaluate(LINE, 0)
    assert values.count(None) == 1
    assert set(values) == {10.0, None}

    detail = {"topic": "telemetry:device:G0", "at": NOON.timestamp()}
    page.evaluate(ARRIVE, {**detail, "values": {"gpu_util_percent": 0}})
    page.evaluate(ARRIVE, {**detail, "values": {"gpu_util_percent": 99}})
    later = detail | {"at": (NOON + timedelta(seconds=5)).timestamp()}
    page.evaluate(ARRIVE, {**later, "values": {"gpu_util_percent": None}})
    page.wait_for_function(
        'count => document.querySelector(".chart-plot").data[0].y.length === count',
        arg=len(values) + 2,
        timeout=LOOK_MS,
    )
    # Zero is zero, no data is none, twice is once.
    assert page.evaluate(LINE, 0)[-3:] == [10.0, 0, None]
    assert page.evaluate(LINE, 1)[-1] == 20.0

    page.click("summary")
    rows = page.locator("tbody tr")
    assert rows.nth(0).inner_text().split("\t") == [f"{DAY} 17:30:05", "no data", "no data"]
    assert rows.nth(1).inner_text().split("\t") == [f"{DAY} 17:30:00", "0", "no data"]
    assert rows.nth(2).inner_text().split("\t") == [f"{DAY} 17:29:55", "10", "20"]


def test_a_running_cost_grows_with_each_sample(page: Page) -> None:
    later = (NOON + timedelta(seconds=150)).timestamp()
    page.evaluate(ARRIVE, {"topic": "telemetry:workload:w", "at": later, "values": {}})
    assert page.inner_text(".running-cost") == "1,236.00 RUB"
