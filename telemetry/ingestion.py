"""Batches of samples in: checked, stored once, then shown to whoever looks.

A ledger row makes a repeated batch harmless, and the tables' primary key a repeated sample. COPY
knows no ON CONFLICT: where a row is there already, the batch goes through a temporary table. What
cannot be believed is refused, counted, and named in the ledger: a sample with an impossible time
or subject as a whole, else the single value, which becomes no data.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from operator import attrgetter

import msgspec
import numpy as np
import numpy.typing as npt
from django.conf import settings
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.utils import timezone
from psycopg import sql
from psycopg.errors import UniqueViolation

from telemetry import binary_copy, live, partitions
from telemetry.binary_copy import Floats
from telemetry.messages import ReceivedBatch, ReceivedSample, SampleBatch
from telemetry.metrics import METRICS, Kind, metric_names, split_subject
from telemetry.models import SAMPLE_MODELS, Batch, Subject

Bools = npt.NDArray[np.bool_]

MAX_AHEAD_S = 300.0

_MAX_NODE = 63
_MAX_BATCH_ID = 64
_NUM_NOTED = 5


class IngestionError(Exception):
    """A batch cannot be taken in at all; says which field, its value and the limit."""


class UnknownNodeError(IngestionError):
    """The batch speaks of a node that is not among the sender's."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a batch; `is_repeat` means that it was already there and nothing was done."""

    num_stored: int = 0
    num_refused: int = 0
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class _Rows:
    """Samples of one kind.

    Attributes:
        names: Of the subjects.
        at: Unix seconds.
        values: Shape (samples, metrics); NaN is no data.
    """

    names: list[str]
    at: Floats
    values: Floats


@dataclass(slots=True)
class _Checked:
    """A batch's samples by kind, and what was refused."""

    rows: dict[Kind, _Rows] = field(default_factory=dict)
    num_refused: int = 0
    notes: list[str] = field(default_factory=list)

    def refuse(self, why: str) -> None:
        self.num_refused += 1
        if len(self.notes) < _NUM_NOTED:
            self.notes.append(why)


def ingest(
    batch: ReceivedBatch | SampleBatch, *, nodes: Collection[str], now: datetime | None = None
) -> Receipt:
    """Take in one batch; harmless when repeated, also at the same time.

    Args:
        batch: As the agent sent it; read from JSON as a `ReceivedBatch` it costs least.
        nodes: Names of the sender's nodes.
        now: For tests; the time of arrival.

    Raises:
        UnknownNodeError: the batch or one of its samples names another node.
        IngestionError: the batch's own fields cannot be used.
    """
    now = now or timezone.now()
    if isinstance(batch, SampleBatch):
        batch = msgspec.convert(batch, ReceivedBatch, from_attributes=True)
    _check_batch(batch, nodes)
    checked = _check(batch.samples, nodes, now.timestamp())
    with transaction.atomic():
        entry = _enter(batch, checked, now)
        if entry is None:
            return Receipt(is_repeat=True)
        num_stored = _store(checked)
        if num_stored != len(batch.samples):
            Batch.objects.filter(pk=entry).update(num_stored=num_stored)
        newest = _newest(checked)
        transaction.on_commit(lambda: live.publish(newest), robust=True)
    return Receipt(num_stored=num_stored, num_refused=checked.num_refused)


# ---------------------------------------------------------------- checking


def _check_batch(batch: ReceivedBatch, nodes: Collection[str]) -> None:
    if batch.node not in nodes or len(batch.node) > _MAX_NODE:
        raise UnknownNodeError(
            f"node is {batch.node!r}: no such node is registered for this agent; "
            "a report must come first"
        )
    if not 1 <= len(batch.batch_id) <= _MAX_BATCH_ID or not batch.batch_id.isprintable():
        raise IngestionError(
            f"batch_id is {batch.batch_id[:80]!r}: it must have 1 to {_MAX_BATCH_ID} "
            "printable characters"
        )
    if batch.num_dropped < 0:
        raise IngestionError(f"num_dropped is {batch.num_dropped}: it must be 0 or more")


