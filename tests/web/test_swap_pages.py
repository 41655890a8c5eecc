"""What pages and API say of idle and swapped-out sessions, and what can be done there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest
from django.test import Client
from django.utils import timezone, translation

from projects.models import Project, Role, User
from scheduling import relay_client, squares
from scheduling.agent.protocol import LoanState, SwapState
from scheduling.cycle import run_cycle
from scheduling.models import Attempt, Device, DeviceAllocation, Loan, Zone
from scheduling.selectors import on_nodes
from scheduling.services import ActionRefusedError, swap_out, wake
from scheduling.services.idleness import watch_idle
from scheduling.squares import PartState
from scheduling.states import STATES, state_of
from tests.factories import make_member
from tests.lending_scene import GIB, Scene
from tests.lending_scene import scene as scene
from tests.scheduling.conftest import organisation as organisation
from tests.serving import served

pytestmark = pytest.mark.django_db


def client_of(user: User, language: str = "en") -> Client:
    client = Client(headers={"accept-language": language})
    client.force_login(user)
    return client


def page_of(user: User, address: str, language: str = "en") -> str:
    return client_of(user, language).get(address).content.decode()


def swapped_out(scene: Scene) -> Loan:
    loan = scene.lend()
    scene.run_training()
    scene.say(
        loan, LoanState.LENT, swapped_out_bytes=3 * GIB, out_s=0.5, lent_at=time.time() - 1800
    )
    scene.swap_out_session()
    return loan


@pytest.mark.parametrize(
    ("state", "is_idle", "shown"),
    [
        ("running", False, "running"),
        ("running", True, "idle"),
        ("locking", True, "idle"),
        ("swapping_out", True, "idle"),
        ("swapped_out", True, "swapped_out"),
        ("waiting", False, "swapping_in"),
        ("swapping_in", False, "swapping_in"),
    ],
)
def test_one_function_says_the_state(scene: Scene, state: str, is_idle: bool, shown: str) -> None:
    idle_since = timezone.now() if is_idle else None
    Attempt.objects.filter(workload=scene.session).update(swap_state=state, idle_since=idle_since)
    scene.session.refresh_from_db()
    assert state_of(scene.session) == shown
    assert shown in STATES
    api = client_of(scene.organisation.vera).get(f"/api/v1/workloads/{scene.session.pk}").json()
    assert api["state"] == shown
    assert api["phase"] == "running"
    page = page_of(scene.organisation.vera, f"/workloads/{scene.session.pk}")
    assert f'data-state="{shown}"' in page


def test_a_swapped_out_session_says_to_whom_and_offers_to_wake(scene: Scene) -> None:
    swapped_out(scene)
    address = f"/workloads/{scene.session.pk}"
    vera, lena = scene.organisation.vera, scene.organisation.lena
    page = page_of(vera, address)
    assert "Wake now" in page
    assert "Its GPU is lent to a training of another project" in page
    assert scene.training.name not in page
    assert "Swapped out (3" in page
    assert "Вернуть сейчас" in page_of(vera, address, "ru")
    training = page_of(lena, f"/workloads/{scene.training.pk}")
    assert "Uses the GPU of an idle session of another project" in training
    assert scene.session.name not in training
    assert "Wake now" not in training
    admin = User.objects.create_superuser("admin")
    assert f"Its GPU is lent to {scene.training.name} of Language" in page_of(admin, address)
    training = page_of(admin, f"/workloads/{scene.training.pk}")
    assert f"Uses the GPU of {scene.session.name} of Vision" in training


def test_a_session_that_cannot_be_swapped_says_so_beforehand(scene: Scene) -> None:
    Attempt.objects.filter(workload=scene.session).update(swap_obstacle="managed_memory")
    page = page_of(scene.organisation.vera, f"/workloads/{scene.session.pk}")
    assert "Cannot be swapped out while idle: It uses managed GPU memory" in page
    Project.objects.update(lends_idle=False)
    page = page_of(scene.organisation.vera, f"/workloads/{scene.session.pk}")
    assert "Its project does not lend idle GPUs." in page


def test_an_idle_session_says_why_it_lends_nothing(scene: Scene) -> None:
    scene.rest(minutes=1)
    watch_idle(timezone.now())
    run_cycle()
    page = page_of(scene.organisation.vera, f"/workloads/{scene.session.pk}")
    assert "It has not been idle for long enough yet." in page


def test_the_owner_swaps_out_at_once_and_others_only_after_the_window(scene: Scene) -> None:
    vera = scene.organisation.vera
    manager = make_member(scene.organisation.vision, "mila", Role.MANAGER)
    with pytest.raises(ActionRefusedError, match="in use"):
        swap_out(scene.session, actor=vera)
    scene.rest(minutes=0.5)
    watch_idle(timezone.now())
    run_cycle()
    assert not Loan.objects.exists()
    with pytest.raises(ActionRefusedError, match="in use"):
        swap_out(scene.session, actor=manager)
    with pytest.raises(ActionRefusedError, match="may not"):
        swap_out(scene.session, actor=scene.organisation.lena)
    answer = client_of(vera).post(f"/api/v1/workloads/{scene.session.pk}/swap-out")
    assert answer.status_code == 200
    run_cycle()
    assert Loan.objects.get().lender.workload == scene.session


def test_an_obstacle_is_named_when_swapping_out_is_asked(scene: Scene) -> None:
    scene.rest()
    watch_idle(timezone.now())
    Attempt.objects.filter(workload=scene.session).update(swap_obstacle="several_gpus")
    answer = client_of(scene.organisation.vera).post(
        f"/api/v1/workloads/{scene.session.pk}/swap-out"
    )
    assert answer.status_code == 409
    assert answer.json()["code"] == "cannot_be_swapped"
    assert "several GPUs" in answer.json()["detail"]


@pytest.fixture
def relay(scene: Scene) -> Iterator[list[tuple[str, str]]]:
    """Something that listens where the agent's relay would."""
    asked: list[tuple[str, str]] = []

    async def app(scope: dict, receive: object, send: object) -> None:  # type: ignore[type-arg]
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        asked.append((scope["path"], headers.get("authorization", "")))
        await send({"type": "http.response.start", "status": 204, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]

    with served(app, lifespan="off") as port:
        scene.relay_url = f"http://127.0.0.1:{port}"
        yield asked


def test_the_button_asks_the_nodes_agent(scene: Scene, relay: list[tuple[str, str]]) -> None:
    loan = swapped_out(scene)
    Zone.objects.update(relay_url=scene.relay_url)
    client = client_of(scene.organisation.vera)
    assert client.post(f"/workloads/{scene.session.pk}/wake").status_code == 302
    assert relay == [(f"/attempts/{loan.lender_id}/wake", "Bearer relay-secret")]
    assert client_of(scene.organisation.lena).post(
        f"/workloads/{scene.session.pk}/wake"
    ).status_code in (403, 404)


def test_an_agent_that_is_away_is_said(scene: Scene) -> None:
    swapped_out(scene)
    Zone.objects.update(relay_url="http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(ActionRefusedError) as caught:
        wake(scene.session, actor=scene.organisation.vera)
    assert caught.value.code == "agent_away"
    assert "a cell" not in str(caught.value), "it goes through the same agent"
    assert "try again in some seconds" in str(caught.value)
    assert not isinstance(caught.value.__cause__, httpx.HTTPError)
    assert isinstance(caught.value.__cause__, relay_client.AgentAwayError)


def test_a_parked_borrower_is_shown_as_waiting(scene: Scene) -> None:
    loan = swapped_out(scene)
    scene.run_training()
    scene.say(loan, LoanState.ENDED, ended_by="cell", ended_at=time.time())
    scene.use()
    scene.run_training(SwapState.SWAPPED_OUT)
    run_cycle()
    scene.refresh()
    lena, path = scene.organisation.lena, f"/workloads/{scene.training.pk}"
    page = page_of(lena, path)
    assert "its program goes on until it needs the GPU" in page
    assert "1 of 1 in Language" in page
    assert f'data-reason="{scene.training.reason["code"]}"' in page
    why = page_of(lena, f"{path}/why")
    assert "Why it waits" in why
    assert "data-eta" in why
    assert "/what-if" not in why, "nothing else would start it"
    assert scene.training.name in page_of(lena, "/queue")
    assert scene.training.name in page_of(lena, "/workloads?state=waiting")
    assert scene.training.name not in page_of(lena, "/workloads?state=active")
    client = client_of(lena)
    (row,) = client.get("/api/v1/queue").json()["items"]
    assert row["id"] == str(scene.training.pk)
    assert row["state"] == "swapped_out"
    assert row["queue"] == {"position": 1, "of": 1}
    assert row["reason"]["code"] == scene.training.reason["code"] != "lent"
    listed = client.get("/api/v1/workloads?filter=phase:waiting").json()["items"]
    assert [each["id"] for each in listed] == [row["id"]]


def test_waking_what_is_awake_is_harmless(scene: Scene) -> None:
    wake(scene.session, actor=scene.organisation.vera)
    assert not scene.session.events.filter(code="wake_asked").exists()


def test_the_page_of_loans_has_the_figures(scene: Scene) -> None:
    vera, sergey = scene.organisation.vera, scene.organisation.sergey
    assert "Nothing was lent" in page_of(vera, "/swap")
    loan = swapped_out(scene)
    now = time.time()
    scene.say(loan, LoanState.ENDED, ended_by="cell", wake_s=0.84, in_s=0.5, ended_at=now)
    page = page_of(vera, "/swap")
    assert "0.84" in page
    assert "0.50" in page, "half an hour of one GPU"
    Loan.objects.filter(pk=loan.pk).update(lent_at=timezone.now() - timedelta(seconds=60))
    Loan.objects.filter(pk=loan.pk).update(ended_at=timezone.now())
    assert page_of(vera, "/swap").count("0.02") == 2, "the sum has the digits of its rows"
    assert scene.session.name in page
    assert "a cell" in page
    assert "another project" in page, "whose training it was"
    others = page_of(sergey, "/swap?days=1")
    assert scene.session.name not in others
    with translation.override("ru"):
        assert "Одолженные GPU" in page_of(vera, "/swap?days=30", "ru")


@pytest.mark.parametrize("address", ["/", "/projects", "/projects/vision", "/nodes", "{node}"])
def test_bars_draw_what_is_lent_dotted_and_say_it(scene: Scene, address: str) -> None:
    loan = swapped_out(scene)
    vera = scene.organisation.vera
    page = page_of(vera, address.format(node=f"/nodes/{loan.device.node.name}"))
    bars = re.findall(r'<svg role="img" aria-label="([^"]*)".*?</svg>', page)
    drawn = re.findall(r'<svg role="img" aria-label="([^"]*)"(?:(?!</svg>).)*#dots', page)
    assert drawn == [label for label in bars if label.endswith(", 1 lent")]
    assert drawn
    scene.say(loan, LoanState.ENDED, ended_by="cell", ended_at=time.time())
    assert " 1 lent" not in page_of(vera, address.format(node=f"/nodes/{loan.device.node.name}"))


def beside_a_third(scene: Scene) -> Loan:
    """A third of the device is lent to a training of 0.6, which uses free room beside it."""
    loan = swapped_out(scene)
    Loan.objects.update(gpu_milli=333)
    for workload, milli in ((scene.session, 333), (scene.training, 600)):
        DeviceAllocation.objects.filter(allocation__workload=workload).update(gpu_milli=milli)
    Device.objects.filter(pk=loan.device_id).update(allocated_milli=333)
    return loan


def test_room_that_a_borrower_uses_beside_what_is_lent_is_not_free(scene: Scene) -> None:
    loan = beside_a_third(scene)
    vera, address = scene.organisation.vera, f"/nodes/{loan.device.node.name}"
    said = "0.333 held · 0.4 free · 0.333 lent · 0.267 used beside what is lent"
    assert said in page_of(vera, address)
    for page in (page_of(vera, address), page_of(vera, "/nodes"), page_of(vera, "/")):
        label = r'aria-label="[^"]* GPU allocated, 0.333 lent, 0.267 used beside what is lent"'
        (bar,) = re.findall(rf"{label}.*?</svg>", page)
        assert bar.count("#dots") == 2
    with translation.override("ru"):
        assert "0,267 занято сверх одолженного" in page_of(vera, address, "ru")
    # As long as all that was decided together lasts.
    Loan.objects.update(state=LoanState.ENDED, ended_at=timezone.now(), is_wanted=False)
    assert "0.333 held · 0.667 free<" in page_of(vera, address).replace("\n", "")


def test_a_device_that_a_borrower_has_whole_beside_a_loan_is_not_free(scene: Scene) -> None:
    swapped_out(scene)
    part = DeviceAllocation.objects.get(is_lent=True)
    free = Device.objects.filter(node=part.device.node).exclude(pk=part.device_id)[0]
    DeviceAllocation.objects.filter(device=free).update(is_open=False)
    Device.objects.filter(pk=free.pk).update(allocated_milli=0)
    there = on_nodes()[free.node_id]
    assert (there.num_free, there.beside_milli) == (1, 0)
    part.pk = None
    part.device = free
    part.save()
    there = on_nodes()[free.node_id]
    assert (there.num_free, there.beside_milli) == (0, 1000)


def test_live_draws_what_is_lent_once_and_dotted(scene: Scene) -> None:
    loan = beside_a_third(scene)
    page = page_of(scene.organisation.vera, "/live")
    found = json.loads(re.findall(r'id="squares-data"[^>]*>(.*?)</script>', page)[0])
    vision = scene.organisation.vision.pk
    parts = found["parts"][f"{loan.device.node_id}.{loan.device.index}"]
    assert parts == [[vision, 333, PartState.LENT], [0, 267, PartState.BESIDE]]
    totals = squares.picture(timezone.now(), frozenset()).totals
    assert (totals.held, totals.lent, totals.beside) == (3333, 333, 267)
    (bar,) = re.findall(r'id="cluster-bar">(.*?)</svg>', page)
    assert "3.333 of 8 GPU allocated, 0.333 lent, 0.267 used beside what is lent" in bar
    assert bar.count("#dots") == 2
    # What another's training uses is not idle, however quiet its owner is.
    lender = DeviceAllocation.objects.get(allocation__workload=scene.session).allocation_id
    assert squares.picture(timezone.now(), frozenset({lender})).totals.idle == 0


def test_prometheus_has_swap(scene: Scene) -> None:
    from scheduling.prometheus import organisation as families

    loan = swapped_out(scene)
    scene.say(loan, LoanState.ENDED, ended_by="cell", wake_s=0.84, ended_at=time.time())
    found = {family.name: family for family in families.families(timezone.now())}
    assert found["allot_swap_out_total"].series[0][1:] == ({"node_type": "t4"}, 1)
    assert found["allot_swap_loans_ended_total"].series == [("", {"ended_by": "cell"}, 1)]
    buckets = {
        labels.get("le"): value
        for suffix, labels, value in found["allot_swap_in_seconds"].series
        if suffix == "_bucket"
    }
    assert (buckets["0.5"], buckets["1"], buckets["+Inf"]) == (0, 1, 1)
    (lent_s,) = [series[2] for series in found["allot_swap_lent_gpu_seconds_total"].series]
    assert lent_s == pytest.approx(1800, abs=5)


def test_the_idle_page_says_what_becomes_of_the_gpu(scene: Scene) -> None:
    from scheduling.templatetags.allot import lending

    scene.rest(minutes=1)
    watch_idle(timezone.now() - timedelta(seconds=1))
    run_cycle()
    scene.session.refresh_from_db()
    assert "not been idle for long enough" in str(lending(scene.session))
    assert lending(scene.training) == "—"
