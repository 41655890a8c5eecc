"""What every page is put together from: icons, states, amounts, times, resource bars.

Tags, not classes of widgets: a template says `{% state workload %}` and this module knows the icon,
word and hue. Nothing here decides or queries, except the banners, which ask how the system is.
"""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

from django import template
from django.http import HttpRequest
from django.template.context import Context
from django.templatetags.static import static
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext

from scheduling import formats, states, texts
from scheduling.bars import Bar
from scheduling.forms.amounts import HOURS, written
from scheduling.models import Attempt, Node, Wait, Workload
from scheduling.selectors import Waited
from scheduling.system import Banner, banners
from scheduling.texts import estimates
from scheduling.texts import swap as swap_texts

register = template.Library()

STATE_ICONS = {
    "queued": "clock",
    "starting": "spinner",
    "running": "circle",
    "idle": "moon",
    "swapped_out": "snowflake",
    "swapping_in": "spinner",
    "checkpointing": "disk",
    "preempted": "pause",
    "stopping": "spinner",
    "stopped": "square",
    "completed": "tick",
    "failed": "octagon",
    "lost": "broken",
    # Of nodes.
    "ready": "circle",
    "cordoned": "square",
}


@register.simple_tag
def icon(name: str) -> SafeString:
    """A drawing that goes with a word; screen readers skip it."""
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>',
        static("img/icons.svg"),
        name,
    )


@register.simple_tag
def kind_icon(workload: Workload) -> SafeString:
    """Whether it is a session or a training, in front of its name."""
    word = workload.get_kind_display()
    return format_html(
        '<span class="kind" title="{}">{}<span class="visually-hidden">{}: </span></span>',
        word,
        icon("session" if workload.is_session else "training"),
        word,
    )


@register.simple_tag
def state(subject: Workload | Node) -> SafeString:
    """A state: icon, word and hue, never one alone."""
    if isinstance(subject, Workload):
        code, word = states.state_of(subject), states.word_of(subject)
    else:
        code, word = subject.state, subject.get_state_display()
    return state_chip(code, word)


@register.simple_tag
def lending(workload: Workload) -> SafeString | str:
    """What becomes of an idle workload's GPU: lent, or why not."""
    code = states.state_of(workload)
    if code in (states.SWAPPED_OUT, states.SWAPPING_IN):
        return state_chip(code, states.word_of(workload))
    if not workload.is_session or workload.current is None:
        return "—"
    return swap_texts.not_lent(workload.current.not_lent) or "—"


@register.simple_tag
def state_chip(code: str, word: str) -> SafeString:
    """A state by its code and word."""
    drawing = icon(STATE_ICONS.get(code, "question"))
    return format_html(
        '<span class="state state-{}" data-state="{}">{}{}</span>', code, code, drawing, word
    )


@register.filter
def state_icon(code: str) -> str:
    """Name of the drawing of a state."""
    return STATE_ICONS.get(code, "question")


@register.filter
def event_text(event: Any) -> str:
    """What happened, in words."""
    return texts.event_sentence(event)


@register.filter
def around_share_text(attempt: Attempt) -> str:
    """What it takes around the library that holds it to its share, in words."""
    return texts.around_share(attempt)


@register.filter
def reason_text(workload: Workload) -> str:
    """Why it waits, in words; empty where nothing is recorded."""
    return texts.why(workload)


@register.filter
def eta_text(workload: Workload) -> str:
    """When it will start, in words; empty where it does not wait."""
    return estimates.eta_text(workload)


@register.filter
def eta_basis(workload: Workload) -> str:
    """What that rests on."""
    return estimates.eta_basis(workload)


@register.filter
def gpu(milli: int | None) -> str:
    return "—" if milli is None else formats.gpus(milli)


@register.filter
def cores(milli: int | None) -> str:
    return "—" if milli is None else formats.cores(milli)


@register.filter
def cores_text(milli: int) -> str:
    return formats.cores_text(milli)


@register.filter
def lines(texts_in_order: list[str]) -> str:
    """Lines as one text."""
    return "\n".join(texts_in_order)


@register.filter
def memory(mib: float | None) -> str:
    return "—" if mib is None else formats.memory(round(mib))


@register.filter
def memory_of(held: int, total: int) -> str:
    """What is held of a memory, in the unit of the whole."""
    return formats.memory_pair(held, total)


@register.filter
def skew(seconds: float) -> str:
    """How far a clock is from ours, with its sign."""
    return formats.skew(seconds)


@register.filter
def filesize(num_bytes: int) -> str:
    return formats.size(num_bytes)


@register.filter
def money(amount: Decimal | float | None) -> str:
    return "—" if amount is None else formats.money(Decimal(amount))


@register.filter
def part(fraction: float | None) -> str:
    """A fraction in per cent."""
    return "—" if fraction is None else formats.percent(fraction)


@register.filter
def duration(seconds: float | None) -> str:
    return "—" if seconds is None else formats.duration(seconds)


@register.filter
def milliseconds(seconds: float) -> str:
    """The duration of a step of the planner."""
    return formats.milliseconds(seconds)


@register.filter
def type_word(name: str) -> str:
    """A node type by its name, as people write it."""
    return texts.type_word(name)


@register.filter
def command_line(workload: Workload) -> str:
    """The command as one would type it."""
    return shlex.join(workload.command)


@register.filter
def wait_seconds(wait: Wait) -> float:
    """How long a wait lasted, or lasts until now."""
    return formats.seconds_since(wait.started_at, wait.ended_at)


@register.filter
def decision_word(kind: str) -> str:
    """A kind of decision in words."""
    words = {
        "start": gettext("start"),
        "evict": gettext("give way"),
        "move": gettext("move"),
        "hold": gettext("wait"),
        "cordon": gettext("close a node"),
    }
    return words.get(kind, kind)


