"""Batches of samples in: checked, stored once, then shown to whoever looks.

A ledger row makes a repeated batch harmless, and the tables' primary key a repeated sample. COPY
knows no ON CONFLICT, so rows go through a temporary table. What cannot be believed is refused,
counted, and named in the ledger: a sample with an impossible time or subject as a whole, else the
single value, which becomes no data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone
from psycopg import sql

from telemetry import live, partitions
from telemetry.messages import Sample, SampleBatch
from telemetry.metrics import METRICS, Kind, metric_names, split_subject
from telemetry.models import SAMPLE_MODELS, Batch, Subject

MAX_AHEAD_S = 300.0

_MAX_NODE = 63
_MAX_BATCH_ID = 64
_NUM_NOTED = 5

Row = tuple[float | None, ...]


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


@dataclass(slots=True)
class _Checked:
    """A batch's rows by kind, name and time, and what was refused."""

    rows: dict[Kind, dict[str, list[tuple[float, Row]]]] = field(
        default_factory=lambda: {kind: defaultdict(list) for kind in Kind}
    )
    num_refused: int = 0
    notes: list[str] = field(default_factory=list)

    def refuse(self, why: str) -> None:
        self.num_refused += 1
        if len(self.notes) < _NUM_NOTED:
            self.notes.append(why)


def ingest(batch: SampleBatch, *, nodes: Collection[str], now: datetime | None = None) -> Receipt:
    """Take in one batch; harmless when repeated, also at the same time.

    Args:
        batch: As the agent sent it.
        nodes: Names of the sender's nodes.
        now: For tests; the time of arrival.

    Raises:
        UnknownNodeError: the batch or one of its samples names another node.
        IngestionError: the batch's own fields cannot be used.
    """
    now = now or timezone.now()
    _check_batch(batch, nodes)
    checked = _check(batch.samples, nodes, now.timestamp())
    with transaction.atomic():
        entry = _enter(batch, checked, now)
        if entry is None:
            return Receipt(is_repeat=True)
        entry.num_stored = _store(checked)
        entry.save(update_fields=["num_stored"])
        newest = _newest(checked)
        transaction.on_commit(lambda: live.publish(newest), robust=True)
    return Receipt(num_stored=entry.num_stored, num_refused=checked.num_refused)


# ---------------------------------------------------------------- checking


def _check_batch(batch: SampleBatch, nodes: Collection[str]) -> None:
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


def _check(samples: Sequence[Sample], nodes: Collection[str], now: float) -> _Checked:
    """Sort the samples by kind and name; refuse what cannot be.

    Raises:
        UnknownNodeError: a sample is about a node that is not the sender's.
    """
    checked = _Checked()
    earliest, latest = now - max_age_s(), now + MAX_AHEAD_S
    limits = {kind: [(m.name, m.highest) for m in metrics] for kind, metrics in METRICS.items()}
    for sample in samples:
        try:
            kind, name = split_subject(sample.subject)
        except ValueError as error:
            checked.refuse(str(error))
            continue
        if kind is Kind.NODE and name not in nodes:
            raise UnknownNodeError(f"node is {name!r}: no such node is registered for this agent")
        elif not earliest <= sample.at <= latest:
            checked.refuse(_time_refused(sample, now))
        else:
            row = _believable(sample, limits[kind], checked)
            checked.rows[kind][name].append((sample.at, row))
    return checked


def _believable(sample: Sample, limits: list[tuple[str, float]], checked: _Checked) -> Row:
    """The sample's values in the order of the columns; None for no data and for the absurd."""
    row: list[float | None] = []
    for name, highest in limits:
        value = sample.values.get(name)
        # Also false for NaN.
        if value is not None and not 0.0 <= value <= highest:
            checked.refuse(f"{sample.subject}: {name} is {value!r}, outside 0 to {highest:g}")
            value = None
        row.append(value)
    return tuple(row)


def _time_refused(sample: Sample, now: float) -> str:
    return (
        f"{sample.subject}: at is {sample.at - now:+.0f} s from now, outside "
        f"{-max_age_s():.0f} to {MAX_AHEAD_S:+.0f} s"
    )


