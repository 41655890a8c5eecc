"""A person puts an end off that a rule would bring: *Extend*.

One press puts off both grounds, idleness and the time limit. Where it would put nothing off it is
refused: a press that changes nothing would be taken for one that did, and might cost one of the
owner's ten.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from projects import audit
from projects.access import may_administer_project
from projects.models import User
from scheduling import formats, time_limits
from scheduling.core.ending import earliest_end_s
from scheduling.models import Attempt, Phase, Workload
from scheduling.rules import rule_for
from scheduling.services.actions import ActionRefusedError, locked_for
from scheduling.services.ending import forget_warnings
from scheduling.services.events import announce_workload, record_event
from scheduling.services.grounds import IDLENESS, TIME_LIMIT, course_of, rule_of

MIN_GAIN_S = 60
"""What puts an end off by less puts off nothing: it is a second press, or a late one."""


@transaction.atomic
def extend(workload: Workload, *, actor: User, for_s: int, channel: str = "ui") -> Workload:
    """Keep it for so long from now at least, idle or not, and put its time limit off as far.

    As often as one likes for idleness; a time limit is put off `time_limits.MAX_EXTENSIONS` times
    by those who do not administer the project.

    Raises:
        ActionRefusedError: it does not run, nothing ends it or only later, the project allows less,
            or its time limit was put off so often.
    """
    row = locked_for(workload, actor)
    attempt = row.current
    if row.phase != Phase.RUNNING or attempt is None or attempt.is_leaving:
        raise ActionRefusedError("not_running", _("Only what runs can be kept longer."))
    now = timezone.now()
    idle_end_s, limit_end_s = _idle_end_s(row, attempt, now), _limit_end_s(row, attempt, now)
    ends_s = [end_s for end_s in (idle_end_s, limit_end_s) if end_s is not None]
    if not ends_s:
        message = _("Its project never stops idle work, and it has no time limit.")
        raise ActionRefusedError("never_ended", message)
    _check_length(row, for_s, rule_for(row).idle_max_extension_s)
    _check_gain(for_s, min(ends_s) - now.timestamp())
    until, before = now + timedelta(seconds=for_s), _kept(row, attempt)
    is_put_off = limit_end_s is not None and _put_limit_off(row, attempt, until, actor, now)
    if idle_end_s is not None:
        attempt.idle_kept_until = max(attempt.idle_kept_until or until, until)
        attempt.save(update_fields=["idle_kept_until"])
        if idle_end_s < until.timestamp():
            # Of what comes after it, it is warned anew.
            forget_warnings(attempt, IDLENESS)
    details = {"for_s": for_s, "until": max(attempt.idle_kept_until or until, until).isoformat()}
    code = "limit_extended" if is_put_off else "idle_extended"
    record_event(row, code, at=now, attempt=attempt, actor=actor, details=details)
    audit.record(
        actor,
        action="workload.extended",
        entity=("workload", str(row.pk)),
        before=before,
        after=_kept(row, attempt),
        channel=channel,
    )
    announce_workload(row)
    return row


def _kept(row: Workload, attempt: Attempt) -> dict[str, object]:
    """What *Extend* changes, for the audit."""
    until = attempt.idle_kept_until
    return {
        "idle_kept_until": None if until is None else until.isoformat(),
        "extended_s": row.extended_s,
    }


# ---------------------------------------------------------------- when it would end


def _idle_end_s(row: Workload, leader: Attempt, now: datetime) -> float | None:
    """When idleness would end it at the earliest, also if that begins only now; Unix seconds, None
    for never."""
    rule = rule_of(row)
    if rule.stop_after_s is None:
        return None
    crew = Attempt.objects.of(row).open().select_related("node").order_by("replica")
    course = course_of(row, list(crew), now)
    if course is None:
        # Its node is silent: what was told before holds as long.
        known = (leader.idle_end_at, leader.idle_kept_until)
        return max((at.timestamp() for at in known if at is not None), default=now.timestamp())
    if course.since_s is None:
        course = replace(course, since_s=now.timestamp())
    return earliest_end_s(rule, course, now.timestamp())


def _limit_end_s(row: Workload, leader: Attempt, now: datetime) -> float | None:
    """When its time limit would be over, also if its clock stands and goes on only now; Unix
    seconds, None for never."""
    before_s = time_limits.ran_before([row]).get(row.pk, 0.0)
    end_s = time_limits.end_s(row, leader, before_s, now)
    if end_s is not None:
        return end_s
    left_s = time_limits.left_s(row, before_s + time_limits.ran(row, leader, now))
    return None if left_s is None else now.timestamp() + left_s


# ---------------------------------------------------------------- what is refused


def _check_length(row: Workload, for_s: int, limit_s: int) -> None:
    if for_s > limit_s:
        message = _("%(value)s is too long: project %(project)s allows %(limit)s at most.")
        values = {
            "value": formats.duration(for_s),
            "project": row.project,
            "limit": formats.duration(limit_s),
        }
        raise ActionRefusedError("too_long", message % values)


def _check_gain(for_s: int, left_s: float) -> None:
    if for_s - left_s < MIN_GAIN_S:
        message = _(
            "It is ended in %(left)s at the earliest, so extending it by %(value)s from now puts "
            "nothing off."
        )
        left = formats.duration(round(left_s / 60) * 60)
        values = {"left": left, "value": formats.duration(for_s)}
        raise ActionRefusedError("ends_later", message % values)


def _put_limit_off(
    row: Workload, attempt: Attempt, until: datetime, actor: User, now: datetime
) -> bool:
    """Lengthen its time limit so that it is over at that moment; whether it was over before."""
    missing_s = time_limits.missing_s(row, attempt, until, now)
    if missing_s <= 0:
        return False
    is_owners = not may_administer_project(actor, row.project_id)
    if is_owners and row.num_extensions >= time_limits.MAX_EXTENSIONS:
        message = _(
            "Its time limit was put off %(limit)s times; only managers of project %(project)s put "
            "it off further."
        )
        values = {"limit": time_limits.MAX_EXTENSIONS, "project": row.project}
        raise ActionRefusedError("extended_often", message % values)
    row.extended_s += missing_s
    row.num_extensions += 1
    row.save(update_fields=["extended_s", "num_extensions"])
    forget_warnings(attempt, TIME_LIMIT)
    return True
