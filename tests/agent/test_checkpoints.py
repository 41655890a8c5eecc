"""Nothing is lost: a training saves when asked, and its next attempt goes on from there."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace

import pytest

from scheduling.agent import folders, saved
from scheduling.agent.protocol import AttemptPhase, AttemptSpec, ExitCause, Goal
from tests.agent.conftest import end
from tests.agent.driver import FINAL, Driver, every, example, following, spec

STEPS = ("--steps", "400", "--seed", "7", "--checkpoint-every", "100000")


def final_loss(log: str) -> str:
    """The loss to its last bit."""
    return log.partition("finished step 400 loss ")[2].strip()


def run_some(driver: Driver, wanted: AttemptSpec) -> None:
    """Start a training and let it take some steps."""
    driver.want(wanted)
    driver.until_logged(wanted, "step 50 loss")


def evict(driver: Driver, wanted: AttemptSpec) -> None:
    """Evict a training and wait for its end."""
    driver.want(replace(wanted, goal=Goal.EVICT))
    report = driver.until_phase(wanted, *FINAL)
    assert report.exit_cause == ExitCause.EVICTED
    del driver.wanted[wanted.attempt_id]


def test_an_evicted_training_resumes_at_its_step_and_ends_as_an_undisturbed_one(
    driver: Driver,
) -> None:
    undisturbed = example(*STEPS)
    wanted = example(*STEPS, "--step-delay", "0.01")
    run_some(driver, wanted)
    evict(driver, wanted)
    saved_steps = re.findall(r"saved step (\d+)", driver.log(wanted))
    report = driver.report(wanted)
    assert [each.step for each in report.checkpoints] == [int(step) for step in saved_steps]
    assert all(each.size_bytes > 0 and len(each.sha256) == 64 for each in report.checkpoints)
    resumed = following(wanted)
    log = driver.output(resumed)
    assert f"starting at step {saved_steps[-1]}" in log
    assert "finished step 400" in log
    assert driver.report(resumed).resumed_from == report.checkpoints[-1].key
    assert final_loss(log) == final_loss(driver.output(undisturbed))


def test_eviction_passes_through_saving_and_stopping(driver: Driver) -> None:
    script = (
        "import os, signal, time\n"
        "folder = os.environ['ALLOT_CHECKPOINT_DIR']\n"
        "go = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: go.append(1))\n"
        "print('up')\n"
        "while not go: time.sleep(0.05)\n"
        "print('asked'); time.sleep(0.5)\n"
        "open(folder + '/.new', 'w').write('state')\n"
        "time.sleep(0.05)\n"
        "os.rename(folder + '/.new', folder + '/epoch-3')\n"
        "time.sleep(1000)\n"
    )
    wanted = spec("python", "-c", script)
    driver.want(wanted)
    driver.until_logged(wanted, "up")
    driver.want(replace(wanted, goal=Goal.EVICT))
    seen: list[AttemptPhase] = []

    def has_ended() -> bool:
        phase = driver.report(wanted).phase
        if phase not in seen:
            seen.append(phase)
        return phase in FINAL

    driver.until(has_ended)
    order = [AttemptPhase.RUNNING, AttemptPhase.SAVING, AttemptPhase.STOPPING, AttemptPhase.EXITED]
    assert [phase for phase in seen if phase in order[1:]] == order[1:]
    report = driver.report(wanted)
    assert report.exit_cause == ExitCause.EVICTED
    assert [each.step for each in report.checkpoints] == [3]


def test_a_request_to_save_leaves_the_training_running(driver: Driver) -> None:
    wanted = example(*STEPS, "--step-delay", "0.02")
    run_some(driver, wanted)
    driver.want(replace(wanted, goal=Goal.CHECKPOINT))
    driver.until(lambda: driver.report(wanted).checkpoints)
    assert driver.report(wanted).phase == AttemptPhase.RUNNING
    assert driver.log(wanted).count("saved step") == 1


def test_a_training_is_asked_to_save_as_often_as_its_settings_say(driver: Driver) -> None:
    wanted = example(*STEPS, "--step-delay", "0.02", checkpoint=every(every_s=0.5, keep=2))
    driver.want(wanted)
    driver.until(lambda: driver.log(wanted).count("saved step") >= 4)
    driver.until(lambda: len(driver.report(wanted).checkpoints) == 2)


def test_a_command_can_be_what_saves(driver: Driver) -> None:
    command = "id -un; cd $ALLOT_CHECKPOINT_DIR; cp ~/state .s; sleep 0.1; mv .s step-8"
    settings = every(mode="command", command=command)
    wanted = spec("bash", "-c", "echo 8 > state; echo up; sleep 1000", checkpoint=settings)
    driver.want(wanted)
    driver.until_logged(wanted, "up")
    evict(driver, wanted)
    assert "ann" in driver.log(wanted)
    assert [each.step for each in driver.report(wanted).checkpoints] == [8]


def test_a_program_below_a_shell_is_asked_too(driver: Driver) -> None:
    wanted = spec("bash", "-c", "python examples/train.py --steps 100000 --step-delay 0.01; echo x")
    run_some(driver, wanted)
    evict(driver, wanted)
    assert "saved step" in driver.log(wanted)
    assert driver.report(wanted).checkpoints


def test_the_client_hears_of_requests_without_any_signal(driver: Driver) -> None:
    script = (
        "import allot, time\n"
        "with allot.progress(total_steps=10**6) as p:\n"
        "    print('up')\n"
        "    while not p.checkpoint_due(): p.step(samples=32); time.sleep(0.01)\n"
        "    new = allot.checkpoint_dir() / '.new'\n"
        "    new.mkdir(); (new / 'weights').write_text('w')\n"
        "    (new / 'metadata.json').write_text('{\"step\": %d}' % p.steps)\n"
        "    time.sleep(0.05); new.rename(new.with_name('model'))\n"
        "    print('saved', p.steps, allot.checkpoints()); time.sleep(1000)\n"
    )
    wanted = spec("python", "-c", script)
    driver.want(wanted)
    driver.until_logged(wanted, "up")
    driver.until(
        lambda: (driver.site.folders.attempt(wanted.attempt_id) / "work/.progress/client").exists()
    )
    evict(driver, wanted)
    steps = re.findall(r"saved (\d+)", driver.log(wanted))
    assert [str(each.step) for each in driver.report(wanted).checkpoints] == steps


def test_a_session_without_a_checkpoint_folder_goes_on_in_peace(driver: Driver) -> None:
    """As one that an older agent has started."""
    wanted = spec("sleep", "1000", kind="interactive")
    driver.want(wanted)
    driver.until_phase(wanted, AttemptPhase.RUNNING)
    (driver.site.folders.attempt(wanted.attempt_id) / "work" / "checkpoints").rmdir()
    for _ in range(2):
        _look_again(driver, wanted)
    assert driver.log(wanted) == ""


def test_a_checkpoint_folder_that_cannot_be_looked_through_is_told_once(driver: Driver) -> None:
    wanted = spec("sleep", "1000")
    driver.want(wanted)
    driver.until_phase(wanted, AttemptPhase.RUNNING)
    folder = driver.site.folders.attempt(wanted.attempt_id) / "work" / "checkpoints"
    folder.rmdir()
    folder.symlink_to("/etc")
    driver.until_logged(wanted, "the agent failed")
    for _ in range(2):
        _look_again(driver, wanted)
    assert driver.log(wanted).count("\n") == 1


def _look_again(driver: Driver, wanted: AttemptSpec) -> None:
    """Tick until the folder has been looked through once more, and that is over."""
    attempt = driver.runner.attempts[wanted.attempt_id]
    looked_s = attempt._looked_s
    driver.until(lambda: attempt._looked_s > looked_s and attempt._job is None)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(driver: Driver) -> None:
    wanted = example("--steps", "250", "--checkpoint-every", "100", "--step-delay", "0.005")
    driver.finish(wanted)
    older, newest = driver.report(wanted).checkpoints
    store = driver.site.folders.checkpoints / wanted.workload_id
    data = store / newest.key / "data" / "step-00000200.npz"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    resumed = following(wanted)
    log = driver.output(resumed)
    assert "[allot] checkpoint step-00000200.npz is damaged, taking the one before it" in log
    assert "starting at step 100" in log
    assert driver.report(resumed).resumed_from == older.key


def test_a_half_written_checkpoint_of_a_killed_training_never_counts(driver: Driver) -> None:
    script = "cd $ALLOT_CHECKPOINT_DIR; printf half > step-9; printf x > a.tmp; kill -9 $$"
    wanted = spec("bash", "-c", script)
    report = driver.finish(wanted)
    assert report.exit_code == 137
    assert report.checkpoints == []


def test_after_a_kill_of_unknown_time_only_renamed_checkpoints_count(driver: Driver) -> None:
    script = (
        "cd $ALLOT_CHECKPOINT_DIR; echo 8 > .new; sleep 0.1; mv .new step-8; sleep 0.1; "
        "while :; do printf x >> step-9; echo up; sleep 0.1; done"
    )
    wanted = spec("bash", "-c", script)
    driver.want(wanted)
    driver.until_logged(wanted, "up")
    os.kill(driver.shim_pid(wanted), signal.SIGKILL)
    time.sleep(saved.QUIET_NS / 1e9 + 0.2)
    after = driver.restarted()
    report = after.until_phase(wanted, *FINAL)
    assert report.exit_cause == ExitCause.VANISHED
    assert [each.step for each in report.checkpoints] == [8]
    after.runner.close()


def test_a_link_planted_as_a_checkpoint_is_not_followed(driver: Driver) -> None:
    script = (
        "cd $ALLOT_CHECKPOINT_DIR; ln -s /etc/passwd step-1; mkfifo step-3; mkdir d e; "
        "ln -s /etc/passwd d/x; mv d step-2; ln -s / e/root; mv e step-4"
    )
    wanted = spec("bash", "-c", script)
    report = driver.finish(wanted)
    assert report.checkpoints == []
    assert driver.log(wanted).count("could not be stored") == 2


@pytest.mark.parametrize("killed", ["agent", "shim"])
def test_killing_the_agent_or_the_shim_while_it_saves_loses_no_complete_checkpoint(
    driver: Driver, killed: str
) -> None:
    wanted = example(*STEPS, "--step-delay", "0.01")
    run_some(driver, wanted)
    driver.want(replace(wanted, goal=Goal.CHECKPOINT))
    driver.until(lambda: driver.report(wanted).checkpoints)
    driver.want(replace(wanted, goal=Goal.EVICT))
    if killed == "shim":
        os.kill(driver.shim_pid(wanted), signal.SIGKILL)
    after = driver.restarted()
    report = after.until_phase(wanted, *FINAL)
    cause = ExitCause.EVICTED if killed == "agent" else ExitCause.VANISHED
    assert report.exit_cause == cause
    assert report.checkpoints
    del after.wanted[wanted.attempt_id]
    log = after.output(following(wanted))
    assert f"starting at step {report.checkpoints[-1].step}" in log
    end(after)


def test_a_training_without_its_agent_saves_and_stops_when_the_lease_is_over(
    driver: Driver,
) -> None:
    driver.lease_s = 1.0
    training = example("--steps", "100000", "--step-delay", "0.01", "--checkpoint-every", "99999")
    session = spec("sleep", "1000", kind="interactive")
    driver.want(training, session)
    driver.until_logged(training, "step 50 loss")
    driver.until_phase(session, AttemptPhase.RUNNING)
    exit_record = driver.site.folders.attempt(training.attempt_id) / folders.EXIT
    deadline = time.monotonic() + 30
    while not exit_record.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    after = driver.restarted()
    report = after.until_phase(training, *FINAL)
    assert report.exit_cause == ExitCause.LEASE_EXPIRED
    assert report.checkpoints
    assert "agent has been away for more than 1 s" in after.log(training)
    assert after.report(session).phase == AttemptPhase.RUNNING
    end(after)


def test_a_victim_stops_as_soon_as_it_has_saved(driver: Driver) -> None:
    wanted = example("--steps", "1000000", "--step-delay", "0.1")
    driver.want(wanted)
    driver.until_logged(wanted, "step")
    asked_at = time.time()
    driver.want(replace(wanted, goal=Goal.EVICT))
    report = driver.until_phase(wanted, AttemptPhase.EXITED)
    assert report.exit_cause == ExitCause.EVICTED
    assert report.checkpoints
    assert report.ended_at is not None
    # Waiting until the file has been quiet took two seconds.
    assert report.ended_at - asked_at < saved.QUIET_NS / 1e9 - 0.2
