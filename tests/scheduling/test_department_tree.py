"""Three levels of departments from rows to plan, pages, replay, API and analytics."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from projects.models import Department, DepartmentMembership, NodeType, Project, Role, User
from projects.quotas import set_department_quota
from scheduling.analytics import answer, query
from scheduling.analytics.answer import Answer
from scheduling.core import types as core
from scheduling.core.cycle import plan
from scheduling.core.scenario import load_scenario
from scheduling.cycle import run_cycle
from scheduling.models import CycleRecord, Phase, Workload
from scheduling.snapshot import take_snapshot
from tests.factories import (
    FakeAgent,
    make_member,
    make_node_type,
    make_project,
    session_spec,
    submitted,
    training_spec,
)
from tests.scheduling import history
from tests.scheduling.history import Cluster, at, held

pytestmark = pytest.mark.django_db


@dataclass(frozen=True, slots=True)
class Tree:
    """Science / Research / Vision and Science / Robots with a project each; Products."""

    t4: NodeType
    agent: FakeAgent
    departments: dict[str, Department]
    vision: Project
    robots: Project
    shop: Project
    vera: User
    rolf: User
    sergey: User
    admin: User


@pytest.fixture
def planted(db: None) -> Tree:
    t4 = make_node_type("t4", gpus=8)
    found: dict[str, Department] = {}
    for name, above in (
        ("science", None),
        ("research", "science"),
        ("vision", "research"),
        ("robots", "science"),
        ("products", None),
        ("empty", "vision"),
    ):
        parent = found[above] if above else None
        found[name] = Department.objects.create(name=name, title=name.title(), parent=parent)
    vision = make_project("segmentation", department=found["vision"], t4=1000)
    robots = make_project("walking", department=found["robots"], t4=2000)
    shop = make_project("shop", department=found["products"], t4=2000)
    agent = FakeAgent()
    agent.report()
    return Tree(
        t4=t4,
        agent=agent,
        departments=found,
        vision=vision,
        robots=robots,
        shop=shop,
        vera=make_member(vision, "vera"),
        rolf=make_member(robots, "rolf"),
        sergey=make_member(shop, "sergey"),
        admin=User.objects.create_superuser("root"),
    )


def shares(planted: Tree) -> dict[str, tuple[str | None, core.Share]]:
    """Parent and T4 of each department in the snapshot."""
    return {
        project.id.removeprefix("department:"): (
            project.parent,
            project.shares[core.ResourceKey("gpu:t4")],
        )
        for project in take_snapshot().snapshot.projects
        if project.id.startswith("department:")
    }


class TestSnapshot:
    def test_departments_add_up_what_is_below_them(self, planted: Tree) -> None:
        found = shares(planted)
        assert found == {
            "science": (None, core.Share(quota=3000, limit=None, weight=4)),
            "research": ("department:science", core.Share(quota=1000, limit=None, weight=2)),
            "vision": ("department:research", core.Share(quota=1000, limit=None, weight=2)),
            "robots": ("department:science", core.Share(quota=2000, limit=None, weight=2)),
            "products": (None, core.Share(quota=2000, limit=None, weight=2)),
        }

    def test_bounds_of_its_own_take_the_place_of_the_sum(self, planted: Tree) -> None:
        set_department_quota(
            planted.departments["research"], planted.t4, quota_milli=2000, limit_milli=3000
        )
        set_department_quota(planted.departments["science"], planted.t4, weight=7)
        found = shares(planted)
        assert found["research"][1] == core.Share(quota=2000, limit=3000, weight=2)
        assert found["science"][1] == core.Share(quota=4000, limit=None, weight=7)

    def test_depth_costs_no_queries(self, planted: Tree) -> None:
        take_snapshot()  # lengths of past runs are read once in a while
        with CaptureQueriesContext(connection) as deep:
            take_snapshot()
        Project.objects.update(department=None)
        Department.objects.update(parent=None)
        with CaptureQueriesContext(connection) as flat:
            take_snapshot()
        assert len(deep) == len(flat)

    def test_a_limit_two_levels_above_binds(self, planted: Tree, client: Client) -> None:
        set_department_quota(planted.departments["science"], planted.t4, limit_milli=4000)
        submitted(session_spec(planted.robots, gpu_milli=1000), planted.rolf)
        run_cycle()
        second = submitted(training_spec(planted.vision, num_devices=4), planted.vera)
        run_cycle()
        second.refresh_from_db()
        assert second.reason["code"] == "over_limit"
        client.force_login(planted.vera)
        page = client.get(f"/workloads/{second.pk}").content.decode()
        assert "department Science, T4 is at its limit" in page


class TestReclaim:
    @pytest.fixture
    def victim(self, planted: Tree) -> Workload:
        """Robots has borrowed all but its neighbours' quota, and then they claim it."""
        for count in (4, 4):
            row = submitted(training_spec(planted.robots, num_devices=count), planted.rolf)
            run_cycle()
            planted.agent.run(row)
        submitted(session_spec(planted.vision, gpu_milli=1000), planted.vera)
        run_cycle()
        return Workload.objects.get(phase=Phase.CHECKPOINTING)

    def test_it_is_told_by_the_departments_where_the_paths_part(
        self, planted: Tree, victim: Workload, client: Client
    ) -> None:
        client.force_login(planted.rolf)
        page = client.get(f"/workloads/{victim.pk}").content.decode()
        assert "department Science / Research held" in page
        assert "department Science / Robots held" in page

    def test_an_export_replays_to_the_same_plan(self, planted: Tree, victim: Workload) -> None:
        set_department_quota(planted.departments["products"], planted.t4, limit_milli=2000)
        submitted(training_spec(planted.shop, num_devices=3), planted.sergey)
        run_cycle()
        records = list(CycleRecord.objects.order_by("pk"))
        assert len(records) >= 3
        for record in records:
            scenario = load_scenario(record.scenario)
            again = plan(scenario.snapshot, scenario.policy, scenario.now_s)
            told = [
                {"type": type(item).__name__.lower(), **msgspec.to_builtins(item)}
                for item in again.decisions
            ]
            replayed = msgspec.json.decode(msgspec.json.encode(told))
            # Starts are estimated every few seconds only.
            for item in (*replayed, *record.decisions):
                item.pop("eta", None)
            assert replayed == record.decisions
        assert {project.id for project in scenario.snapshot.projects} >= {
            "department:science",
            "department:research",
            "department:vision",
        }


