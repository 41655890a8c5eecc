"""Looks at a command and a folder as a person's workload would find them.

    python -S -m scheduling.agent.look < question.json > problems.json

Standard library only, without `site`: somebody waits at a form for the answer.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from scheduling.agent import namespaces

_NO_PLACES = (("proc",), ("sys",), ("dev",))


def _become(question: dict[str, Any]) -> None:
    """Take the person's view and identity (fields of JSON, hence Any)."""
    if question["use_namespaces"]:
        namespaces.unshare(namespaces.CLONE_NEWPID)
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        namespaces.enter(namespaces.view_from(question["view"]))
    if question["use_identity"]:
        os.setgroups([question["gid"]])
        os.setgid(question["gid"])
        os.setuid(question["uid"])


def _problems(question: dict[str, Any]) -> list[dict[str, str]]:
    folder, given = question["folder"], question["working_dir"]
    if _is_nobodys(os.path.normpath(folder)):
        return [_problem("working_dir", "not_readable", given)]
    if not os.path.isdir(folder):
        hidden = _is_hidden(folder)
        return [_problem("working_dir", "not_readable" if hidden else "not_found", given)]
    try:
        os.chdir(folder)
        os.listdir(folder)
    except OSError:
        return [_problem("working_dir", "not_readable", given)]
    return [
        _problem("command", code, name)
        for name in question["command"]
        if (code := _command_problem(name, question["path"]))
    ]


def _problem(field: str, code: str, value: str) -> dict[str, str]:
    """A `protocol.FieldProblem` in its JSON form."""
    return {"field": field, "code": code, "value": value}


def _is_nobodys(folder: str) -> bool:
    """Whether it is the machine's: emptied for workloads, or no place for files at all."""
    return folder in namespaces.HIDDEN or Path(folder).parts[1:2] in _NO_PLACES


def _is_hidden(folder: str) -> bool:
    """Whether a part of the path may not be entered, so that nobody can say what lies below."""
    for parent in reversed(Path(folder).parents):
        if parent.is_dir() and not os.access(parent, os.X_OK):
            return True
    return False


def _command_problem(name: str, path: str) -> str:
    if shutil.which(name, path=path):
        return ""
    return "not_executable" if "/" in name and os.path.exists(name) else "not_found"


def main() -> None:
    """Answer the question that comes by standard input."""
    question = json.load(sys.stdin)
    _become(question)
    json.dump(_problems(question), sys.stdout)


if __name__ == "__main__":
    main()
