"""Pages in a real browser under the strict policy.

Nothing in the console, nothing cut off at 320 px, changes without reload, a dialog that names the
loss, colours and language that switch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pytest
from django.conf import settings
from django.db import connections
from django.test import Client

from config.asgi import application
from projects.models import User
from scheduling import services
from scheduling.agent.forward import SERVER_OPTIONS
from tests.serving import served
from tests.web.scene import Scene, make_scene

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]

LOOK_MS = 30_000

T = TypeVar("T")
ANSWERED = "() => !document.querySelector('[aria-busy=true]')"
"""Whatever comes after the page is there."""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LISTS = ("/", "/sessions", "/workloads", "/queue", "/nodes", "/projects", "/preferences")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    # Only who runs these tests has a browser's driver.
    from playwright.sync_api import sync_playwright

    # Playwright runs an event loop in this thread, in which Django would refuse to ask the
    # database; nothing else runs in it.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@dataclass(slots=True)
class Visit:
    """Somebody's browser; `said` collects what its console says."""

    address: str
    page: Page
    said: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        self.page.goto(self.address + path, timeout=LOOK_MS)


@dataclass(frozen=True, slots=True)
class Site:
    """The web process on a port of its own."""

    chromium: Browser
    port: int

    def visit(self, user: User, *, width: int = 1280, language: str = "en", theme: str) -> Visit:
        client = Client()
        client.force_login(user)
        address = f"http://127.0.0.1:{self.port}"
        context = self.chromium.new_context(
            viewport={"width": width, "height": 800},
            locale=language,
            color_scheme="dark" if theme == "dark" else "light",
        )
        name = settings.SESSION_COOKIE_NAME
        context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": address}])
        visit = Visit(address, context.new_page())
        visit.page.on("console", lambda message: visit.said.append(message.text))
        visit.page.on("pageerror", lambda error: visit.said.append(str(error)))
        return visit


@pytest.fixture
def site(chromium: Browser) -> Iterator[Site]:
    with served(application, **SERVER_OPTIONS) as port:
        yield Site(chromium, port)
        for context in chromium.contexts:
            context.close()


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def elsewhere(act: Callable[[], T]) -> T:
    """Do something in a thread without an event loop, as another process would."""

    def acting() -> T:
        result = act()
        connections.close_all()
        return result

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(acting).result()


def all_pages(scene: Scene) -> list[str]:
    workloads = (scene.session, scene.refused, scene.borrower, scene.failed)
    return [
        *LISTS,
        *(f"/workloads/{item.pk}" for item in workloads),
        f"/workloads/{scene.session.pk}/stop",
        "/nodes/sim-t4-1",
        f"/workloads/{scene.refused.pk}/why",
        "/projects/vision",
        "/projects/vision/why",
        "/sessions/new",
        "/workloads/new",
        "/cycles",
    ]


@pytest.mark.parametrize(
    ("width", "language", "theme"), [(1280, "en", "light"), (320, "ru", "dark")]
)
def test_no_page_complains_or_is_cut_off(
    scene: Scene, site: Site, width: int, language: str, theme: str
) -> None:
    visit = site.visit(scene.admin, width=width, language=language, theme=theme)
    for path in all_pages(scene):
        visit.go(path)
        visit.page.wait_for_selector("h1, dialog h2", timeout=LOOK_MS)
        visit.page.wait_for_function(ANSWERED, timeout=LOOK_MS)
        assert visit.page.evaluate(OVERFLOW) <= 0, path
        assert not visit.said, path