class TestPages:
    def test_why_shows_each_level_and_each_side_of_a_claim(
        self, planted: Tree, client: Client
    ) -> None:
        for count in (4, 4):
            row = submitted(training_spec(planted.vision, num_devices=count), planted.vera)
            run_cycle()
            planted.agent.run(row)
        client.force_login(planted.vera)
        page = client.get(f"/projects/{planted.vision.name}/why/shares").content.decode()
        levels = [
            "Department Science<",
            "Department Science / Research<",
            "Department Science / Research / Vision<",
        ]
        assert [level in page for level in levels] == [True] * 3
        for claim in (
            "of another project of the department:",
            "from elsewhere in department Science / Research:",
            "from elsewhere in department Science:",
            "from outside department Science:",
        ):
            assert f"To a claim inside quota {claim}" in page

    def test_projects_are_shown_with_the_path_and_who_has_roles_there(
        self, planted: Tree, client: Client
    ) -> None:
        boss = User.objects.create_user("boss")
        DepartmentMembership.objects.create(
            user=boss, department=planted.departments["science"], role=Role.MANAGER
        )
        client.force_login(boss)
        listed = client.get("/projects").content.decode()
        assert "Science / Research / Vision" in listed
        assert "2 members" in listed
        page = client.get(f"/projects/{planted.vision.name}").content.decode()
        assert "<li>Science</li><li>Research</li><li>Vision</li>" in page
        assert "Manager, Science" in page
        assert client.get(f"/projects/{planted.shop.name}").status_code == 403

    def test_the_api_tells_the_path_and_the_bounds_above(
        self, planted: Tree, client: Client
    ) -> None:
        set_department_quota(planted.departments["science"], planted.t4, limit_milli=4000)
        client.force_login(planted.vera)
        (item,) = client.get("/api/v1/projects").json()["items"]
        assert item["department"] == "vision"
        assert item["department_path"] == ["science", "research", "vision"]
        assert client.get("/api/v1/projects/segmentation").json() == item
        assert client.get("/api/v1/projects/segmentation/quota").json()["departments"] == [
            {
                "department": "science",
                "node_type": "t4",
                "quota_gpu_milli": None,
                "limit_gpu_milli": 4000,
                "weight": None,
            }
        ]


