"""Nothing is lost: a training saves when asked, and its next attempt goes on from there."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.agent import folders, outcome, renames, saved
from scheduling.agent.checkpoints import CheckpointError, Store
from scheduling.agent.protocol import AttemptPhase, AttemptSpec, ExitCause, Goal, encode
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


# ---------------------------------------------------------------- the store alone


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def entries_of(folder: Path) -> list[saved.Entry]:
    with folders.opened(folder) as fd:
        return saved.entries(fd, time.time_ns(), is_over=True)


def take(store: Store, folder: Path, number: int = 1) -> None:
    with folders.opened(folder) as fd:
        for entry in entries_of(folder):
            store.take("w", number, fd, entry)


def make(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"state of " + os.fsencode(name))
    return folder


def test_only_the_last_checkpoints_are_kept(store: Store, tmp_path: Path) -> None:
    take(store, make(tmp_path / "a", "step-1", "step-2", "step-3"))
    store.expire("w", keep=2)
    assert [each.step for each in store.complete("w")] == [2, 3]


def test_what_a_crash_left_unfinished_is_never_listed_and_goes_away(
    store: Store, tmp_path: Path
) -> None:
    take(store, make(tmp_path / "a", "step-1"))
    unfinished = store.root / "w" / ".unfinished-1-99"
    unfinished.mkdir()
    assert len(store.complete("w")) == 1
    store.clean()
    assert not unfinished.exists()


def test_an_entry_that_vanished_meanwhile_leaves_nothing(store: Store, tmp_path: Path) -> None:
    folder = make(tmp_path / "a", "step-1")
    entry = entries_of(folder)[0]
    (folder / "step-1").unlink()
    with folders.opened(folder) as fd, pytest.raises(CheckpointError, match="step-1"):
        store.take("w", 1, fd, entry)
    assert os.listdir(store.root / "w") == []


@pytest.mark.parametrize("name", ["x" * 255, "mod\udce8le", "two\nlines"], ids=ascii)
def test_a_checkpoint_of_any_name_is_kept_told_and_restored(
    store: Store, tmp_path: Path, name: str
) -> None:
    take(store, make(tmp_path / "a", name))
    said: list[str] = []
    found = store.restore("w", make(tmp_path / "b"), None, said.append)
    assert found is not None
    assert not said
    assert os.listdir(tmp_path / "b") == [name]
    assert encode(outcome.reported(found))
    log = tmp_path / "log"
    folders.append_line(log, f"resuming from checkpoint {found.name}")
    assert log.read_text().startswith("[allot] resuming from checkpoint")


@pytest.mark.parametrize(
    "metadata",
    [
        '{"step": Infinity}',
        '{"step": -1}',
        f'{{"step": {2**63}}}',
        "[" * 100_000,
        '{"step": 7, "more": "' + "x" * 2**20 + '"}',
    ],
    ids=["infinite", "negative", "too large", "deep", "long"],
)
def test_a_step_that_cannot_be_one_is_none(store: Store, tmp_path: Path, metadata: str) -> None:
    folder = make(tmp_path / "a") / "best"
    make(folder)
    (folder / "metadata.json").write_text(metadata)
    take(store, tmp_path / "a")
    (kept,) = store.complete("w")
    assert kept.step is None


@pytest.mark.parametrize("written_s", [-(2**33), 2**34])
def test_a_time_that_cannot_be_is_told_as_one_that_can(
    store: Store, tmp_path: Path, written_s: int
) -> None:
    """A program may give its files any time."""
    os.utime(make(tmp_path / "a", "step-1") / "step-1", (written_s, written_s))
    take(store, tmp_path / "a")
    (kept,) = store.complete("w")
    assert 0 <= kept.saved_at <= time.time()


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-00012.npz", 12),
        ("epoch=3-step=480.ckpt", 480),
        ("checkpoint-500", 500),
        ("best", None),
        ("20261130144512123456789", None),
    ],
)
def test_the_step_is_read_from_the_name(
    store: Store, tmp_path: Path, name: str, step: int | None
) -> None:
    take(store, make(tmp_path / "a", name))
    assert store.complete("w")[0].step == step


@pytest.mark.parametrize("harm", ["content", "size", "missing", "renamed", "extra"])
def test_whatever_befalls_a_stored_folder_is_noticed(
    store: Store, tmp_path: Path, harm: str
) -> None:
    source = tmp_path / "a"
    make(source)
    make(source / "model", "weights", "state")
    take(store, source)
    data = store.root / "w" / store.complete("w")[0].key / "data" / "model"
    if harm == "content":
        (data / "weights").write_text("State of weights")
    elif harm == "size":
        (data / "weights").write_text("")
    elif harm == "missing":
        (data / "weights").unlink()
    elif harm == "renamed":
        (data / "weights").rename(data / "heights")
    else:
        (data / "extra").touch()
    said: list[str] = []
    target = make(tmp_path / "target")
    assert store.restore("w", target, None, said.append) is None
    assert len(said) == 1
    assert os.listdir(target) == []


def test_a_rename_tells_a_whole_entry_from_one_being_written(tmp_path: Path) -> None:
    make(tmp_path / "a", "written-in-place", ".renamed")
    time.sleep(0.02)
    (tmp_path / "a" / ".renamed").rename(tmp_path / "a" / "renamed")
    with folders.opened(tmp_path / "a") as fd:
        at_once = saved.entries(fd, time.time_ns())
        later = saved.entries(fd, time.time_ns() + 2 * saved.QUIET_NS)
    assert [entry.name for entry in at_once] == ["renamed"]
    assert len(later) == 2


def test_a_rename_within_a_tick_of_the_clock_is_heard_from_the_kernel(tmp_path: Path) -> None:
    with folders.opened(make(tmp_path / "a")) as fd:
        heard = renames.Renames(fd)
        for number in range(50):
            (tmp_path / "a" / f".{number}").write_bytes(b"x" * 10_000)
            (tmp_path / "a" / f".{number}").rename(tmp_path / "a" / str(number))
        (tmp_path / "a" / "in-place").write_text("half")
        whole = saved.entries(fd, time.time_ns(), arrived=heard.heard())
    assert len(whole) == 50
    assert "in-place" not in {entry.name for entry in whole}


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
