"""How a loan ends on the rows: woken, refused, called back, stopped, and by what cause."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from projects.models import Project
from scheduling.agent.protocol import LoanState, SwapState
from scheduling.agent_api import desired_loans
from scheduling.cycle import run_cycle
from scheduling.models import (
    Allocation,
    Attempt,
    DeviceAllocation,
    Event,
    Loan,
    Node,
    Phase,
    Workload,
)
from scheduling.selectors import workload_counts
from scheduling.services import stop, swap_out
from scheduling.services.idleness import watch_idle
from scheduling.texts import event_sentence
from tests.factories import submitted, training_spec
from tests.lending_scene import GIB, Scene, allocated, lent_device
from tests.lending_scene import scene as scene

pytestmark = pytest.mark.django_db


def test_a_wake_parks_the_borrower_and_the_next_idle_time_takes_it_on(scene: Scene) -> None:
    first = scene.lend()
    now = time.time()
    scene.run_training()
    scene.say(first, LoanState.LENT, swapped_out_bytes=3 * GIB, out_s=0.5, lent_at=now)
    scene.refresh()
    assert scene.training.phase == Phase.RUNNING
    # A cell: the agent acts at once, and says so.
    scene.say(first, LoanState.WAKING, ended_by="cell")
    assert not first.is_wanted
    run_cycle()  # before the borrower's node has said anything of it
    scene.refresh()
    assert scene.training.phase == Phase.RUNNING
    scene.use(SwapState.SWAPPING_IN)
    scene.run_training(SwapState.SWAPPED_OUT)
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.RUNNING, "its process waits; nothing was stopped"
    settled = scene.say(
        first, LoanState.ENDED, ended_by="cell", wake_s=0.8, in_s=0.6, ended_at=now + 60
    )
    assert settled == [str(first.pk)]
    assert (first.wake_s, first.in_s, first.out_s) == (0.8, 0.6, 0.5)
    scene.use()
    run_cycle()
    assert Loan.objects.count() == 1
    assert not list(desired_loans(scene.agent.zone))
    # Idle again, later.
    Attempt.objects.update(woke_at=timezone.now() - timedelta(minutes=5))
    second = scene.lend()
    assert second.pk != first.pk
    assert second.borrower == first.borrower, "the same process goes on"
    codes = list(Event.objects.filter(workload=scene.session).values_list("code", flat=True))
    assert codes[-2:] == ["swapped_out", "swapped_in"]


def test_a_borrowers_history_tells_that_it_left_the_gpu_and_came_back(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    for state in (
        SwapState.LOCKING,
        SwapState.SWAPPING_OUT,
        SwapState.SWAPPED_OUT,
        SwapState.WAITING,
        SwapState.SWAPPING_IN,
        SwapState.RUNNING,
    ):
        scene.run_training(state, bytes_on_host=3 * GIB)
        scene.swap_out_session()
    left, back = scene.training.events.filter(code__in=["parked", "unparked"]).order_by("pk")
    assert event_sentence(left) == (
        "Left the GPU: its GPU memory (3\u00a0GiB) is on the host. Its program goes on until it "
        "needs the GPU."
    )
    assert event_sentence(back) == "Back on a GPU, with what it had in GPU memory."
    assert left.attempt == back.attempt
    # Of a session its loans tell it.
    assert not scene.session.events.filter(code__in=["parked", "unparked"]).exists()


def test_when_the_lender_ends_the_device_becomes_the_borrowers(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    stop(scene.session, actor=scene.organisation.vera)
    scene.agent.end(scene.session, cause="stopped")
    run_cycle()
    scene.refresh()
    loan.refresh_from_db()
    assert (loan.state, loan.ended_by) == ("ended", "lender_ended")
    allocation = Allocation.objects.get(workload=scene.training)
    assert not allocation.is_lent
    assert allocation.gpu_from is not None
    assert Attempt.objects.filter(workload=scene.training).count() == 1, "no restart"
    assert scene.training.phase == Phase.RUNNING
    assert list(scene.training.events.values_list("code", flat=True))[-1] == "settled"
    assert lent_device(scene).allocated_milli == 1000
    assert allocated(scene.organisation.language) == 1000
    scene.agent.end(scene.training)
    assert lent_device(scene).allocated_milli == 0


def test_when_the_borrower_ends_the_device_goes_back(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.agent.end(scene.training)
    scene.refresh()
    assert scene.training.phase == Phase.COMPLETED
    assert not scene.training.reason, "why it waited is over"
    assert not list(desired_loans(scene.agent.zone))
    assert lent_device(scene).allocated_milli == 1000
    assert not DeviceAllocation.objects.filter(is_lent=True, is_open=True).exists()
    scene.say(loan, LoanState.ENDED, ended_by="borrower_ended", ended_at=time.time())
    assert not Loan.objects.open().exists()


@pytest.mark.parametrize(
    ("error", "code"), [("not_idle", "lender_woke"), ("managed_memory", "lender_gone")]
)
def test_a_refused_loan_sends_the_borrower_back_to_the_queue(
    scene: Scene, error: str, code: str
) -> None:
    loan = scene.lend()
    scene.say(loan, LoanState.REFUSED, error=error)
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.CHECKPOINTING
    assert scene.training.reason["code"] == code
    if code == "lender_woke":
        assert scene.training.reason["details"]["lender"] == str(scene.session.pk)
    scene.agent.end(scene.training, cause="evicted")
    scene.refresh()
    assert scene.training.phase == Phase.PREEMPTED
    assert scene.training.num_preemptions == 0, "nobody took anything from it"


@pytest.mark.parametrize("state", [LoanState.WAKING, LoanState.ENDED])
def test_a_wake_before_the_borrower_began_sends_it_back_to_the_queue(
    scene: Scene, state: LoanState
) -> None:
    loan = scene.lend()
    assert scene.training.phase == Phase.STARTING
    over = {"ended_at": time.time()} if state == LoanState.ENDED else {}
    scene.say(loan, state, ended_by="cell", **over)
    scene.use()
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.CHECKPOINTING
    assert scene.training.reason["code"] == "lender_woke"
    assert scene.training.reason["details"]["lender"] == str(scene.session.pk)
    scene.agent.end(scene.training, cause="evicted")
    scene.refresh()
    assert scene.training.phase == Phase.PREEMPTED
    assert scene.training.num_preemptions == 0, "nobody took anything from it"
    assert not Allocation.objects.filter(workload=scene.training, ended_at=None).exists()


def test_what_was_asked_for_holds_for_its_loan_until_that_is_answered(scene: Scene) -> None:
    scene.rest(minutes=0.5)
    watch_idle(timezone.now())
    swap_out(scene.session, actor=scene.session.owner)
    run_cycle()
    loan = Loan.objects.get()
    (desired,) = desired_loans(scene.agent.zone)
    assert desired.idle_s == 0.0, "the agent does not ask for the window either"
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    assert Attempt.objects.get(pk=loan.lender_id).lend_asked_at is None


def told(session: Workload, code: str) -> str:
    """The newest event of that kind, as the session's page says it."""
    return event_sentence(session.events.filter(code=code).latest("at"))