def test_changes_appear_without_reload_and_dialogs_name_the_loss(scene: Scene, site: Site) -> None:
    visit = site.visit(scene.organisation.vera, theme="light")
    visit.go("/sessions")
    card = visit.page.locator("article[data-name=too-much]")
    card.locator("[data-state=queued]").wait_for(timeout=LOOK_MS)
    visit.page.locator("[data-live-state][data-state=open]:visible").wait_for(timeout=LOOK_MS)
    card.get_by_text("Stop", exact=True).click()
    dialog = visit.page.locator("dialog:modal")
    dialog.wait_for(timeout=LOOK_MS)
    assert "nothing is lost but its place in the queue" in dialog.inner_text()
    assert visit.page.evaluate("document.activeElement.textContent") == "Cancel"
    visit.page.keyboard.press("Enter")
    dialog.wait_for(state="hidden", timeout=LOOK_MS)
    # Focus and menu outlive the exchange of the cards.
    visit.page.locator(".sidebar .user-menu summary").click()
    card.get_by_text("Clone", exact=True).focus()
    visit.page.evaluate("window.notReloaded = true")
    elsewhere(lambda: services.stop(scene.refused, actor=scene.organisation.vera))
    card.locator("[data-state=stopped]").wait_for(timeout=LOOK_MS)
    assert visit.page.evaluate("window.notReloaded") is True
    assert visit.said == []


def test_what_changes_before_a_page_listens_is_shown_as_well(scene: Scene, site: Site) -> None:
    """Between the page's making and its subscription nobody is told of anything."""
    visit = site.visit(scene.organisation.vera, theme="light")

    def late(route: Route) -> None:
        elsewhere(lambda: services.stop(scene.refused, actor=scene.organisation.vera))
        route.continue_()

    visit.page.route("**/js/live*.js", late)
    visit.go("/sessions")
    card = visit.page.locator("article[data-name=too-much]")
    card.locator("[data-state=stopped]").wait_for(timeout=LOOK_MS)
    assert visit.said == []


def test_shares_come_after_the_page_and_follow_what_runs(scene: Scene, site: Site) -> None:
    visit = site.visit(scene.admin, theme="light")
    visit.go("/projects/language/why")
    share = visit.page.locator("#shares [data-type=t4] [data-share=language]")
    before = share.inner_text(timeout=LOOK_MS)
    visit.page.locator("[data-live-state][data-state=open]:visible").wait_for(timeout=LOOK_MS)
    visit.page.locator("#shares-t4 summary").click()
    elsewhere(lambda: services.stop(scene.borrower, actor=scene.organisation.lena))
    visit.page.wait_for_function(
        "before => document.querySelector('#shares [data-type=t4] [data-share=language]')"
        "?.innerText !== before",
        arg=before,
        timeout=LOOK_MS,
    )
    assert visit.page.locator("#shares-t4[open]").count() == 1
    assert visit.said == []


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_part_that_never_comes_says_so(scene: Scene, site: Site, is_sent: bool) -> None:
    # Only who runs these tests has a browser's driver.
    from playwright.sync_api import expect

    visit = site.visit(scene.organisation.vera, theme="light")

    def fail(route: Route) -> None:
        if is_sent:
            route.fulfill(status=500, body="It failed.")
        else:
            route.abort()

    for part in ("why/shares", "what-if"):
        visit.page.route(f"**/{part}", fail)
    visit.go(f"/workloads/{scene.refused.pk}/why")
    visit.page.wait_for_function(ANSWERED, timeout=LOOK_MS)
    # When the page begins to listen it asks for what it shows once more, the late parts included.
    expect(visit.page.locator("main").get_by_text("The planner did not answer.")).to_have_count(
        2, timeout=LOOK_MS
    )
    expect(visit.page.get_by_text("Asking the planner")).to_have_count(0, timeout=LOOK_MS)


def test_colours_and_language_switch(scene: Scene, site: Site) -> None:
    visit = site.visit(scene.stranger, theme="light")
    visit.go("/")
    background = "getComputedStyle(document.body).backgroundColor"
    assert visit.page.evaluate(background) == "rgb(255, 255, 255)"
    visit.page.locator(".sidebar .user-menu summary").click()
    visit.page.locator(".sidebar").get_by_role("button", name="Dark").click()
    assert visit.page.evaluate(background) == "rgb(18, 22, 28)"
    visit.page.locator(".sidebar").get_by_role("button", name="Русский").click()
    visit.page.get_by_role("heading", name="Обзор").wait_for(timeout=LOOK_MS)
    assert visit.page.evaluate(background) == "rgb(18, 22, 28)"
    assert visit.said == []
