"""Whether a person's workload could run a command in a folder, asked before it is accepted.

A process of its own takes the person's view and identity and looks; nothing is started. Run as a
program, this module reads the question as JSON from its input and writes the answer as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scheduling.agent import launch, namespaces
from scheduling.agent.protocol import CheckAnswer, CheckRequest, FieldProblem

_REPOSITORY = Path(__file__).resolve().parents[2]
_WITHIN_S = 10.0


async def check(site: launch.Site, request: CheckRequest) -> CheckAnswer:
    """Look at command and folder as the person's workload would see them.

    Raises:
        OSError, TimeoutError: the look itself failed, which says nothing about the command.
    """
    if launch.is_outside(request.checkpoint_subfolder):
        problem = FieldProblem("checkpoint_subfolder", "outside", request.checkpoint_subfolder)
        return CheckAnswer([problem])
    question = await asyncio.to_thread(_question, site, request)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "scheduling.agent.check",
        cwd=_REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_WITHIN_S):
            answer, errors = await process.communicate(json.dumps(question).encode())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode != 0:
        raise OSError(f"the check failed: {errors.decode(errors='replace')[-500:]}")
    return CheckAnswer([FieldProblem(**problem) for problem in json.loads(answer)])


def _question(site: launch.Site, request: CheckRequest) -> dict[str, Any]:
    who = launch.person(request)
    home = launch.make_home(site, who)
    where = launch.places(site, who, "check")
    return {
        "view": asdict(launch.person_view(site, who, home)),
        "uid": who.uid,
        "gid": who.gid,
        "use_namespaces": site.isolation.has_namespaces,
        "use_identity": site.isolation.has_identities,
        "folder": str(where.home / request.working_dir),
        "working_dir": request.working_dir,
        "command": request.command[:1],
        "path": launch.search_path(site, where),
    }


# ---------------------------------------------------------------- in the process that looks


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


def _problems(question: dict[str, Any]) -> list[FieldProblem]:
    folder, given = question["folder"], question["working_dir"]
    if not os.path.isdir(folder):
        hidden = _is_hidden(folder)
        return [FieldProblem("working_dir", "not_readable" if hidden else "not_found", given)]
    try:
        os.chdir(folder)
        os.listdir(folder)
    except OSError:
        return [FieldProblem("working_dir", "not_readable", given)]
    return [
        FieldProblem("command", code, name)
        for name in question["command"]
        if (code := _command_problem(name, question["path"]))
    ]


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
    json.dump([asdict(problem) for problem in _problems(question)], sys.stdout)


if __name__ == "__main__":
    main()
