"""The page *Why?*: the planner's own numbers, to those who may see them, in both languages."""

from __future__ import annotations

import re
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from projects.models import User
from scheduling import formats
from scheduling.core.cycle import would_start
from scheduling.core.decisions import Start
from scheduling.core.what_if import with_request
from scheduling.cycle import run_cycle
from scheduling.models import Phase, ProjectUsage, Workload
from scheduling.replicas import workload_id
from scheduling.snapshot import take_snapshot
from scheduling.views.why import what_ifs
from tests.factories import (
    FakeAgent,
    make_member,
    make_node_type,
    make_project,
    session_spec,
    simulated_node,
    submitted,
    training_spec,
)
from tests.web.scene import Scene, make_scene
from tests.web.test_pages import browser, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def why(who: User, path: str, language: str = "en") -> str:
    """A page, with the shares that come after it."""
    client = browser(who, language)
    response = client.get(path)
    assert response.status_code == 200, path
    found = text_of(response)
    part = f"{path}/shares"
    if f'hx-get="{part}"' in found:
        response = client.get(part)
        assert response.status_code == 200, part
        found = found.replace("</main>", text_of(response) + "</main>")
    return found


def words(page: str) -> str:
    """Without tags and with plain spaces."""
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", page))


def section(page: str, name: str) -> str:
    """The part of the page about one node type."""
    return page.split(f'data-type="{name}"')[1].split("</section>")[0]


def a_borrower(scene: Scene) -> Workload:
    """Language trains on three T4s, at a quota of one, now that speech is done."""
    for row in Workload.objects.filter(project=scene.speech, current__isnull=False):
        scene.organisation.agent.end(row)
    greedy = submitted(
        training_spec(scene.organisation.language, name="greedy", num_devices=3),
        scene.organisation.lena,
    )
    run_cycle()
    scene.organisation.agent.run(greedy)
    return greedy


def test_shares_are_those_that_the_planner_recorded(scene: Scene) -> None:
    for name in ("vision", "language", "speech"):
        page = section(why(scene.admin, f"/projects/{name}/why"), "t4")
        (row,) = ProjectUsage.objects.filter(project__name=name, resource="gpu:t4")
        told = re.search(rf'data-share="{name}">([^<]*)', page)
        assert told is not None
        guarantee, by_weight, total = re.findall(r"[\d.]+", told[1])
        assert total == formats.gpus(row.fair_share)
        assert guarantee == formats.gpus(min(row.quota or 0, row.requested))
        assert float(guarantee) + float(by_weight) == pytest.approx(float(total))


def test_six_and_ten_are_sixteen() -> None:
    """Quota 6, weight 3 of 6, 20 left over: as drawn, and in words."""
    make_node_type("t4", gpus=26)
    FakeAgent(nodes=[simulated_node("big", gpus=26)]).report()
    vision = make_project("vision", t4=6000)
    vision.gpu_quotas.update(weight=3)
    language, speech = make_project("language", t4=0), make_project("speech", t4=0)
    language.gpu_quotas.update(weight=2)
    speech.gpu_quotas.update(weight=1)
    for project in (vision, language, speech):
        submitted(training_spec(project, num_devices=26), make_member(project))
    run_cycle()
    page = words(why(User.objects.create_superuser("admin"), "/projects/vision/why"))
    assert "6 + 10 = 16 GPU" in page
    assert (
        "Left when everybody has what is guaranteed to them: 20 GPU; its weight is 3 of 6" in page
    )
    usage = ProjectUsage.objects.get(project=vision, resource="gpu:t4")
    assert usage.fair_share == 16000


def test_who_borrows_and_who_gives_way_next(scene: Scene) -> None:
    borrower = a_borrower(scene)
    page = section(why(scene.admin, "/projects/vision/why"), "t4")
    holders, *losers = page.split("data-loser")
    usage = ProjectUsage.objects.get(project__name="language", resource="gpu:t4")
    assert usage.allocated == 3000
    assert holders.count("data-holder") == 1
    assert "Language" in holders
    assert "2 GPU borrowed in all" in words(holders)
    assert len(losers) == 1
    assert borrower.name in losers[0]
    # As foretold: claims inside quota stop exactly this one.
    for _ in range(4):
        submitted(training_spec(scene.speech), User.objects.get(username="sergey"))
    run_cycle()
    borrower.refresh_from_db()
    assert borrower.phase == Phase.CHECKPOINTING


