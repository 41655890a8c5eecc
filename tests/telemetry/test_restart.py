"""The database killed in the middle of ingestion: nothing twice, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from config import env
from scheduling.management import embedded, processes

NUM_BATCHES = 150
KILL_AT = (30, 80)

# As an agent does: each batch again and again until it is taken in.
SENDER = """
import os, sys, time
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
import django
django.setup()
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection
from psycopg import Error
from psycopg_pool import PoolTimeout
from telemetry.ingestion import ingest
from telemetry.messages import Sample, SampleBatch
from telemetry.models import Batch, DeviceSample, NodeSample, WorkloadSample
call_command("migrate", verbosity=0)
start = time.time() - 3600
failures = 0
for number in range(int(sys.argv[1])):
    at = start + 5 * number
    samples = [Sample("node:n", at, {"cpu_cores": 1.0})]
    samples += [Sample(f"device:G{gpu}", at, {"gpu_util_percent": 5.0}) for gpu in range(8)]
    samples += [Sample(f"workload:w{gpu}", at, {"cpu_cores": 5.0}) for gpu in range(8)]
    while True:
        try:
            ingest(SampleBatch("z", "n", str(number), samples), nodes={"n"})
            break
        except (DatabaseError, InterfaceError, Error, PoolTimeout):
            failures += 1
            connection.close()
            time.sleep(0.05)
    print(number, flush=True)
rows = [model.objects.count() for model in (NodeSample, DeviceSample, WorkloadSample)]
print("end", *rows, Batch.objects.count(), failures, flush=True)
"""


class Database:
    """A server of this test's own, durable as in production."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = embedded.Postgres(self.folder / "data", self.run / "pg").program()
        log = self.folder / "log"
        self.process = processes.start(program, log)
        processes.wait_until_ready(program, self.process, log)

    def kill(self) -> None:
        assert self.process is not None
        processes.kill_session(self.process)
        self.process.wait()
        embedded.end_leftovers(self.folder / "data")


@pytest.fixture
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("pg")
    folder.chmod(0o711)
    server = Database(folder)
    server.start()
    yield server
    server.kill()


def test_nothing_twice_and_nothing_lost(database: Database) -> None:
    environment = {
        **os.environ,
        "ALLOT_DATABASE_URL": env.database_socket_url(database.run),
        "PYTHONPATH": str(settings.BASE_DIR),
    }
    end: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", SENDER, str(NUM_BATCHES)],
        cwd=settings.BASE_DIR,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as sender:
        assert sender.stdout is not None
        for line in sender.stdout:
            words = line.split()
            if words[0] == "end":
                end = words[1:]
            elif int(words[0]) in KILL_AT:
                database.kill()
                database.start()
    assert sender.returncode == 0
    nodes, devices, workloads, batches, failures = map(int, end)
    assert (nodes, devices, workloads) == (NUM_BATCHES, 8 * NUM_BATCHES, 8 * NUM_BATCHES)
    assert batches == NUM_BATCHES
    assert failures >= 1, "the database was away at least once"
