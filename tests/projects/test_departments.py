"""Departments are a tree: no loops, quotas inside their parent, roles for all below."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError
from django.utils import timezone
from django.utils.translation import override

from projects import access, tree
from projects.departments import DepartmentTree
from projects.models import (
    AuditEntry,
    Department,
    DepartmentMembership,
    DepartmentQuota,
    GpuQuota,
    NodeType,
    Project,
    Role,
    User,
)
from projects.quotas import check_move, set_department_quota, set_gpu_quota
from tests.factories import make_member, make_project
from tests.projects.conftest import Tree, department

pytestmark = pytest.mark.django_db


def refused(error: pytest.ExceptionInfo[ValidationError], field: str) -> str:
    (message,) = error.value.message_dict[field]
    return str(message)


class TestShape:
    def test_departments_are_named_by_their_path(self, planted: Tree) -> None:
        found = DepartmentTree()
        assert found.title(planted.vision.pk) == "Science / Research / Vision"
        assert found.title(None) == ""
        assert [found.title(row.pk) for row in found.in_order()] == [
            "Products",
            "Science",
            "Science / Research",
            "Science / Research / Vision",
            "Science / Robots",
        ]
        assert found.below(planted.research.pk) == {planted.research.pk, planted.vision.pk}

    @pytest.mark.parametrize("below", ["science", "research", "vision"])
    def test_none_is_below_itself(self, planted: Tree, below: str) -> None:
        planted.science.parent = getattr(planted, below)
        with pytest.raises(ValidationError) as error:
            planted.science.full_clean()
        assert f"“{below.title()}” is “Science” itself or a department below it." == refused(
            error, "parent"
        )
        with pytest.raises(IntegrityError, match="own ancestor"), transaction.atomic():
            Department.objects.filter(pk=planted.science.pk).update(parent=planted.science.parent)

    def test_there_is_a_lowest_level(self, planted: Tree) -> None:
        lowest = planted.vision
        for number in range(4, tree.MAX_LEVELS + 1):
            lowest = department(f"level-{number}", lowest)
        with pytest.raises(ValidationError) as error:
            Department(name="deeper", parent=lowest).full_clean()
        assert "there would be 9 levels of departments; at most 8" in refused(error, "parent")
        with pytest.raises(IntegrityError, match="on level 9"), transaction.atomic():
            department("deeper", lowest)
        # Also what is moved with all that is below it.
        planted.science.parent = planted.products
        with pytest.raises(ValidationError, match="9 levels"):
            planted.science.full_clean()
        with pytest.raises(IntegrityError, match="on level 9"), transaction.atomic():
            planted.science.save()

    def test_one_with_departments_or_projects_in_it_cannot_be_deleted(self, planted: Tree) -> None:
        planted.segmentation.delete()
        with pytest.raises(ProtectedError):
            planted.research.delete()
        planted.vision.delete()
        planted.research.delete()
        with pytest.raises(ProtectedError):
            planted.robots.delete()


@pytest.mark.django_db(transaction=True)
def test_two_moves_at_once_cannot_close_a_loop() -> None:
    one, two = department("one"), department("two")
    failed: list[Exception] = []
    moved = threading.Event()

    def move_the_other() -> None:
        moved.wait()
        try:
            Department.objects.filter(pk=two.pk).update(parent=one)
        except IntegrityError as error:
            failed.append(error)
        finally:
            connection.close()

    other = threading.Thread(target=move_the_other)
    other.start()
    with transaction.atomic():
        Department.objects.filter(pk=one.pk).update(parent=two)
        moved.set()
        # The other waits for this transaction, whose move it cannot see yet.
        other.join(0.5)
        assert other.is_alive()
    other.join(30)
    assert len(failed) == 1
    assert Department.objects.get(pk=two.pk).parent is None


class TestQuotas:
    def test_children_are_promised_no_more_than_their_parent_has(self, planted: Tree) -> None:
        set_department_quota(planted.science, planted.t4, quota_milli=4000)
        # Two levels below, with what another branch is promised.
        with pytest.raises(ValidationError) as error:
            set_gpu_quota(planted.segmentation, planted.t4, quota_milli=2001)
        assert refused(error, "quota_milli") == (
            "2.001 GPU asked, but of the 4 GPU of T4 that Science has 2 are promised to "
            "others: at most 2."
        )
        set_gpu_quota(planted.segmentation, planted.t4, quota_milli=2000)
        assert GpuQuota.objects.get(project=planted.segmentation).quota_milli == 2000

    def test_a_department_is_promised_no_less_than_its_children(self, planted: Tree) -> None:
        with pytest.raises(ValidationError) as error:
            set_department_quota(planted.science, planted.t4, quota_milli=2999)
        assert refused(error, "quota_milli") == (
            "2.999 GPU asked, but below Science 3 GPU of T4 are promised: at least 3."
        )
        with pytest.raises(ValidationError) as error:
            set_department_quota(planted.science, planted.t4, limit_milli=2999)
        assert "below the 3 GPU of T4" in refused(error, "limit_milli")

    def test_a_refusal_names_paths_and_amounts_as_pages_do(self, planted: Tree) -> None:
        with override("ru"), pytest.raises(ValidationError) as error:
            set_department_quota(planted.research, planted.t4, quota_milli=500)
        assert refused(error, "quota_milli") == (
            "Запрошено 0,5 GPU, но внутри «Science / Research» уже обещано 1 GPU типа T4: "
            "нужно не менее 1."
        )

    def test_a_department_s_own_quota_counts_above_it(self, planted: Tree) -> None:
        set_department_quota(planted.research, planted.t4, quota_milli=3000)
        set_department_quota(planted.science, planted.t4, quota_milli=5000)
        with pytest.raises(ValidationError) as error:
            set_department_quota(planted.research, planted.t4, quota_milli=3001)
        assert "at most 3." in refused(error, "quota_milli")
        # Of eight, five are the department's, whatever is promised below it.
        speech = make_project("speech", department=planted.products)
        with pytest.raises(ValidationError) as error:
            set_gpu_quota(speech, planted.t4, quota_milli=3001)
        assert "of 8 GPU of T4 5 are promised to others: at most 3." in refused(
            error, "quota_milli"
        )

    def test_a_limit_is_only_tightened_below_it(self, planted: Tree) -> None:
        set_department_quota(planted.science, planted.t4, limit_milli=4000)
        with pytest.raises(ValidationError) as error:
            set_gpu_quota(planted.segmentation, planted.t4, quota_milli=1000, limit_milli=4001)
        assert "The limit 4.001 GPU of Segmentation is above the limit 4 GPU of Science" in refused(
            error, "limit_milli"
        )
        set_gpu_quota(planted.segmentation, planted.t4, quota_milli=1000, limit_milli=4000)
        with pytest.raises(ValidationError) as error:
            set_department_quota(planted.science, planted.t4, limit_milli=3999)
        assert "The limit 4 GPU of Segmentation is above" in refused(error, "limit_milli")
        # What is promised counts against a limit as well.
        with pytest.raises(ValidationError) as error:
            set_gpu_quota(planted.walking, planted.t4, quota_milli=3001)
        assert "of the 4 GPU of T4 that Science has" in refused(error, "quota_milli")

    def test_a_limit_below_its_quota_is_refused_by_service_and_schema(self, planted: Tree) -> None:
        with pytest.raises(ValidationError, match=r"limit 3\.5 GPU is below the quota 4 GPU"):
            set_department_quota(planted.science, planted.t4, quota_milli=4000, limit_milli=3500)
        set_department_quota(planted.science, planted.t4, quota_milli=4000)
        with pytest.raises(IntegrityError), transaction.atomic():
            DepartmentQuota.objects.update(limit_milli=3999)

    def test_what_is_promised_beyond_what_is_left_can_be_lowered_step_by_step(
        self, planted: Tree
    ) -> None:
        NodeType.objects.update(capacity_gpu_milli=2000)
        # Segmentation and Walking are promised three together, by nodes that are gone.
        set_gpu_quota(planted.walking, planted.t4, quota_milli=2000, weight=3)
        set_gpu_quota(planted.walking, planted.t4, quota_milli=1500)
        with pytest.raises(ValidationError, match=r"at most 1\."):
            set_gpu_quota(planted.walking, planted.t4, quota_milli=1600)
        # Elsewhere it would be a new promise.
        set_department_quota(planted.products, planted.t4, quota_milli=0)
        planted.walking.department = planted.products
        with pytest.raises(ValidationError, match=r"at most 0\."):
            check_move(planted.walking, "department")

    def test_a_quota_counts_where_its_project_has_been_moved_to(self, planted: Tree) -> None:
        set_department_quota(planted.products, planted.t4, quota_milli=2000)
        stale = Project.objects.get(pk=planted.walking.pk)
        Project.objects.filter(pk=stale.pk).update(department=planted.products)
        with pytest.raises(ValidationError, match=r"of the 2 GPU of T4 that Products has"):
            set_gpu_quota(stale, planted.t4, quota_milli=2001)

    def test_a_change_is_audited(self, planted: Tree) -> None:
        set_department_quota(planted.science, planted.t4, quota_milli=4000, weight=3)
        entry = AuditEntry.objects.get(action="quota.set", entity="department")
        assert (entry.entity_id, entry.before) == ("science", None)
        assert entry.after == {
            "node_type": "t4",
            "quota_milli": 4000,
            "limit_milli": None,
            "weight": 3,
        }


class TestMoves:
    def test_a_project_moves_only_where_its_promise_fits(self, planted: Tree) -> None:
        set_department_quota(planted.products, planted.t4, quota_milli=1500)
        planted.walking.department = planted.products
        with pytest.raises(ValidationError) as error:
            check_move(planted.walking, "department")
        assert refused(error, "department") == (
            "2 GPU asked, but of the 1.5 GPU of T4 that Products has 0 are promised to "
            "others: at most 1.5."
        )
        planted.segmentation.department = planted.products
        check_move(planted.segmentation, "department")

    def test_a_department_moves_with_all_that_is_promised_below_it(self, planted: Tree) -> None:
        set_department_quota(planted.products, planted.t4, quota_milli=2500)
        planted.science.parent = planted.products
        with pytest.raises(ValidationError) as error:
            check_move(planted.science, "parent")
        assert "3 GPU asked, but of the 2.5 GPU" in refused(error, "parent")
        planted.robots.parent = planted.products
        check_move(planted.robots, "parent")

    def test_a_looser_limit_does_not_move_below_a_tighter_one(self, planted: Tree) -> None:
        set_department_quota(planted.products, planted.t4, limit_milli=3000)
        set_gpu_quota(planted.segmentation, planted.t4, quota_milli=1000, limit_milli=3500)
        planted.research.parent = planted.products
        with pytest.raises(ValidationError) as error:
            check_move(planted.research, "parent")
        assert "The limit 3.5 GPU of Segmentation is above the limit 3 GPU of Products" in (
            refused(error, "parent")
        )

    def test_what_would_be_below_itself_is_refused_before_anything_is_added_up(
        self, planted: Tree
    ) -> None:
        planted.science.parent = planted.vision
        with pytest.raises(ValidationError, match="itself or a department below it"):
            check_move(planted.science, "parent")


class TestAccess:
    def test_a_role_in_a_department_holds_in_all_projects_below_it(self, planted: Tree) -> None:
        elsewhere = make_project("speech", department=planted.products)
        boss = User.objects.create_user("boss")
        DepartmentMembership.objects.create(user=boss, department=planted.science, role="manager")
        own = {planted.segmentation, planted.walking}
        assert set(access.visible_projects(boss)) == own
        assert set(access.managed_projects(boss)) == own
        assert set(access.projects_for_submit(boss)) == own
        assert access.may_administer_project(boss, planted.segmentation.pk)
        assert not access.may_view_project(boss, elsewhere.pk)

    def test_it_does_not_reach_above_or_beside(self, planted: Tree) -> None:
        lead = User.objects.create_user("lead")
        DepartmentMembership.objects.create(user=lead, department=planted.research, role="viewer")
        assert set(access.visible_projects(lead)) == {planted.segmentation}
        assert not access.may_submit(lead, planted.segmentation.pk)
        assert [row.name for row in access.visible_departments(lead, DepartmentTree())] == [
            "science",
            "research",
            "vision",
        ]

    def test_it_ends_and_moves_with_the_department(self, planted: Tree) -> None:
        lead = User.objects.create_user("lead")
        given = DepartmentMembership.objects.create(user=lead, department=planted.robots)
        assert set(access.visible_projects(lead)) == {planted.walking}
        planted.vision.parent = planted.robots
        planted.vision.save()
        assert set(access.visible_projects(lead)) == {planted.walking, planted.segmentation}
        given.expires_at = timezone.now() - timedelta(seconds=1)
        given.save()
        assert not access.visible_projects(lead).exists()

    def test_the_wider_of_two_roles_counts(self, planted: Tree) -> None:
        lead = make_member(planted.segmentation, "lead", role=Role.VIEWER)
        assert not access.may_submit(lead, planted.segmentation.pk)
        DepartmentMembership.objects.create(user=lead, department=planted.science)
        assert access.may_submit(lead, planted.segmentation.pk)
