"""What is asked: read from an address, checked in words.

Periods begin and end on quarter-hours, since sums are kept by quarter-hour and every time zone's
days begin on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils.translation import gettext as _

from projects.access import visible_departments, visible_projects
from projects.departments import DepartmentTree
from projects.models import Department, Project, User
from scheduling.analytics.computing import QUARTER
from scheduling.analytics.metrics import METRICS, Group, Metric

MAX_PERIOD = timedelta(days=366)
MAX_POINTS = 1000
DEFAULT_PERIOD = timedelta(days=7)
MAX_SHOWN_CHARS = 60
"""So much of a wrong value is repeated."""
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)
"""Allot recorded nothing before, and no calendar reaches further."""

# Hours in a step of less than a day; these divide a day.
_HOURS = {"15m": 0.25, "30m": 0.5, "1h": 1.0, "2h": 2.0, "3h": 3.0, "6h": 6.0, "12h": 12.0}
STEPS = (*_HOURS, "1d", "7d", "1mo", "all")
"""Steps by name; `7d` begins on Mondays, `all` is the whole period as one."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with one parameter; `limit` is what would be right."""

    field: str
    code: str
    message: str
    limit: str | None = None


class QueryError(ValueError):
    """A question that cannot be answered; says everything that is wrong with it."""

    def __init__(self, problems: list[Wrong]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.message for problem in problems))


@dataclass(frozen=True, slots=True)
class Query:
    """A question.

    Attributes:
        since, until: UTC, on quarter-hours; `until` is at most the end of the running one.
        step: One of `STEPS`.
        zone: In which days and hours are cut.
        project, department: Only this one; None is all.
        only: The ids of the projects that are asked for; None is all. Of a department those at any
            depth below it that the viewer may see.
    """

    metric: Metric
    group_by: Group
    since: datetime
    until: datetime
    step: str
    zone: ZoneInfo
    project: Project | None = None
    department: Department | None = None
    only: frozenset[int] | None = None

    @property
    def edges(self) -> tuple[datetime, ...]:
        """Where its buckets begin, and where the last ends."""
        inner = [at for at in self._natural if self.since < at < self.until]
        return (self.since, *inner, self.until)

    @property
    def partial(self) -> tuple[bool, ...]:
        """Whether each bucket is shorter than its step, since the period cuts it."""
        natural = set(self._natural)
        edges = self.edges
        flags = [False] * (len(edges) - 1)
        if self.step != "all":
            flags[0] = edges[0] not in natural
            flags[-1] = flags[-1] or edges[-1] not in natural
        return tuple(flags)

    @property
    def _natural(self) -> tuple[datetime, ...]:
        return boundaries(self.since, self.until, self.step, self.zone)


@lru_cache(maxsize=64)
def boundaries(since: datetime, until: datetime, step: str, zone: ZoneInfo) -> tuple[datetime, ...]:
    """Beginnings of steps in a zone, from before a period's start to after its end."""
    return tuple(_boundaries(since, until, step, zone))


def _boundaries(since: datetime, until: datetime, step: str, zone: ZoneInfo) -> Iterator[datetime]:
    if step == "all":
        return
    day = since.astimezone(zone).date() - timedelta(days=1)
    last = until.astimezone(zone).date() + timedelta(days=1)
    while day <= last:
        start, end = midnight(day, zone), midnight(day + timedelta(days=1), zone)
        if step in _HOURS:
            # By elapsed time, so the day on which clocks change has an hour more or less.
            width = timedelta(hours=_HOURS[step])
            while start < end:
                yield start
                start += width
        elif _begins(day, step):
            yield start
        day += timedelta(days=1)


def _begins(day: date, step: str) -> bool:
    return step == "1d" or (step == "7d" and day.weekday() == 0) or (step == "1mo" and day.day == 1)


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """The first moment of a day in a zone, as UTC."""
    at = datetime.combine(day, time(), tzinfo=zone)
    # Where clocks leap over midnight the day begins at what follows; UTC has it right either way.
    return at.astimezone(UTC)


def read(params: Mapping[str, str], now: datetime, viewer: User) -> Query:
    """Read a question: `metric`, `group_by`, `from`, `to`, `step`, `tz`, `project`,
    `department`.

    Args:
        params: As in an address; what is missing or empty has a default, the metric apart.
        now: The present.
        viewer: Whose time zone is the default, and whose projects may be named.

    Raises:
        QueryError: with every parameter that is wrong.
    """
    reader = _Reader(params, now)
    metric = reader.metric()
    group = reader.group(metric)
    zone = reader.zone(viewer.time_zone or settings.TIME_ZONE)
    since, until = reader.period(zone)
    project = reader.project(viewer)
    department, only = reader.department(viewer)
    if project is not None:
        only = frozenset({project.pk}) & only if only is not None else frozenset({project.pk})
    step = reader.text("step")
    if step and step not in STEPS:
        reader.refuse("step", "invalid_choice", step, STEPS)
        step = ""
    if reader.problems or metric is None:
        raise QueryError(reader.problems)
    query = Query(
        metric,
        group,
        since,
        until,
        step or usual_step(until - since),
        zone,
        project,
        department,
        only,
    )
    if (count := len(query.edges) - 1) > MAX_POINTS:
        message = _("A step of %(value)s makes %(count)s points; at most %(limit)s are shown.")
        values = {"value": query.step, "count": count, "limit": MAX_POINTS}
        raise QueryError([Wrong("step", "too_many_points", message % values, str(MAX_POINTS))])
    return query


def usual_step(period: timedelta) -> str:
    """A step that draws well: narrower bars show neither patterns nor anything else."""
    limits = ((2, "15m"), (14, "1h"), (120, "1d"))
    return next((step for days, step in limits if period <= timedelta(days=days)), "7d")


