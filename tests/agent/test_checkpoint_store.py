"""The store of checkpoints alone: what it keeps, what it knows of it, what befalls it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from scheduling.agent import folders, outcome, renames, saved
from scheduling.agent.checkpoints import CheckpointError, Store
from scheduling.agent.protocol import encode


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