def _check(samples: Sequence[ReceivedSample], nodes: Collection[str], now: float) -> _Checked:
    """Sort the samples by kind; refuse what cannot be.

    Cost: some millions of samples an hour pass here, so everything that is done for each is done
    by C code over all of them.

    Raises:
        UnknownNodeError: a sample is about a node that is not the sender's.
    """
    checked = _Checked()
    subjects = [_split(sample.subject) for sample in samples]
    times = np.fromiter((sample.at for sample in samples), float, len(samples))
    earliest, latest = now - max_age_s(), now + MAX_AHEAD_S
    is_timely = (times >= earliest) & (times <= latest)
    for number in _refused(subjects, is_timely):
        subject = subjects[number]
        checked.refuse(subject if isinstance(subject, str) else _time_refused(samples[number], now))
    for kind in Kind:
        numbers = [number for number, subject in enumerate(subjects) if subject[0] is kind]
        if kind is Kind.NODE:
            _check_nodes({subjects[number][1] for number in numbers}, nodes)
        if not is_timely.all():
            numbers = [number for number in numbers if is_timely[number]]
        if numbers:
            names = [subjects[number][1] for number in numbers]
            kept = [samples[number] for number in numbers]
            checked.rows[kind] = _Rows(names, times[numbers], _believable(kind, kept, checked))
    return checked


def _refused(subjects: Sequence[tuple[Kind, str] | str], is_timely: Bools) -> list[int]:
    """Which samples have no subject or an impossible time, in order."""
    nameless = {number for number, subject in enumerate(subjects) if type(subject) is str}
    return sorted(nameless.union(np.flatnonzero(~is_timely).tolist()))


def _check_nodes(named: Collection[str], nodes: Collection[str]) -> None:
    for name in named:
        if name not in nodes:
            raise UnknownNodeError(f"node is {name!r}: no such node is registered for this agent")


@lru_cache(maxsize=65_536)
def _split(subject: str) -> tuple[Kind, str] | str:
    """A subject's parts, or why it has none; subjects come back every few seconds."""
    try:
        return split_subject(subject)
    except ValueError as error:
        return str(error)


def _believable(kind: Kind, samples: Sequence[ReceivedSample], checked: _Checked) -> Floats:
    """Values in the order of the columns; NaN for no data and for the absurd."""
    names = metric_names(kind)
    get = attrgetter(*names)
    rows = [get(sample.values) for sample in samples]
    # None becomes NaN.
    values = np.fromiter(chain.from_iterable(rows), float, len(rows) * len(names))
    values = values.reshape(len(rows), len(names))
    highest = np.array([metric.highest for metric in METRICS[kind]])
    is_nan = np.isnan(values)
    is_absurd = ~is_nan & ~((values >= 0.0) & (values <= highest))
    if np.count_nonzero(is_nan) != sum(row.count(None) for row in rows):
        is_absurd |= is_nan & np.array([[value is not None for value in row] for row in rows])
    for row, column in np.argwhere(is_absurd).tolist():
        checked.refuse(
            f"{samples[row].subject}: {names[column]} is {float(values[row, column])!r}, "
            f"outside 0 to {highest[column]:g}"
        )
    values[is_absurd] = np.nan
    return values


def _time_refused(sample: ReceivedSample, now: float) -> str:
    return (
        f"{sample.subject}: at is {sample.at - now:+.0f} s from now, outside "
        f"{-max_age_s():.0f} to {MAX_AHEAD_S:+.0f} s"
    )


def _newest(checked: _Checked) -> list[live.Newest]:
    """The latest sample of each subject."""
    newest: list[live.Newest] = []
    for kind, rows in checked.rows.items():
        metrics = metric_names(kind)
        order = np.argsort(rows.at, kind="stable").tolist()
        # Later ones replace earlier ones.
        last = dict(zip((rows.names[number] for number in order), order, strict=True))
        for name, number in last.items():
            row = rows.values[number].tolist()
            values = {
                metric: None if math.isnan(value) else value
                for metric, value in zip(metrics, row, strict=True)
            }
            newest.append(live.Newest(f"{kind}:{name}", float(rows.at[number]), values))
    return newest


# ---------------------------------------------------------------- storing


