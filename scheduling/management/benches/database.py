"""Servers of the bench's own, as durable as in production, with this process's ORM on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from channels.layers import channel_layers
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from scheduling.management import embedded, processes


@contextmanager
def own_servers(keep: Path | None = None) -> Iterator[int]:
    """Start PostgreSQL and Valkey in a folder that goes when they end, and make all tables.

    Args:
        keep: A new data folder, as `ALLOT_VAR` names it, that stays unless something fails.

    Yields:
        PostgreSQL's process id, for `cpu_s`.
    """
    folder = Path(tempfile.mkdtemp(prefix="allot-bench-"))
    data = replace(settings.ALLOT, var=keep or folder)
    data.var.mkdir(parents=True, exist_ok=True)
    # The server may run as another user.
    for passed in (folder, data.var):
        passed.chmod(0o711)
    programs = (
        embedded.Postgres(data.postgres_dir, folder / "pg").program(),
        embedded.Valkey(data.valkey_dir, folder / "valkey.sock").program(),
    )
    started: list[tuple[processes.Program, subprocess.Popen[bytes]]] = []
    before = dict(connection.settings_dict)
    is_kept = False
    try:
        for program in programs:
            log = folder / f"{program.name}.log"
            started.append((program, processes.start(program, log)))
            processes.wait_until_ready(*started[-1], log)
        _use(folder)
        call_command("migrate", verbosity=0)
        yield started[0][1].pid
        is_kept = keep is not None
    finally:
        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]  # PostgreSQL has one
        connection.settings_dict.update(before)
        for program, process in reversed(started):
            processes.stop(program, process)
        for gone in (folder, *([] if is_kept else [data.var])):
            shutil.rmtree(gone, ignore_errors=True)


def _use(folder: Path) -> None:
    """Point this process at the servers in the folder."""
    connection.close_pool()  # type: ignore[attr-defined]  # PostgreSQL has one
    connection.settings_dict.update(
        {
            "NAME": embedded.DATABASE,
            "USER": embedded.SUPERUSER,
            "PASSWORD": "",
            "HOST": str(folder / "pg"),
            "PORT": "",
        }
    )
    layers: Any = settings.CHANNEL_LAYERS  # of any shape
    config = layers["default"]["CONFIG"]
    config["hosts"] = [f"unix://{folder / 'valkey.sock'}"]
    channel_layers.backends.clear()


def cpu_s(pid: int) -> float:
    """CPU time of this process and of a server with all its children, ended ones too."""
    root = psutil.Process(pid)
    total = sum(os.times()[:2])
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def sizes(prefix: str) -> dict[str, int]:
    """Bytes of tables with their indexes, by name; a partitioned one with all its parts."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT root.relname, sum(pg_total_relation_size(tree.relid))::bigint"
            " FROM pg_class root, LATERAL pg_partition_tree(root.oid) tree"
            " WHERE root.relkind = 'p' AND root.relname LIKE %s GROUP BY 1"
            " UNION ALL SELECT relname, pg_total_relation_size(oid) FROM pg_class"
            " WHERE relkind = 'r' AND NOT relispartition AND relname LIKE %s",
            [f"{prefix}%", f"{prefix}%"],
        )
        return {str(name): int(size) for name, size in cursor.fetchall()}