@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        ("en", "it holds 3 GPU and asks for 3 GPU; 1 of 3 replicas could be placed now"),
        ("ru", "сейчас можно разместить реплик: 1 из 3"),
    ],
)
def test_a_gang_beyond_its_share_says_how_much_of_it_fits(language: str, sentence: str) -> None:
    make_node_type("t4", gpus=4)
    agent = FakeAgent(nodes=[simulated_node("one", gpus=4)])
    agent.report()
    vision = make_project("vision", t4=4000)
    vera = make_member(vision)
    runs = submitted(training_spec(vision, num_devices=3), vera)
    run_cycle()
    agent.run(runs)
    waits = submitted(training_spec(vision, min_replicas=3, max_replicas=3), vera)
    run_cycle()
    waits.refresh_from_db()
    assert waits.reason["code"] == "over_share"
    assert waits.reason["message"].endswith("1 of 3 replicas could be placed now.")
    for path in (f"/workloads/{waits.pk}", f"/workloads/{waits.pk}/why"):
        assert sentence in words(why(vera, path, language))


def test_names_of_others_stay_hidden(scene: Scene) -> None:
    borrower = a_borrower(scene)
    page = why(scene.organisation.vera, "/projects/vision/why").split("<main")[1]
    assert page.count("another project") >= 2
    for name in (borrower.name, "Language", "language", "lena", "Speech"):
        assert name not in page, name
    own = why(scene.organisation.lena, "/projects/language/why")
    assert borrower.name in own


def test_who_may_not_see_a_workload_or_project_may_not_ask_why(scene: Scene) -> None:
    own = f"/workloads/{scene.session.pk}"
    parts = ("why", "why/shares", "what-if")
    for path in (
        *(f"{own}/{part}" for part in parts),
        "/projects/vision/why",
        "/projects/vision/why/shares",
    ):
        assert browser(scene.stranger).get(path).status_code == 403
        assert browser(scene.organisation.lena).get(path).status_code == 403
        assert browser(scene.organisation.max).get(path).status_code == 200
        assert browser(None).get(path).status_code == 302
        assert browser(scene.admin).post(path).status_code == 405
    for path in ("/projects/none/why", "/projects/none/why/shares"):
        assert browser(scene.admin).get(path).status_code == 404


@pytest.mark.parametrize("language", ["en", "ru"])
def test_it_opens_for_every_state_in_both_languages(scene: Scene, language: str) -> None:
    subjects = [f"/workloads/{row.pk}" for row in Workload.objects.all()]
    subjects += ["/projects/vision", "/projects/language", "/projects/speech"]
    for path in subjects:
        page = why(scene.admin, f"{path}/why", language)
        assert f'<html lang="{language}">' in page
        assert ("Справедливая доля" in page) == (language == "ru")


def test_the_reason_and_the_project_link_to_it(scene: Scene) -> None:
    vera = scene.organisation.vera
    for row in (scene.session, scene.refused):
        assert f'href="/workloads/{row.pk}/why"' in why(vera, f"/workloads/{row.pk}")
    assert 'href="/projects/vision/why"' in why(vera, "/projects/vision")


def test_what_waits_has_its_numbers_its_place_and_what_would_have_to_happen(scene: Scene) -> None:
    page = words(why(scene.organisation.vera, f"/workloads/{scene.refused.pk}/why"))
    assert "1.333 GPU" in page
    assert "1.5 GPU" in page
    assert "1 of 1 in Vision / T4" in page
    # 1.333 in use + 0.6 asked - 1.5 of quota.
    assert "Vision, T4: 0.433 GPU of what its sessions and other protected work hold" in page