def test_use_withdraws_what_was_asked_for_and_the_page_says_so(scene: Scene) -> None:
    scene.rest(minutes=0.5)
    watch_idle(timezone.now())
    swap_out(scene.session, actor=scene.session.owner)
    scene.use()
    attempt = Attempt.objects.get(workload=scene.session)
    assert (attempt.idle_since, attempt.lend_asked_at) == (None, None)
    assert told(scene.session, "lend_withdrawn") == (
        "It is not swapped out after all: it is in use (GPU, CPU, Network, Kernels, Terminals)."
    )
    scene.use()
    assert scene.session.events.filter(code="lend_withdrawn").count() == 1


def test_what_the_server_does_by_itself_only_puts_off_what_was_asked_for(scene: Scene) -> None:
    """It saves the notebook that is open."""
    scene.rest(minutes=0.5)
    watch_idle(timezone.now())
    swap_out(scene.session, actor=scene.session.owner)
    scene.rest(minutes=0.5, cpu_idle_since=None, network_idle_since=None)
    watch_idle(timezone.now())
    run_cycle()
    attempt = Attempt.objects.get(workload=scene.session)
    assert attempt.idle_since is None
    assert attempt.lend_asked_at is not None
    assert not Loan.objects.exists()
    scene.rest(minutes=0.5)
    watch_idle(timezone.now())
    run_cycle()
    assert Loan.objects.get().lender == attempt
    # Used while that waits, it is withdrawn all the same.
    scene.rest(minutes=0.5, cpu_idle_since=None)
    scene.rest(minutes=0.5, cpu_idle_since=None, kernels_idle_since=None)
    attempt.refresh_from_db()
    assert attempt.lend_asked_at is None
    assert told(scene.session, "lend_withdrawn").endswith("(CPU, Kernels).")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("not_idle", "It is not swapped out after all: it was used in that moment."),
        ("managed_memory", "It is not swapped out after all. It uses managed GPU memory, which "
         "cannot be swapped."),
    ],
)  # fmt: skip
def test_what_an_agent_refuses_is_told_to_who_asked_for_it(
    scene: Scene, error: str, text: str
) -> None:
    scene.rest(minutes=0.5)
    watch_idle(timezone.now())
    swap_out(scene.session, actor=scene.session.owner)
    run_cycle()
    scene.say(Loan.objects.get(), LoanState.REFUSED, error=error, ended_at=time.time())
    assert told(scene.session, "lend_refused") == text


