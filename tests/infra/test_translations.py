"""Translations are compiled when they changed, and only then."""

import gettext
import os
from pathlib import Path

from scheduling.management.translations import compile_translations

SOURCE = """
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && "
"(n%100<12 || n%100>14) ? 1 : 2);\\n"

msgid "Queue"
msgstr "Очередь"

msgid "%(n)d node"
msgid_plural "%(n)d nodes"
msgstr[0] "%(n)d узел"
msgstr[1] "%(n)d узла"
msgstr[2] "%(n)d узлов"
"""


def test_compiles_what_changed(tmp_path: Path) -> None:
    source = tmp_path / "ru" / "LC_MESSAGES" / "django.po"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)

    assert compile_translations(tmp_path) == 1
    assert compile_translations(tmp_path) == 0

    with source.with_suffix(".mo").open("rb") as compiled:
        catalog = gettext.GNUTranslations(compiled)
    assert catalog.gettext("Queue") == "Очередь"
    assert catalog.ngettext("%(n)d node", "%(n)d nodes", 5) == "%(n)d узлов"

    later = source.with_suffix(".mo").stat().st_mtime + 10
    os.utime(source, (later, later))
    assert compile_translations(tmp_path) == 1
