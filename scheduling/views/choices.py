"""What an address asks for, by field: a value that is not known is told, and nothing is shown in
its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django.http import HttpResponse

from projects.access import visible_projects
from projects.models import User
from scheduling.analytics.query import no_project, none_of

Problems = dict[str, list[str]]
"""Messages by field."""
REFUSED = 422


class Choices:
    """Reads values of an address and collects what is wrong with them.

    Attributes:
        problems: What a page shows at its fields, beside the values as they were given.
    """

    def __init__(self, address: Mapping[str, str]) -> None:
        self._address = address
        self.problems: Problems = {}

    @property
    def status(self) -> int:
        """Of the page."""
        return REFUSED if self.problems else 200

    def text(self, name: str, max_chars: int) -> str:
        """What is searched for."""
        return self._address.get(name, "").replace("\0", "").strip()[:max_chars]

    def one_of(self, name: str, known: Iterable[str], default: str = "") -> str:
        """The value as it was given; the default where there is none."""
        value = self._address.get(name, "")
        allowed = list(known)
        if value and value not in allowed:
            self.problems[name] = [none_of(value, allowed)]
        return value or default

    def project(self, viewer: User) -> str:
        """The name of a project that the reader may see; empty for all."""
        name = self._address.get("project", "")
        if name and not visible_projects(viewer).filter(name=name).exists():
            self.problems["project"] = [no_project(name)]
        return name


def refusal(problems: Problems) -> HttpResponse:
    """What is wrong, as the answer in place of a file."""
    lines = [f"{name}: {text}" for name, texts in problems.items() for text in texts]
    return HttpResponse("\n".join(lines), status=REFUSED, content_type="text/plain; charset=utf-8")
