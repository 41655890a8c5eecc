"""Statistics of what ended, against numbers computed by hand."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from projects.models import User
from scheduling.analytics import answer, keeping, query
from scheduling.analytics.ended import percentile
from scheduling.models import Checkpoint, Node, Phase
from tests.factories import make_member, make_node_type, make_project
from tests.scheduling import history
from tests.scheduling.history import HOUR, Cluster, at, ended, held, waited

NOW = at("2026-06-01 00:00")
S = timedelta(seconds=1)


@pytest.fixture
def node(db: None) -> Node:
    return Cluster(at("2026-03-01")).node(make_node_type("t4"), gpus=4)


@pytest.fixture
def vera(node: Node) -> User:
    return make_member(make_project("vision"), "vera")


@pytest.fixture
def sergey(node: Node) -> User:
    return make_member(make_project("speech"), "sergey")


def ask(viewer: User, metric: str, **params: str) -> answer.Answer:
    given = {"metric": metric, "from": "2026-03-10", "to": "2026-03-12", "tz": "UTC", "step": "1d"}
    return answer.run(query.read({**given, **params}, NOW, viewer), viewer, NOW)


def run(user: User, node: Node, wait_s: int, run_s: int, day: int = 10) -> None:
    """A training of the user's project that waited, ran, and completed at noon."""
    end = at(f"2026-03-{day} 12:00")
    start = end - run_s * S
    membership = user.memberships.get()
    work = history.workload(membership.project, user, submitted_at=start - wait_s * S)
    waited(work, start - wait_s * S, start)
    held(work, node, (start, end), devices=1)
    ended(work, end)


def test_percentiles_are_numpys_to_the_last_digit() -> None:
    random = np.random.default_rng(1)
    for count in [*range(1, 40), 1000]:
        values = random.exponential(900.0, count)
        for part in (0.0, 0.5, 0.9, 0.95, 1.0):
            found = percentile(part, values, np.ones(count))
            assert found == float(np.percentile(values, 100 * part)), (count, part)


def test_percentiles_are_those_of_the_values(node: Node, vera: User) -> None:
    for wait_s in range(10, 110, 10):
        run(vera, node, wait_s, 1000)
    run(vera, node, 500, 1000, day=11)
    found = ask(vera, "wait_s_p50").whole
    assert found.values == (55.0, 500.0)
    assert found.total == 60.0, "of all eleven, not the mean of the days"
    assert ask(vera, "wait_s_p90").whole.values[0] == pytest.approx(91.0)
    assert ask(vera, "run_s_p50").whole.values == (1000.0, 1000.0)


def test_kept_days_and_months_tell_the_same(node: Node, vera: User, sergey: User) -> None:
    for wait_s in (10, 30, 80):
        run(vera, node, wait_s, 1000)
        run(sergey, node, 2 * wait_s, 500, day=11)

    def everything() -> list[answer.Answer]:
        return [
            ask(vera, metric, group_by=group)
            for metric in ("wait_s_p90", "expansion_factor", "cost_per_training", "preemptions")
            for group in ("total", "project", "user")
        ]

    before = everything()
    keeping.keep_days(NOW)
    assert everything() == before
    keeping.keep_months(NOW)
    assert everything() == before


def test_an_end_that_we_learn_of_late_makes_its_day_anew(node: Node, vera: User) -> None:
    project = vera.memberships.get().project
    attempt = held(history.workload(project, vera), node, (NOW - 30 * HOUR, None), devices=1)
    keeping.keep_days(NOW)
    attempt.phase, attempt.ended_at = "ended", NOW - 28 * HOUR
    attempt.save()
    attempt.allocation.ended_at = NOW + HOUR
    attempt.allocation.save()
    later = NOW + 2 * HOUR
    keeping.keep_days(later)
    params = {"metric": "run_s_p50", "from": "2026-05-30", "to": "2026-06-01", "tz": "UTC"}
    found = answer.run(query.read(params, later, vera), vera, later)
    assert found.whole.total == 2 * 3600


def test_ratios_are_those_of_sums(node: Node, vera: User) -> None:
    run(vera, node, 100, 100)
    run(vera, node, 0, 900)
    assert ask(vera, "expansion_factor").whole.values == (1.1, None)
    assert ask(vera, "completion_s").whole.values == (550.0, None)


