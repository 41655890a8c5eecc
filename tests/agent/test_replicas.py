"""Gangs and elastic trainings for real: planner, rows and agent with processes that talk."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.utils import timezone

from projects.models import Project, User
from scheduling.agent import protocol
from scheduling.agent.site import Site
from scheduling.agent_api import desired_state
from scheduling.cycle import run_cycle
from scheduling.models import Attempt, Device, Node, Phase, Workload
from scheduling.services import stop
from scheduling.services.attempt_reports import record_attempts
from tests import needs
from tests.agent.conftest import end
from tests.agent.driver import INVENTORY, PATIENCE_S, Driver
from tests.factories import FakeAgent, make_member, make_node_type, make_project, submitted
from tests.factories import training_spec as training

pytestmark = pytest.mark.django_db

NODES = ("sim-t4-1", "sim-t4-2")
ELASTIC = ("python", "examples/elastic.py")


@dataclass
class Cluster:
    """Eight simulated GPUs on two nodes, a planner, and an agent with real processes."""

    driver: Driver
    agent: FakeAgent
    language: Project
    speech: Project
    lena: User
    sergey: User

    def turn(self) -> None:
        """Plan, order, look and report once, as the loops of planner and agent do."""
        run_cycle()
        runner = self.driver.runner
        runner.apply(desired_state(self.agent.zone))
        for _ in range(3):
            runner.tick()
            time.sleep(0.02)
        runner.settle(record_attempts(self.agent.zone, runner.reports()))

    def until(self, is_true: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            self.turn()
            if time.monotonic() > deadline:
                logs = [f"{a}: {self.log(a)}" for a in Attempt.objects.order_by("placed_at")]
                raise AssertionError("\n".join(["nothing came of it", *logs]))

    def until_phase(self, row: Workload, phase: Phase) -> None:
        def is_there() -> bool:
            row.refresh_from_db()
            return row.phase == phase

        self.until(is_there)

    def log(self, attempt: Attempt) -> str:
        path = self.driver.runner.log_path(str(attempt.pk))
        return "" if path is None else path.read_text()

    def logs(self, row: Workload) -> str:
        return "".join(map(self.log, Attempt.objects.of(row).order_by("replica", "number")))

    def until_logged(self, row: Workload, pattern: str, times: int = 1) -> None:
        self.until(lambda: len(re.findall(pattern, self.logs(row))) >= times)

    def submit(self, *command: str, least: int, most: int, **changes: object) -> Workload:
        values = {
            "cpu_milli": 500,
            "memory_mib": 256,
            "command": command,
            "min_replicas": least,
            "max_replicas": most,
            "grace_s": 20,
            **changes,
        }
        return submitted(training(self.language, **values), self.lena)

    def claim(self, **changes: object) -> Workload:
        """Work of the project whose guarantee everybody else has borrowed."""
        values = {"cpu_milli": 500, "memory_mib": 256, "command": ("sleep", "1000"), **changes}
        return submitted(training(self.speech, **values), self.sergey)

    def pid(self, attempt: Attempt) -> int:
        return int(self.driver.runner.attempts[str(attempt.pk)].state["pid"])


def running(row: Workload) -> list[int]:
    rows = Attempt.objects.of(row).open().filter(phase="running").order_by("replica")
    return list(rows.values_list("replica", flat=True))


def of(row: Workload, replica: int) -> Attempt:
    return Attempt.objects.of(row).open().get(replica=replica)


@pytest.fixture
def cluster(db: None, site: Site) -> Iterator[Cluster]:
    needs.root()
    make_node_type("t4", gpus=8)
    language, speech = make_project("language", t4=1000), make_project("speech", t4=4000)
    agent = FakeAgent(nodes=[node for node in INVENTORY.nodes if node.name in NODES])
    agent.report()
    driver = Driver(site, nodes=NODES)
    yield Cluster(
        driver=driver,
        agent=agent,
        language=language,
        speech=speech,
        lena=make_member(language, "lena"),
        sergey=make_member(speech, "sergey"),
    )
    end(driver)


def test_each_replica_learns_who_it_is_and_where_its_leader_is(cluster: Cluster) -> None:
    names = ["REPLICA", "NUM_REPLICAS", "MIN_REPLICAS", "MAX_REPLICAS"]
    allots = " ".join(f"$ALLOT_{name}" for name in names)
    row = cluster.submit(
        "bash",
        "-c",
        f"echo said: {allots} $RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT $ALLOT_GPU_MILLI",
        least=3,
        most=4,
        num_devices=2,
    )
    cluster.until_phase(row, Phase.COMPLETED)
    port = Attempt.objects.of(row).get(replica=0).rendezvous_port
    said = sorted(re.findall("said: (.*)", cluster.logs(row)))
    assert said == [f"{i} 4 3 4 {i} 4 127.0.0.1 {port} 2000" for i in range(4)]


def test_one_alone_is_told_so_and_nothing_of_a_rendezvous(cluster: Cluster) -> None:
    row = cluster.submit(
        "bash", "-c", "echo said: $ALLOT_REPLICA of $ALLOT_NUM_REPLICAS [$RANK]", least=1, most=1
    )
    cluster.until_phase(row, Phase.COMPLETED)
    assert "said: 0 of 1 []" in cluster.logs(row)


def test_a_gang_trains_together_and_ends_with_the_loss_of_one_alone(cluster: Cluster) -> None:
    gang = cluster.submit(*ELASTIC, "--steps", "60", least=3, most=3)
    on_cpus = cluster.submit(
        *ELASTIC, "--steps", "60", least=2, most=2, num_devices=0, gpu_milli=None
    )
    for row in (gang, on_cpus):
        cluster.until_phase(row, Phase.COMPLETED)
    assert "step 0: 3 replicas" in cluster.logs(gang)
    assert "step 0: 2 replicas" in cluster.logs(on_cpus)
    assert len(re.findall("joined", cluster.logs(gang))) == 2
    alone = loss_of_one_alone(cluster, 60)
    assert loss(cluster, gang, 60) == loss(cluster, on_cpus, 60) == alone
    assert not Device.objects.exclude(allocated_milli=0).exists()


def test_it_grows_when_room_comes_shrinks_one_by_one_and_never_restarts(cluster: Cluster) -> None:
    filler = cluster.submit("sleep", "1000", least=1, most=1, num_devices=4)
    row = cluster.submit(*ELASTIC, "--steps", "100000", "--step-delay", "0.02", least=1, most=6)
    cluster.until_logged(row, r"step \d+: 4 replicas")
    stop(filler, actor=cluster.lena)
    cluster.until_logged(row, r"step \d+: 6 replicas")
    told = cluster.driver.runner.attempts[str(of(row, 0).pk)].folder / "control" / "replicas.json"
    members = json.loads(told.read_text())["members"]
    assert [member["replica"] for member in members] == [0, 1, 2, 3, 4, 5]
    for count in (1, 2, 3):
        claimant = cluster.claim(num_devices=1)
        cluster.until(lambda claimant=claimant: running(claimant) == [0])  # type: ignore[misc]
        row.refresh_from_db()
        assert row.phase == Phase.RUNNING
        assert running(row) == list(range(min(6, 8 - count)))
    cluster.until_logged(row, r"step \d+: 5 replicas")
    assert len(json.loads(told.read_text())["members"]) == 5
    assert len(re.findall("starting at", cluster.logs(row))) == 1


def loss_of_one_alone(cluster: Cluster, steps: int) -> str:
    alone = cluster.submit(*ELASTIC, "--steps", str(steps), least=1, most=1)
    cluster.until_phase(alone, Phase.COMPLETED)
    return loss(cluster, alone, steps)


def loss(cluster: Cluster, row: Workload, steps: int) -> str:
    (found,) = re.findall(rf"finished step {steps} loss (\S+)", cluster.logs(row))
    return str(found)


def test_an_elastic_gang_gives_up_just_what_is_claimed_and_goes_on(cluster: Cluster) -> None:
    row = cluster.submit(*ELASTIC, "--steps", "300", "--step-delay", "0.01", least=2, most=8)
    cluster.until_logged(row, r"step \d+: 8 replicas")
    claimant = cluster.claim(num_devices=4)
    cluster.until(lambda: running(claimant) == [0])
    assert len(running(row)) == 4
    cluster.until_phase(row, Phase.COMPLETED)
    assert len(re.findall("starting at", cluster.logs(row))) == 1
    assert loss(cluster, row, 300) == loss_of_one_alone(cluster, 300)


def test_a_preempted_gang_resumes_from_its_checkpoint_with_another_number_of_replicas(
    cluster: Cluster,
) -> None:
    row = cluster.submit(*ELASTIC, "--steps", "300", "--step-delay", "0.01", least=5, most=8)
    cluster.until_logged(row, r"step \d+: 8 replicas")
    claimant = cluster.claim(num_devices=4)
    cluster.until_phase(row, Phase.PREEMPTED)
    cluster.until(lambda: running(claimant) == [0])
    cluster.claim(num_devices=2)
    stop(claimant, actor=cluster.sergey)
    cluster.until_phase(row, Phase.COMPLETED)
    first = Attempt.objects.of(row).get(replica=0, number=1)
    saved = int(re.findall(r"saved step (\d+)", cluster.log(first))[-1])
    assert 0 < saved < 300
    assert f"starting at step {saved}\n" in cluster.logs(row)
    assert re.findall(r"step \d+: (\d) replicas", cluster.logs(row))[-1] == "6"
    assert loss(cluster, row, 300) == loss_of_one_alone(cluster, 300)


def test_a_gang_that_cannot_shrink_saves_waits_whole_and_resumes(cluster: Cluster) -> None:
    row = cluster.submit(
        *ELASTIC, "--steps", "300", "--step-delay", "0.02", least=3, most=3, num_devices=2
    )
    cluster.until_logged(row, r"step \d+: 3 replicas")
    began = time.monotonic()
    claimant = cluster.claim(num_devices=4)
    cluster.until(lambda: running(claimant) == [0])
    assert time.monotonic() - began < 15, "the others leave as soon as the leader has saved"
    row.refresh_from_db()
    assert row.phase == Phase.PREEMPTED
    assert running(row) == []
    saved = int(re.findall(r"saved step (\d+)", cluster.logs(row))[-1])
    assert saved > 0
    for _ in range(5):
        cluster.turn()
    assert Attempt.objects.of(row).open().count() == 0, "a gang never runs in part"
    stop(claimant, actor=cluster.sergey)
    cluster.until_phase(row, Phase.COMPLETED)
    assert f"starting at step {saved}" in cluster.logs(row)
    checkpoints = row.checkpoints.select_related("attempt")
    assert {checkpoint.attempt.replica for checkpoint in checkpoints if checkpoint.attempt} == {0}


def test_a_killed_member_brings_its_gang_down_and_all_start_again(cluster: Cluster) -> None:
    row = cluster.submit(*ELASTIC, "--steps", "100000", "--step-delay", "0.02", least=3, most=3)
    cluster.until_logged(row, r"step \d+: 3 replicas")
    os.kill(cluster.pid(of(row, 2)), signal.SIGKILL)
    cluster.until_phase(row, Phase.QUEUED)
    assert row.num_failures == 1
    assert row.reason["details"]["replica"] == 2
    assert row.reason["details"]["exit_code"] == 137
    saved = int(re.findall(r"saved step (\d+)", cluster.logs(row))[-1])
    Workload.objects.filter(pk=row.pk).update(not_before=timezone.now())
    cluster.until_logged(row, rf"starting at step {saved}")
    cluster.until_logged(row, r"step \d+: 3 replicas", times=2)


def test_a_killed_replica_of_elastic_work_comes_back_alone(cluster: Cluster) -> None:
    row = cluster.submit(*ELASTIC, "--steps", "100000", "--step-delay", "0.02", least=1, most=3)
    cluster.until_logged(row, r"step \d+: 3 replicas")
    os.kill(cluster.pid(of(row, 1)), signal.SIGKILL)
    # It may have grown by both at once.
    cluster.until_logged(row, r"(?s)3 replicas.*step \d+: 2 replicas")
    Workload.objects.filter(pk=row.pk).update(not_before=timezone.now())
    cluster.until_logged(row, r"step \d+: 3 replicas", times=2)
    row.refresh_from_db()
    assert row.phase == Phase.RUNNING
    assert len(re.findall("starting at", cluster.logs(row))) == 1


def test_a_gang_outlives_its_agent(cluster: Cluster) -> None:
    row = cluster.submit(*ELASTIC, "--steps", "200", "--step-delay", "0.02", least=2, most=2)
    cluster.until_logged(row, r"step \d+: 2 replicas")
    cluster.driver.runner.close()
    cluster.driver = cluster.driver.restarted()
    cluster.until_phase(row, Phase.COMPLETED)
    assert Attempt.objects.of(row).count() == 2


def test_a_gang_whose_lost_member_finds_no_place_stops_after_its_grace(cluster: Cluster) -> None:
    row = cluster.submit(
        *ELASTIC, "--steps", "100000", "--step-delay", "0.02", least=8, most=8, cpu_milli=100
    )
    cluster.until_logged(row, r"step \d+: 8 replicas")
    lost = of(row, 7)
    Node.objects.filter(pk=lost.node_id).update(state="cordoned")
    shim = int(cluster.driver.runner.attempts[str(lost.pk)].state["shim_pid"])
    os.kill(shim, signal.SIGKILL)
    cluster.until(lambda: Attempt.objects.get(pk=lost.pk).phase == "ended")
    row.refresh_from_db()
    assert Attempt.objects.get(pk=lost.pk).exit_cause == "vanished"
    assert row.phase == Phase.RUNNING
    assert row.incomplete_since is not None
    Workload.objects.filter(pk=row.pk).update(
        incomplete_since=timezone.now() - timedelta(seconds=61)
    )
    cluster.until_phase(row, Phase.PREEMPTED)
    assert row.waits.get(ended_at__isnull=True).cause == "stale_gang"
    assert running(row) == []


def test_when_the_agent_stops_everything_the_others_wait_for_their_leader(
    cluster: Cluster,
) -> None:
    row = cluster.submit(*ELASTIC, "--steps", "100000", "--step-delay", "0.3", least=3, most=3)
    cluster.until_logged(row, r"step \d+: 3 replicas")
    runner = cluster.driver.runner
    runner.stop_all()
    cluster.driver.until(lambda: runner.num_running == 0)
    ends = {
        report.attempt_id: report.ended_at or 0.0
        for report in runner.reports()
        if report.exit_cause == protocol.ExitCause.NODE_SHUTDOWN
    }
    leader, *others = Attempt.objects.of(row).order_by("replica")
    assert len(ends) == 3
    assert re.search(r"saved step [1-9]", cluster.logs(row))
    assert all(ends[str(leader.pk)] <= ends[str(other.pk)] + 1.0 for other in others)
