"""A session behind Allot's address, as its owner's browser sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
from django.conf import settings
from django.test import Client as Browser
from django.utils import timezone
from websockets.asyncio.client import connect

from projects.models import Project, User, WorkloadKind
from scheduling.models import Attempt, AttemptPhase, Node, Phase, Workload
from tests.serving import Host

MIB = 2**20
NAVIGATION = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}


@dataclass(frozen=True, slots=True)
class World:
    """A running session, its owner, and the owner's browser."""

    port: int
    host: Host
    owner: User
    workload: Workload
    attempt: Attempt
    login: str

    @property
    def path(self) -> str:
        return f"/s/{self.workload.pk}"

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def browser(self, login: str | None = "", **headers: str) -> httpx.AsyncClient:
        """A browser with the owner's login, another's, or none (None)."""
        client = httpx.AsyncClient(base_url=self.origin, headers=headers, timeout=30)
        if login is not None:
            client.cookies.set(settings.SESSION_COOKIE_NAME, login or self.login)
        return client

    def open_socket(self, path: str = "/ws", login: str | None = "", **options: Any) -> connect:
        headers = {}
        if login is not None:
            headers["Cookie"] = f"{settings.SESSION_COOKIE_NAME}={login or self.login}"
        return connect(
            f"ws://127.0.0.1:{self.port}{self.path}{path}",
            **{
                "origin": self.origin,
                "additional_headers": headers,
                "max_size": None,
                "proxy": None,
                **options,
            },
        )


def log_in(user: User) -> str:
    browser = Browser()
    browser.force_login(user)
    return browser.cookies[settings.SESSION_COOKIE_NAME].value


def make_workload(owner: User, node: Node, **fields: Any) -> Workload:
    now = timezone.now()
    workload = Workload.objects.create(
        **{
            "name": "notebook",
            "project": Project.objects.get(),
            "owner": owner,
            "kind": WorkloadKind.INTERACTIVE,
            "cpu_milli": 1000,
            "memory_mib": 512,
            "is_preemptible": False,
            "phase": Phase.RUNNING,
            "phase_changed_at": now,
            "submitted_at": now,
            **fields,
        }
    )
    workload.current = Attempt.objects.create(
        workload=workload,
        number=1,
        node=node,
        phase=AttemptPhase.RUNNING,
        is_ready=True,
        placed_at=now,
    )
    workload.save()
    return workload


def header(seen: list[list[str]], name: str) -> list[str]:
    return [value for key, value in seen if key == name]
