"""The pages that ask for a session or a training: what they accept, refuse, keep and show."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from projects.models import (
    AllowedNodeType,
    GpuQuota,
    Membership,
    NodeType,
    Role,
    Template,
    TemplateScope,
    User,
    WorkloadKind,
)
from scheduling.agent.protocol import CheckAnswer, CheckRequest, FieldProblem
from scheduling.agent.relay import RELAY_SERVER_OPTIONS, create_app
from scheduling.forms.amounts import CORES, GIB, GPU, INTEGER, MINUTES, AmountField, Unit
from scheduling.forms.values import fingerprint
from scheduling.models import Workload, Zone
from scheduling.services import WorkloadSpec
from tests.factories import (
    only_node_types,
    session_spec,
    submitted,
    training_spec,
)
from tests.serving import Host, served
from tests.web.organisation import (
    Organisation,
    make_organisation,
    session_values,
    training_values,
)

SESSION_PAGE = "scheduling:new-session"
TRAINING_PAGE = "scheduling:new-training"


@pytest.fixture
def organisation(db: None) -> Organisation:
    return make_organisation()


@pytest.fixture
def vera(client: Client, organisation: Organisation) -> Client:
    """Vera's browser."""
    client.force_login(organisation.vera)
    return client


def send(client: Client, values: dict[str, object], **headers: str) -> Any:  # a client's answer
    """Press the button of the form that these values are of."""
    page = SESSION_PAGE if values["kind"] == "interactive" else TRAINING_PAGE
    return client.post(reverse(page), values, headers=headers)


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


# ---------------------------------------------------------------- clone and templates


CLONED = [
    session_spec,
    lambda project: session_spec(project, num_devices=0, gpu_milli=None, node_types=("cpu", "t4")),
    lambda project: session_spec(project, gpu_milli=None, gpu_memory_mib=4097, env=(("A", "b=c"),)),
    training_spec,
    lambda project: training_spec(
        project,
        command=("python", "a b.py", "--text", "it's", ""),
        num_devices=4,
        node_types=("v100", "t4"),
        memory_mib=1025,
        cpu_milli=1001,
        checkpoint_every_s=100,
        priority=10,
        grace_s=0,
        backoff_limit=0,
        is_preemptible=False,
        working_dir="examples",
    ),
    lambda project: training_spec(
        project, checkpoint_mode="command", checkpoint_command="save --now", gpu_milli=501
    ),
    lambda project: training_spec(project, min_replicas=2, max_replicas=7),
]


@pytest.mark.parametrize("language", ["en", "ru"])
@pytest.mark.parametrize("make_spec", CLONED)
def test_a_clone_is_equal(
    vera: Client, organisation: Organisation, make_spec: Any, language: str
) -> None:
    spec: WorkloadSpec = make_spec(organisation.vision)
    # Enough for all of it, so that only the form decides.
    GpuQuota.objects.update(quota_milli=4000)
    original = submitted(spec, organisation.vera)
    page = SESSION_PAGE if original.is_session else TRAINING_PAGE

    shown = vera.get(f"{reverse(page)}?clone={original.pk}", headers={"Accept-Language": language})
    values = as_sent(shown.content.decode())
    answer = vera.post(reverse(page), values, headers={"Accept-Language": language})

    assert answer.status_code == 302, answer.context["form"].errors
    twin = Workload.objects.exclude(pk=original.pk).get()
    assert fingerprint(twin) == fingerprint(replace(spec, name=twin.name))
    stem, _hyphen, number = original.name.rpartition("-")
    assert twin.name == f"{stem}-{int(number) + 1}"


def test_what_one_may_not_see_is_not_cloned(client: Client, organisation: Organisation) -> None:
    original = submitted(training_spec(organisation.vision, command=("secret",)), organisation.vera)
    client.force_login(organisation.lena)
    for query in (f"clone={original.pk}", "clone=x", f"clone={uuid.uuid4()}", "template=x"):
        answer = client.get(f"{reverse(TRAINING_PAGE)}?{query}")
        assert answer.status_code == 200
        assert "secret" not in answer.content.decode()


def test_a_colleagues_variables_are_not_cloned(vera: Client, organisation: Organisation) -> None:
    spec = session_spec(organisation.vision, env=(("SECRET", "hidden-word"),), cpu_milli=3000)
    original = submitted(spec, organisation.max)
    text = vera.get(f"{reverse(SESSION_PAGE)}?clone={original.pk}").content.decode()
    assert "hidden-word" not in text
    assert as_sent(text)["cpu_cores"] == "3"


def test_a_template_fills_the_form(vera: Client) -> None:
    template = Template.objects.create(
        name="Jupyter",
        kind=WorkloadKind.INTERACTIVE,
        scope=TemplateScope.PLATFORM,
        spec={
            "gpu_fraction": "0.333",
            "node_types": ["v100"],
            "cpu_cores": 4,
            "memory_gib": "0.5",
            "forgotten_field": 1,
        },
    )
    assert template.name in vera.get(reverse(SESSION_PAGE)).content.decode()
    address = f"{reverse(SESSION_PAGE)}?template={template.pk}"
    values = as_sent(vera.get(address, headers={"Accept-Language": "ru"}).content.decode())
    assert values["gpu_fraction"] == "0,333"
    assert values["node_types"] == ["v100"]
    assert vera.post(reverse(SESSION_PAGE), values).status_code == 302
    row = Workload.objects.get()
    assert (row.gpu_milli, row.cpu_milli, row.memory_mib) == (333, 4000, 512)
    assert row.template_name == "Jupyter"


