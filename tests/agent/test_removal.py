"""What workloads leave is removed, however deeply nested, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from scheduling.agent import folders, saved
from scheduling.agent.checkpoints import CheckpointError, Store
from scheduling.agent.removal import remove_tree

# Far beyond Python's recursion.
DEPTH = 3000


def nest(folder: Path, depth: int = DEPTH) -> Path:
    """Folders in folders, with a file in each."""
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.mkdir("folder", dir_fd=fd)
        below = os.open("folder", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    return folder


def test_a_deep_tree_goes_whole(tmp_path: Path) -> None:
    remove_tree(nest(tmp_path / "deep"))
    assert os.listdir(tmp_path) == []


def test_a_wide_tree_goes_whole(tmp_path: Path) -> None:
    for path in ("a/b/c", "a/b/d", "e", "f/g/h/i"):
        (tmp_path / "wide" / path).mkdir(parents=True)
        (tmp_path / "wide" / path / "file").touch()
    remove_tree(tmp_path / "wide")
    assert os.listdir(tmp_path) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "gone" / "below").mkdir(parents=True)
    (tmp_path / "gone" / "below" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "gone")
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "absent")
    assert (tmp_path / "kept" / "file").exists()
    assert not (tmp_path / "gone").exists()


def test_a_checkpoint_nested_too_deeply_is_none_and_bars_no_start(tmp_path: Path) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "saved"
    folder.mkdir()
    nest(folder / "step-1")
    with folders.opened(folder) as fd:
        assert saved.entries(fd, time.time_ns(), is_over=True) == []
        # It may have become so between look and copy.
        entry = saved.Entry("step-1", (folder / "step-1").stat().st_ino, 1, is_folder=True)
        with pytest.raises(CheckpointError, match="step-1"):
            store.take("w", 1, fd, entry)
    assert store.complete("w") == []
    nest(store.root / "w" / ".unfinished-1-1")
    store.clean()
    assert os.listdir(store.root / "w") == []
    remove_tree(folder)