def none_of(value: str, known: Iterable[str]) -> str:
    """A value is no known one, in words."""
    values = {"value": value[:MAX_SHOWN_CHARS], "limit": ", ".join(known)}
    return _("“%(value)s” is none of: %(limit)s.") % values


def no_project(name: str) -> str:
    """There is none of this name for the reader, in words."""
    return _("There is no project “%(value)s” that you may see.") % {
        "value": name[:MAX_SHOWN_CHARS]
    }


class _Reader:
    """Takes parameters and collects what is wrong with them."""

    def __init__(self, params: Mapping[str, str], now: datetime) -> None:
        self._params, self._now = params, now
        self.problems: list[Wrong] = []

    def text(self, name: str) -> str:
        return self._params.get(name, "").strip()

    def refuse(self, name: str, code: str, value: str, known: Iterable[str]) -> None:
        self.problems.append(Wrong(name, code, none_of(value, known), ", ".join(known)))

    def metric(self) -> Metric | None:
        name = self.text("metric")
        if name not in METRICS:
            self.refuse("metric", "unknown_metric", name, METRICS)
        return METRICS.get(name)

    def group(self, metric: Metric | None) -> Group:
        name = self.text("group_by") or Group.TOTAL
        groups = metric.groups if metric else tuple(Group)
        if name not in groups:
            self.refuse("group_by", "unknown_group", name, groups)
            return Group.TOTAL
        return Group(name)

    def zone(self, default: str) -> ZoneInfo:
        name = self.text("tz") or default
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            message = _("No time zone is called “%(value)s”; they are like %(limit)s.")
            values = {"value": name[:MAX_SHOWN_CHARS], "limit": settings.TIME_ZONE}
            self.problems.append(Wrong("tz", "unknown_time_zone", message % values, "IANA"))
            return ZoneInfo(settings.TIME_ZONE)

    def project(self, viewer: User) -> Project | None:
        name = self.text("project")
        if not name:
            return None
        project = visible_projects(viewer).filter(name=name).first()
        if project is None:
            self.problems.append(Wrong("project", "unknown_project", no_project(name)))
        return project

    def department(self, viewer: User) -> tuple[Department | None, frozenset[int] | None]:
        """A department, and the projects below it that the viewer may see."""
        name = self.text("department")
        if not name:
            return None, None
        tree = DepartmentTree()
        found = {row.name: row for row in visible_departments(viewer, tree)}.get(name)
        if found is None:
            message = _("There is no department “%(value)s” of which you may see a project.")
            words = message % {"value": name[:MAX_SHOWN_CHARS]}
            self.problems.append(Wrong("department", "unknown_department", words))
            return None, None
        below = visible_projects(viewer).filter(department__in=tree.below(found.pk))
        return found, frozenset(below.values_list("pk", flat=True))

    def period(self, zone: ZoneInfo) -> tuple[datetime, datetime]:
        until = self._time("to", zone) or self._now
        since = self._time("from", zone) or until - DEFAULT_PERIOD
        if since >= until:
            message = _("The period begins at %(value)s and ends at %(limit)s.")
            self._wrong_period("period_reversed", message, since, until.astimezone(zone))
        elif since >= self._now:
            message = _("The period begins at %(value)s; now it is %(limit)s.")
            self._wrong_period("period_in_future", message, since, self._now.astimezone(zone))
        elif until - since > MAX_PERIOD:
            message = _("The period has %(value)s days; at most %(limit)s.")
            words = message % {"value": (until - since).days, "limit": MAX_PERIOD.days}
            self.problems.append(Wrong("from", "period_too_long", words, str(MAX_PERIOD.days)))
        return _floor(since), _ceil(min(until, self._now))

    def _wrong_period(self, code: str, message: str, value: datetime, limit: datetime) -> None:
        """Both times in the zone of the limit, in which they were asked for."""
        at = limit.isoformat(timespec="minutes")
        words = {"value": value.astimezone(limit.tzinfo).isoformat(timespec="minutes"), "limit": at}
        self.problems.append(Wrong("from", code, message % words, at))

    def _time(self, name: str, zone: ZoneInfo) -> datetime | None:
        """A date (its midnight), or a time, which is the zone's unless it names an offset."""
        text = self.text(name)
        if not text:
            return None
        try:
            # In an address a plus sign reads as a space.
            given = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        except ValueError:
            message = _("“%(value)s” is no date or time like %(limit)s.")
            self._refuse_time(name, "invalid_time", message, "2026-03-29T14:30", "ISO 8601")
            return None
        # Judged by its figures: what is far outside has no time in UTC.
        figures = given.replace(tzinfo=UTC)
        if figures < EARLIEST:
            message = _("“%(value)s” is too early: nothing was recorded before %(limit)s.")
            self._refuse_time(name, "too_early", message, f"{EARLIEST:%Y-%m-%d}")
            return None
        if figures > LATEST:
            message = _("“%(value)s” is too late: the latest is %(limit)s.")
            self._refuse_time(name, "too_late", message, f"{LATEST:%Y-%m-%d}")
            return None
        return (given.replace(tzinfo=zone) if given.tzinfo is None else given).astimezone(UTC)

    def _refuse_time(
        self, name: str, code: str, message: str, example: str, limit: str | None = None
    ) -> None:
        values = {"value": self.text(name)[:MAX_SHOWN_CHARS], "limit": example}
        self.problems.append(Wrong(name, code, message % values, limit or example))


def _floor(at: datetime) -> datetime:
    return at - (at - datetime(2000, 1, 1, tzinfo=UTC)) % QUARTER


def _ceil(at: datetime) -> datetime:
    floor = _floor(at)
    return floor if floor == at else floor + QUARTER
