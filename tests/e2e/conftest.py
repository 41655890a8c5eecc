"""A started stack for all tests of a file, and people in real browsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shutil import which

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from scheduling.management.stack import running
from tests.e2e.stack import Stack

PAGE_LIMIT_MS = 45_000


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(Stack) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = which("chromium")
    assert path, "chromium is missing: apt-get install --no-install-recommends chromium"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield launched
        launched.close()


People = Callable[[str], Page]


@pytest.fixture(scope="module")
def person(browser: Browser, stack: Stack) -> Iterator[People]:
    """Logs a person in, in a browser context of their own, and gives the page; once per person."""
    contexts: dict[str, BrowserContext] = {}

    def log_in(login: str) -> Page:
        if login in contexts:
            return contexts[login].pages[0]
        context = browser.new_context(base_url=stack.url, locale="en-GB")
        context.set_default_timeout(PAGE_LIMIT_MS)
        contexts[login] = context
        page = context.new_page()
        page.goto("/")
        page.get_by_label("User name").fill(login)
        page.get_by_label("Password").fill(stack.password(login))
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(lambda url: "login" not in url)
        return page

    yield log_in
    for context in contexts.values():
        context.close()
