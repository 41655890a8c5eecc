"""Russian is complete: every string is in the catalogue, translated, and fits its place."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po
from django.core.management import call_command
from django.test import override_settings

from config import env
from tests import needs

CATALOGUE = env.REPOSITORY / "config" / "locale" / "ru" / "LC_MESSAGES" / "django.po"
# Where no strings of ours are; `locale`, so that the real catalogue is not written to.
IGNORED = (".venv*", "var", "tests", "docs", "locale")
PLACEHOLDER = re.compile(r"%\((\w+)\)s|%s")
# Names, units and codes that both languages write alike.
ALIKE = {"GPU", "CPU", "%(count)s GPU"}
CYRILLIC = re.compile("[а-яё₽№]", re.IGNORECASE)


def read(path: Path) -> Catalog:
    with path.open("rb") as source:
        return read_po(source, locale="ru")


def forms(text: object) -> list[str]:
    """The string, or its plural forms."""
    return [str(part) for part in text] if isinstance(text, tuple | list) else [str(text)]


def messages(catalogue: Catalog) -> list[Message]:
    return [message for message in catalogue if message.id]


def test_the_catalogue_has_every_string_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs.gettext()
    copied = tmp_path / "ru" / "LC_MESSAGES" / "django.po"
    copied.parent.mkdir(parents=True)
    shutil.copy(CATALOGUE, copied)
    monkeypatch.chdir(env.REPOSITORY)
    with override_settings(LOCALE_PATHS=[tmp_path]):
        call_command(
            "makemessages",
            locale=["ru"],
            extensions=["html", "py"],
            ignore_patterns=list(IGNORED),
            no_location=True,
            verbosity=0,
        )
    fresh = read(copied)
    missing = [message.id for message in messages(fresh) if not all(forms(message.string))]
    assert not missing
    assert not [message.id for message in messages(fresh) if message.fuzzy]
    assert not list(fresh.obsolete)


def test_every_translation_is_russian_and_keeps_its_placeholders() -> None:
    for message in messages(read(CATALOGUE)):
        originals = forms(message.id)
        wanted = set(PLACEHOLDER.findall(originals[-1]))
        for translated in forms(message.string):
            assert translated, originals
            assert set(PLACEHOLDER.findall(translated)) == wanted, originals
            assert CYRILLIC.search(translated) or originals[0] in ALIKE, originals


def test_plurals_have_all_russian_forms() -> None:
    catalogue = read(CATALOGUE)
    plurals = [message for message in messages(catalogue) if isinstance(message.id, tuple | list)]
    assert plurals
    for message in plurals:
        assert len(forms(message.string)) == catalogue.num_plurals, message.id