def test_a_refusal_answers_what_was_asked_for_and_begins_the_window_anew(scene: Scene) -> None:
    scene.rest(minutes=0.5)
    watch_idle(timezone.now())
    swap_out(scene.session, actor=scene.session.owner)
    run_cycle()
    loan = Loan.objects.get()
    scene.say(loan, LoanState.REFUSED, error="host_memory", ended_at=time.time())
    lender = Attempt.objects.get(pk=loan.lender_id)
    assert lender.lend_asked_at is None
    scene.agent.end(scene.training, cause="evicted")
    scene.rest()
    watch_idle(timezone.now())
    run_cycle()
    assert Loan.objects.count() == 1, "nor is it tried again and again"
    lender.refresh_from_db()
    assert lender.not_lent["code"] == "within_window"


def test_a_refused_loan_leaves_a_borrower_in_memory_where_it_is(scene: Scene) -> None:
    first = scene.lend()
    scene.run_training()
    scene.say(first, LoanState.LENT, lent_at=time.time())
    scene.say(first, LoanState.WAKING, ended_by="cell")
    scene.use(SwapState.SWAPPING_IN)
    scene.run_training(SwapState.SWAPPED_OUT)
    scene.say(first, LoanState.ENDED, ended_by="cell", ended_at=time.time())
    scene.use()
    Attempt.objects.update(woke_at=timezone.now() - timedelta(minutes=5))
    second = scene.lend()
    assert second.borrower == first.borrower
    scene.say(second, LoanState.REFUSED, error="not_idle", ended_at=time.time())
    scene.use()
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.RUNNING, "its progress is in memory"
    assert not scene.training.attempts.get().is_leaving
    Loan.objects.filter(pk=second.pk).update(
        started_at=timezone.now() - timedelta(minutes=6),
        ended_at=timezone.now() - timedelta(minutes=5),
    )
    third = scene.lend()
    assert third.borrower == first.borrower, "the next loan takes it on"


