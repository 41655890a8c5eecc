"""The process that asks a node's driver to move memory: `[number, call, argument…]` lines in.

Answers are lines `[number, null, answer]` or `[number, code, [call, text]]`, in the order in which
the calls end: each has a thread. At the end of its input it finishes the calls under way and ends,
so that an agent that is killed never interrupts a copy. Standard library only.

    python -S -m scheduling.agent.swap.mover LIBCUDA LIBNVML LOCK
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduling.agent.swap.driver import CallError, Driver


class Server:
    """Answers from one driver."""

    def __init__(self, driver: Driver) -> None:
        # JSON in, JSON out, hence Any.
        self._calls: dict[str, Callable[..., Any]] = {
            "probe": driver.probe,
            "state": driver.state,
            "use": driver.use,
            "lock": driver.lock,
            "checkpoint": driver.checkpoint,
            "restore": driver.restore,
            "unlock": driver.unlock,
        }
        self._mutex = threading.Lock()

    def answer(self, line: bytes) -> None:
        """Carry one call out and write its answer."""
        number, call, *arguments = json.loads(line)
        try:
            reply = [number, None, self._calls[call](*arguments)]
        except CallError as error:
            reply = [number, error.code, [error.call, error.text]]
        except Exception as error:  # the outermost frame of a thread: whoever asked must hear
            reply = [number, 0, [call, f"{type(error).__name__}: {error}"]]
        text = json.dumps(reply).encode() + b"\n"
        with self._mutex:
            os.write(sys.stdout.fileno(), text)


def main(cuda: str, nvml: str, lock: str) -> None:
    """Serve until the input ends."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    lock_fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    server = Server(Driver(Path(cuda), Path(nvml)))
    for line in sys.stdin.buffer:
        threading.Thread(target=server.answer, args=(line,)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
