"""How a node holds fractions and swaps sessions, in sentences; the agents report codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from django.utils.translation import gettext as _

Text = Callable[[], str]

_BY_LIBRARY: Final[Mapping[str, Text]] = {
    "before_turing": lambda: _(
        "A library between the program and the driver holds each session to its share: on devices "
        "before Turing no driver can itself."
    ),
    "old_driver": lambda: _(
        "A library between the program and the driver holds each session to its share: this "
        "driver is older than 615 and cannot itself."
    ),
    "no_cgroup_v2": lambda: _(
        "A library between the program and the driver holds each session to its share: the driver "
        "could itself if this node had cgroups of version 2."
    ),
}
_FRACTIONS: Final[Mapping[str, Text]] = {
    "driver": lambda: _("The driver itself holds each session to its share of memory."),
    "preload": lambda: _(
        "A preloaded library holds programs to their share; some can avoid it, since this node "
        "allows no mounts for workloads."
    ),
    "mig": lambda: _(
        "MIG: the hardware divides the device into instances, each a device of its own."
    ),
}
_NOT_HELD: Final[Mapping[str, Text]] = {
    "no_compiler": lambda: _(
        "Nothing holds sessions to their share: this node has no C compiler to build the library "
        "that would, and no prebuilt one. Install gcc and libc6-dev there, then restart its agent."
    ),
    "compiler_failed": lambda: _(
        "Nothing holds sessions to their share: this node's C compiler failed to build the library "
        "that would, and there is no prebuilt one. Its agent's log has the compiler's words."
    ),
    "unfit_prebuilt": lambda: _(
        "Nothing holds sessions to their share: this node cannot build the library that would, and "
        "the prebuilt one was refused: it is of another version of Allot, another kind of machine, "
        "or damaged. Its agent's log says which."
    ),
}
_SWAPS: Final[Mapping[str, Text]] = {
    "custom_storage": lambda: _(
        "The driver moves device memory to the host and back. It could copy into memory that the "
        "agent keeps ready, which is faster; that is not built yet."
    ),
    "checkpoint": lambda: _("The driver moves device memory to the host and back."),
    "unproven_before_turing": lambda: _(
        "The driver moves device memory to the host and back; on devices before Turing nobody has "
        "published that it works."
    ),
    "old_driver": lambda: _("Not possible: the driver is older than 570."),
    "mig": lambda: _("Not possible: the driver cannot move the memory of a MIG instance."),
    "not_x86": lambda: _("Not possible: before driver 615 only on x86-64 machines."),
}


def describe_fraction(mechanism: str, note: str, *, shares_time: bool) -> str:
    """How fractions are held, and why so; an unknown code as it is, empty without a GPU."""
    by_note = {"proxy": _BY_LIBRARY, "none": _NOT_HELD}.get(mechanism)
    text = by_note.get(note) if by_note is not None else _FRACTIONS.get(mechanism)
    if text is None:
        return ": ".join(filter(None, (mechanism, note)))
    if mechanism in ("mig", "none"):
        return text()
    return f"{text()} {_time(shares_time)}"


def _time(shares_time: bool) -> str:
    if shares_time:
        return _("Time on the device is shared in proportion.")
    return _("Memory only: time on the device is not shared out.")


def describe_swap(mechanism: str, note: str) -> str:
    """How idle sessions are swapped, or why not; an unknown code as it is."""
    text = _SWAPS.get(note)
    return text() if text is not None else ": ".join(filter(None, (mechanism, note)))
