"""Every template parses, also one that no test renders."""

from pathlib import Path

import pytest
from django.conf import settings
from django.template.loader import get_template

FOLDER = Path(settings.BASE_DIR) / "templates"
NAMES = sorted(str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*") if file.is_file())


@pytest.mark.parametrize("name", NAMES)
def test_template_parses(name: str) -> None:
    get_template(name)
