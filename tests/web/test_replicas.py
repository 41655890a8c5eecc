"""Gangs and elastic trainings as people and programs see them."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from projects import tokens
from scheduling import costs
from scheduling.agent import protocol
from scheduling.cycle import run_cycle
from scheduling.models import Attempt, Phase, Workload
from tests.factories import submitted, training_spec
from tests.web.organisation import Organisation, session_values, training_values

pytestmark = pytest.mark.django_db


def started(organisation: Organisation, **changes: object) -> Workload:
    """A training of Vera's whose replicas all run."""
    row = submitted(training_spec(organisation.vision, **changes), organisation.vera)
    run_cycle()
    organisation.agent.report(
        *(
            protocol.AttemptReport(
                attempt_id=str(attempt.pk),
                phase=protocol.AttemptPhase.RUNNING,
                started_at=time.time(),
            )
            for attempt in Attempt.objects.of(row).open()
        )
    )
    row.refresh_from_db()
    return row


def text_of(answer: Any) -> str:  # a test client's answer
    return re.sub(r"\s+", " ", answer.content.decode())


class TestForm:
    def test_a_range_is_submitted(self, vera: Client) -> None:
        values = training_values(min_replicas="2", max_replicas="4")
        assert vera.post(reverse("scheduling:new-training"), values).status_code == 302
        row = Workload.objects.get()
        assert (row.min_replicas, row.max_replicas) == (2, 4)

    @pytest.mark.parametrize(
        ("given", "kept"),
        [({}, (1, 1)), ({"min_replicas": "3"}, (3, 3)), ({"max_replicas": "3"}, (1, 3))],
        ids=["neither", "least", "most"],
    )
    def test_what_is_left_open_is_as_few_as_possible(
        self, vera: Client, given: dict[str, str], kept: tuple[int, int]
    ) -> None:
        vera.post(reverse("scheduling:new-training"), training_values(**given))
        row = Workload.objects.get()
        assert (row.min_replicas, row.max_replicas) == kept

    def test_the_page_asks_for_them_and_a_sessions_does_not(self, vera: Client) -> None:
        training = text_of(vera.get(reverse("scheduling:new-training")))
        assert 'name="min_replicas"' in training
        assert 'name="max_replicas"' in training
        assert "min_replicas" not in text_of(vera.get(reverse("scheduling:new-session")))

    def test_a_gang_beyond_the_whole_quota_that_may_not_borrow_is_refused_at_its_replicas(
        self, vera: Client
    ) -> None:
        values = training_values(min_replicas="2", node_types=["t4"])
        del values["is_preemptible"]
        answer = vera.post(reverse("scheduling:new-training"), values)
        assert answer.status_code == 422
        (message,) = answer.context["form"].errors["min_replicas"]
        assert "2.0 GPU asked" in message
        assert "1.5 GPU" in message

    @pytest.mark.parametrize("language", ["en", "ru"])
    def test_the_pane_says_with_how_many_it_begins(
        self, vera: Client, organisation: Organisation, language: str
    ) -> None:
        words = {
            "en": (
                "It begins with all 4 replicas.",
                "It begins with 8 of up to 20 replicas",
                "It waits until 5 replicas can start together.",
            ),
            "ru": ("Начнёт со всех реплик: 4.", "Начнёт с 8 реплик из 20", "Ждёт, пока смогут"),
        }[language]

        def pane(**changes: object) -> str:
            values = training_values(node_types=["t4"], cpu_cores="1", **changes)
            headers = {"Accept-Language": language}
            return text_of(vera.post(reverse("scheduling:preview"), values, headers=headers))

        whole = pane(min_replicas="2", max_replicas="4")
        assert words[0] in whole
        assert "2–4 ×" in whole
        assert words[1] in pane(min_replicas="2", max_replicas="20")
        started(organisation, num_devices=4)
        started(organisation, num_devices=1)
        assert words[2] in pane(min_replicas="5")

    def test_the_pane_has_the_cost_of_all_that_start(self, vera: Client) -> None:
        def cost(**changes: object) -> Any:  # a Decimal
            values = training_values(node_types=["t4"], **changes)
            answer = vera.post(reverse("scheduling:preview"), values)
            return answer.context["outlook"].cost_per_hour

        assert cost(min_replicas="3") == 3 * cost()

    def test_a_template_keeps_them(self, vera: Client) -> None:
        values = training_values(
            action="save_template", new_template_name="gang", min_replicas="2", max_replicas="8"
        )
        answer = vera.post(reverse("scheduling:new-training"), values)
        assert answer.status_code == 302
        page = text_of(vera.get(answer["Location"]))
        assert re.search(r'name="min_replicas" value="2"', page)
        assert re.search(r'name="max_replicas" value="8"', page)


