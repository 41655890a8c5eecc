"""Sentences: every code of core and services has one, in both languages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from django.utils import timezone
from django.utils.translation import override

from projects.models import Project
from scheduling import formats, texts
from scheduling.models import Event, Wait, Workload
from tests.web.scene import Scene, make_scene

CORE = Path(formats.__file__).parent / "core"
SERVICES = Path(formats.__file__).parent / "services"
CYRILLIC = re.compile("[а-яё]", re.IGNORECASE)


def codes_in(path: Path, function: str, position: int = 0) -> set[str]:
    """Constant texts given at a position to a function of this name, or as its `code`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != function:
            continue
        values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        if len(node.args) > position:
            values.append(node.args[position])
        found |= {
            value.value
            for value in values
            if isinstance(value, ast.Constant) and isinstance(value.value, str)
        }
    return found


def test_every_code_of_the_core_has_a_sentence() -> None:
    codes = set().union(*(codes_in(path, "Reason") for path in CORE.rglob("*.py")))
    assert len(codes) > 10
    assert codes <= set(texts.known_codes()["reasons"])


def test_every_event_that_services_record_has_a_sentence() -> None:
    files = list(SERVICES.rglob("*.py"))
    codes = set().union(*(codes_in(path, "record_event", 1) for path in files))
    codes |= set().union(*(codes_in(path, "advance") for path in files))
    assert {"submitted", "ready", "stop_asked"} <= codes
    assert codes <= set(texts.known_codes()["events"])


def test_what_a_project_held_at_a_start_is_told_as_past() -> None:
    """It counts all that the cycle started, and quotas may have changed since."""
    details = {"resource": "gpu:t4", "allocated": 1900, "quota": 2000}
    for code in ("started_in_quota", "started_borrowing"):
        told = texts.reason_sentence({"code": code, "message": "", "details": details})
        assert "after the cycle that started it the project held 1.9" in told


def test_an_unknown_code_keeps_the_cores_english() -> None:
    assert texts.reason_sentence({"code": "brand_new", "message": "Says so."}) == "Says so."
    assert (
        texts.reason_sentence({"code": "no_fit", "message": "Broken.", "details": {}}) == "Broken."
    )


@pytest.mark.django_db
@pytest.mark.parametrize("language", ["en", "ru"])
def test_all_that_happens_in_the_story_is_told(language: str) -> None:
    make_scene()
    with override(language):
        for workload in Workload.objects.all():
            told = texts.why(workload)
            assert told, workload.reason
            assert "%(" not in told
            # What the table cannot express falls back to the core's words: a key that was renamed.
            if language == "ru" and workload.reason["code"] != "not_evaluated":
                assert CYRILLIC.search(told), (workload.reason, told)
        for event in Event.objects.select_related("actor"):
            told = texts.event_sentence(event)
            assert "_" not in told.replace("%", ""), event.code
            if language == "ru":
                assert CYRILLIC.search(told), (event.code, told)
        for wait in Wait.objects.all():
            assert texts.wait_cause(wait)


@pytest.mark.django_db
def test_what_displaced_a_training_is_told_in_numbers() -> None:
    scene: Scene = make_scene()
    wait = scene.borrower.waits.get(cause="reclaimed")
    assert texts.wait_cause(wait).startswith("Gave borrowed GPUs back. Project Speech gained: ")
    assert "4 GPU, 3 GPU of that borrowed" in texts.wait_cause(wait)


@pytest.mark.django_db
def test_offers_lead_to_the_form_filled_in() -> None:
    workload = Workload(
        kind="interactive",
        project=Project(name="vision"),
        phase_changed_at=timezone.now(),
    )
    reason = {
        "offers": [
            {"id": "smaller", "gpu_milli": 250},
            {"id": "choose_node_type", "node_type": "v100"},
            {"id": "request_quota"},
            {"id": "notify_admin"},
            {"id": "something_new"},
        ]
    }
    found = texts.offers(reason, workload)
    assert [offer.label for offer in found] == [
        "Ask for 0.25 GPU",
        "Take V100",
        "Ask for more quota",
        "Tell an administrator",
    ]
    assert found[0].url == f"/sessions/new?clone={workload.pk}&gpu_milli=250"
    assert found[1].url == f"/sessions/new?clone={workload.pk}&node_type=v100"
    assert found[2].url == "/projects/vision"


@pytest.mark.parametrize(
    ("seconds", "english", "russian"),
    [
        (0.4, "0 s", "0 с"),
        (59.9, "59 s", "59 с"),
        (60, "1 min", "1 мин"),
        (3600, "1 h", "1 ч"),
        (5 * 3600 + 12 * 60 + 59, "5 h 12 min", "5 ч 12 мин"),
        (3 * 86400 + 4 * 3600, "3 d 4 h", "3 д 4 ч"),
        (-5, "0 s", "0 с"),
    ],
)
def test_spans_have_at_most_two_units(seconds: float, english: str, russian: str) -> None:
    for language, expected in (("en", english), ("ru", russian)):
        with override(language):
            assert formats.duration(seconds).replace(formats.NO_BREAK, " ") == expected


@pytest.mark.parametrize(
    ("mib", "english", "russian"),
    [
        (512, "512 MiB", "512 МиБ"),
        (2048, "2 GiB", "2 ГиБ"),
        (14917, "14.6 GiB", "14,6 ГиБ"),
        (2 * 1024 * 1024, "2 TiB", "2 ТиБ"),
    ],
)
def test_memory_is_written_in_the_language(mib: int, english: str, russian: str) -> None:
    for language, expected in (("en", english), ("ru", russian)):
        with override(language):
            assert formats.memory(mib).replace(formats.NO_BREAK, " ") == expected


@pytest.mark.parametrize(("milli", "text"), [(333, "0,333"), (1000, "1"), (1500, "1,5"), (0, "0")])
def test_russian_numbers_have_a_decimal_comma(milli: int, text: str) -> None:
    with override("ru"):
        assert formats.gpus(milli) == text
