"""A training on several replicas that may come and go: data-parallel gradient descent.

    python examples/elastic.py --steps 500 --step-delay 0.02

The leader (replica 0) listens at $MASTER_PORT, gives each replica its part of the data, adds the
gradients up and saves. A replica that comes is taken in before the next step, one that goes leaves
its part to the others: only below $ALLOT_MIN_REPLICAS does the leader wait. Since the parts add up
to the whole gradient, the loss does not depend on how many replicas there were, or when.

It needs numpy. Frameworks bring all of this with them: `torchrun` finds the same variables.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import FrameType

import numpy as np
from numpy.typing import NDArray

EXAMPLES, FEATURES = 4096, 32
LEARNING_RATE = 0.05
PATIENCE_S = 120.0

Floats = NDArray[np.float64]


class Problem:
    """Linear regression on made-up data: the same on every replica, by its seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.inputs: Floats = rng.normal(size=(EXAMPLES, FEATURES))
        self.outputs: Floats = self.inputs @ rng.normal(size=FEATURES) + rng.normal(size=EXAMPLES)

    def gradient(self, weights: Floats, part: int, parts: int) -> Floats:
        """The part of the gradient that one replica computes."""
        mine = slice(part * EXAMPLES // parts, (part + 1) * EXAMPLES // parts)
        errors = self.inputs[mine] @ weights - self.outputs[mine]
        result: Floats = 2 * errors @ self.inputs[mine] / EXAMPLES
        return result

    def loss(self, weights: Floats) -> float:
        """Mean squared error over everything."""
        return float(np.mean((self.inputs @ weights - self.outputs) ** 2))


class Requests:
    """What signals asked for; looked at between two steps."""

    def __init__(self) -> None:
        self.save = False
        self.stop = False

    def listen(self) -> None:
        """Catch the signals that Allot sends."""
        signal.signal(signal.SIGUSR1, self._on_save)
        signal.signal(signal.SIGTERM, self._on_stop)

    def _on_save(self, _signum: int, _frame: FrameType | None) -> None:
        self.save = True

    def _on_stop(self, _signum: int, _frame: FrameType | None) -> None:
        self.stop = True


class Team:
    """The replicas that have come to the leader."""

    def __init__(self, port: int, key: bytes) -> None:
        self._new: list[Connection] = []
        self._present: list[Connection] = []
        self._listener = Listener(("", port), backlog=64, authkey=key)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            with suppress(OSError, EOFError, AuthenticationError):
                self._new.append(self._listener.accept())

    def size(self) -> int:
        """How many there are, the leader among them; whoever has come is taken in."""
        while self._new:
            self._present.append(self._new.pop(0))
        return 1 + len(self._present)

    def gradient(self, problem: Problem, weights: Floats) -> Floats | None:
        """The whole gradient; None if somebody left meanwhile, who is missed from now on."""
        parts = self.size()
        gone: list[Connection] = []
        for part, other in enumerate(self._present, start=1):
            try:
                other.send(("work", weights, part, parts))
            except OSError:
                gone.append(other)
        total = problem.gradient(weights, 0, parts)
        for other in self._present:
            try:
                total = total + (0.0 if other in gone else other.recv())
            except (OSError, EOFError):
                gone.append(other)
        self._present = [other for other in self._present if other not in gone]
        return None if gone else total

    def dismiss(self) -> None:
        """Tell all that the work is done."""
        self.size()
        for other in self._present:
            with suppress(OSError):
                other.send(("done", None, 0, 0))


def lead(problem: Problem, arguments: argparse.Namespace) -> int:
    """Train, saving whenever asked."""
    requests = Requests()
    requests.listen()
    folder = Path(os.environ.get("ALLOT_CHECKPOINT_DIR", "checkpoints"))
    step, weights = resumed(folder)
    say(f"starting at step {step}")
    least = int(os.environ.get("ALLOT_MIN_REPLICAS", "1"))
    team = Team(int(os.environ.get("MASTER_PORT", "0")), key())
    size = 0
    while step < arguments.steps:
        if requests.save or requests.stop:
            save(folder, step, weights)
            requests.save = False
        if requests.stop:
            say(f"stopped at step {step}")
            return 0
        if team.size() != size:
            size = team.size()
            say(f"step {step}: {size} replicas")
        gradient = team.gradient(problem, weights) if size >= least else None
        if gradient is None:
            time.sleep(0.05)
            continue
        weights = weights - LEARNING_RATE * gradient
        step += 1
        time.sleep(arguments.step_delay)
    save(folder, step, weights)
    team.dismiss()
    say(f"finished step {step} loss {problem.loss(weights):.9f}")
    return 0


def follow(problem: Problem) -> int:
    """Compute what the leader asks for, until it says that all is done."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with suppress(OSError, EOFError, AuthenticationError):
            if help_until_lost(Client(leader_address(), authkey=key()), problem):
                return 0
            deadline = time.monotonic() + PATIENCE_S
        time.sleep(0.2)
    say("the leader is gone")
    return 1


def help_until_lost(leader: Connection, problem: Problem) -> bool:
    """Compute while the connection holds; True once the work is done."""
    say("joined")
    with leader, suppress(OSError, EOFError):
        while True:
            order, weights, part, parts = leader.recv()
            if order == "done":
                return True
            leader.send(problem.gradient(weights, part, parts))
    return False


def leader_address() -> tuple[str, int]:
    """Where the leader is now: it may have been started anew, elsewhere."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open(os.environ["ALLOT_REPLICAS_FILE"]) as file:
            leader = json.load(file)["leader"]
        return str(leader["address"]), int(leader["port"])
    return os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))


def key() -> bytes:
    """What only replicas of this workload know."""
    return os.environ.get("ALLOT_WORKLOAD", "elastic").encode()


def save(folder: Path, step: int, weights: Floats) -> None:
    """Write a new file, then rename it: nobody ever sees a half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".step-{step:08d}.npz.tmp"
    with open(temporary, "wb") as file:
        np.savez(file, step=step, weights=weights)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / f"step-{step:08d}.npz")
    say(f"saved step {step}")


def resumed(folder: Path) -> tuple[int, Floats]:
    """Step and weights of the newest checkpoint, or the beginning."""
    saved = sorted(folder.glob("step-*.npz")) if folder.is_dir() else []
    if not saved:
        return 0, np.zeros(FEATURES)
    with np.load(saved[-1]) as data:
        return int(data["step"]), data["weights"]


def say(line: str) -> None:
    """One line of output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Lead or follow, as Allot says."""
    parser = argparse.ArgumentParser(description="Data-parallel training on several replicas.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS")
    arguments = parser.parse_args()
    problem = Problem(arguments.seed)
    is_leader = os.environ.get("ALLOT_REPLICA", "0") == "0"
    return lead(problem, arguments) if is_leader else follow(problem)


if __name__ == "__main__":
    sys.exit(main())
