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

LABEL_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
"""Kubernetes' rule, so that labels of its nodes can be matched."""
validate_label_value = RegexValidator(
    rf"^{LABEL_NAME}\Z",
    message=_(
        "“%(value)s” is no label: 1 to 63 letters of English, digits, hyphens, dots and "
        "underscores, a letter or digit at both ends."
    ),
    code="invalid_label",
)
validate_label_key = RegexValidator(
    rf"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?{LABEL_NAME}\Z",
    message=_(
        "“%(value)s” is no key of a label: an optional domain and a slash, then 1 to 63 letters of "
        "English, digits, hyphens, dots and underscores, a letter or digit at both ends."
    ),
    code="invalid_label",
)


def one_line(text: str) -> str:
    """A name as people give it: one space between words, and no control characters, which the
    database refuses or nobody sees."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text).split())
