"""Analytics of one's own and of others: who sees what."""

from __future__ import annotations

import pytest

from projects.models import (
    Role,
    User,
)
from scheduling.analytics import query
from tests.factories import make_member
from tests.scheduling import history
from tests.scheduling.history import Cluster, at, held
from tests.scheduling.spring import DAY, World, ask, day10, totals, world

__all__ = ["world"]


class TestWhoSeesWhat:
    @pytest.fixture
    def busy(self, world: World) -> World:
        node = Cluster(at("2026-03-01")).node(world.t4, gpus=4)
        colleague = make_member(world.vision, "viktor", Role.MANAGER)
        for number, (project, owner) in enumerate(
            [(world.vision, world.vera), (world.vision, colleague), (world.speech, world.sergey)]
        ):
            work = history.workload(project, owner, cpu_milli=100, memory_mib=64)
            held(work, node, day10("10:00", "11:00"), devices=1, first=number)
        return world

    def test_members_see_their_own_projects_and_one_total_of_others(self, busy: World) -> None:
        found = ask(busy.vera, "allocated_gpu_hours", *DAY, group_by="project")
        assert totals(found) == {"vision": 2.0, "others": 1.0, "unallocated": 93.0}
        found = ask(busy.vera, "allocated_gpu_hours", *DAY, group_by="user")
        assert totals(found) == {"vera": 1.0, "viktor": 1.0, "others": 1.0, "unallocated": 93.0}

    def test_cost_is_a_researchers_own(self, busy: World) -> None:
        found = ask(busy.vera, "cost", *DAY, group_by="project")
        assert totals(found) == {"vision": pytest.approx(45.0, abs=1)}
        assert found.is_restricted
        assert found.capacity is None

    def test_cost_is_a_managers_projects(self, busy: World) -> None:
        viktor = User.objects.get(username="viktor")
        found = ask(viktor, "cost", *DAY, group_by="user")
        assert set(totals(found)) == {"vera", "viktor"}
        found = ask(viktor, "cost", *DAY, group_by="kind")
        assert totals(found) == {"training": pytest.approx(90.0, abs=1)}

    def test_cost_by_kind_is_refused_to_a_researcher(self, busy: World) -> None:
        with pytest.raises(query.QueryError, match="told apart"):
            ask(busy.vera, "cost", *DAY, group_by="kind")

    def test_one_project_may_be_asked_for(self, busy: World) -> None:
        found = ask(busy.vera, "allocated_gpu_hours", *DAY, project="vision")
        assert totals(found) == {"all": 2.0}
        with pytest.raises(query.QueryError, match="speech"):
            ask(busy.vera, "cost", *DAY, project="speech")
