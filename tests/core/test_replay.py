"""`manage.py replay`: exit codes, lines, JSON, and what goes where when a file cannot be read."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from django.core.management import call_command

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"


def replay(*arguments: str) -> tuple[int, list[str], list[str]]:
    """Exit status, lines on standard output, lines on standard error."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    try:
        call_command("replay", *arguments, stdout=out, stderr=err, no_color=True)
    except SystemExit as ending:
        status = int(ending.code or 0)
    return status, out.getvalue().splitlines(), err.getvalue().splitlines()


@pytest.fixture
def failing(tmp_path: Path) -> str:
    scenarios = json.loads((SCENARIOS / "policy.json").read_text(encoding="utf-8"))
    scenario = scenarios[0]
    scenario["expect"]["replicas"]["w1-1"] = {"outcome": "evicted"}
    path = tmp_path / "failing.json"
    path.write_text(json.dumps(scenario), encoding="utf-8")
    return str(path)


@pytest.fixture
def broken(tmp_path: Path) -> str:
    path = tmp_path / "broken.json"
    path.write_text('{"format": "scenario/1", "id": "x", "nodes": 4}', encoding="utf-8")
    return str(path)


def test_all_passed() -> None:
    status, lines, errors = replay(str(SCENARIOS / "policy.json"))
    assert status == 0
    assert lines[0] == "policy/001: pass"
    assert len(lines) == 13
    assert not errors


def test_one_failed(failing: str) -> None:
    status, lines, errors = replay(failing)
    assert status == 1
    assert lines == ["policy/001: w1-1: evicted expected, kept on node-a"]
    assert not errors


def test_unreadable_wins_over_failed_and_prints_nothing(failing: str, broken: str) -> None:
    status, lines, errors = replay(failing, broken)
    assert status == 2
    assert len(lines) == 1
    assert errors == [f"{broken}: $.nodes: a list is needed, not a number"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"id": "x", "id": "y"}', "the field 'id' is named twice in one object"),
    ],
    ids=["cut off", "not UTF-8", "nested", "named twice"],
)
def test_what_is_no_json(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    status, lines, errors = replay(str(path))
    assert (status, lines) == (2, [])
    assert errors[0].startswith(f"{path}: $: {problem}")


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("id", "\ud800", r"$.id: '\ud800' is not Unicode text"),
        ("cycles", 10**9, "$.cycles: 1000000000 is more than 10000"),
    ],
    ids=["half a character", "too many cycles"],
)
def test_a_slip_of_the_keyboard_neither_crashes_nor_hangs(
    tmp_path: Path, field: str, value: object, problem: str
) -> None:
    scenario = json.loads((SCENARIOS / "policy.json").read_text(encoding="utf-8"))[0]
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({**scenario, field: value}), encoding="utf-8")
    assert replay(str(path)) == (2, [], [f"{path}: {problem}"])


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf" + (SCENARIOS / "policy.json").read_bytes())
    assert replay(str(path))[0] == 0


def test_no_such_file(tmp_path: Path) -> None:
    status, lines, errors = replay(str(tmp_path / "none.json"))
    assert (status, lines) == (2, [])
    assert "No such file" in errors[0]


def test_json_lines() -> None:
    status, lines, _ = replay("--json", str(SCENARIOS / "policy.json"))
    assert status == 0
    row = json.loads(lines[7])
    assert set(row) == {"id", "passed", "stable", "replicas", "reasons", "fair_share_milli"}
    assert (row["id"], row["passed"], row["stable"]) == ("policy/008", True, True)
    assert row["replicas"]["w4-1"] == {
        "outcome": "placed",
        "node": "node-b",
        "devices": [0, 1],
    }
    assert row["reasons"]["w2"]["code"] == "reclaimed"
    assert "team-a" in row["reasons"]["w2"]["message"]
    assert row["fair_share_milli"] == {"team-a": 2000, "team-b": 2000}


def test_nothing_expected(tmp_path: Path) -> None:
    scenario = json.loads((SCENARIOS / "policy.json").read_text(encoding="utf-8"))[2]
    del scenario["expect"]
    path = tmp_path / "captured.json"
    path.write_text(json.dumps(scenario), encoding="utf-8")
    status, lines, _ = replay("--json", str(path))
    row = json.loads(lines[0])
    assert status == 0
    assert row["passed"] is None
    assert set(row["reasons"]) == {"w5", "w6"}


@pytest.mark.django_db
def test_export_prints_a_recorded_cycle(tmp_path: Path) -> None:
    from django.utils import timezone

    from scheduling.models import CycleRecord

    scenario = json.loads((SCENARIOS / "policy.json").read_text(encoding="utf-8"))[0]
    record = CycleRecord.objects.create(
        started_at=timezone.now(),
        snapshot_s=0,
        plan_s=0,
        record_s=0,
        packed_scenario=CycleRecord.pack(scenario),
        decisions=[],
        numbers={},
    )
    status, lines, _ = replay("--export", str(record.pk))
    assert status == 0
    assert json.loads("\n".join(lines)) == scenario
