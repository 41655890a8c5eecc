"""An answer as a table, and as CSV that no spreadsheet takes for a program."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from django.utils.translation import gettext as _

from scheduling.analytics.answer import Answer, Series

BOM = "\ufeff"
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r")


def csv_lines(answer: Answer, *, for_spreadsheets: bool = False) -> Iterator[str]:
    """Lines of CSV: a row per bucket, a column per series, times with their offset.

    Args:
        answer: What is to be written.
        for_spreadsheets: With a byte order mark and `;`, as those of many countries expect.
    """
    if for_spreadsheets:
        yield BOM
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=";" if for_spreadsheets else ",", lineterminator="\r\n")
    for row in rows(answer):
        writer.writerow([harmless(cell) for cell in row])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()


def rows(answer: Answer) -> Iterator[Sequence[str]]:
    """Headings, then a row per bucket; no data is an empty cell."""
    columns = list(_columns(answer.series))
    yield [_("from"), _("to"), _("partial"), *(heading for heading, _values in columns)]
    zone = answer.query.zone
    for number, bucket in enumerate(answer.buckets):
        yield [
            bucket.start.astimezone(zone).isoformat(),
            bucket.end.astimezone(zone).isoformat(),
            _("yes") if bucket.is_partial else "",
            *(_cell(values[number]) for _heading, values in columns),
        ]


def _columns(series: Sequence[Series]) -> Iterator[tuple[str, Sequence[float | None]]]:
    for one in series:
        yield one.label, one.values
        if one.coverage is not None:
            yield _("%(group)s, coverage") % {"group": one.label}, one.coverage


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if abs(value) < 1e6 else f"{value:.2f}"


def harmless(cell: str) -> str:
    """A cell that a spreadsheet shows and does not execute: a formula gets an apostrophe."""
    if not cell.startswith(_DANGEROUS) or _is_number(cell):
        return cell
    return "'" + cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