def test_switching_lending_off_ends_a_loan(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    Project.objects.update(lends_idle=False)
    run_cycle()
    scene.refresh()
    assert scene.training.phase == Phase.CHECKPOINTING
    assert scene.training.reason["code"] == "lending_off"
    assert list(desired_loans(scene.agent.zone)), "the device is its own until it has saved"
    scene.agent.end(scene.training, cause="evicted")
    assert not list(desired_loans(scene.agent.zone))


def test_a_parked_borrower_waits_with_a_reason_a_place_and_an_estimate(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    assert not scene.training.is_waiting
    scene.say(loan, LoanState.WAKING, ended_by="cell")
    scene.use(SwapState.SWAPPING_IN)
    scene.run_training(SwapState.SWAPPED_OUT)
    scene.say(loan, LoanState.ENDED, ended_by="cell", ended_at=time.time())
    scene.use()
    other = submitted(training_spec(scene.organisation.language), scene.organisation.lena)
    run_cycle()
    scene.refresh()
    other.refresh_from_db()
    assert scene.training.is_parked
    assert scene.training.reason["code"] == other.reason["code"] != "lent"
    assert (scene.training.queue_position, scene.training.queue_length) == (1, 2)
    assert other.queue_position == 2
    assert set(Workload.objects.waiting()) == {scene.training, other}
    counts = workload_counts(Workload.objects.filter(project=scene.organisation.language))
    assert (counts.num_running, counts.num_waiting) == (0, 2)
    # Lent to it again, it waits no more.
    stop(other, actor=scene.organisation.lena)
    Attempt.objects.update(woke_at=timezone.now() - timedelta(minutes=5))
    again = scene.lend()
    assert again.borrower == loan.borrower
    assert scene.training.reason["code"] == "lent"
    assert not scene.training.is_waiting
    assert not Workload.objects.waiting().exists()


def test_a_parked_borrower_that_is_stopped_waits_no_more(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.say(loan, LoanState.ENDED, ended_by="cell", ended_at=time.time())
    scene.use()
    run_cycle()
    scene.refresh()
    assert scene.training.is_parked
    stop(scene.training, actor=scene.organisation.lena)
    scene.refresh()
    assert scene.training.phase == Phase.CHECKPOINTING, "its program may save"
    assert scene.training.queue_position is None
    assert not Workload.objects.waiting().exists()


def test_what_was_stopped_on_loan_keeps_no_reason_of_it(scene: Scene) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    stop(scene.training, actor=scene.organisation.lena)
    scene.agent.end(scene.training, cause="stopped")
    scene.refresh()
    assert scene.training.phase == Phase.STOPPED
    assert not scene.training.reason


@pytest.mark.parametrize("code", ["lending_off", "room_taken"])
@pytest.mark.parametrize("seen", ["borrower_ended", "orchestrator"])
def test_a_loan_whose_borrower_was_called_back_ended_by_what_it_was_called_back_for(
    scene: Scene, code: str, seen: str
) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    if code == "lending_off":
        Project.objects.update(lends_idle=False)
    else:  # its processor goes to somebody else, as of right
        Node.objects.filter(name="sim-t4-1").update(cpu_milli=1)
    run_cycle()
    scene.refresh()
    assert scene.training.reason["code"] == code
    scene.agent.end(scene.training, cause="evicted")
    scene.say(loan, LoanState.WAKING, ended_by=seen)
    scene.say(loan, LoanState.ENDED, ended_by=seen, ended_at=time.time(), wake_s=0.02)
    assert loan.ended_by == code
    event = scene.session.events.get(code="swapped_in")
    assert event.details["ended_by"] == code
    assert "0.02 s after" in event_sentence(event)


@pytest.mark.parametrize("seen", ["cell", "failed"])
def test_what_an_agent_knows_itself_is_kept(scene: Scene, seen: str) -> None:
    loan = scene.lend()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.say(loan, LoanState.ENDED, ended_by=seen, ended_at=time.time(), wake_s=1.04)
    assert loan.ended_by == seen
    assert " 1 s after" in event_sentence(scene.session.events.get(code="swapped_in"))


def test_a_loan_ends_by_the_other_lender_of_its_borrower(scene: Scene) -> None:
    first = scene.lend()
    second = Loan.objects.create(
        lender=Attempt.objects.filter(workload__project=scene.organisation.speech)[0],
        borrower=first.borrower,
        device=first.device,
        gpu_milli=500,
        started_at=first.started_at,
    )
    for loan in (first, second):
        scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.say(first, LoanState.WAKING, ended_by="button")
    second.refresh_from_db()
    assert not second.is_wanted
    scene.say(second, LoanState.ENDED, ended_by="orchestrator", ended_at=time.time(), wake_s=0.1)
    assert second.ended_by == "other_lender"
    assert first.ended_by == "button"


def test_a_loan_that_is_ordered_no_longer_after_its_borrowers_end_ended_by_that(
    scene: Scene,
) -> None:
    loan = scene.lend()
    scene.run_training()
    scene.say(loan, LoanState.LENT, lent_at=time.time())
    scene.agent.end(scene.training)
    scene.say(loan, LoanState.ENDED, ended_by="orchestrator", ended_at=time.time())
    assert loan.ended_by == "borrower_ended"
