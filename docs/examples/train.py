"""A small real training that keeps its progress: a neural network that learns to read digits.

    python examples/train.py --steps 2000 --step-delay 0.05

It needs numpy and scikit-learn (whose wheel ships the 1,797 digits). It saves to
$ALLOT_CHECKPOINT_DIR, by a new file that is then renamed: every N steps, on SIGUSR1, and on
SIGTERM, after which it exits. It resumes from the newest file there, random numbers included, so an
interrupted run ends with exactly the loss of an undisturbed one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

HIDDEN_UNITS = 64
BATCH_SIZE = 64
LEARNING_RATE = 0.1

Floats = NDArray[np.float64]


@dataclass
class Model:
    """One hidden layer with tanh, softmax at the end."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats

    @classmethod
    def random(cls, rng: np.random.Generator, inputs: int, classes: int) -> Model:
        """Small random weights."""
        return cls(
            rng.normal(0, inputs**-0.5, (inputs, HIDDEN_UNITS)),
            np.zeros(HIDDEN_UNITS),
            rng.normal(0, HIDDEN_UNITS**-0.5, (HIDDEN_UNITS, classes)),
            np.zeros(classes),
        )

    def loss_after_step(self, images: Floats, labels: NDArray[np.int64]) -> float:
        """One step of gradient descent; the loss before it."""
        hidden = np.tanh(images @ self.w1 + self.b1)
        scores = hidden @ self.w2 + self.b2
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float(-np.log(chances[rows, labels]).mean())
        chances[rows, labels] -= 1
        chances /= len(labels)
        back = (chances @ self.w2.T) * (1 - hidden**2)
        self.w2 -= LEARNING_RATE * hidden.T @ chances
        self.b2 -= LEARNING_RATE * chances.sum(axis=0)
        self.w1 -= LEARNING_RATE * images.T @ back
        self.b1 -= LEARNING_RATE * back.sum(axis=0)
        return loss


class Training:
    """Model, random numbers and position: everything that a checkpoint holds."""

    def __init__(self, seed: int, folder: Path) -> None:
        digits = np.loadtxt(digits_file(), delimiter=",")
        self.images: Floats = digits[:, :-1] / 16.0
        self.labels: NDArray[np.int64] = digits[:, -1].astype(np.int64)
        self.rng = np.random.default_rng(seed)
        self.model = Model.random(self.rng, self.images.shape[1], 10)
        self.folder = folder
        self.step = 0
        self.saved_step = -1
        self.loss = float("nan")

    def run_step(self) -> None:
        """Learn from one random batch."""
        chosen = self.rng.integers(0, len(self.images), BATCH_SIZE)
        self.loss = self.model.loss_after_step(self.images[chosen], self.labels[chosen])
        self.step += 1

    def save(self) -> None:
        """Write a new file, then rename it: nobody ever sees a half of it."""
        if self.step == self.saved_step:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".step-{self.step:08d}.npz.tmp"
        position = {"step": self.step, "loss": self.loss, "rng": self.rng.bit_generator.state}
        with open(temporary, "wb") as file:
            np.savez(file, position=np.array(json.dumps(position)), **vars(self.model))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.folder / f"step-{self.step:08d}.npz")
        self.saved_step = self.step
        say(f"saved step {self.step}")

    def resume(self) -> None:
        """Load the newest checkpoint, if there is one."""
        saved = sorted(self.folder.glob("step-*.npz")) if self.folder.is_dir() else []
        if not saved:
            return
        with np.load(saved[-1]) as data:
            self.model = Model(**{name: data[name] for name in ("w1", "b1", "w2", "b2")})
            position: dict[str, Any] = json.loads(str(data["position"]))
        self.step, self.loss = position["step"], position["loss"]
        self.rng.bit_generator.state = position["rng"]
        self.saved_step = self.step


class Requests:
    """What signals asked for; looked at between two steps, never in the middle of one."""

    def __init__(self) -> None:
        self.save = False
        self.stop = False
        signal.signal(signal.SIGUSR1, self._on_save)
        signal.signal(signal.SIGTERM, self._on_stop)

    def _on_save(self, _signum: int, _frame: FrameType | None) -> None:
        self.save = True

    def _on_stop(self, _signum: int, _frame: FrameType | None) -> None:
        self.stop = True


def digits_file() -> Path:
    """Find the digits in scikit-learn's wheel: importing it would take longer than the training."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        sys.exit("scikit-learn, whose wheel ships the digits, is not installed")
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"


def say(line: str) -> None:
    """One line of output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Learns to read digits, and keeps its progress.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-every", type=int, default=200, metavar="STEPS")
    parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS")
    return parser.parse_args()


def main() -> int:
    """Train, saving whenever asked."""
    arguments = read_arguments()
    requests = Requests()
    folder = Path(os.environ.get("ALLOT_CHECKPOINT_DIR", "checkpoints"))
    training = Training(arguments.seed, folder)
    training.resume()
    say(f"starting at step {training.step}")
    while training.step < arguments.steps:
        training.run_step()
        if training.step % 50 == 0:
            say(f"step {training.step} loss {training.loss:.4f}")
        if requests.save or training.step % arguments.checkpoint_every == 0:
            requests.save = False
            training.save()
        if requests.stop:
            training.save()
            say(f"stopped at step {training.step}")
            return 0
        time.sleep(arguments.step_delay)
    say(f"finished step {training.step} loss {training.loss!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
