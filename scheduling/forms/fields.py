"""Form fields whose errors name the value and the limit, for text, choices and argument vectors."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.datastructures import MultiValueDict
from django.utils.translation import gettext_lazy as _

from projects.models import SLUG_PATTERN
from scheduling.forms.amounts import shown

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

MAX_NAME_CHARS = 40
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
RESERVED_ENV_PREFIX = "ALLOT_"


class TextField(forms.CharField):
    """A line of text with a length; nothing is cut off silently."""

    default_error_messages = {  # noqa: RUF012 - Django's own way to declare them
        "required": _("Fill this in: at most %(limit)s characters."),
        "too_long": _("“%(value)s” has %(length)s characters: at most %(limit)s are allowed."),
        "control_characters": _(
            "“%(value)s” holds a control character; use printable text of at most %(limit)s."
        ),
    }

    def __init__(self, *, max_chars: int, **options: Any) -> None:  # CharField's own options
        options.setdefault("required", False)
        super().__init__(**options)
        self.max_chars = max_chars
        # The browser leaves room for a little more, so that the server can say what is wrong.
        self.validators = []

    def clean(self, value: Any) -> str:  # whatever a request holds
        """Read the text.

        Raises:
            ValidationError: `required`, `too_long` or `control_characters`.
        """
        text = str(self.to_python(value) or "")
        if not text:
            if self.required:
                raise self.refusal("required", "")
            return ""
        if len(text) > self.max_chars:
            raise self.refusal("too_long", text)
        if any(ord(mark) < 32 and mark not in "\n\r\t" for mark in text):
            raise self.refusal("control_characters", text.encode("unicode_escape").decode())
        return text

    def refusal(self, code: str, text: str) -> ValidationError:
        """The error with this code about this text."""
        params = {"value": shown(text), "length": len(text), "limit": self.max_chars}
        return ValidationError(self.error_messages[code], code=code, params=params)


class NameField(TextField):
    """A workload's name: it becomes part of paths and addresses, so only `[a-z][a-z0-9-]{1,39}`."""

    default_error_messages = {  # noqa: RUF012 - Django's own way to declare them
        "invalid_name": _(
            "“%(value)s” is not a usable name. Use 2 to %(limit)s characters: a to z, 0 to 9 and "
            "hyphens, beginning with a letter."
        ),
    }

    def __init__(self, **options: Any) -> None:  # CharField's own options
        super().__init__(max_chars=MAX_NAME_CHARS, **options)

    def clean(self, value: Any) -> str:  # whatever a request holds
        """Read the name.

        Raises:
            ValidationError: as `TextField`, and `invalid_name`.
        """
        name = super().clean(value)
        if name and not re.fullmatch(SLUG_PATTERN.strip("^$"), name):
            raise self.refusal("invalid_name", name)
        return name


class ArgumentsField(TextField):
    """Part of a command line, split as a shell would, without any expansion."""

    default_error_messages = {  # noqa: RUF012 - Django's own way to declare them
        "unbalanced": _(
            "“%(value)s” cannot be split into arguments: a quote is not closed "
            "(at most %(limit)s characters)."
        ),
    }

    def clean(self, value: Any) -> tuple[str, ...]:  # type: ignore[override]  # split
        """Read the arguments.

        Raises:
            ValidationError: as `TextField`, and `unbalanced`.
        """
        text = super().clean(value)
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            raise self.refusal("unbalanced", text) from error


class EnvironmentField(TextField):
    """Environment variables, one `NAME=value` a line."""

    widget = forms.Textarea
    default_error_messages = {  # noqa: RUF012 - Django's own way to declare them
        "invalid_variable": _(
            "“%(value)s” is not NAME=value. A name has letters, digits and underscores, at most "
            "100 of them, and does not begin with a digit; all lines together have at most "
            "%(limit)s characters."
        ),
        "reserved_variable": _(
            "“%(value)s” is Allot's own: names beginning with ALLOT_ are not yours to set."
        ),
    }

    def clean(self, value: Any) -> dict[str, str]:  # type: ignore[override]  # parsed
        """Read the variables.

        Raises:
            ValidationError: as `TextField`, `invalid_variable` or `reserved_variable`.
        """
        if isinstance(value, Mapping):
            return self._checked({str(name): str(text) for name, text in value.items()})
        variables: dict[str, str] = {}
        for line in super().clean(value).splitlines():
            if not line.strip():
                continue
            name, separator, text = line.partition("=")
            if not separator:
                raise self.refusal("invalid_variable", line)
            variables[name.strip()] = text
        return self._checked(variables)

    def _checked(self, variables: dict[str, str]) -> dict[str, str]:
        super().clean("".join(f"{name}={text}" for name, text in variables.items()))
        for name, text in variables.items():
            # A line of the form could not hold a value of several lines.
            if not ENV_NAME.fullmatch(name) or "\n" in text or "\r" in text:
                raise self.refusal("invalid_variable", f"{name}={text}")
            if name.startswith(RESERVED_ENV_PREFIX):
                raise self.refusal("reserved_variable", name)
        return variables

    def prepare_value(self, value: Any) -> Any:  # a mapping at first, then what was typed
        """Write a mapping as lines."""
        if isinstance(value, dict):
            return "\n".join(f"{name}={text}" for name, text in value.items())
        return value


class NamesWidget(forms.Widget):
    """Several values of one name, in the order in which the page sends them."""

    def value_from_datadict(self, data: Any, files: object, name: str) -> Any:  # QueryDict or dict
        """All values sent under the name."""
        if isinstance(data, MultiValueDict):
            return data.getlist(name)
        return data.get(name)


class NodeTypesField(forms.Field):
    """Node types by name, in order of preference."""

    widget = NamesWidget
    default_error_messages = {  # noqa: RUF012 - Django's own way to declare them
        "required": _("Choose at least one node type: %(limit)s."),
        "unknown_node_type": _("There is no node type “%(value)s”; there are: %(limit)s."),
    }

    def __init__(self, *, label: StrOrPromise = "", help_text: StrOrPromise = "") -> None:
        super().__init__(required=False, label=label, help_text=help_text)
        self.known: Sequence[str] = ()

    def clean(self, value: Any) -> tuple[str, ...]:  # whatever a request holds
        """Read the names; each counts once.

        Raises:
            ValidationError: `unknown_node_type`.
        """
        names = [value] if isinstance(value, str) else list(value or ())
        unique = tuple(dict.fromkeys(str(name) for name in names if str(name).strip()))
        for name in unique:
            if name not in self.known:
                raise self.refusal("unknown_node_type", name, self.known)
        return unique

    def refusal(self, code: str, value: str, limit: Iterable[str]) -> ValidationError:
        """The error with this code about this name."""
        params = {"value": shown(value), "limit": ", ".join(limit)}
        return ValidationError(self.error_messages[code], code=code, params=params)


class OptionField(forms.ChoiceField):
    """One of a few values; a wrong one is answered with the list."""

    default_error_messages = {  # noqa: RUF012 - Django's own way to declare them
        "required": _("Choose one of: %(limit)s."),
        "invalid_choice": _("“%(value)s” is none of: %(limit)s."),
    }

    def validate(self, value: Any) -> None:  # whatever a request holds
        """Refuse what is not offered.

        Raises:
            ValidationError: `required` or `invalid_choice`.
        """
        if not value and not self.required:
            return
        if not value or not self.valid_value(value):
            code = "invalid_choice" if value else "required"
            options = ", ".join(str(key) for key, _label in self.widget.choices if key != "")
            params = {"value": shown(value), "limit": options}
            raise ValidationError(self.error_messages[code], code=code, params=params)
