"""What tests need: skipped where it lacks, and failed in CI, which lacks nothing but a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from config import env
from tests import needs


def test_what_lacks_is_skipped_and_fails_in_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("xgettext") is None
    monkeypatch.delenv(needs.STRICT, raising=False)
    with pytest.raises(pytest.skip.Exception, match="gettext"):
        needs.gettext()
    monkeypatch.setenv(needs.STRICT, "1")
    with pytest.raises(pytest.fail.Exception, match="gettext"):
        needs.gettext()
    assert f"{needs.STRICT}=1 make test" in (env.REPOSITORY / ".ci" / "run").read_text()
