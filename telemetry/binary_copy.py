"""PostgreSQL's binary COPY as numpy arrays: whole tables of numbers without a loop over rows.

A row is its number of fields, then per field a length and its bytes, all big-endian; a NULL has
length -1 and no bytes. Rows with NULLs differ in length, so they are made at full length first and
what is not there is cut out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
# PostgreSQL counts microseconds from 2000-01-01.
_EPOCH_S = 946_684_800

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def micros(at: Floats) -> Ints:
    """Unix seconds as PostgreSQL's time."""
    return np.rint((at - _EPOCH_S) * 1e6).astype(np.int64)


def encode(subject: Ints, at_micros: Ints, values: Floats) -> bytes:
    """Rows of `(integer, timestamptz, real, real, …)`.

    Args:
        subject: Shape (rows,).
        at_micros: Likewise, see `micros`.
        values: Shape (rows, columns); NaN becomes NULL.
    """
    num_rows, num_values = values.shape
    head = np.empty(
        num_rows,
        dtype=[("fields", ">i2"), ("l0", ">i4"), ("s", ">i4"), ("l1", ">i4"), ("at", ">i8")],
    )
    head["fields"], head["l0"], head["l1"] = num_values + 2, 4, 8
    head["s"], head["at"] = subject, at_micros
    is_null = np.isnan(values)
    tail = np.empty((num_rows, num_values, 2), dtype=">i4")
    tail[:, :, 0] = np.where(is_null, -1, 4)
    tail[:, :, 1] = values.astype(">f4").view(">i4")
    rows = np.concatenate(
        [
            head.view(np.uint8).reshape(num_rows, -1),
            tail.view(np.uint8).reshape(num_rows, num_values * 8),
        ],
        axis=1,
    )
    if is_null.any():
        is_there = np.ones(rows.shape, dtype=bool)
        per_value = is_there[:, head.dtype.itemsize :].reshape(num_rows, num_values, 8)
        per_value[:, :, 4:] = ~is_null[:, :, None]
        is_there[:, head.dtype.itemsize :] = per_value.reshape(num_rows, num_values * 8)
        rows = rows[is_there]
    return b"".join((_HEADER, rows.tobytes(), _TRAILER))


def decode(data: bytes, columns: Sequence[str]) -> tuple[Ints, Ints, dict[str, Floats]]:
    """Rows of `(integer, integer, real, real, …)`, none of them NULL.

    Returns:
        Both integers, and the values by column.
    """
    row = np.dtype(
        [("fields", ">i2"), ("l0", ">i4"), ("first", ">i4"), ("l1", ">i4"), ("second", ">i4")]
        + [pair for c in columns for pair in ((f"length {c}", ">i4"), (c, ">f4"))]
    )
    rows = np.frombuffer(data[len(_HEADER) : -len(_TRAILER)], dtype=row)
    values = {column: rows[column].astype(np.float64) for column in columns}
    return rows["first"].astype(np.int64), rows["second"].astype(np.int64), values
