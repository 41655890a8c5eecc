"""The web's and the worker's calls to an agent's relay: wake it, check a command, read a log.

The relay is reached at the address of the zone's last report, over a Unix socket or TCP, with the
secret that came with it. Everything here is a hint or a convenience: when the agent is away the
caller goes on without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from scheduling.models import Zone

WAKE_TIMEOUT_S = 2.0
CHECK_TIMEOUT_S = 5.0


class AgentAwayError(Exception):
    """The zone's agent does not answer."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """What the node found wrong with a form field.

    Attributes:
        code: `not_found`, `not_executable`, `not_readable` or `outside`.
    """

    field: str
    code: str
    value: str


def address_of(zone: Zone) -> tuple[str, str | None]:
    """Base URL, and the Unix socket's path where there is one.

    Raises:
        AgentAwayError: the zone's agent has never reported.
    """
    if not zone.relay_url:
        raise AgentAwayError(zone.name)
    if zone.relay_url.startswith("unix:"):
        return "http://relay", zone.relay_url.removeprefix("unix:")
    return zone.relay_url, None


def headers_for(zone: Zone) -> dict[str, str]:
    return {"Authorization": f"Bearer {zone.relay_secret}"}


def wake(zone: Zone) -> None:
    """Ask the agent to read its desired state now.

    Raises:
        AgentAwayError: it did not answer.
    """
    _post(zone, "/wake", {}, WAKE_TIMEOUT_S)


def wake_session(zone: Zone, attempt_id: str) -> None:
    """Ask the agent to bring a swapped-out session's GPU back.

    Raises:
        AgentAwayError: it did not answer.
    """
    _post(zone, f"/attempts/{attempt_id}/wake", {}, WAKE_TIMEOUT_S)


def check(zone: Zone, request: Mapping[str, object]) -> list[FieldProblem]:
    """Ask the node whether a person's command and working folder are usable
    (`protocol.CheckRequest`).

    Raises:
        AgentAwayError: it did not answer.
    """
    answer = _post(zone, "/check", request, CHECK_TIMEOUT_S)
    return [
        FieldProblem(str(item["field"]), str(item["code"]), str(item["value"]))
        for item in answer.json().get("problems", [])
    ]


def _post(zone: Zone, path: str, body: Mapping[str, object], timeout_s: float) -> httpx.Response:
    base_url, socket = address_of(zone)
    transport = httpx.HTTPTransport(uds=socket)
    try:
        with httpx.Client(base_url=base_url, transport=transport, timeout=timeout_s) as client:
            response = client.post(path, json=body, headers=headers_for(zone))
            response.raise_for_status()
    except httpx.HTTPError as error:
        raise AgentAwayError(f"{zone.name}: {error}") from error
    return response