class TestPage:
    @pytest.mark.parametrize("language", ["en", "ru"])
    def test_each_replica_has_its_node_state_and_log(
        self, vera: Client, organisation: Organisation, language: str
    ) -> None:
        row = started(organisation, num_devices=4, min_replicas=2, max_replicas=3)
        run_cycle()
        headers = {"Accept-Language": language}
        page = text_of(vera.get(f"/workloads/{row.pk}", headers=headers))
        rows = re.findall(r'<tr data-replica="(\d)">(.*?)</tr>', page)
        assert [number for number, _cells in rows] == ["0", "1"]
        for (number, cells), node in zip(rows, ("sim-t4-1", "sim-t4-2"), strict=True):
            assert node in cells
            assert ("Running" if language == "en" else "Выполняется") in cells
            assert f'data-show-log="{number}:1"' in cells
        assert ("leader" if language == "en" else "ведущая") in rows[0][1]
        assert "2–3 ×" in page
        assert '<option value="1:1">' in page
        assert ("No more now: " if language == "en" else "Больше пока нельзя: ") in page

    def test_the_log_names_replicas_that_come_while_the_page_is_open(
        self, vera: Client, organisation: Organisation
    ) -> None:
        row = submitted(training_spec(organisation.vision, max_replicas=2), organisation.vera)
        page = text_of(vera.get(f"/workloads/{row.pk}"))
        assert 'id="replicas"' not in page
        assert "data-has-replicas" in page
        assert 'data-replica="replica %(replica)s, attempt %(attempt)s"' in page

    def test_a_training_of_one_has_no_list_of_replicas(
        self, vera: Client, organisation: Organisation
    ) -> None:
        page = text_of(vera.get(f"/workloads/{started(organisation).pk}"))
        assert 'id="replicas"' not in page
        assert '<option value="0:1">' in page

    def test_the_story_of_a_failed_member_is_told(
        self, vera: Client, organisation: Organisation
    ) -> None:
        row = started(organisation, min_replicas=2, max_replicas=2)
        attempt = Attempt.objects.of(row).get(replica=1)
        organisation.agent.report(
            protocol.AttemptReport(
                attempt_id=str(attempt.pk),
                phase=protocol.AttemptPhase.EXITED,
                exit_cause=protocol.ExitCause.OWN,
                exit_code=9,
            )
        )
        page = text_of(vera.get(f"/workloads/{row.pk}"))
        assert "Replica 1 ended with exit code 9. The others save and stop, too." in page
        assert 'data-reason="exited"' in page

    def test_the_cost_an_hour_is_that_of_all(self, organisation: Organisation) -> None:
        one = costs.rate_per_hour(started(organisation))
        assert one is not None
        gang = started(organisation, min_replicas=2, max_replicas=3)
        assert gang.phase == Phase.RUNNING
        assert costs.rate_per_hour(gang) == 3 * one


class TestApi:
    def test_a_gang_is_submitted_and_its_attempts_name_their_replica(
        self, organisation: Organisation
    ) -> None:
        secret = tokens.issue(organisation.vera, name="tests").secret
        client = Client(headers={"Authorization": f"Bearer {secret}"})
        body = {
            "kind": "training",
            "project": "vision",
            "name": "gang",
            "node_types": ["t4"],
            "num_devices": 1,
            "gpu_milli": 1000,
            "cpu_milli": 1000,
            "memory_mib": 1024,
            "command": ["python", "train.py"],
            "min_replicas": 2,
            "max_replicas": 3,
        }
        answer = client.post("/api/v1/workloads", body, content_type="application/json")
        assert answer.status_code == 201
        created = answer.json()
        assert (created["min_replicas"], created["max_replicas"]) == (2, 3)
        run_cycle()
        attempts = client.get(f"/api/v1/workloads/{created['id']}/attempts").json()["items"]
        assert [attempt["replica"] for attempt in attempts] == [0, 1, 2]
        assert {attempt["num_replicas"] for attempt in attempts} == {3}

    def test_a_session_cannot_have_several(self, organisation: Organisation) -> None:
        secret = tokens.issue(organisation.vera, name="tests").secret
        client = Client(headers={"Authorization": f"Bearer {secret}"})
        body = {
            "kind": "interactive",
            "project": "vision",
            "name": "s",
            "cpu_milli": 1000,
            "memory_mib": 1024,
            "max_replicas": 2,
        }
        answer = client.post("/api/v1/workloads", body, content_type="application/json")
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "max_replicas"


def test_a_session_form_does_not_know_replicas(vera: Client) -> None:
    vera.post(reverse("scheduling:new-session"), session_values(max_replicas="3"))
    assert Workload.objects.get().max_replicas == 1