def _newest(checked: _Checked) -> list[live.Newest]:
    newest: list[live.Newest] = []
    for kind, by_name in checked.rows.items():
        names = metric_names(kind)
        for name, rows in by_name.items():
            at, row = max(rows, key=lambda timed: timed[0])
            values = dict(zip(names, row, strict=True))
            newest.append(live.Newest(subject=f"{kind}:{name}", at=at, values=values))
    return newest


# ---------------------------------------------------------------- storing


def _enter(batch: SampleBatch, checked: _Checked, now: datetime) -> Batch | None:
    """Enter the batch in the ledger; None when it is there. A twin under way is waited for."""
    entry, is_new = Batch.objects.get_or_create(
        node=batch.node,
        batch_id=batch.batch_id,
        defaults={
            "received_at": now,
            "num_samples": len(batch.samples),
            "num_refused": checked.num_refused,
            "num_dropped": batch.num_dropped,
            "note": "\n".join(checked.notes),
            **_span(checked),
        },
    )
    return entry if is_new else None


def _span(checked: _Checked) -> dict[str, object]:
    """Which stretch of time the roll-ups must make anew."""
    times = _times(checked)
    if not times:
        return {}
    first, last = (datetime.fromtimestamp(at, UTC) for at in (min(times), max(times)))
    return {"first_at": first, "last_at": last, "is_rolled": False}


def _times(checked: _Checked) -> set[float]:
    return {at for by_name in checked.rows.values() for rows in by_name.values() for at, _ in rows}


def _store(checked: _Checked) -> int:
    times = _times(checked)
    # One value per time, shared by all rows of a round.
    instants = {at: datetime.fromtimestamp(at, UTC) for at in times}
    partitions.ensure_days({instant.date() for instant in instants.values()})
    return sum(
        _store_kind(kind, by_name, instants) for kind, by_name in checked.rows.items() if by_name
    )


def _store_kind(
    kind: Kind,
    by_name: dict[str, list[tuple[float, Row]]],
    instants: dict[float, datetime],
) -> int:
    """Copy one kind's rows in; returns how many were new."""
    numbers = _subject_numbers(kind, by_name)
    table = SAMPLE_MODELS[kind]._meta.db_table
    stage = sql.Identifier(f"stage_{table}")
    columns = ("subject_id", "at", *metric_names(kind))
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    types = ["int4", "timestamptz", *["float4"] * len(metric_names(kind))]
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE IF NOT EXISTS {} (LIKE {}) ON COMMIT DELETE ROWS"
            ).format(stage, sql.Identifier(table))
        )
        # Emptied here too: inside a surrounding transaction nothing has been committed yet.
        cursor.execute(sql.SQL("TRUNCATE {}").format(stage))
        with cursor.copy(
            sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(stage, names)
        ) as copy:
            copy.set_types(types)
            for name, rows in by_name.items():
                number = numbers[name]
                for at, row in rows:
                    copy.write_row((number, instants[at], *row))
        # In the order of the key, so that two batches with the same samples cannot deadlock.
        cursor.execute(
            sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM {} ORDER BY subject_id, at"
                " ON CONFLICT DO NOTHING"
            ).format(sql.Identifier(table), names, names, stage)
        )
        return int(cursor.rowcount)


def _subject_numbers(kind: Kind, names: Collection[str]) -> dict[str, int]:
    numbers = _known_numbers(kind, names)
    if missing := sorted(set(names) - numbers.keys()):
        Subject.objects.bulk_create(
            [Subject(kind=kind, name=name) for name in missing], ignore_conflicts=True
        )
        numbers |= _known_numbers(kind, missing)
    return numbers


def _known_numbers(kind: Kind, names: Collection[str]) -> dict[str, int]:
    return dict(Subject.objects.filter(kind=kind, name__in=names).values_list("name", "id"))


def horizon(now: datetime) -> datetime:
    """Before this, no sample is accepted any more."""
    return now - timedelta(seconds=max_age_s())


def max_age_s() -> float:
    """How late a sample may come: while its neighbours are still there to be rolled up with it."""
    return float(settings.ALLOT.raw_sample_hours * 3600)
