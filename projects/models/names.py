"""How things are named in addresses, labels and files."""

from __future__ import annotations

import re

from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

DEFAULT_LABEL_KEY = "allot/node-type"
SLUG_PATTERN = r"^[a-z][a-z0-9-]{1,39}$"
validate_slug = RegexValidator(
    SLUG_PATTERN,
    message=_("Use 2 to 40 characters: a to z, 0 to 9 and hyphens, beginning with a letter."),
    code="invalid_name",
)


def one_line(text: str) -> str:
    """A name as people give it: one space between words, and no control characters, which the
    database refuses or nobody sees."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text).split())
