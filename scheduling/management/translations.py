"""Compiles translations without the gettext programs, when they changed.

The compiled files are not kept in the repository; commands and tests make them.
"""

import os
from pathlib import Path

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po


def compile_translations(folder: Path) -> int:
    """Compile each ``.po`` file below a folder that is newer than its ``.mo``.

    Returns:
        How many were compiled.
    """
    stale = [source for source in sorted(folder.rglob("*.po")) if _is_stale(source)]
    for source in stale:
        _compile(source)
    return len(stale)


def _is_stale(source: Path) -> bool:
    compiled = source.with_suffix(".mo")
    return not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime


def _compile(source: Path) -> None:
    """Write beside and rename, since others may be reading."""
    unfinished = source.with_suffix(f".mo.{os.getpid()}")
    with source.open("rb") as text, unfinished.open("wb") as binary:
        write_mo(binary, read_po(text, locale=source.parent.parent.name))
    unfinished.replace(source.with_suffix(".mo"))
