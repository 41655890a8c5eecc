"""Time limits in sentences: warnings, extensions, the end."""

from __future__ import annotations

from django.utils.translation import gettext as _

from scheduling import formats
from scheduling.texts.words import Details, Sentence, moment_of


def _warning(d: Details) -> str:
    text = _(
        "Stopped in %(left)s, at %(at)s, unless it is extended: project %(project)s lets it run "
        "for %(limit)s."
    )
    if d["is_own"]:
        text = _(
            "Stopped in %(left)s, at %(at)s, unless it is extended: it was submitted to run for "
            "%(limit)s."
        )
    values = {
        "limit": formats.duration(d["limit_s"]),
        "project": d["project"],
        "left": formats.duration(d["left_s"]),
        "at": formats.clock_with_zone(moment_of(d["end_at"])),
    }
    return text % values


def stopped(d: Details) -> str:
    """Why it was stopped."""
    text = _("Stopped by the time limit of project %(project)s, %(limit)s: it ran for %(ran)s")
    if d["is_own"]:
        text = _("Stopped by its own time limit, %(limit)s: it ran for %(ran)s")
    values = {
        "limit": formats.duration(d["limit_s"]),
        "project": d["project"],
        "ran": formats.duration(d["ran_s"]),
    }
    return text % values


def _extended(d: Details) -> str:
    values = {"who": d.get("actor") or "—", "at": formats.clock_with_zone(moment_of(d["until"]))}
    return _("%(who)s puts its time limit off: it may run until %(at)s at least.") % values


EVENTS: dict[str, Sentence] = {
    "limit_warning": _warning,
    "limit_withdrawn": lambda d: _("It is not stopped by a time limit after all."),
    "limit_extended": _extended,
    "time_limit": lambda d: stopped(d) + ".",
}
