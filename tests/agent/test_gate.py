"""Datagrams of calls that wait: heard, and never to the harm of others."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from scheduling.agent.swap.gate import Gates


def test_a_program_that_sends_without_end_leaves_the_agent_its_time(tmp_path: Path) -> None:
    num_heard, most = 0, 10_000

    async def listen() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:

            def wake(attempt_id: str) -> None:
                nonlocal num_heard
                assert attempt_id == "a"
                num_heard += 1
                if num_heard < most:
                    sender.send(b"again")

            gates = Gates(lambda _: tmp_path / "gate.sock", wake)
            gates.keep(["a"])
            sender.connect(str(tmp_path / "gate.sock"))
            sender.send(b"first")
            while not num_heard:
                await asyncio.sleep(0)
            assert num_heard < most, "somebody else had a turn meanwhile"
            while num_heard < most:
                await asyncio.sleep(0)
            gates.close()

    asyncio.run(listen())
    assert num_heard == most
