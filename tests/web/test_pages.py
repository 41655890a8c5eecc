"""Pages: who may open them, what they say, and that ten times the rows cost the same queries."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import OperationalError, connection
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.translation import override

from projects.models import User
from scheduling.models import CycleRecord, Phase, Workload, Zone
from scheduling.views.errors import server_error
from tests.factories import submitted, training_spec
from tests.web.scene import Scene, make_scene

# The same in every process: pytest-xdist compares the names of tests.
NOBODYS = uuid.UUID(int=1)

pytestmark = pytest.mark.django_db

LISTS = ("/", "/sessions", "/workloads", "/queue", "/nodes", "/projects", "/idle")
PAGES = (*LISTS, "/preferences", "/live", "/analytics", "/cost")
ADMIN_PAGES = ("/cycles",)
HTMX = {"HX-Request": "true"}


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def browser(user: User | None, language: str = "en") -> Client:
    client = Client(headers={"Accept-Language": language})
    if user is not None:
        client.force_login(user)
    return client


def text_of(response: Any) -> str:  # what the test client returns has a private type
    return str(response.content.decode())


def workload_pages(scene: Scene) -> list[str]:
    return [f"/workloads/{item.pk}" for item in (scene.session, scene.borrower, scene.failed)]


# ---------------------------------------------------------------- access


@pytest.mark.parametrize("path", [*PAGES, *ADMIN_PAGES, f"/workloads/{NOBODYS}", "/nodes/x"])
def test_nobody_sees_a_page_without_logging_in(path: str) -> None:
    response = browser(None).get(path)
    assert response.status_code == 302
    assert response["Location"].startswith("/accounts/login/")


@pytest.mark.parametrize("language", ["en", "ru"])
@pytest.mark.parametrize("who", ["admin", "vera", "stranger"])
def test_every_page_opens_for_everybody_in_both_languages(
    scene: Scene, who: str, language: str
) -> None:
    client = browser(User.objects.get(username=who), language)
    for path in (*PAGES, "/nodes/sim-t4-1"):
        response = client.get(path)
        assert response.status_code == 200, path
        assert f'<html lang="{language}">' in text_of(response), path


def test_a_strangers_pages_name_nobodys_work(scene: Scene) -> None:
    client = browser(scene.stranger)
    strangers = ("/", "/workloads", "/queue", "/nodes/sim-t4-1", "/projects")
    for path in (*strangers, "/live", "/idle"):
        page = text_of(client.get(path))
        for name in ("explore", "borrower", "too-much", "Vision", "vision,", "lena"):
            assert name not in page, (path, name)
    for path in workload_pages(scene):
        assert client.get(path).status_code == 403
        assert client.get(path + "/stop").status_code == 403
        assert client.get(path + "/series?metric=cpu_cores").status_code == 403
        assert client.post(path + "/stop").status_code == 403
    assert client.get("/projects/vision").status_code == 403


def test_only_admins_see_the_planner(scene: Scene) -> None:
    cycle = CycleRecord.objects.first()
    assert cycle is not None
    paths = ("/cycles", f"/cycles/{cycle.pk}", f"/cycles/{cycle.pk}/scenario.json")
    for path in paths:
        assert browser(scene.admin).get(path).status_code == 200
        assert browser(scene.organisation.vera).get(path).status_code == 403
    page = text_of(browser(scene.admin).get(paths[1]))
    assert "<td>Vision</td><td><code>gpu:t4</code>" in page
    scenario = browser(scene.admin).get(paths[2])
    assert scenario.json()["format"] == "scenario/1"
    assert "attachment" in scenario["Content-Disposition"]


def test_a_member_of_the_project_sees_a_colleagues_work_and_may_not_stop_it(scene: Scene) -> None:
    colleague = User.objects.create_user("colleague")
    scene.organisation.vision.memberships.create(user=colleague)
    client = browser(colleague)
    page = text_of(client.get(f"/workloads/{scene.session.pk}"))
    assert "explore" in page
    assert "Connect" not in page
    assert "Cost so far" not in page
    assert client.post(f"/workloads/{scene.session.pk}/stop").status_code == 403
    scene.session.refresh_from_db()
    assert scene.session.phase == Phase.RUNNING


def test_a_page_that_does_not_exist_says_so_in_words() -> None:
    response = browser(None, "ru").get("/no-such-page")
    assert response.status_code == 404
    assert "Allot" in text_of(response)


@pytest.mark.parametrize(
    "path", ["/workloads/not-a-uuid", "/cycles/99999999999999999999", "/nodes/x"]
)
def test_addresses_of_nothing_are_not_found(scene: Scene, path: str) -> None:
    assert browser(scene.admin).get(path).status_code == 404


@pytest.mark.parametrize("path", ["/workloads?project=%00", "/nodes/%00"])
def test_a_nul_in_an_address_is_refused_in_words(scene: Scene, path: str) -> None:
    response = browser(scene.admin).get(path)
    assert response.status_code == 400
    assert "Bad request" in text_of(response)


# ---------------------------------------------------------------- what pages say


def test_an_empty_system_says_what_will_appear_where() -> None:
    admin = User.objects.create_superuser("admin")
    client = browser(admin)
    for path in (*PAGES, *ADMIN_PAGES):
        assert client.get(path).status_code == 200, path
    assert "No node yet" in text_of(client.get("/nodes"))
    assert "Nobody waits" in text_of(client.get("/queue"))
    assert "No session yet" not in text_of(client.get("/sessions"))
    assert "You may not start sessions" in text_of(client.get("/sessions"))


def test_connect_is_offered_to_the_owner_when_the_session_answers(scene: Scene) -> None:
    client = browser(scene.organisation.vera)
    link = f'href="/s/{scene.session.pk}/lab"'
    assert link in text_of(client.get("/sessions"))
    assert link in text_of(client.get(f"/workloads/{scene.session.pk}"))
    assert link not in text_of(browser(scene.admin).get(f"/workloads/{scene.session.pk}"))
    attempt = scene.session.current
    assert attempt is not None
    attempt.is_ready = False
    attempt.save()
    assert link not in text_of(client.get("/sessions"))


def test_whoever_is_displaced_sees_which_project_gained_and_how_old_the_checkpoint_was(
    scene: Scene,
) -> None:
    page = text_of(browser(scene.organisation.lena).get(f"/workloads/{scene.borrower.pk}"))
    assert "Project Speech gained" in page
    assert "last checkpoint 12" in page.replace("\N{NO-BREAK SPACE}", " ")
    assert "step 120" in page
    assert 'data-cause="reclaimed"' in page
    assert "still waits" in page


def test_a_session_beyond_quota_shows_numbers_and_offers_as_links(scene: Scene) -> None:
    page = text_of(browser(scene.organisation.vera).get(f"/workloads/{scene.refused.pk}"))
    assert 'data-reason="interactive_over_quota"' in page
    assert "Vision, T4: 1.333 GPU of 1.5 GPU of quota in use, 0.6 GPU asked" in page
    assert f"/sessions/new?clone={scene.refused.pk}&amp;" in page
    assert "/workloads?state=active&amp;owner=me&amp;project=vision" in page


def test_a_failed_training_shows_its_exit_code_and_last_lines(scene: Scene) -> None:
    page = text_of(browser(scene.organisation.lena).get(f"/workloads/{scene.failed.pk}"))
    assert "exit code 3" in page
    assert "no such file" in page
    assert "Start again" in page


def test_filters_narrow_the_list(scene: Scene) -> None:
    client = browser(scene.admin)

    def names(query: str) -> set[str]:
        page = text_of(client.get(f"/workloads?{query}"))
        known = {row.name for row in Workload.objects.all()}
        return {name for name in known if f">{name}</a>" in page}

    assert names("search=explo") == {"explore"}
    assert names("state=failed") == {"broken"}
    assert names("kind=interactive") == {"explore", "too-much", "second"}
    assert names("project=language") == {"broken", "borrower"}
    assert names("owner=me") == set()
    assert "explore" in names("after=nonsense")
    assert "Nothing matches" in text_of(client.get("/workloads?search=%00\N{SNOWMAN}"))


def test_the_list_is_walked_without_gaps_or_repeats(scene: Scene) -> None:
    add_workloads(scene, 120)
    client = browser(scene.admin)
    seen: list[str] = []
    address = "/workloads"
    while address:
        page = client.get(address)
        seen += [str(row.workload.pk) for row in page.context["rows"]]
        address = "/workloads" + page.context["next"] if page.context["next"] else ""
    assert len(seen) == len(set(seen)) == Workload.objects.count()


def test_others_projects_are_one_sum(scene: Scene) -> None:
    page = text_of(browser(scene.organisation.vera).get("/projects"))
    assert "2 other projects" in page
    assert "Speech" not in page


# ---------------------------------------------------------------- actions


def test_stopping_names_the_loss_first_and_getting_changes_nothing(scene: Scene) -> None:
    client = browser(scene.organisation.vera)
    page = text_of(client.get(f"/workloads/{scene.session.pk}/stop"))
    assert "Variables of its kernels" in page
    scene.session.refresh_from_db()
    assert scene.session.phase == Phase.RUNNING
    response = client.post(f"/workloads/{scene.session.pk}/stop", {"next": "/sessions"})
    assert response["Location"] == "/sessions"
    scene.session.refresh_from_db()
    assert scene.session.phase == Phase.STOPPING


def test_what_is_refused_is_said_and_changes_nothing(scene: Scene) -> None:
    client = browser(scene.organisation.lena)
    response = client.post(f"/workloads/{scene.borrower.pk}/checkpoint", follow=True)
    assert "Only a running training can save" in text_of(response)
    response = client.post(f"/workloads/{scene.borrower.pk}/retry", follow=True)
    assert "Only an ended workload" in text_of(response)


def test_an_ended_workload_starts_again(scene: Scene) -> None:
    client = browser(scene.organisation.lena)
    client.post(f"/workloads/{scene.failed.pk}/retry")
    scene.failed.refresh_from_db()
    assert scene.failed.phase == Phase.QUEUED


def test_nobody_is_sent_to_a_foreign_address(scene: Scene) -> None:
    client = browser(scene.organisation.vera)
    response = client.post("/preferences/theme", {"theme": "dark", "next": "https://evil.example/"})
    assert response["Location"] == "/"
    assert response.cookies["allot_theme"].value == "dark"
    page = client.get(f"/workloads/{scene.session.pk}/stop?next=javascript:alert(1)")
    assert 'href="javascript:' not in text_of(page)


def test_times_are_shown_in_the_readers_zone(scene: Scene) -> None:
    vera = scene.organisation.vera
    client = browser(vera)
    assert client.post("/preferences", {"time_zone": "Mars/Olympus"}).status_code == 422
    client.post("/preferences", {"time_zone": "Asia/Vladivostok"})
    vera.refresh_from_db()
    assert vera.time_zone == "Asia/Vladivostok"
    at = Workload.objects.get(pk=scene.session.pk).phase_changed_at
    shown = timezone.localtime(at, ZoneInfo("Asia/Vladivostok"))
    assert f"{shown:%H:%M:%S}" in text_of(client.get(f"/workloads/{scene.session.pk}"))


# ---------------------------------------------------------------- fragments and their price


@pytest.mark.parametrize("path", LISTS)
def test_htmx_gets_the_content_alone(scene: Scene, path: str) -> None:
    client = browser(scene.admin)
    fragment = client.get(path, headers=HTMX)
    assert "<html" not in text_of(fragment)
    assert 'id="live"' in text_of(fragment)
    assert "HX-Request" in fragment["Vary"]
    assert "HX-Request" in client.get(path)["Vary"]


@pytest.mark.parametrize("path", ["/", "/sessions", "/workloads", "/queue", "/nodes", "/projects"])
def test_three_hundred_rows_cost_the_queries_of_three(scene: Scene, path: str) -> None:
    client = browser(scene.organisation.lena)
    add_workloads(scene, 3)
    few = num_queries(client, path)
    add_workloads(scene, 300)
    assert num_queries(client, path) == few


def num_queries(client: Client, path: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path).status_code == 200
    return len(captured)


def add_workloads(scene: Scene, count: int) -> None:
    """Waiting, ended and failed ones of language, without planning."""
    model = submitted(
        training_spec(scene.organisation.language, name=f"model-{uuid.uuid4().hex[:8]}"),
        scene.organisation.lena,
    )
    phases = [Phase.QUEUED, Phase.COMPLETED, Phase.FAILED]
    rows: list[Workload] = []
    for number in range(count):
        row = Workload.objects.get(pk=model.pk) if not rows else _copy(rows[0])
        row.pk, row.request_id = uuid.uuid4(), uuid.uuid4()
        row.name = f"n{number}-{uuid.uuid4().hex[:8]}"
        row.phase = phases[number % 3]
        row.submitted_at = timezone.now() - timedelta(seconds=number // 2)
        row.ended_at = None if row.phase == Phase.QUEUED else timezone.now()
        rows.append(row)
    Workload.objects.bulk_create(rows)
    with connection.cursor() as cursor:
        # As autovacuum does within a minute: without it a plan may rest on an empty table.
        cursor.execute("ANALYZE scheduling_workload")


def _copy(row: Workload) -> Workload:
    names = [field.attname for field in Workload._meta.concrete_fields]
    return Workload(**{name: getattr(row, name) for name in names})


def test_a_page_of_ten_thousand_is_small(scene: Scene) -> None:
    add_workloads(scene, 10_000)
    response = browser(scene.admin).get("/workloads")
    assert len(response.content) < 500_000
    assert len(browser(scene.admin).get("/queue").content) < 500_000


# ---------------------------------------------------------------- when something is away


def test_a_database_that_is_away_is_said_in_words_and_the_page_tries_again() -> None:
    request = RequestFactory().get("/")
    try:
        raise OperationalError("no route to the server named db.internal")
    except OperationalError:
        response = server_error(request)
    assert response.status_code == 503
    assert response["Refresh"] == "5"
    assert "The database is away" in text_of(response)
    assert "db.internal" not in text_of(response)


def test_a_fault_of_ours_names_no_details() -> None:
    try:
        raise RuntimeError("secret detail")
    except RuntimeError:
        response = server_error(RequestFactory().get("/"))
    assert response.status_code == 500
    assert "secret detail" not in text_of(response)


def test_a_silent_agent_and_simulated_nodes_are_said_above_each_page(scene: Scene) -> None:
    client = browser(scene.stranger)
    assert "4 nodes are simulated" in text_of(client.get("/"))
    assert "The agent of zone" not in text_of(client.get("/banners"))
    Zone.objects.update(last_report_at=timezone.now() - timedelta(minutes=3))
    assert "last reported 3" in text_of(client.get("/banners"))


@pytest.mark.parametrize("status", [400, 403, 404])
@pytest.mark.parametrize("language", ["en", "ru"])
def test_error_pages_are_complete(status: int, language: str) -> None:
    with override(language):
        page = render_to_string(f"{status}.html", request=RequestFactory().get("/"))
    assert f'<html lang="{language}">' in page
    assert 'href="/"' in page
