"""The environment: defaults, and everything wrong said at once."""

import os
from pathlib import Path

import pytest

from config import env

KEY = "k" * env.MIN_SECRET_KEY_CHARS


def test_nothing_is_required_on_one_machine() -> None:
    found = env.read({})
    assert found.port == 8000
    assert found.has_embedded_database
    assert found.has_embedded_redis
    assert len(found.secret_key) >= env.MIN_SECRET_KEY_CHARS


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(env.EnvError) as caught:
        env.read(
            {
                "ALLOT_VAR": str(tmp_path),
                "ALLOT_PORT": "eighty",
                "ALLOT_DEBUG": "maybe",
                "ALLOT_DATABASE_URL": "mysql://somewhere",
                "ALLOT_PROT": "8001",
            }
        )
    said = "\n".join(caught.value.problems)
    for expected in (
        "ALLOT_PROT is not a name that Allot knows",
        "ALLOT_PORT is 'eighty': it must be a whole number, 1 to 65535",
        "ALLOT_DEBUG is 'maybe'",
        "ALLOT_DATABASE_URL must be an address that starts with one of postgresql://",
        "ALLOT_REDIS_URL is missing",
        "ALLOT_SECRET_KEY is missing",
    ):
        assert expected in said


@pytest.mark.parametrize("port", ["0", "65536", "-1", "8000.0", "８０００", ""])
def test_ports(port: str) -> None:
    if port == "":
        assert env.read({"ALLOT_PORT": port}).port == 8000
        return
    with pytest.raises(env.EnvError, match="ALLOT_PORT"):
        env.read({"ALLOT_PORT": port})


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(env.EnvError) as caught:
        env.read({"ALLOT_REDIS_URL": "http://:hunter2@somewhere"})
    assert "hunter2" not in str(caught.value)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(env.EnvError, match="has 5 characters: it needs 50"):
        env.read({"ALLOT_SECRET_KEY": "short"})


def test_the_key_made_by_up_is_taken(tmp_path: Path) -> None:
    (tmp_path / "secret-key").write_text(KEY + "\n")
    assert env.read({"ALLOT_VAR": str(tmp_path)}).secret_key == KEY


def test_sockets_of_a_deep_data_folder_get_a_short_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    first = env.read({"ALLOT_VAR": str(deep)}).run
    assert len(os.fsencode(first)) <= env.MAX_RUN_PATH_BYTES
    assert first == env.read({"ALLOT_VAR": str(deep)}).run
    assert first != env.read({"ALLOT_VAR": str(deep) + "2"}).run


def test_a_long_run_folder_is_refused() -> None:
    with pytest.raises(env.EnvError, match=r"ALLOT_RUN is .* bytes"):
        env.read({"ALLOT_RUN": "/" + "r" * 80})


def test_https_is_told_by_the_public_address() -> None:
    assert env.read({"ALLOT_PUBLIC_URL": "https://allot.example"}).is_https
    assert not env.read({}).is_https
    assert "allot.example" in env.read({"ALLOT_PUBLIC_URL": "https://allot.example"}).allowed_hosts


def test_a_host_for_all_addresses_is_shown_as_one_that_can_be_opened() -> None:
    assert env.read({"ALLOT_HOST": "0.0.0.0"}).public_url == "http://localhost:8000"
