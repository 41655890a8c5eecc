"""What must hold before any process starts, and what is refused in words."""

import socket
import stat
from pathlib import Path

import pytest

from scheduling.management import first_start


def test_a_second_up_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with (
        first_start.holding_lock(tmp_path),
        pytest.raises(first_start.StartRefusedError, match=r"already runs on .*process \d+"),
        first_start.holding_lock(tmp_path),
    ):
        pass


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with first_start.holding_lock(tmp_path):
            pass


def test_a_taken_port_is_named_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(first_start.StartRefusedError, match=rf"port {port}.*ALLOT_PORT="):
            first_start.require_free_port("127.0.0.1", port)


def test_secrets_are_ours_alone_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "agent-token"
    first_start.keep_secret(file, "first")
    first_start.keep_secret(file, "second")
    assert file.read_text() == "first\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_folders_get_exactly_the_rights(tmp_path: Path) -> None:
    first_start.make_folder(tmp_path / "var", 0o711)
    first_start.make_folder(tmp_path / "var", 0o711)
    assert stat.S_IMODE((tmp_path / "var").stat().st_mode) == 0o711


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "var").touch()
    with pytest.raises(first_start.StartRefusedError, match="cannot be used"):
        first_start.make_folder(tmp_path / "var", 0o711)