class TestAnalytics:
    @pytest.fixture
    def past(self, planted: Tree) -> None:
        """On the tenth of March: 1, 2 and 4 GPU-hours, of 4 × 24."""
        node = Cluster(at("2026-03-01")).node(planted.t4, gpus=4)
        for first, (project, owner, hours) in enumerate(
            (
                (planted.vision, planted.vera, 1),
                (planted.robots, planted.rolf, 2),
                (planted.shop, planted.sergey, 4),
            )
        ):
            work = history.workload(project, owner)
            end = f"2026-03-10 {6 + hours:02}:00"
            held(work, node, (at("2026-03-10 06:00"), at(end)), devices=1, first=first)

    def ask(self, viewer: User, metric: str = "allocated_gpu_hours", **params: str) -> Answer:
        given = {"metric": metric, "from": "2026-03-10", "to": "2026-03-11", "tz": "UTC"}
        now = at("2026-06-01 00:00")
        asked = query.read({**given, "step": "all", **params}, now, viewer)
        return answer.run(asked, viewer, now)

    def test_each_project_counts_once_for_its_own_department(
        self, planted: Tree, past: None
    ) -> None:
        found = self.ask(planted.admin, group_by="department")
        labels = {one.label: one.total for one in found.series}
        assert labels == {
            "Science / Research / Vision": 1.0,
            "Science / Robots": 2.0,
            "Products": 4.0,
            "Unallocated": 89.0,
        }
        assert found.capacity is not None
        total = sum(one.total or 0 for one in found.series)
        assert total == pytest.approx(found.capacity.total, rel=0.001)

    @pytest.mark.parametrize(
        ("department", "total"),
        [("science", 3.0), ("research", 1.0), ("robots", 2.0), ("products", 4.0), ("empty", 0.0)],
    )
    def test_a_filter_by_department_is_all_that_is_below_it(
        self, planted: Tree, past: None, department: str, total: float
    ) -> None:
        found = self.ask(planted.admin, department=department, group_by="project")
        assert (found.whole.total or 0.0) == total
        assert found.capacity is None
        cost = self.ask(planted.admin, "cost", department=department).whole.total or 0.0
        each = self.ask(planted.admin, "cost", department=department, group_by="department")
        assert sum(one.total or 0.0 for one in each.series) == pytest.approx(cost)

    def test_it_holds_only_what_the_reader_may_see_by_name(self, planted: Tree, past: None) -> None:
        found = self.ask(planted.vera, department="science", group_by="project")
        assert {one.key: one.total for one in found.series} == {"segmentation": 1.0}
        for unknown in ("products", "nothing"):
            with pytest.raises(query.QueryError) as refused:
                self.ask(planted.vera, department=unknown)
            (wrong,) = refused.value.problems
            assert (wrong.field, wrong.code) == ("department", "unknown_department")
            assert f"“{unknown}”" in wrong.message

    def test_the_pages_and_the_csv_filter_by_it(
        self, planted: Tree, past: None, client: Client
    ) -> None:
        client.force_login(planted.admin)
        period = {"from": "2026-03-10", "to": "2026-03-11", "tz": "UTC", "department": "science"}
        page = client.get("/analytics", period).content.decode()
        assert '<option value="science" selected>Science</option>' in page
        assert '<option value="robots">Science / Robots</option>' in page
        given = {"metric": "allocated_gpu_hours", "group_by": "project", "step": "all", **period}
        csv = client.get("/analytics/csv", given).content.decode()
        assert "walking" in csv.lower()
        assert "shop" not in csv.lower()
        cost = client.get("/cost", {**period, "group_by": "department"}).content.decode()
        assert "Science / Robots" in cost
        assert client.get("/cost", {"department": "nothing"}).status_code == 422
