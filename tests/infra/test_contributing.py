"""The documented names and commands are those that exist."""

import re
from pathlib import Path

from django.conf import settings

from config import env

TEXT = (Path(settings.BASE_DIR) / "docs" / "CONTRIBUTING.md").read_text()
MAKEFILE = (Path(settings.BASE_DIR) / "Makefile").read_text()


def test_every_name_of_the_environment_is_documented() -> None:
    assert set(re.findall(r"`(ALLOT_[A-Z_]+)`", TEXT)) == env.KNOWN_NAMES


def test_documented_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", TEXT)) <= targets
