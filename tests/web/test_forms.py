"""The pages that ask for a session or a training: what they accept and refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from projects.models import (
    AllowedNodeType,
    GpuQuota,
    Membership,
    NodeType,
    Role,
    WorkloadKind,
)
from scheduling.agent.protocol import CheckAnswer, CheckRequest, FieldProblem
from scheduling.agent.relay import RELAY_SERVER_OPTIONS, create_app
from scheduling.models import Workload, Zone
from tests.factories import (
    only_node_types,
)
from tests.serving import Host, served
from tests.web.form_pages import SESSION_PAGE, Page, send
from tests.web.organisation import (
    Organisation,
    session_values,
    training_values,
)

# ---------------------------------------------------------------- what is refused

# (values, field at fault, what the message must name)
WRONG: list[tuple[dict[str, object], str, tuple[str, ...]]] = [
    ({"project": "nowhere"}, "project", ("nowhere", "vision")),
    ({"project": "language"}, "project", ("language", "vision")),
    ({"project": ""}, "project", ("40",)),
    ({"node_types": ["h100"]}, "node_types", ("h100", "t4")),
    ({"node_types": ["cpu"]}, "node_types", ("cpu", "t4")),
    ({"gpu_fraction": "0"}, "gpu_fraction", ("0", "0.05")),
    ({"gpu_fraction": "1.5"}, "gpu_fraction", ("1.5", "1")),
    ({"gpu_fraction": "1,0001"}, "gpu_fraction", ("1,0001", "1")),
    ({"gpu_fraction": "abc"}, "gpu_fraction", ("abc", "0.05", "1")),
    ({"gpu_fraction": ",,,"}, "gpu_fraction", (",,,", "0.05", "1")),
    ({"gpu_fraction": "0,3,3,3"}, "gpu_fraction", ("0,3,3,3", "0.05")),
    ({"gpu_fraction": "-0.5"}, "gpu_fraction", ("-0.5", "0.05")),
    ({"gpu_fraction": "NaN"}, "gpu_fraction", ("NaN", "1")),
    ({"gpu_fraction": "1e9"}, "gpu_fraction", ("1e9", "1")),
    ({"gpu_fraction": "٠٫٥"}, "gpu_fraction", ("٠٫٥", "1")),
    ({"gpu_fraction": ""}, "gpu_fraction", ("0.05", "1")),
    ({"gpu_mode": "half"}, "gpu_mode", ("half", "fraction")),
    ({"gpu_mode": "whole", "gpu_count": "0"}, "gpu_count", ("0", "1")),
    ({"gpu_mode": "whole", "gpu_count": "1.5"}, "gpu_count", ("1.5", "8")),
    ({"gpu_mode": "whole", "gpu_count": "9"}, "gpu_count", ("9", "8")),
    ({"gpu_mode": "whole", "gpu_count": "5"}, "gpu_count", ("5", "4", "sim-t4-1", "T4")),
    ({"gpu_mode": "memory", "gpu_memory_gib": "16"}, "gpu_memory_gib", ("16", "14.567", "T4")),
    ({"cpu_cores": "0"}, "cpu_cores", ("0", "0.1")),
    ({"cpu_cores": "33"}, "cpu_cores", ("33", "32", "sim-t4-1")),
    ({"cpu_cores": "1e9"}, "cpu_cores", ("1e9", "1024")),
    ({"memory_gib": "0"}, "memory_gib", ("0", "0.0625")),
    ({"memory_gib": "4000"}, "memory_gib", ("4000", "128", "sim-t4-1", "T4")),
    ({"memory_gib": "-2"}, "memory_gib", ("-2", "0.0625")),
    ({"name": "../etc/passwd"}, "name", ("../etc/passwd", "40")),
    ({"name": "тетрадь"}, "name", ("тетрадь", "40")),
    ({"name": "n" * 10_000}, "name", ("nnnn", "10000", "40")),
    ({"name": "a\x00b"}, "name", ("a", "40")),
    ({"name": "a\nb"}, "name", ("a b", "40")),
    ({"name": ""}, "name", ("40",)),
    ({"name": "<script>"}, "name", ("<script>", "40")),
    ({"working_dir": "../other"}, "working_dir", ("../other", "")),
    ({"working_dir": "w" * 1001}, "working_dir", ("1001", "1000")),
    ({"env": "1A=b"}, "env", ("1A=b", "100")),
    ({"env": "no equals sign"}, "env", ("no equals sign", "100")),
    ({"env": "ALLOT_TOKEN=x"}, "env", ("ALLOT_TOKEN", "ALLOT_")),
]
WRONG_TRAININGS: list[tuple[dict[str, object], str, tuple[str, ...]]] = [
    ({"command": ""}, "command", ("4000",)),
    ({"command": "python 'train.py"}, "command", ("python 'train.py", "4000")),
    ({"arguments": "x" * 4001}, "arguments", ("4001", "4000")),
    ({"checkpoint_path": "/etc"}, "checkpoint_path", ("/etc", "checkpoints")),
    ({"checkpoint_path": "../up"}, "checkpoint_path", ("../up", "checkpoints")),
    ({"checkpoint_path": "."}, "checkpoint_path", (".", "checkpoints")),
    ({"checkpoint_signal": "SIGKILL"}, "checkpoint_signal", ("SIGKILL", "SIGUSR1")),
    ({"checkpoint_mode": "magic"}, "checkpoint_mode", ("magic", "signal")),
    ({"checkpoint_mode": "command"}, "checkpoint_command", ("1000",)),
    ({"checkpoint_every_min": "0.5"}, "checkpoint_every_min", ("0.5", "1")),
    ({"checkpoint_every_min": "1441"}, "checkpoint_every_min", ("1441", "1440")),
    ({"grace_s": "301"}, "grace_s", ("301", "300")),
    ({"grace_s": "-1"}, "grace_s", ("-1", "0")),
    ({"grace_s": "1.5"}, "grace_s", ("1.5", "300")),
    ({"backoff_limit": "101"}, "backoff_limit", ("101", "100")),
    ({"min_replicas": "0"}, "min_replicas", ("0", "1")),
    ({"min_replicas": "513"}, "min_replicas", ("513", "512")),
    ({"max_replicas": "1.5"}, "max_replicas", ("1.5", "512")),
    ({"min_replicas": "4", "max_replicas": "3"}, "max_replicas", ("3", "4")),
    ({"min_replicas": "9", "gpu_count": "1"}, "min_replicas", ("9", "8", "T4")),
    ({"min_replicas": "3", "gpu_count": "3"}, "min_replicas", ("3", "2", "T4")),
    (
        {"min_replicas": "25", "gpu_mode": "fraction", "gpu_fraction": "0.333", "cpu_cores": "1"},
        "min_replicas",
        ("25", "24", "T4"),
    ),
    ({"priority": "highest"}, "priority", ("highest", "very-high")),
    ({"node_types": ["t4", "h100"]}, "node_types", ("h100", "v100")),
    ({"node_types": ["t4", "v100"], "gpu_count": "5"}, "gpu_count", ("5", "4", "T4, V100")),
]
CASES = [(session_values(**change), *rest) for change, *rest in WRONG] + [
    (training_values(**change), *rest) for change, *rest in WRONG_TRAININGS
]


@pytest.mark.parametrize(
    ("values", "field", "named"),
    CASES,
    ids=[f"{field}-{number}" for number, (_values, field, _named) in enumerate(CASES)],
)
def test_bad_input_is_answered_at_the_field(
    vera: Client, values: dict[str, object], field: str, named: tuple[str, ...]
) -> None:
    for language in ("en", "ru"):
        answer = send(vera, values, **{"Accept-Language": language})

        assert answer.status_code == 422
        errors = answer.context["form"].errors
        assert list(errors) == [field]
        message = " ".join(errors[field])
        for part in named:
            assert part in message or part.replace(".", ",") in message
        assert bool(re.search("[а-я]", message)) is (language == "ru") or "тетрадь" in message
        page = Page(answer.content.decode())
        target = f"id_{field}"
        assert f"#{target}" in page.links
        assert f"{target}_error" in page.ids
        assert f"{target}_error" in page.described
        assert "error-summary" in page.ids
    assert not Workload.objects.exists()


def test_everything_typed_stays(vera: Client) -> None:
    answer = send(vera, training_values(gpu_count="9", arguments="--text 'two words'", env="A=b"))
    values = answer.context["form"]
    assert values["arguments"].value() == "--text 'two words'"
    text = answer.content.decode()
    for typed in ("--text &#x27;two words&#x27;", 'value="9"', "A=b", 'value="python train.py"'):
        assert typed in text
    assert 'value="11111111-1111-4111-8111-111111111111"' in text


def test_several_errors_are_shown_at_once(vera: Client) -> None:
    answer = send(vera, session_values(gpu_fraction="abc", name="../x", memory_gib="much"))
    assert set(answer.context["form"].errors) == {"gpu_fraction", "name", "memory_gib"}


@pytest.mark.django_db
def test_together_is_more_than_each(vera: Client) -> None:
    """32 cores are on one node and 128 GiB too, but four GPUs with them are on another."""
    Zone.objects.get().nodes.filter(node_type__name="t4").update(cpu_milli=8000, memory_mib=16384)
    types = ["t4", "v100"]
    Zone.objects.get().nodes.filter(name="sim-v100-1").first().devices.filter(index=3).delete()  # type: ignore[union-attr]
    answer = send(vera, training_values(node_types=types, gpu_count="4", cpu_cores="32"))
    (message,) = answer.context["form"].errors["cpu_cores"]
    assert "32" in message
    assert "8" in message


def test_only_a_manager_gives_high_priority(
    client: Client, vera: Client, organisation: Organisation
) -> None:
    answer = send(vera, training_values(priority="high"))
    assert list(answer.context["form"].errors) == ["priority"]

    client.force_login(organisation.max)
    assert send(client, training_values(priority="high")).status_code == 302
    assert Workload.objects.get().priority == 70


# ---------------------------------------------------------------- what is accepted


@pytest.mark.parametrize(
    ("typed", "milli"),
    [
        ("0.333", 333),
        ("0,333", 333),
        (" 0.25 ", 250),
        (",5", 500),
        ("1", 1000),
        ("1.000", 1000),
        ("0.3333", 333),
        ("0.05", 50),
        ("0.9999", 999),
    ],
)
@pytest.mark.parametrize("language", ["en", "ru"])
def test_a_fraction_is_written_with_point_or_comma(
    vera: Client, typed: str, milli: int, language: str
) -> None:
    answer = send(vera, session_values(gpu_fraction=typed), **{"Accept-Language": language})
    assert answer.status_code == 302
    row = Workload.objects.get()
    assert (row.num_devices, row.gpu_milli, row.gpu_memory_mib) == (1, milli, None)


def test_a_session_becomes_what_was_asked_for(vera: Client, organisation: Organisation) -> None:
    answer = send(vera, session_values(cpu_cores="2,5", memory_gib="0.5", env="A=b=c\n\nB = d"))
    assert answer.status_code == 302
    assert answer["Location"] == reverse("scheduling:sessions")
    row = Workload.objects.get()
    assert (row.kind, row.owner, row.project) == (
        WorkloadKind.INTERACTIVE,
        organisation.vera,
        organisation.vision,
    )
    assert (row.cpu_milli, row.memory_mib) == (2500, 512)
    assert row.env == {"A": "b=c", "B": " d"}
    assert not row.is_preemptible
    assert row.checkpoint_mode == "none"


def test_a_training_becomes_what_was_asked_for(vera: Client) -> None:
    values = training_values(
        node_types=["v100", "t4"],
        gpu_count="2",
        arguments="--name 'two words'\n--lr 0.1",
        checkpoint_every_min="1,5",
        grace_s="10",
    )
    answer = send(vera, values)
    row = Workload.objects.get()
    assert answer["Location"] == reverse("scheduling:workload", args=[row.pk])
    assert row.command == ["python", "train.py", "--name", "two words", "--lr", "0.1"]
    assert row.node_types == ["v100", "t4"]
    assert (row.num_devices, row.gpu_milli) == (2, 1000)
    assert (row.checkpoint_every_s, row.grace_s, row.checkpoint_path) == (90, 10, "checkpoints")
    assert row.is_preemptible


def test_fields_that_a_choice_hides_are_not_looked_at(vera: Client) -> None:
    values = training_values(
        gpu_mode="none",
        gpu_fraction="abc",
        gpu_count="many",
        checkpoint_mode="none",
        checkpoint_signal="SIGKILL",
        checkpoint_every_min="often",
        checkpoint_path="/etc",
    )
    assert send(vera, values).status_code == 302
    row = Workload.objects.get()
    assert (row.num_devices, row.gpu_milli, row.checkpoint_mode) == (0, None, "none")


def test_work_without_a_gpu_prefers_nodes_without_gpus(vera: Client) -> None:
    assert send(vera, session_values(gpu_mode="none", node_types=[""])).status_code == 302
    assert Workload.objects.get().node_types == ["cpu", "t4", "v100"]


def test_types_ticked_for_gpus_come_last_for_work_without_one(vera: Client) -> None:
    values = training_values(gpu_mode="none", node_types=["t4"])
    assert send(vera, values).status_code == 302
    assert Workload.objects.get().node_types == ["cpu", "t4"]


def test_any_type_means_those_with_a_gpu_when_one_is_asked_for(vera: Client) -> None:
    assert send(vera, training_values(node_types=[])).status_code == 302
    assert Workload.objects.get().node_types == ["t4", "v100"]


# ---------------------------------------------------------------- sent twice, or late


def test_the_same_form_twice_is_one_workload(vera: Client) -> None:
    values = session_values()
    first, second = send(vera, values), send(vera, values)
    assert first.status_code == second.status_code == 302
    assert Workload.objects.count() == 1


def test_a_form_that_was_changed_after_going_back_is_another_workload(vera: Client) -> None:
    send(vera, session_values())
    assert send(vera, session_values(name="second", cpu_cores="1")).status_code == 302
    assert Workload.objects.count() == 2


def test_a_repeat_is_not_judged_anew(vera: Client, organisation: Organisation) -> None:
    send(vera, session_values())
    only_node_types(organisation.vision, WorkloadKind.INTERACTIVE, "v100")
    assert send(vera, session_values()).status_code == 302
    assert Workload.objects.count() == 1


def test_a_name_in_use_is_refused_at_its_field(vera: Client) -> None:
    send(vera, session_values())
    answer = send(vera, session_values(cpu_cores="1"))
    assert answer.status_code == 422
    (message,) = answer.context["form"].errors["name"]
    assert "notebook" in message
    assert Workload.objects.count() == 1


def test_a_form_older_than_a_change_of_node_types_keeps_what_was_typed(
    vera: Client, organisation: Organisation
) -> None:
    vera.get(reverse(SESSION_PAGE))
    only_node_types(organisation.vision, WorkloadKind.INTERACTIVE, "v100")
    answer = send(vera, session_values(gpu_fraction="0,4"))
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["node_types"]
    text = answer.content.decode()
    assert 'value="0,4"' in text
    assert 'value="notebook"' in text
    assert not Workload.objects.exists()


def test_a_form_older_than_a_change_of_quota_is_refused_at_the_gpus(
    vera: Client, organisation: Organisation
) -> None:
    vera.get(reverse(SESSION_PAGE))
    GpuQuota.objects.filter(project=organisation.vision).update(quota_milli=200)
    answer = send(vera, session_values())
    assert answer.status_code == 422
    (message,) = answer.context["form"].errors["gpu_fraction"]
    assert "0.333" in message
    assert "0.2" in message
    assert 'value="0.333"' in answer.content.decode()
    assert not Workload.objects.exists()


def test_whoever_has_left_the_project_is_told_so(vera: Client, organisation: Organisation) -> None:
    Membership.objects.filter(user=organisation.vera).update(role=Role.VIEWER)
    answer = send(vera, session_values())
    assert answer.status_code == 422
    assert not Workload.objects.exists()


# ---------------------------------------------------------------- what the node says


class DoubtfulHost(Host):
    """A node that finds something wrong with every request."""

    def __init__(self, *problems: FieldProblem) -> None:
        super().__init__()
        self.problems = problems

    async def check(self, request: CheckRequest) -> CheckAnswer:
        return CheckAnswer(list(self.problems))


@pytest.fixture
def doubtful(organisation: Organisation, tmp_path: Path) -> Iterator[None]:
    """A relay, really listening, that refuses command, folder and checkpoints."""
    host = DoubtfulHost(
        FieldProblem("command", "not_found", "pithon"),
        FieldProblem("working_dir", "not_readable", "/root"),
        FieldProblem("checkpoint_subfolder", "outside", "checkpoints"),
    )
    socket = tmp_path / "r.sock"
    with served(create_app(host), socket, **RELAY_SERVER_OPTIONS):
        Zone.objects.update(relay_url=f"unix:{socket}", relay_secret=host.secret)
        yield


@pytest.mark.parametrize("action", ["submit", "check"])
@pytest.mark.usefixtures("doubtful")
def test_what_the_node_cannot_run_is_said_at_the_field(vera: Client, action: str) -> None:
    answer = send(vera, training_values(command="pithon x.py", working_dir="/root", action=action))
    assert answer.status_code == 422
    errors = answer.context["form"].errors
    assert set(errors) == {"command", "working_dir", "checkpoint_path"}
    assert "pithon" in errors["command"][0]
    assert "/root" in errors["working_dir"][0]
    assert not Workload.objects.exists()


# ---------------------------------------------------------------- amounts


@pytest.mark.django_db
def test_the_allowed_types_of_another_kind_do_not_matter(
    vera: Client, organisation: Organisation
) -> None:
    only_node_types(organisation.vision, WorkloadKind.TRAINING, "v100")
    assert send(vera, session_values()).status_code == 302
    assert NodeType.objects.count() > AllowedNodeType.objects.count()
