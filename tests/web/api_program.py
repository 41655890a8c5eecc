"""A program that calls the API, and what it submits."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

SESSION = {
    "kind": "interactive",
    "project": "vision",
    "name": "notebook",
    "node_types": ["t4"],
    "num_devices": 1,
    "gpu_milli": 333,
    "cpu_milli": 2000,
    "memory_mib": 2048,
}
TRAINING = {
    **SESSION,
    "kind": "training",
    "name": "run",
    "gpu_milli": 1000,
    "command": ["python", "train.py", "--text", "two words"],
}


class Api:
    """A program with a token."""

    def __init__(self, secret: str) -> None:
        self.client = Client(headers={"Authorization": f"Bearer {secret}"})

    def get(self, path: str, **headers: str) -> Any:  # a test client's answer
        return self.client.get(f"/api/v1/{path}", headers=headers)

    def post(self, path: str, body: object = None, **headers: str) -> Any:  # as above
        data = json.dumps(body) if body is not None else ""
        return self.client.post(
            f"/api/v1/{path}", data, content_type="application/json", headers=headers
        )
