"""What Analytics and Cost share: a period from the address, its answer, and problems by field.

An address names a period (`period=7d`), which goes along with the present, or `from` and `to`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.conf import settings
from django.http import QueryDict
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from projects.models import User
from scheduling import formats
from scheduling.analytics import answer as answers
from scheduling.analytics import query as queries
from scheduling.analytics.answer import Answer, Bucket, Series
from scheduling.analytics.metrics import Metric, Words
from scheduling.analytics.query import Query, QueryError
from scheduling.views.choices import REFUSED, Choices, Problems

MAX_CHARS = 80
DEFAULT_PERIOD = "7d"
_LENGTHS = {
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
    "365d": timedelta(days=365),
}
PERIODS: dict[str, Words] = {
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
    "30d": gettext_lazy("30 days"),
    "90d": gettext_lazy("90 days"),
    "365d": gettext_lazy("a year"),
    "month": gettext_lazy("this month"),
    "last-month": gettext_lazy("last month"),
}
STEP_WORDS: dict[str, Words] = {
    "": pgettext_lazy("step", "automatic"),
    "15m": gettext_lazy("15 minutes"),
    "30m": gettext_lazy("30 minutes"),
    "1h": gettext_lazy("1 hour"),
    "2h": gettext_lazy("2 hours"),
    "3h": gettext_lazy("3 hours"),
    "6h": gettext_lazy("6 hours"),
    "12h": gettext_lazy("12 hours"),
    "1d": gettext_lazy("1 day"),
    "7d": gettext_lazy("1 week"),
    "1mo": gettext_lazy("1 month"),
    "all": gettext_lazy("whole period"),
}
_LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d)?")


@dataclass(frozen=True, slots=True)
class Asked:
    """What an address asks for.

    Attributes:
        params: As `query.read` takes them.
        period: One of `PERIODS`, or empty where the address has a beginning or an end.
        hidden: Keys of groups whose eyes are closed.
        problems: What is wrong beside the parameters.
    """

    params: dict[str, str]
    period: str
    hidden: frozenset[str]
    problems: Problems

    def input(self, name: str) -> tuple[str, str]:
        """Type and value of the field of a time: what no browser could show remains as text."""
        text = self.params.get(name, "") if not self.period else ""
        if text and not _LOCAL_TIME.fullmatch(text):
            return "text", text
        return "datetime-local", text + "T00:00" if len(text) == 10 else text


def read(address: QueryDict, now: datetime, **defaults: str) -> Asked:
    """Read an address; what it lacks has a default."""
    names = ("metric", "group_by", "step", "tz", "project", "department")
    params = {name: _text(address, name) or defaults.get(name, "") for name in names}
    params["tz"] = params["tz"] or settings.TIME_ZONE
    since, until = _text(address, "from"), _text(address, "to")
    choices = Choices({"period": _text(address, "period")})
    period = choices.one_of("period", PERIODS, defaults.get("period", DEFAULT_PERIOD))
    if since or until:
        period = ""
        params |= {"from": since, "to": until}
    elif not choices.problems:
        params |= _ends(period, now, params["tz"])
    hidden = frozenset(key for key in address.get("hide", "").split(",") if key)
    return Asked(params, period, hidden, choices.problems)


def _text(address: QueryDict, name: str) -> str:
    return address.get(name, "").replace("\0", "").strip()[:MAX_CHARS]


def _ends(period: str, now: datetime, zone_name: str) -> dict[str, str]:
    if period in _LENGTHS:
        return {"from": (now - _LENGTHS[period]).isoformat(), "to": ""}
    try:
        local = now.astimezone(ZoneInfo(zone_name))
    except (KeyError, ValueError, OSError):
        # The zone's own field says so.
        local = now
    first = local.date().replace(day=1)
    if period == "month":
        return {"from": first.isoformat(), "to": ""}
    before = (first - timedelta(days=1)).replace(day=1)
    return {"from": before.isoformat(), "to": first.isoformat()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer, or why there is none: messages by field."""

    answer: Answer | None = None
    problems: Problems = field(default_factory=dict)

    @property
    def status(self) -> int:
        """Of the page."""
        return REFUSED if self.problems else 200


def ask(asked: Asked, viewer: User, now: datetime, **changes: str) -> Outcome:
    """Answer what an address asks, but for what is changed; or say by field what is wrong."""
    problems = dict(asked.problems)
    try:
        query = queries.read({**asked.params, **changes}, now, viewer)
        if not problems:
            return Outcome(answers.run(query, viewer, now))
    except QueryError as error:
        for wrong in error.problems:
            problems.setdefault(wrong.field, []).append(wrong.message)
    return Outcome(problems=problems)


# ---------------------------------------------------------------- words and numbers


def period_words(query: Query) -> str:
    """From when to when, in the query's zone."""
    since, until = (at.astimezone(query.zone) for at in (query.since, query.until))
    return f"{_moment(since)} – {_moment(until)}"


def _moment(local: datetime) -> str:
    return f"{date_format(local, 'SHORT_DATE_FORMAT')} {local:%H:%M}"


def bucket_words(bucket: Bucket, query: Query) -> str:
    """The beginning of a bucket: a day by its date, an hour with its time and offset."""
    local = bucket.start.astimezone(query.zone)
    if query.step in ("1d", "7d", "1mo"):
        return str(date_format(local, "SHORT_DATE_FORMAT"))
    offset = f"{local:%z}"
    return f"{_moment(local)} UTC{offset[:3]}:{offset[3:]}"


def number(value: float | None, metric: Metric) -> str:
    """A value for reading; no data is a dash."""
    if value is None:
        return "—"
    if metric.is_cost:
        return formats.hundredths(Decimal(value))
    places = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return formats.decimal(value, places)


def unit_words(metric: Metric) -> str:
    """The unit of a metric; of money the currency."""
    return pgettext("currency", "RUB") if metric.is_cost else str(metric.unit)


def coverage_words(series: Series) -> str:
    """Which part was measured; empty where samples say nothing, or all was."""
    if series.total_coverage is None or series.total_coverage >= 0.995:
        return ""
    return _("measured: %(percent)s") % {"percent": formats.percent(series.total_coverage)}
