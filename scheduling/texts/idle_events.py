"""The ending of what idles in sentences: warnings, extensions, the end."""

from __future__ import annotations

from django.utils.translation import gettext as _

from scheduling import formats
from scheduling.texts.words import Details, Sentence, moment_of


def _warning(d: Details) -> str:
    text = _(
        "Idle for %(idle)s. By the idle rule of project %(project)s it is stopped at %(at)s unless "
        "it is used or extended."
    )
    values = {
        "idle": formats.duration(d["idle_s"]),
        "project": d["project"],
        "at": formats.clock_with_zone(moment_of(d["end_at"])),
    }
    return text % values + (" " + session_loss() if d.get("is_session") else "")


def session_loss() -> str:
    """What a session's stop costs."""
    return _(
        "Variables of its kernels and what runs in its terminals are lost then, unless a kernel "
        "saves them when it gets SIGUSR1; notebooks and files stay as they were last saved, which "
        "an open JupyterLab does every two minutes."
    )


def stopped(d: Details) -> str:
    """Why it was stopped."""
    values = {"idle": formats.duration(d["idle_s"]), "project": d["project"]}
    return _("Stopped by the idle rule of project %(project)s: idle for %(idle)s") % values


def _extended(d: Details) -> str:
    values = {"who": d.get("actor") or "—", "at": formats.clock_with_zone(moment_of(d["until"]))}
    return _("%(who)s keeps it until %(at)s at least, idle or not.") % values


EVENTS: dict[str, Sentence] = {
    "idle_warning": _warning,
    "idle_withdrawn": lambda d: _("It is not stopped for idling after all."),
    "idle_extended": _extended,
    "idle_stopped": lambda d: stopped(d) + ".",
    "idle_notified": lambda d: (
        _("%(who)s asks whether it is still needed: it holds a GPU and is idle.")
        % {"who": d.get("actor") or "—"}
    ),
}
