"""Whether a person's workload could run a command in a folder, asked before it is accepted.

A process of its own (`look.py`) takes the person's view and identity and looks; nothing is started.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scheduling.agent import launch
from scheduling.agent.homes import make_home, person
from scheduling.agent.protocol import CheckAnswer, CheckRequest, FieldProblem
from scheduling.agent.site import Site
from scheduling.agent.views import person_view

_REPOSITORY = Path(__file__).resolve().parents[2]
_WITHIN_S = 10.0


async def check(site: Site, request: CheckRequest) -> CheckAnswer:
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
        "-S",
        "-m",
        "scheduling.agent.look",
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


def _question(site: Site, request: CheckRequest) -> dict[str, Any]:
    who = person(request)
    home = make_home(site, who)
    where = launch.places(site, who, "check")
    return {
        "view": asdict(person_view(site, who, home)),
        "uid": who.uid,
        "gid": who.gid,
        "use_namespaces": site.isolation.has_namespaces,
        "use_identity": site.isolation.has_identities,
        "folder": str(where.home / request.working_dir),
        "working_dir": request.working_dir,
        "command": request.command[:1],
        "path": launch.search_path(site, where),
    }
