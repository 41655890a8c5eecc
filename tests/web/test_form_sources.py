"""What fills the form of a session or a training: a clone, a template, an offer of the planner."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from projects.models import (
    GpuQuota,
    Template,
    TemplateScope,
    WorkloadKind,
)
from scheduling.forms.values import fingerprint
from scheduling.models import Workload
from scheduling.services import WorkloadSpec
from tests.factories import (
    session_spec,
    submitted,
    training_spec,
)
from tests.web.form_pages import SESSION_PAGE, TRAINING_PAGE, as_sent, send
from tests.web.organisation import (
    Organisation,
    training_values,
)

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


@pytest.mark.parametrize(
    ("query", "english", "russian"),
    [
        ("template=x", "There is no template “x” that you may use", "Нет шаблона «x»"),
        ("clone=x", "There is no workload “x” that you may clone", "Нет задачи «x»"),
        ("project=nope", "Project: There is no project “nope”; yours are: vision.", "«nope»"),
        ("project=language", "You may not submit work in project “language”", "«language»"),
        ("node_type=h900", "Node type: There is no node type “h900”; there are", "«h900»"),
        ("gpu_mode=all", "GPU: “all” is none of: fraction, whole", "«all»"),
        ("gpu_milli=some", "Part of one GPU: “some” is not a number.", "«some»"),
        ("cpu_cores=0", "CPU, cores: 0 is too small: the least is 0.1.", "не менее 0,1"),
    ],
)
def test_a_link_that_names_what_is_not_known_is_told(
    vera: Client, query: str, english: str, russian: str
) -> None:
    for language, words in (("en", english), ("ru", russian)):
        for address in (SESSION_PAGE, TRAINING_PAGE):
            answer = vera.get(f"{reverse(address)}?{query}", headers={"Accept-Language": language})
            text = answer.content.decode()
            assert text.count('<div class="notice error">') == 1
            assert words in text


def test_a_link_that_is_known_says_nothing(vera: Client) -> None:
    address = f"{reverse(SESSION_PAGE)}?project=vision&node_type=t4&gpu_milli=500&cpu_cores=2,5"
    text = vera.get(address).content.decode()
    assert '<div class="notice error">' not in text
    assert as_sent(text)["cpu_cores"] == "2,5"


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