def test_others_are_one_group_without_a_name(node: Node, vera: User, sergey: User) -> None:
    run(vera, node, 10, 100)
    run(sergey, node, 30, 100)
    found = ask(vera, "wait_s_p50", group_by="user")
    assert {one.key: one.values[0] for one in found.series} == {"vera": 10.0, "others": 30.0}
    assert found.whole.values[0] == 20.0


def test_of_nothing_a_count_is_zero_and_a_mean_is_no_data(node: Node, vera: User) -> None:
    assert ask(vera, "preemptions").whole.values == (0.0, 0.0)
    assert ask(vera, "preemptions").series == (ask(vera, "preemptions").whole,)
    assert ask(vera, "wait_s_p50").whole.values == (None, None)


def test_preemptions_with_what_they_cost(node: Node, vera: User) -> None:
    project = vera.memberships.get().project
    for number, (lost_s, has_saved) in enumerate([(5.0, True), (600.0, False)]):
        work = history.workload(project, vera)
        attempt = held(
            work, node, (at("2026-03-10 10:00"), at("2026-03-10 11:00")), devices=1, first=number
        )
        attempt.exit_cause = "evicted"
        attempt.lost_progress_s = lost_s
        attempt.goal_at = at("2026-03-10 10:59")
        attempt.save()
        if has_saved:
            Checkpoint.objects.create(
                workload=work,
                attempt=attempt,
                key="k",
                saved_at=at("2026-03-10 10:59") + 30 * S,
                size_bytes=1,
                sha256="0" * 64,
            )
    values = {
        metric: ask(vera, metric).whole.values[0]
        for metric in (
            "preemptions",
            "lost_work_s",
            "checkpoint_success",
            "no_lost_progress",
            "checkpoint_overhead",
        )
    }
    assert values == {
        "preemptions": 2.0,
        "lost_work_s": 605.0,
        "checkpoint_success": 50.0,
        "no_lost_progress": 50.0,
        "checkpoint_overhead": pytest.approx(100 * (120 + 605) / 7200),
    }


def test_a_migration_costs_saving_lost_work_waiting_and_the_restart(node: Node, vera: User) -> None:
    work = history.workload(vera.memberships.get().project, vera)
    first = held(work, node, (at("2026-03-10 10:00"), at("2026-03-10 11:00")), devices=1)
    first.exit_cause, first.goal_at = "evicted", at("2026-03-10 10:59")
    first.lost_progress_s = 30.0
    first.save()
    # Four minutes later it had a place again, and after one more it ran.
    second = held(work, node, (at("2026-03-10 11:04"), at("2026-03-10 12:04")), devices=1)
    second.started_at = second.ready_at = at("2026-03-10 11:05")
    second.save()
    other = history.workload(vera.memberships.get().project, vera)
    held(other, node, (at("2026-03-10 10:00"), at("2026-03-10 11:00")), devices=1, first=1)
    found = ask(vera, "migration_overhead").whole
    assert found.values[0] == pytest.approx(100 * (60 + 30 + 300) / (3600 + 3540 + 3600))
    assert found.values[1] is None


def test_the_cost_of_a_training_is_that_of_all_its_attempts(node: Node, vera: User) -> None:
    assert node.node_type is not None
    history.priced(node.node_type, at("2026-03-10 11:00"), gpu=90, cpu=2, memory=1)
    work = history.workload(vera.memberships.get().project, vera, cpu_milli=1000, memory_mib=1024)
    held(work, node, (at("2026-03-09 10:00"), at("2026-03-09 11:00")), devices=1)
    held(work, node, (at("2026-03-10 10:00"), at("2026-03-10 12:00")), devices=2)
    ended(work, at("2026-03-10 12:00"))
    stopped = history.workload(vera.memberships.get().project, vera)
    ended(stopped, at("2026-03-10 12:00"), Phase.STOPPED)
    admin = User.objects.create_superuser("root")
    # What lies on a node that is down is held by nobody.
    down = history.workload(vera.memberships.get().project, vera)
    lost = Cluster(at("2026-03-09")).node(node.node_type, until=at("2026-03-11 10:00"))
    held(down, lost, (at("2026-03-11 10:00"), at("2026-03-11 11:00")), devices=1)
    ended(down, at("2026-03-11 11:00"))
    found = ask(admin, "cost_per_training").whole
    assert found.values[0] == pytest.approx(48.0 + 93.0 + 183.0)
    assert found.values[1] == 0.0
    assert ask(vera, "cost_per_training").whole.values == found.values
    stranger = make_member(make_project("other"), "stranger")
    assert ask(stranger, "cost_per_training").whole.values == (None, None)