def test_a_form_is_kept_as_ones_own_template(vera: Client, organisation: Organisation) -> None:
    values = training_values(action="save_template", new_template_name="Mine", gpu_count="2")
    answer = send(vera, values)
    assert answer.status_code == 302
    template = Template.objects.get()
    assert (template.scope, template.owner) == (TemplateScope.PRIVATE, organisation.vera)
    filled = as_sent(vera.get(answer["Location"]).content.decode())
    assert filled["gpu_count"] == "2"
    assert filled["command"] == "python train.py --epochs 20"
    assert not Workload.objects.exists()

    answer = send(vera, training_values(action="save_template", new_template_name=" "))
    assert answer.status_code == 422
    assert "80" in answer.context["template_error"]


def test_the_planners_offers_are_links_to_a_filled_form(vera: Client) -> None:
    address = f"{reverse(SESSION_PAGE)}?gpu_milli=125&node_type=v100"
    values = as_sent(vera.get(address).content.decode())
    assert (values["gpu_mode"], values["gpu_fraction"]) == ("fraction", "0.125")
    assert values["node_types"] == ["v100"]
    values = as_sent(vera.get(f"{reverse(TRAINING_PAGE)}?gpu_milli=2000").content.decode())
    assert (values["gpu_mode"], values["gpu_count"]) == ("whole", "2")


# ---------------------------------------------------------------- the pane


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


# ---------------------------------------------------------------- without scripts


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


# ---------------------------------------------------------------- who may come


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


# ---------------------------------------------------------------- keyboard and names


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


class Page(HTMLParser):
    """What assistive technology would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.duplicates: set[str] = set()
        self.links: set[str] = set()
        self.described: set[str] = set()
        self.labelled: set[str] = set()
        self.tabindexes: list[str] = []
        self.controls: list[str] = []
        self.buttons: dict[str, int] = {}
        self._named: set[str] = set()
        self._unnamed: set[str] = set()
        self._num_open_labels = 0
        self.feed(text)

    @property
    def unnamed(self) -> set[str]:
        """Ids of controls without label."""
        return self._unnamed - self.labelled - self._named

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._note(tag, given)
        if tag == "label":
            self._num_open_labels += 1
        if tag in ("input", "select", "textarea") and given.get("type") != "hidden":
            self.controls.append(given.get("name", ""))
            if not self._num_open_labels and "aria-label" not in given:
                self._unnamed.add(given.get("id", "without an id"))
        if tag == "button" and "id" in given:
            self.buttons[given["id"]] = len(self.controls)

    def _note(self, tag: str, given: dict[str, str]) -> None:
        identity = given.get("id")
        if identity:
            (self.duplicates if identity in self.ids else self.ids).add(identity)
        if tag == "a":
            self.links.add(given.get("href", ""))
        if tag == "label" and "for" in given:
            self.labelled.add(given["for"])
        self.described.update(given.get("aria-describedby", "").split())
        if "tabindex" in given:
            self.tabindexes.append(given["tabindex"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "label":
            self._num_open_labels -= 1


class Filled(HTMLParser):
    """What a browser would send of the workload form as it stands."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._is_inside = False
        self._select = self._textarea = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if given.get("id") == "workload-form":
            self._is_inside = True
        if not self._is_inside:
            return
        name = given.get("name", "")
        if tag == "input" and name:
            is_box = given.get("type") in ("radio", "checkbox")
            if not is_box or "checked" in given:
                self._add(name, given.get("value", "on" if is_box else ""))
        elif tag == "select":
            self._select = name
        elif tag == "option" and "selected" in given:
            self._add(self._select, given["value"])
        elif tag == "textarea":
            self._textarea = name
            self._add(name, "")

    def handle_data(self, data: str) -> None:
        if self._textarea:
            # Browsers drop the line break that follows the tag.
            text = self.values[self._textarea][-1] + data
            self.values[self._textarea][-1] = text.removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._textarea = ""
        if tag == "form":
            self._is_inside = False

    def _add(self, name: str, value: str) -> None:
        self.values.setdefault(name, []).append(value)


def as_sent(text: str) -> dict[str, Any]:
    """The form of a page, submitted as it stands."""
    values: dict[str, Any] = {
        name: found if name in ("node_types", "node_type_order") else found[-1]
        for name, found in Filled(text).values.items()
    }
    return {**values, "action": "submit"}


# ---------------------------------------------------------------- amounts


@pytest.mark.parametrize("unit", [GPU, CORES, GIB, MINUTES, INTEGER])
@given(amount=st.integers(0, 10**9), language=st.sampled_from(["en", "ru"]))
def test_an_amount_that_is_written_is_read_back(unit: Unit, amount: int, language: str) -> None:
    field = AmountField(unit=unit, minimum=0, maximum=10**9)
    with translation.override(language):
        assert field.clean(field.prepare_value(amount)) == amount


@given(text=st.text(max_size=60))
def test_any_text_is_an_amount_within_the_limits_or_an_error(text: str) -> None:
    field = AmountField(unit=GPU, minimum=50, maximum=1000)
    with suppress(ValidationError):
        amount = field.clean(text)
        assert amount is None or 50 <= amount <= 1000


@pytest.mark.django_db
def test_the_allowed_types_of_another_kind_do_not_matter(
    vera: Client, organisation: Organisation
) -> None:
    only_node_types(organisation.vision, WorkloadKind.TRAINING, "v100")
    assert send(vera, session_values()).status_code == 302
    assert NodeType.objects.count() > AllowedNodeType.objects.count()
