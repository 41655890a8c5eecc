"""Labels that a workload's nodes must have: from templates and programs, never typed on the page.

A researcher chooses node types and templates; which machines those mean is an admin's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from projects.models import User
from projects.templates import labels_of
from scheduling.forms.amounts import shown

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

MAX_LABEL_CHARS = 100
LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,98}[A-Za-z0-9])?")


class LabelsField(forms.Field):
    """Labels as an object of texts."""

    default_error_messages = {  # noqa: RUF012 - Django's own way to declare them
        "invalid_label": _(
            "“%(value)s” is not a label: a key and a value of letters, digits and “-_./”, at most "
            "%(limit)s characters each."
        ),
    }

    def __init__(self, *, label: StrOrPromise = "") -> None:
        super().__init__(required=False, label=label, widget=forms.HiddenInput)

    def clean(self, value: Any) -> dict[str, str]:  # whatever a request holds
        """Read the labels.

        Raises:
            ValidationError: `invalid_label`.
        """
        if not value:
            return {}
        labels = value if isinstance(value, Mapping) else {str(value): ""}
        for key, text in labels.items():
            if not LABEL.fullmatch(str(key)) or not LABEL.fullmatch(str(text)):
                params = {"value": shown(f"{key}={text}"), "limit": MAX_LABEL_CHARS}
                message = self.error_messages["invalid_label"]
                raise ValidationError(message, code="invalid_label", params=params)
        return {str(key): str(text) for key, text in labels.items()}


def labels_for(user: User, kind: str, template: str, asked: Mapping[str, str]) -> dict[str, str]:
    """The labels of a request: its template's; an admin may name others.

    Raises:
        ValidationError: `labels_by_template`.
    """
    labels = labels_of(user, kind, template) if template else {}
    if asked and dict(asked) != labels and not user.is_superuser:
        message = _("“%(value)s”: labels of nodes come from templates; here they are: %(limit)s.")
        params = {"value": shown(written(asked)), "limit": written(labels) or "—"}
        raise ValidationError(message, code="labels_by_template", params=params)
    return dict(asked) or labels


def written(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
