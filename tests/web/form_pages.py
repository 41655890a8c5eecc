"""The forms of sessions and trainings as a browser and assistive technology find them."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django.test import Client
from django.urls import reverse

SESSION_PAGE = "scheduling:new-session"
TRAINING_PAGE = "scheduling:new-training"


def send(client: Client, values: dict[str, object], **headers: str) -> Any:  # a client's answer
    """Press the button of the form that these values are of."""
    page = SESSION_PAGE if values["kind"] == "interactive" else TRAINING_PAGE
    return client.post(reverse(page), values, headers=headers)


class Page(HTMLParser):
    """What assistive technology would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.duplicates: set[str] = set()
        self.links: set[str] = set()
        self.described: set[str] = set()
        self.labelled: set[str] = set()
        self.tabindexes: list[str] = []
        self.controls: list[str] = []
        self.buttons: dict[str, int] = {}
        self._named: set[str] = set()
        self._unnamed: set[str] = set()
        self._num_open_labels = 0
        self.feed(text)

    @property
    def unnamed(self) -> set[str]:
        """Ids of controls without label."""
        return self._unnamed - self.labelled - self._named

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._note(tag, given)
        if tag == "label":
            self._num_open_labels += 1
        if tag in ("input", "select", "textarea") and given.get("type") != "hidden":
            self.controls.append(given.get("name", ""))
            if not self._num_open_labels and "aria-label" not in given:
                self._unnamed.add(given.get("id", "without an id"))
        if tag == "button" and "id" in given:
            self.buttons[given["id"]] = len(self.controls)

    def _note(self, tag: str, given: dict[str, str]) -> None:
        identity = given.get("id")
        if identity:
            (self.duplicates if identity in self.ids else self.ids).add(identity)
        if tag == "a":
            self.links.add(given.get("href", ""))
        if tag == "label" and "for" in given:
            self.labelled.add(given["for"])
        self.described.update(given.get("aria-describedby", "").split())
        if "tabindex" in given:
            self.tabindexes.append(given["tabindex"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "label":
            self._num_open_labels -= 1


class Filled(HTMLParser):
    """What a browser would send of the workload form as it stands."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._is_inside = False
        self._select = self._textarea = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if given.get("id") == "workload-form":
            self._is_inside = True
        if not self._is_inside:
            return
        name = given.get("name", "")
        if tag == "input" and name:
            is_box = given.get("type") in ("radio", "checkbox")
            if not is_box or "checked" in given:
                self._add(name, given.get("value", "on" if is_box else ""))
        elif tag == "select":
            self._select = name
        elif tag == "option" and "selected" in given:
            self._add(self._select, given["value"])
        elif tag == "textarea":
            self._textarea = name
            self._add(name, "")

    def handle_data(self, data: str) -> None:
        if self._textarea:
            # Browsers drop the line break that follows the tag.
            text = self.values[self._textarea][-1] + data
            self.values[self._textarea][-1] = text.removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._textarea = ""
        if tag == "form":
            self._is_inside = False

    def _add(self, name: str, value: str) -> None:
        self.values.setdefault(name, []).append(value)


def as_sent(text: str) -> dict[str, Any]:
    """The form of a page, submitted as it stands."""
    values: dict[str, Any] = {
        name: found if name in ("node_types", "node_type_order") else found[-1]
        for name, found in Filled(text).values.items()
    }
    return {**values, "action": "submit"}
