"""Web is killed under open pages: they go on by themselves, and nothing is amiss in the console."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from scheduling.management.stack import until
from tests.e2e.conftest import People
from tests.e2e.stack import Stack
from tests.e2e.test_story import api_submit, third_of_a_t4, wait_for_phase

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

OPEN = "() => document.querySelector('%s').dataset.state === 'open'"
HELD = "document.querySelector('[data-sum=held]').textContent"
# 0 while no line has a point: a young workload's charts are empty.
NEWEST = """Math.max(0, ...[...document.querySelectorAll('#metrics .chart-plot')].flatMap(plot =>
  plot.data.filter(line => line.x.length).map(line => new Date(line.x.at(-1)).getTime())))"""

# A browser says by itself that nobody answers meanwhile; no script can keep it from that. htmx
# says it of a request that was under way.
AWAY = (
    "WebSocket connection to",
    "Failed to load resource",
    "htmx:afterRequest",
    "htmx:sendError",
)


def listen(page: Page) -> list[str]:
    """What the page's console will say, but for what the browser says of the gap."""
    said: list[str] = []

    def hear(text: str) -> None:
        if not text.startswith(AWAY):
            said.append(text)

    page.on("console", lambda message: hear(message.text))
    page.on("pageerror", lambda error: hear(str(error)))
    return said


def test_open_pages_survive_a_restart_of_web(stack: Stack, person: People) -> None:
    first = api_submit(stack, "vera", **third_of_a_t4("before"))["id"]
    wait_for_phase(stack, first, "running")
    live = person("admin")
    workload = live.context.new_page()
    said = [listen(live), listen(workload)]
    live.goto("/live")
    live.wait_for_function(OPEN % "#squares-state")
    workload.goto(f"/workloads/{first}")
    workload.wait_for_function(OPEN % "[data-live-state]")
    workload.wait_for_selector("#metrics .chart-plot .main-svg", state="attached")
    workload.wait_for_function(f"() => {NEWEST} > 0")
    for page in (live, workload):
        page.evaluate("window.isTheSame = true")
    held, newest = live.evaluate(HELD), workload.evaluate(NEWEST)

    stack.kill("web")
    until(stack.is_ready, "web answers again")

    live.wait_for_function(OPEN % "#squares-state")
    workload.wait_for_function(OPEN % "[data-live-state]")
    second = api_submit(stack, "vera", **third_of_a_t4("after"))["id"]
    wait_for_phase(stack, second, "running")
    live.wait_for_function(f"held => {HELD} !== held", arg=held)
    # By more than the page had before, however long web was away.
    workload.wait_for_function(f"newest => {NEWEST} > newest + 20_000", arg=newest)
    assert live.evaluate("window.isTheSame") is True
    assert workload.evaluate("window.isTheSame") is True
    assert said == [[], []]