def test_a_smaller_request_is_offered_only_where_the_planner_would_start_it(scene: Scene) -> None:
    """Of vision's quota 0.167 is left: a quarter does not fit."""
    offers = list(what_ifs(take_snapshot(), time.time(), scene.refused, scene.organisation.vera))
    sentences = [offer.sentence for offer in offers]
    assert sentences == ["With 0.167 GPU it would start now", "On V100 it would start now"]
    assert "gpu_milli=167" in offers[0].url
    assert "node_type=v100" in offers[1].url
    page = why(scene.organisation.vera, f"/workloads/{scene.refused.pk}/why")
    part = f"/workloads/{scene.refused.pk}/what-if"
    assert f'hx-get="{part}"' in page
    page = why(scene.organisation.vera, part)
    assert page.count("data-what-if") == 2
    for offer in offers:
        assert offer.url.replace("&", "&amp;") in page


def test_what_is_offered_does_start(scene: Scene) -> None:
    taken, now_s = take_snapshot(), time.time()
    mine = next(w for w in taken.snapshot.workloads if w.id == workload_id(scene.refused))
    for milli, starts in ((125, True), (167, True), (168, False), (250, False)):
        gpu = type(mine.gpu)(1, milli)
        others = tuple(w for w in taken.snapshot.workloads if w.id != mine.id)
        rest = type(taken.snapshot)(taken.snapshot.nodes, taken.snapshot.projects, others)
        answer = would_start(rest, taken.policy, now_s, with_request(mine, gpu))
        assert isinstance(answer, Start) == starts, milli
    spec = session_spec(scene.organisation.vision, gpu_milli=125)
    twin = submitted(spec, scene.organisation.vera)
    run_cycle()
    twin.refresh_from_db()
    assert twin.phase == Phase.STARTING


def test_nothing_is_offered_where_nothing_would_start(scene: Scene) -> None:
    vision, vera = scene.organisation.vision, scene.organisation.vera
    submitted(session_spec(vision, gpu_milli=167), vera)
    whole = session_spec(vision, node_types=("v100",), num_devices=2, gpu_milli=1000)
    submitted(whole, vera)
    run_cycle()
    assert not list(what_ifs(take_snapshot(), time.time(), scene.refused, scene.organisation.vera))
    page = why(scene.organisation.vera, f"/workloads/{scene.refused.pk}/what-if")
    assert "data-what-if" not in page
    assert "data-no-what-if" in page


def test_who_may_only_look_gets_no_link_to_the_form(scene: Scene) -> None:
    offers = list(what_ifs(take_snapshot(), time.time(), scene.refused, scene.admin))
    assert [offer.url for offer in offers] == ["", ""]
    part = why(scene.admin, f"/workloads/{scene.refused.pk}/what-if")
    assert part.count("data-what-if") == 2
    assert "clone=" not in part


def test_work_without_gpus_says_that_none_are_concerned(scene: Scene) -> None:
    spec = training_spec(
        scene.organisation.vision, num_devices=0, gpu_milli=None, node_types=("cpu",)
    )
    row = submitted(spec, scene.organisation.vera)
    run_cycle()
    assert "No GPUs are concerned" in why(scene.organisation.vera, f"/workloads/{row.pk}/why")


def test_more_projects_and_work_cost_no_more_queries(scene: Scene) -> None:
    parts = ("why", "why/shares", "what-if")
    paths = [f"/workloads/{scene.refused.pk}/{part}" for part in parts]
    paths += ["/projects/vision/why", "/projects/vision/why/shares"]
    client = browser(scene.admin)

    def num_queries(path: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(path).status_code == 200
        return len(captured)

    def more(numbers: range) -> None:
        """Further projects, that borrow and wait."""
        for number in numbers:
            project = make_project(f"more-{number}", t4=0)
            submitted(training_spec(project), make_member(project))
        run_cycle()

    more(range(2))
    before = [num_queries(path) for path in paths]
    more(range(2, 10))
    assert [num_queries(path) for path in paths] == before
