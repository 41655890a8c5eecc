"""What a running Allot says to Prometheus, against everything that the dashboards ask for."""

from __future__ import annotations

import re

import pytest

from scheduling.management.stack import until
from tests.e2e.stack import Stack
from tests.e2e.test_story import api_submit, training, wait_for_phase
from tests.scheduling.test_grafana import needs, queries

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

SERIES = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? \S+$")
LABEL = re.compile(r'(\w+)="(?:\\.|[^"\\])*"')

NOT_ON_SIMULATED_DEVICES = {
    "DCGM_FI_DEV_GPU_TEMP": "nothing there has a temperature",
    "DCGM_FI_DEV_POWER_USAGE": "nothing there draws power of its own",
    "DCGM_FI_DEV_XID_ERRORS": "only a driver tells of errors",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "only a driver counts errors of its memory",
}
"""The device is declared and its use is that of real processes; what only hardware can say has no
series, and the dashboard's panels of it stay empty.
"""


def scrape(stack: Stack) -> dict[str, set[str]]:
    """Labels by the name of each series."""
    with stack.client("admin") as client:
        text = client.get("/metrics").raise_for_status().text
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if match := SERIES.match(line):
            found.setdefault(match[1], set()).update(LABEL.findall(match[2] or ""))
    return found


def test_dashboards_ask_for_what_there_is(stack: Stack) -> None:
    # Somebody borrows, is displaced and saves, so that every counter has something to count.
    steps = "--steps 5000 --step-delay 0.05"
    for number in range(2):
        borrower = training("language", f"borrower-{number}", steps, gpus=4)
        wait_for_phase(stack, api_submit(stack, "lena", **borrower)["id"], "running")
    claimant = api_submit(stack, "sergey", **training("speech", "claimant", steps))["id"]
    wait_for_phase(stack, claimant, "running")
    asked = [needs(query) for query in queries()]
    wanted = {name for one in asked for name in one} - NOT_ON_SIMULATED_DEVICES.keys()
    assert len(wanted) > 12
    # Sums are up to three minutes old.
    until(lambda: wanted <= scrape(stack).keys(), "every series is there", 240, 2)
    there = scrape(stack)
    for one in asked:
        for name, labels in one.items():
            if name in wanted:
                assert labels <= there[name], name
    # What is listed is truly absent, and truly asked for.
    assert not NOT_ON_SIMULATED_DEVICES.keys() & there.keys()
    assert NOT_ON_SIMULATED_DEVICES.keys() <= {name for one in asked for name in one}
