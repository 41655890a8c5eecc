"""The agent's own small HTTP server: how the web reaches what runs on this zone's nodes.

Jupyter listens on a Unix socket that only the agent can open, and logs lie on the node's disk; the
web process, perhaps on another machine, asks here for both. The web has checked who asks and
what for; the relay checks only that it is the web (the secret of the agent's reports), on each
request and at each WebSocket's opening. Routes: the docstring of `protocol`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scheduling.agent.protocol import CheckAnswer, CheckRequest


@dataclass(frozen=True, slots=True)
class SessionEndpoint:
    """Where an attempt's Jupyter listens, and the token that it expects."""

    socket_path: Path
    token: str


class RelayHost(Protocol):
    """What the relay needs of the agent. All but `check` answer at once, from memory."""

    @property
    def secret(self) -> str:
        """What the web presents as its bearer token."""
        ...

    def wake(self) -> None:
        """Read the desired state soon."""
        ...

    def log_path(self, attempt_id: str) -> Path | None:
        """The attempt's log; None if this agent never had the attempt."""
        ...

    def session(self, attempt_id: str) -> SessionEndpoint | None:
        """The attempt's Jupyter; None if it is no session of ours or has ended."""
        ...

    async def check(self, request: CheckRequest) -> CheckAnswer:
        """Whether a workload could run this command in this folder."""
        ...
