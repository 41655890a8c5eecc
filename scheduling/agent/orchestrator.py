"""The agent's way to the orchestrator, which may be away at any time."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import httpx

from scheduling.agent.protocol import (
    AGENT_HEADER,
    Acknowledged,
    Desired,
    Message,
    ProtocolError,
    Report,
    decode,
    encode,
)

log = logging.getLogger(__name__)

_BACK_OFF_S = (0.5, 1.0, 2.0, 5.0)
_REQUEST_TIMEOUT_S = 10.0


class Orchestrator:
    """HTTP to the orchestrator, which may be away; says so once, and once when it is back.

    Attributes:
        number: Of this agent; tells it from another that claims the same zone.
    """

    def __init__(self, server: str, token_file: Path) -> None:
        """Connect to nothing yet; for the arguments see `controller.Options`."""
        self.number = ""
        self._host = socket.gethostname()
        self._refused_nodes: list[str] = []
        self._token_file = token_file
        path = server.removeprefix("unix:")
        transport = None if path == server else httpx.AsyncHTTPTransport(uds=path)
        self._client = httpx.AsyncClient(
            base_url=server if transport is None else "http://orchestrator",
            transport=transport,
            timeout=_REQUEST_TIMEOUT_S,
            trust_env=False,
        )
        self._num_failures = 0

    @property
    def back_off_s(self) -> float:
        """How long to wait before the next try; 0 while it answers."""
        if self._num_failures == 0:
            return 0.0
        return _BACK_OFF_S[min(self._num_failures, len(_BACK_OFF_S)) - 1]

    async def report(self, report: Report) -> Acknowledged | None:
        """Tell what is observed; None if it could not be told."""
        answer = await self._ask("POST", "/agent/v1/report", Acknowledged, encode(report))
        if answer is not None and answer.refused_nodes != self._refused_nodes:
            self._refused_nodes = answer.refused_nodes
            if self._refused_nodes:
                log.error(
                    "nodes %s belong to the agent of another zone and are left alone: give each "
                    "node a name of its own",
                    ", ".join(self._refused_nodes),
                )
        return answer

    async def desired(self, zone: str) -> Desired | None:
        """What should be; None if that cannot be learnt now."""
        return await self._ask("GET", f"/agent/v1/desired?zone={zone}", Desired)

    async def send_samples(self, batch: bytes) -> bool:
        """Deliver a batch; True once it need not be kept, accepted or not."""
        response = await self._request("POST", "/agent/v1/samples", batch)
        if response is None:
            return False
        if response.is_error:
            log.warning("samples were refused: %s %s", response.status_code, response.text[:200])
        return response.is_success or response.status_code in (400, 413, 422)

    async def _ask(
        self, method: str, path: str, expected: type[Message], body: bytes | None = None
    ) -> Message | None:
        response = await self._request(method, path, body)
        if response is None:
            return None
        try:
            if response.is_error:
                raise ProtocolError(f"{response.status_code} {response.text[:300]}")
            answer = decode(response.content, expected)
        except ProtocolError as error:
            self._failed(f"{path}: {error}")
            return None
        if self._num_failures:
            log.info("the orchestrator answers again")
        self._num_failures = 0
        return answer

    async def _request(self, method: str, path: str, body: bytes | None) -> httpx.Response | None:
        try:
            token = self._token_file.read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            if self.number:
                headers[AGENT_HEADER] = f"{self.number} {self._host}"
            return await self._client.request(method, path, content=body, headers=headers)
        except (httpx.HTTPError, OSError) as error:
            self._failed(f"{type(error).__name__} {error}".strip())
            return None

    def _failed(self, what: str) -> None:
        if self._num_failures == 0:
            log.warning(
                "the orchestrator cannot be reached or refuses, work goes on without it: %s", what
            )
        self._num_failures += 1

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()
