"""A JSON object being read, field by field, so that every mistake is named with its path."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scheduling.core.errors import ScenarioError


class JsonObject:
    """A JSON object being read: gives its fields by name and remembers which were asked for."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, dict):
            raise ScenarioError(path, f"an object is needed, not {kind_of(value)}")
        self._fields: dict[str, object] = value
        self._known: set[str] = set()
        self.path = path

    def at(self, name: str) -> str:
        return f"{self.path}.{name}"

    def fail(self, name: str, problem: str) -> ScenarioError:
        return ScenarioError(self.at(name), problem)

    def has(self, name: str) -> bool:
        self._known.add(name)
        return name in self._fields

    def get(self, name: str) -> object:
        if not self.has(name):
            raise ScenarioError(self.path, f"the field {name!r} is missing")
        return self._fields[name]

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str) or not value:
            raise self.fail(name, f"a text that is not empty is needed, not {shown(value)}")
        if not is_unicode(value):
            raise self.fail(name, f"{value!a} is not Unicode text")
        return value

    def integer(self, name: str, minimum: int | None = None, maximum: int | None = None) -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(name, f"a whole number is needed, not {shown(value)}")
        if minimum is not None and value < minimum:
            raise self.fail(name, f"{value} is less than {minimum}")
        if maximum is not None and value > maximum:
            raise self.fail(name, f"{value} is more than {maximum}")
        return value

    def optional_integer(self, name: str, minimum: int | None = None) -> int | None:
        return None if self.get(name) is None else self.integer(name, minimum)

    def number(self, name: str, minimum: float | None = None) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(name, f"a number is needed, not {shown(value)}")
        if not math.isfinite(value):
            raise self.fail(name, f"a finite number is needed, not {value}")
        if minimum is not None and value < minimum:
            raise self.fail(name, f"{value} is less than {minimum}")
        return value

    def truth(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.fail(name, f"true or false is needed, not {shown(value)}")
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        value = self.get(name)
        if not isinstance(value, str) or value not in choices:
            raise self.fail(name, f"{shown(value)} is none of {', '.join(choices)}")
        return value

    def items(self, name: str) -> Iterator[tuple[object, str]]:
        value = self.get(name)
        if not isinstance(value, list):
            raise self.fail(name, f"a list is needed, not {kind_of(value)}")
        for i, entry in enumerate(value):
            yield entry, f"{self.at(name)}[{i}]"

    def texts(self, name: str) -> list[str]:
        result = []
        for value, path in self.items(name):
            if not isinstance(value, str) or not value:
                raise ScenarioError(path, f"a text is needed, not {shown(value)}")
            if not is_unicode(value):
                raise ScenarioError(path, f"{value!a} is not Unicode text")
            result.append(value)
        return result

    def child(self, name: str) -> JsonObject:
        return JsonObject(self.get(name), self.at(name))

    def entries(self) -> Iterator[tuple[str, object]]:
        """All fields, where their names are free."""
        self._known.update(self._fields)
        return iter(self._fields.items())

    def close(self) -> None:
        """Refuse fields that nobody asked for."""
        for name in self._fields:
            if name not in self._known:
                raise self.fail(name, "this field is unknown")


def is_unicode(value: str) -> bool:
    """Whether it can be written in UTF-8: JSON lets half a surrogate pair through."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def kind_of(value: object) -> str:
    """The kind of a JSON value, in words."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return names.get(type(value), "null" if value is None else "a number")


def shown(value: object) -> str:
    """A JSON value as a message quotes it."""
    return repr(value) if isinstance(value, str | int | float) else kind_of(value)
