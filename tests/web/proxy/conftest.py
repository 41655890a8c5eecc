"""Both hops as real servers; behind the relay an upstream that says what it was sent."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from projects.models import Membership, Project, Role, User
from scheduling.agent.forward import SERVER_OPTIONS
from scheduling.agent.relay import RELAY_SERVER_OPTIONS, SessionEndpoint, create_app
from scheduling.models import Node, Zone
from scheduling.proxy import SessionProxy
from tests.serving import Host, TalkingUpstream, served
from tests.web.proxy.world import World, log_in, make_workload


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxy")


@pytest.fixture(scope="module")
def upstream(folder: Path) -> Iterator[TalkingUpstream]:
    app = TalkingUpstream()
    with served(app, folder / "u.sock", **SERVER_OPTIONS):
        yield app


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[Host]:
    host = Host()
    with served(create_app(host), folder / "r.sock", **RELAY_SERVER_OPTIONS):
        yield host


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The web process, as far as sessions are concerned."""
    app = SessionProxy(recheck_s=0.1)
    with served(app, proxy_headers=False, **SERVER_OPTIONS) as port:
        yield port


@pytest.fixture
def make_world(port: int, host: Host, folder: Path) -> Callable[..., World]:
    def make(workload_id: uuid.UUID, endpoint: SessionEndpoint) -> World:
        project = Project.objects.create(name="vision")
        owner = User.objects.create_user("ann", password="ann")
        Membership.objects.create(user=owner, project=project, role=Role.RESEARCHER)
        zone = Zone.objects.create(
            name="here", relay_url=f"unix:{folder / 'r.sock'}", relay_secret=host.secret
        )
        node = Node.objects.create(name="n1", zone=zone, cpu_milli=4000, memory_mib=8192)
        workload = make_workload(owner, node, id=workload_id)
        attempt = workload.current
        assert attempt is not None
        host.sessions[str(attempt.pk)] = endpoint
        return World(port, host, owner, workload, attempt, log_in(owner))

    return make


@pytest.fixture
def world(
    make_world: Callable[..., World], upstream: TalkingUpstream, folder: Path
) -> Iterator[World]:
    yield make_world(uuid.uuid4(), SessionEndpoint(folder / "u.sock", "jupyters-token"))
    upstream.extra_headers.clear()