def _enter(batch: ReceivedBatch, checked: _Checked, now: datetime) -> int | None:
    """Enter the batch in the ledger; None when it is there. A twin under way is waited for."""
    times = [at for rows in checked.rows.values() for at in (rows.at.min(), rows.at.max())]
    first, last = (
        (datetime.fromtimestamp(float(at), UTC) for at in (min(times), max(times)))
        if (times)
        else (None, None)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_batch (node, batch_id, received_at, num_samples, num_stored,"
            " num_refused, num_dropped, note, first_at, last_at, is_rolled)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
            " ON CONFLICT (node, batch_id) DO NOTHING RETURNING id",
            [
                batch.node,
                batch.batch_id,
                now,
                len(batch.samples),
                # As usual; corrected where it turns out otherwise.
                len(batch.samples),
                checked.num_refused,
                batch.num_dropped,
                "\n".join(checked.notes),
                first,
                last,
                not times,
            ],
        )
        row = cursor.fetchone()
    return None if row is None else int(row[0])


def _store(checked: _Checked) -> int:
    days = {
        datetime.fromtimestamp(86_400 * day, UTC).date()
        for rows in checked.rows.values()
        for day in np.unique(rows.at // 86_400).tolist()
    }
    partitions.ensure_days(days)
    numbers = _subject_numbers(checked)
    tables = [_table(kind, rows, numbers[kind]) for kind, rows in checked.rows.items()]
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            for table in tables:
                _copy(cursor, table.name, table)
    except UniqueViolation:
        return sum(_store_the_missing(table) for table in tables)
    return sum(table.num_rows for table in tables)


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of one table, ready to be copied."""

    name: str
    columns: sql.Composable
    data: bytes
    num_rows: int


def _table(kind: Kind, rows: _Rows, numbers: Mapping[str, int]) -> _Table:
    """One kind's rows, in the order of the key:

    so that two batches with the same samples cannot deadlock.
    """
    subject = np.fromiter(map(numbers.__getitem__, rows.names), np.int64, len(rows.names))
    at = binary_copy.micros(rows.at)
    order = np.lexsort((at, subject))
    subject, at = subject[order], at[order]
    # The sort keeps the order of equals, so of a sample that comes twice the first stays.
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (subject[1:] != subject[:-1]) | (at[1:] != at[:-1])
    columns = ("subject_id", "at", *metric_names(kind))
    return _Table(
        name=SAMPLE_MODELS[kind]._meta.db_table,
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        data=binary_copy.encode(subject[is_new], at[is_new], rows.values[order][is_new]),
        num_rows=int(is_new.sum()),
    )


def _store_the_missing(table: _Table) -> int:
    """Copy by way of a temporary table, since some rows are there; returns how many were not."""
    stage = f"stage_{table.name}"
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE IF NOT EXISTS {} (LIKE {}) ON COMMIT DELETE ROWS"
            ).format(sql.Identifier(stage), sql.Identifier(table.name))
        )
        # Emptied here too: inside a surrounding transaction nothing has been committed yet.
        cursor.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(stage)))
        _copy(cursor, stage, table)
        cursor.execute(
            sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM {} ORDER BY subject_id, at"
                " ON CONFLICT DO NOTHING"
            ).format(
                sql.Identifier(table.name), table.columns, table.columns, sql.Identifier(stage)
            )
        )
        return int(cursor.rowcount)


def _copy(cursor: CursorWrapper, into: str, table: _Table) -> None:
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)")
    with cursor.copy(statement.format(sql.Identifier(into), table.columns)) as copy:
        copy.write(table.data)


def _subject_numbers(checked: _Checked) -> dict[Kind, dict[str, int]]:
    """Numbers of all subjects of a batch; new ones get theirs."""
    wanted = {kind: set(rows.names) for kind, rows in checked.rows.items()}
    numbers = _known_numbers(wanted)
    missing = {kind: names - numbers[kind].keys() for kind, names in wanted.items()}
    if any(missing.values()):
        Subject.objects.bulk_create(
            [Subject(kind=kind, name=name) for kind in missing for name in sorted(missing[kind])],
            ignore_conflicts=True,
        )
        for kind, found in _known_numbers(missing).items():
            numbers[kind] |= found
    return numbers


def _known_numbers(wanted: Mapping[Kind, Collection[str]]) -> dict[Kind, dict[str, int]]:
    found: dict[Kind, dict[str, int]] = {kind: {} for kind in wanted}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT kind, name, id FROM telemetry_subject"
            " JOIN unnest(%s::text[], %s::text[]) AS wanted (kind, name) USING (kind, name)",
            [
                [kind.value for kind, names in wanted.items() for _ in names],
                [name for names in wanted.values() for name in names],
            ],
        )
        for kind, name, number in cursor.fetchall():
            found[Kind(kind)][name] = number
    return found


def horizon(now: datetime) -> datetime:
    """Before this, no sample is accepted any more."""
    return now - timedelta(seconds=max_age_s())


def max_age_s() -> float:
    """How late a sample may come: while its neighbours are still there to be rolled up with it."""
    return float(settings.ALLOT.raw_sample_hours * 3600)