@register.simple_tag
def attempt_pattern() -> str:
    """How the log's script names an attempt that began while the page was open."""
    return gettext("attempt %s")


class Crewed(Protocol):
    """What may have several replicas: a workload, or what a form asks for."""

    @property
    def min_replicas(self) -> int: ...

    @property
    def max_replicas(self) -> int: ...


@register.simple_tag
def replica_range(asked: Crewed) -> str:
    """How many replicas: `4`, or `2–4` where it may grow."""
    if asked.min_replicas == asked.max_replicas:
        return str(asked.max_replicas)
    return f"{asked.min_replicas}–{asked.max_replicas}"


@register.filter
def ended_text(attempt: Attempt) -> str:
    """How a replica's attempt ended."""
    ended = str(attempt.get_phase_display())
    if attempt.exit_code is None:
        return ended
    return f"{ended} · " + gettext("exit code %(code)s") % {"code": attempt.exit_code}


@register.simple_tag
def replica_pattern() -> str:
    """How the log's script names an attempt of one of several replicas."""
    return gettext("replica %(replica)s, attempt %(attempt)s")


@register.simple_tag
def ago(moment: datetime | None) -> SafeString | str:
    """How long ago; the absolute time on hover. Kept current by the page's script."""
    return _time("ago", moment, formats.ago)


@register.simple_tag
def since(moment: datetime | None) -> SafeString | str:
    """How long it has lasted, from a moment until now."""
    return _time("since", moment, lambda value: formats.duration(formats.seconds_since(value)))


@register.simple_tag
def until(moment: datetime | None) -> SafeString | str:
    """How long until a moment; counted down by the page's script."""
    return _time(
        "until", moment, lambda value: formats.duration((value - timezone.now()).total_seconds())
    )


@register.filter
def hours_value(seconds: int) -> str:
    """Seconds as the hours that a form reads, whatever the language."""
    return written(seconds, HOURS, localised=False)


@register.simple_tag
def in_all(waited: Waited) -> SafeString | str:
    """How long it has waited in all; goes on while it waits."""
    text = formats.duration(waited.total_s)
    if waited.since is None:
        return text
    began = timezone.now() - timedelta(seconds=waited.total_s)
    return format_html('<time class="since" datetime="{}">{}</time>', began.isoformat(), text)


@register.simple_tag
def moment(value: datetime | None) -> SafeString | str:
    """A time of day; date and zone on hover."""
    return _time("moment", value, formats.clock)


def _time(kind: str, value: datetime | None, text: Any) -> SafeString | str:
    if value is None:
        return "—"
    return format_html(
        '<time class="{}" datetime="{}" title="{}">{}</time>',
        kind,
        value.isoformat(timespec="seconds"),
        formats.absolute(value),
        text(value),
    )


@register.simple_tag
def script_words() -> SafeString:
    """Words that the page's script needs to keep times current, as attributes."""
    words = {
        "ago": gettext("%(time)s ago"),
        "unit-s": pgettext("unit of time", "s"),
        "unit-min": pgettext("unit of time", "min"),
        "unit-h": pgettext("unit of time", "h"),
        "unit-d": pgettext("unit of time", "d"),
        "live-open": gettext("Live"),
        "live-away": gettext("Reconnecting…"),
    }
    return format_html_join("", ' data-{}="{}"', words.items())


@register.inclusion_tag("_bar.html")
def resource_bar(bar: Bar, *, thin: bool = False) -> dict[str, object]:
    """One bar for cluster, node type, node, device and project alike."""
    return {"bar": bar, "thin": thin}


@register.inclusion_tag("_banners.html", takes_context=True)
def system_banners(context: Context) -> dict[str, list[Banner]]:
    """What everybody should know now: simulated nodes, an agent that is away."""
    request: HttpRequest | None = context.get("request")
    is_admin = request is not None and request.user.is_superuser
    return {"banners": banners(timezone.now(), is_admin=is_admin)}


@register.simple_tag(takes_context=True)
def nav_link(context: Context, view_name: str, drawing: str, label: str) -> SafeString:
    """A link of the navigation that knows whether it leads to where we are."""
    address = reverse(view_name)
    request: HttpRequest | None = context.get("request")
    here = request.path if request else ""
    is_here = here == address or (address != "/" and here.startswith(address + "/"))
    return format_html(
        '<a href="{}"{}>{}{}</a>',
        address,
        SafeString(' aria-current="page"') if is_here else "",
        icon(drawing),
        label,
    )


@register.filter
def initials(user: Any) -> str:
    """Two letters for a person."""
    words = str(user).replace("-", " ").replace("_", " ").replace(".", " ").split()
    return "".join(word[0] for word in words[:2]).upper() or "?"


THEMES = {"light": "not all", "dark": "all", "system": "(prefers-color-scheme: dark)"}
"""The reader's choice, and the media for which the dark colours then apply."""


def _theme(context: Context) -> str:
    request: HttpRequest | None = context.get("request")
    chosen = request.COOKIES.get("allot_theme", "") if request else ""
    return chosen if chosen in THEMES else "system"


@register.simple_tag(takes_context=True)
def current_theme(context: Context) -> str:
    """`system`, `light` or `dark`."""
    return _theme(context)


@register.simple_tag(takes_context=True)
def theme_sheet(context: Context) -> SafeString:
    """The dark colours, linked for the media that the reader chose; no script, no flash."""
    return format_html(
        '<link rel="stylesheet" id="dark-colours" href="{}" media="{}">',
        static("css/dark.css"),
        THEMES[_theme(context)],
    )
