"""What Swap needs of a node's driver, and how it is asked: by lines to a process of its own.

All calls block; the agent makes them in threads. Nothing here knows whether the libraries are
NVIDIA's or the fake ones of a simulated node.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

_REPOSITORY = Path(__file__).resolve().parents[3]
# A call of the driver may take minutes (80 GiB over a slow bus), a look at a state 5 s.
_MOVE_TIMEOUT_S, _LOOK_TIMEOUT_S = 600.0, 15.0
# Long enough for a process that does nothing to end.
_CLOSE_TIMEOUT_S = 1.0


class ProcessState(IntEnum):
    """`CUprocessState` of the driver."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


class DriverError(Exception):
    """A call failed; `code` is the driver's result, 0 where the call never reached it."""

    def __init__(self, call: str, code: int, text: str = "") -> None:
        super().__init__(f"{call}: {text or f'error {code}'}")
        self.call = call
        self.code = code

    @property
    def is_busy(self) -> bool:
        """`CUDA_ERROR_NOT_READY`: the process did not come to rest in time, and runs on."""
        return self.code == 600


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device now: what is free of it, and who uses how much."""

    free_bytes: int
    used_by_pid: dict[int, int]


class DeviceMemory(Protocol):
    """Moves device memory of single processes, given by the agent's own numbers.

    All but `state` and `use` may take as long as copying takes, and raise `DriverError`.
    """

    def state(self, pid: int) -> ProcessState | None:
        """The state of a process; None if it cannot be moved at all or is gone."""
        ...

    def use(self, device_uuid: str) -> DeviceUse | None:
        """What is used of a device; None where it cannot be read."""
        ...

    def lock(self, pid: int, timeout_s: float) -> None:
        """RUNNING to LOCKED: hold its calls back, once those under way have ended."""
        ...

    def checkpoint(self, pid: int) -> None:
        """LOCKED to CHECKPOINTED: its memory goes to the host."""
        ...

    def restore(self, pid: int) -> None:
        """CHECKPOINTED to LOCKED: its memory comes back; running out of it loses the process."""
        ...

    def unlock(self, pid: int) -> None:
        """LOCKED to RUNNING."""
        ...


@dataclass(frozen=True, slots=True)
class Libraries:
    """The driver's libraries of a node, by path."""

    cuda: Path
    nvml: Path


class Mover:
    """The process that makes a node's calls, started at the first one; thread-safe."""

    def __init__(self, libraries: Libraries, lock_path: Path) -> None:
        """Set up.

        Args:
            libraries: Of the node.
            lock_path: Held by the process, so that one that an earlier agent left ends first.
        """
        self._libraries = libraries
        self._lock_path = lock_path
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None
        # By number, with the process that was asked.
        self._waiting: dict[int, tuple[subprocess.Popen[bytes], Future[Any]]] = {}
        self._number = 0

    # ------------------------------------------------------------------ the calls

    def state(self, pid: int) -> ProcessState | None:
        """See `DeviceMemory`."""
        found = self._ask(_LOOK_TIMEOUT_S, "state", pid)
        return None if found is None else ProcessState(found)

    def use(self, device_uuid: str) -> DeviceUse | None:
        """See `DeviceMemory`."""
        found = self._ask(_LOOK_TIMEOUT_S, "use", device_uuid)
        if found is None:
            return None
        return DeviceUse(found[0], {int(pid): used for pid, used in found[1]})

    def lock(self, pid: int, timeout_s: float) -> None:
        """See `DeviceMemory`."""
        # 0 would mean: wait for ever.
        self._ask(timeout_s + _LOOK_TIMEOUT_S, "lock", pid, max(1, round(timeout_s * 1000)))

    def checkpoint(self, pid: int) -> None:
        """See `DeviceMemory`."""
        self._ask(_MOVE_TIMEOUT_S, "checkpoint", pid)

    def restore(self, pid: int) -> None:
        """See `DeviceMemory`."""
        self._ask(_MOVE_TIMEOUT_S, "restore", pid)

    def unlock(self, pid: int) -> None:
        """See `DeviceMemory`."""
        self._ask(_LOOK_TIMEOUT_S, "unlock", pid)

    def is_usable(self) -> str:
        """Why the libraries cannot be used; empty if they can."""
        try:
            found: str = self._ask(_LOOK_TIMEOUT_S, "probe")
        except DriverError as error:
            return str(error)
        return found

    def close(self) -> None:
        """Let the process end once its last call has; nothing is interrupted."""
        with self._mutex:
            if self._process is not None and self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()
        if self._listener is not None:
            self._listener.join(_CLOSE_TIMEOUT_S)

    # ------------------------------------------------------------------ the process

    # Arguments and answers are JSON of several shapes, hence Any.
    def _ask(self, timeout_s: float, call: str, *arguments: Any) -> Any:
        future: Future[Any] = Future()
        with self._mutex:
            process = self._started()
            self._number += 1
            self._waiting[self._number] = (process, future)
            line = json.dumps([self._number, call, *arguments]).encode() + b"\n"
            try:
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
            except (OSError, ValueError) as error:
                del self._waiting[self._number]
                raise DriverError(call, 0, f"its process has ended: {error}") from error
        try:
            return future.result(timeout_s)
        except FutureTimeoutError as error:
            raise DriverError(call, 0, f"no answer within {timeout_s:g} s") from error

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-S",
                "-m",
                "scheduling.agent.swap.mover",
                str(self._libraries.cuda),
                str(self._libraries.nvml),
                str(self._lock_path),
            ],
            cwd=_REPOSITORY,
            env={"LANG": "C.UTF-8", "CUDA_MODULE_LOADING": "LAZY"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for the agent; a move that has begun goes on.
            start_new_session=True,
        )
        self._listener = threading.Thread(
            target=self._listen, args=(self._process,), name="mover", daemon=True
        )
        self._listener.start()
        return self._process

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._take(line)
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        # The next one may be at work already.
        with self._mutex:
            lost = [each for each, (asked, _) in self._waiting.items() if asked is process]
            futures = [self._waiting.pop(each)[1] for each in lost]
        for future in futures:
            future.set_exception(DriverError("mover", 0, "the process that moves memory has died"))

    def _take(self, line: bytes) -> None:
        number, code, answer = json.loads(line)
        with self._mutex:
            _, future = self._waiting.pop(number, (None, None))
        if future is None:
            return
        if code is None:
            future.set_result(answer)
        else:
            future.set_exception(DriverError(answer[0], code, answer[1]))
