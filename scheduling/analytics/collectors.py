"""Whether samples come: per node when the last one came, what was lost, and how clocks differ."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max, Sum

from scheduling.models import SKEWED_FROM_S, Node
from telemetry.models import Batch

STALE_AFTER_S = 30.0
LOSSES_OF = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Collector:
    """How a node's samples come.

    Attributes:
        last_sample_at: By the node's clock; None when none is known.
        num_dropped: Samples that the node could not keep until it could send them, in 24 hours.
        num_refused: Samples and values that were not believed, in 24 hours.
        clock_skew_s: The node's clock minus ours.
    """

    node: str
    last_sample_at: datetime | None
    age_s: float | None
    num_dropped: int
    num_refused: int
    clock_skew_s: float

    @property
    def is_stale(self) -> bool:
        """Whether nothing has come for so long that pages must say so."""
        return self.age_s is None or self.age_s > STALE_AFTER_S

    @property
    def is_skewed(self) -> bool:
        """Whether its clock differs so much that times mislead."""
        return abs(self.clock_skew_s) >= SKEWED_FROM_S


def collectors(now: datetime) -> list[Collector]:
    """All nodes, by name; two queries."""
    ledger = {
        row["node"]: row
        for row in Batch.objects.filter(received_at__gt=now - LOSSES_OF)
        .values("node")
        .annotate(last=Max("last_at"), dropped=Sum("num_dropped"), refused=Sum("num_refused"))
    }
    found = []
    for name, skew_s in Node.objects.order_by("name").values_list("name", "zone__clock_skew_s"):
        row = ledger.get(name)
        last = row["last"] if row else None
        found.append(
            Collector(
                node=name,
                last_sample_at=last,
                age_s=(now - last).total_seconds() if last else None,
                num_dropped=row["dropped"] if row else 0,
                num_refused=row["refused"] if row else 0,
                clock_skew_s=skew_s,
            )
        )
    return found
