"""The pane beside the form, and the form without scripts, by keyboard and for whom it is."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from projects.models import (
    GpuQuota,
    Membership,
    User,
)
from scheduling.models import Workload
from tests.web.form_pages import SESSION_PAGE, TRAINING_PAGE, Page, as_sent, send
from tests.web.organisation import (
    Organisation,
    session_values,
    training_values,
)


def pane(client: Client, values: dict[str, object], language: str = "en") -> str:
    answer = client.post(
        reverse("scheduling:preview"), values, headers={"Accept-Language": language}
    )
    assert answer.status_code == 200
    return " ".join(re.sub(r"<[^>]+>", " ", answer.content.decode()).split())


def test_the_pane_says_that_it_starts_and_what_it_costs(vera: Client) -> None:
    text = pane(vera, session_values(name="", gpu_fraction="0.3333"))
    assert "Starts now" in text
    # A third of 45, two cores at 2, two GiB at 1.
    assert "20.98" in text
    assert "0.3333 is counted as 0.333" in text
    assert "simulated: its driver is, and the share holds as on a real one" in text
    assert "caps GPU memory at 4.9 GiB." in text.replace("\xa0", " ")
    assert "8 / 8" in text
    assert not Workload.objects.exists()


def test_the_pane_says_why_it_would_wait(vera: Client, organisation: Organisation) -> None:
    GpuQuota.objects.filter(project=organisation.vision).update(quota_milli=100)
    text = pane(vera, session_values())
    assert "Will wait" in text
    assert "0.333" in text


def test_the_pane_says_what_is_missing(vera: Client) -> None:
    text = pane(vera, session_values(gpu_fraction="abc", name="../x"))
    assert "Not complete yet" in text
    assert "abc" in text


def test_the_pane_shows_the_command_as_it_is_split(vera: Client) -> None:
    answer = vera.post(
        reverse("scheduling:preview"), training_values(command="python 'a b.py'", arguments="-x")
    )
    assert answer.context["outlook"].command == ("python", "a b.py", "-x")


def test_check_works_without_scripts(vera: Client) -> None:
    answer = send(vera, session_values(action="check"))
    assert answer.status_code == 200
    assert "Starts now" in answer.content.decode()
    assert not Workload.objects.exists()


def test_a_preview_changes_nothing_and_is_not_read_by_address(vera: Client) -> None:
    assert vera.get(reverse("scheduling:preview")).status_code == 405


def test_a_fraction_by_button(vera: Client) -> None:
    answer = send(vera, session_values(action="fraction:0.5", name="../kept"))
    values = as_sent(answer.content.decode())
    assert answer.status_code == 200
    assert (values["gpu_fraction"], values["name"]) == ("0.5", "../kept")
    assert not answer.context["form"].errors


def test_node_types_are_ordered_by_button(vera: Client) -> None:
    shown = as_sent(vera.get(reverse(TRAINING_PAGE)).content.decode())
    assert shown["node_types"] == ["t4", "v100"]
    order = shown["node_type_order"]
    values = training_values(action="down:t4", node_types=["t4", "v100"], node_type_order=order)
    moved = as_sent(send(vera, values).content.decode())
    assert moved["node_types"] == ["v100", "t4"]
    values = {**training_values(), **moved, "action": "submit", "command": "python train.py"}
    assert send(vera, values).status_code == 302
    assert Workload.objects.get().node_types == ["v100", "t4"]


def test_another_project_offers_its_own_node_types(
    client: Client, organisation: Organisation
) -> None:
    Membership.objects.create(user=organisation.vera, project=organisation.language)
    client.force_login(organisation.vera)
    answer = send(client, training_values(action="refresh", project="language"))
    assert [row.node_type.name for row in answer.context["offer"].rows] == ["t4"]
    assert as_sent(answer.content.decode())["project"] == "language"


def test_who_is_not_logged_in_logs_in_first(client: Client, organisation: Organisation) -> None:
    for page in (SESSION_PAGE, TRAINING_PAGE):
        answer = client.get(reverse(page))
        assert answer.status_code == 302
        assert answer["Location"].startswith("/accounts/login/")


@pytest.mark.django_db
def test_who_has_no_project_is_told_whom_to_ask(client: Client) -> None:
    client.force_login(User.objects.create_user("nobody"))
    answer = client.get(reverse(SESSION_PAGE))
    assert answer.status_code == 200
    assert answer.context["offer"].project is None
    assert 'id="workload-form"' not in answer.content.decode()


def test_a_page_costs_the_same_with_many_projects_and_nodes(
    vera: Client,
    organisation: Organisation,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    vera.get(reverse(TRAINING_PAGE))
    with django_assert_max_num_queries(20):
        vera.get(reverse(TRAINING_PAGE))
    with django_assert_max_num_queries(20):
        vera.get(reverse(SESSION_PAGE))


@pytest.mark.parametrize("address", [SESSION_PAGE, TRAINING_PAGE])
def test_every_control_has_a_name_and_the_order_is_that_of_the_page(
    vera: Client, address: str
) -> None:
    page = Page(vera.get(reverse(address)).content.decode())
    assert not page.duplicates
    assert all(tabindex in ("-1", "0") for tabindex in page.tabindexes)
    assert page.described <= page.ids
    assert page.labelled <= page.ids
    assert not page.unnamed
    places = [page.controls.index(name) for name in ("project", "name", "gpu_mode", "cpu_cores")]
    assert places == sorted(places)
    assert page.controls.index("cpu_cores") < page.buttons["submit-workload"]


@pytest.mark.parametrize("address", [SESSION_PAGE, TRAINING_PAGE])
def test_no_script_and_no_style_is_inline(vera: Client, address: str) -> None:
    text = vera.get(reverse(address)).content.decode()
    assert "<style" not in text
    assert " style=" not in text
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"\son[a-z]+=", text)
