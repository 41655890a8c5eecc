"""How many samples a second are taken in: JSON in, rows committed in PostgreSQL on this machine.

A sample is one device, workload or node at one instant, with all its values. Two threads send, as
the web process has several: while one waits for the database the other reads its message.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from django.db import connection

from scheduling.agent.protocol import ReceivedBatch, SampleBatch, decode, encode
from scheduling.management.benches.database import cpu_s, own_servers, sizes
from scheduling.management.benches.figures import Bench, Report, at_least, figure
from telemetry import rollups
from telemetry.ingestion import ingest
from telemetry.messages import Sample
from telemetry.metrics import METRICS, Kind

GPUS_PER_NODE = 8
EVERY_S = 5.0
NUM_SENDERS = 2
TARGET_PER_S = 100_000
TARGET_MINUTE_S = 60.0


def _measure(options: Mapping[str, Any]) -> Report:
    num_nodes = -(-options["devices"] // GPUS_PER_NODE)
    rounds = max(1, round(options["seconds"] / EVERY_S))
    num_runs = options["warmup"] + options["runs"]
    sent = rounds * num_nodes * (2 * GPUS_PER_NODE + 1)
    with own_servers() as server:
        runs = [
            _send(_batches(num_nodes, rounds, options["backlog"], number), num_nodes, server)
            for number in range(num_runs)
        ][options["warmup"] :]
        if (num_rows := _num_rows()) != num_runs * sent:
            raise AssertionError(f"{num_rows} rows, but {num_runs * sent} samples were sent")
        num_bytes = sum(size for name, size in sizes("telemetry_").items() if "sample" in name)
        minute_s = _roll_up()
        small = [
            _send(_batches(num_nodes, 1, 1, num_runs + number), num_nodes, server)
            for number in range(options["runs"])
        ]
    return Report(
        params={
            **{name: options[name] for name in ("devices", "seconds", "backlog")},
            "sent": sent,
        },
        figures={
            "samples_per_s": figure([sent / run.took_s for run in runs], "1/s", TARGET_PER_S),
            "cpu_us_per_sample": figure([1e6 * run.cpu_s / sent for run in runs], "us"),
            "lag_s": figure([lag for run in runs for lag in run.lags_s], "s"),
            "bytes_per_sample": figure([num_bytes / num_rows], "B"),
            "roll_up_minute_s": figure([minute_s], "s", TARGET_MINUTE_S),
            "node_batches_per_s": figure([num_nodes / run.took_s for run in small], "1/s"),
        },
        phases={},
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """One taking in; CPU time is that of this process and of PostgreSQL together."""

    took_s: float
    cpu_s: float
    lags_s: Sequence[float]


def _send(batches: Sequence[bytes], num_nodes: int, server: int) -> _Run:
    names = {f"node-{number}" for number in range(num_nodes)}

    def take(data: bytes) -> float:
        started = time.monotonic()
        ingest(decode(data, ReceivedBatch), nodes=names)
        return time.monotonic() - started

    with ThreadPoolExecutor(NUM_SENDERS, initializer=connection.ensure_connection) as pool:
        started, cpu = time.monotonic(), cpu_s(server)
        lags = list(pool.map(take, batches))
        took, used = time.monotonic() - started, cpu_s(server) - cpu
        # The pool's threads give their connections back.
        list(pool.map(lambda _: connection.close(), range(NUM_SENDERS)))
    return _Run(took, used, lags)


def _batches(num_nodes: int, rounds: int, backlog: int, run: int) -> list[bytes]:
    """Messages of all nodes: so many rounds, `backlog` of them in one message."""
    random = Random(run)
    # Each run has an hour of its own in the past, so that nothing is a repeat.
    start = time.time() - 3600.0 * (1 + run % 40) - rounds * EVERY_S
    messages = []
    for first in range(0, rounds, backlog):
        moments = [start + EVERY_S * n for n in range(first, min(first + backlog, rounds))]
        for node in range(num_nodes):
            samples = [sample for at in moments for sample in _round(node, at, random)]
            batch = SampleBatch("bench", f"node-{node}", f"{run}-{first}", samples)
            messages.append(encode(batch))
    return messages


def _round(node: int, at: float, random: Random) -> list[Sample]:
    samples = [Sample(f"node:node-{node}", at, _values(Kind.NODE, random))]
    for gpu in range(GPUS_PER_NODE):
        samples.append(Sample(f"device:GPU-{node}-{gpu}", at, _values(Kind.DEVICE, random)))
        samples.append(Sample(f"workload:w-{node}-{gpu}", at, _values(Kind.WORKLOAD, random)))
    return samples


def _values(kind: Kind, random: Random) -> dict[str, float | None]:
    return {metric.name: round(100 * random.random(), 2) for metric in METRICS[kind]}


def _roll_up() -> float:
    """Roll everything up; seconds per minute of samples, its part of a quarter-hour included."""
    started = time.monotonic()
    num_minutes = rollups.roll_up_new(budget_s=float("inf"))
    return (time.monotonic() - started) / num_minutes


def _num_rows() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM telemetry_devicesample)"
            " + (SELECT count(*) FROM telemetry_workloadsample)"
            " + (SELECT count(*) FROM telemetry_nodesample)"
        )
        (count,) = cursor.fetchone()
    return int(count)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--devices", type=at_least(1), default=1000)
    parser.add_argument(
        "--seconds", type=at_least(5), default=600, help="of samples, every 5 s, per run"
    )
    parser.add_argument("--backlog", type=at_least(1), default=120, help="rounds in one message")


BENCHES = {
    "ingest": Bench("samples into PostgreSQL", _add_arguments, _measure, runs=5, warmup=1),
}
