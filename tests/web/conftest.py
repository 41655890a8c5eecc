"""What every test of pages needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.utils import timezone, translation


@pytest.fixture(autouse=True)
def nobodys_language_stays() -> Iterator[None]:
    """A request leaves its reader's language and zone active in the thread."""
    yield
    translation.deactivate()
    timezone.deactivate()
