"""The README tells the truth: its links, commands, places and words exist."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import get_commands

from scheduling import demonstration

ROOT = Path(settings.BASE_DIR)
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = DOCUMENTS[0].read_text()
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")


def table_under(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    text = README.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    targets = [document.parent / link for link in LINK.findall(document.read_text())]
    assert [str(target) for target in targets if not target.exists()] == []


def test_every_command_named_is_one() -> None:
    ours = {name for name, app in get_commands().items() if not app.startswith("django")}
    named = set(re.findall(r"manage\.py ([a-z]+)", README))
    assert named <= ours
    goals = set(re.findall(r"`make ([a-z-]+)`", README))
    makefile = (ROOT / "Makefile").read_text()
    assert goals
    assert all(f"\n{goal}:" in makefile for goal in goals)


def test_every_place_named_is_there() -> None:
    named = [
        name.strip("`")
        for row in table_under("How it is built")
        for name in row[0].split(", ")
        if "[" not in name
    ]
    beside = {"cycle.py", "snapshot.py", "agent/relay.py"}
    missing = [
        name
        for name in named
        if not (ROOT / ("scheduling" if name in beside else "") / name).exists()
    ]
    assert missing == []


def test_the_storys_people_are_those_of_the_demonstration() -> None:
    people = {item.person: item for item in demonstration.PROJECTS}
    for person, project in (("vera", "vision"), ("lena", "language"), ("sergey", "speech")):
        assert f"`{person}`" in README
        assert people[person].name == project
        assert f"*{project}*" in README


def test_each_word_of_the_glossary_is_used_by_the_code() -> None:
    sources = "\n".join(
        file.read_text()
        for file in (ROOT / "scheduling").rglob("*.py")
        if "locale" not in file.parts
    ).lower()
    words = [word for row in table_under("Words") for word in row[0].split(", ")]
    assert len(words) > 15
    assert [word for word in words if word.lower() not in sources] == []
