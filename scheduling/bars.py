"""The resource bar: used inside allocated inside quota, what is borrowed hatched past the tick,
what is lent dotted at the end of what is held within the quota, and dotted after it what a borrower
uses beside that.

One value for cluster, node type, node, device and project. Positions are percentages of the bar's
length as text with a decimal point, because they become attributes of an SVG (styles would need an
exception from the page's content security policy).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """Amounts of one resource.

    Attributes:
        total: The bar's full length; at least what is allocated.
        allocated: Held now.
        lent: The part of what is allocated that others use meanwhile, on loan.
        beside: Free room that borrowers use beside what is lent; not part of what is allocated.
        used: Measured use inside what is allocated; None where it is not measured.
        quota: Where the tick stands; None: no tick.
        fair_share: Where the dotted tick stands; None: none.
        label: For people who cannot see the bar.
    """

    total: int
    allocated: int
    label: str
    lent: int = 0
    beside: int = 0
    used: float | None = None
    quota: int | None = None
    fair_share: int | None = None

    @property
    def length(self) -> int:
        taken = self.allocated + self.beside
        return max(self.total, taken, self.quota or 0, self.fair_share or 0, 1)

    def _percent(self, amount: float) -> str:
        return f"{100 * amount / self.length:.2f}%"

    @property
    def within_quota(self) -> int:
        return self.allocated if self.quota is None else min(self.allocated, self.quota)

    @property
    def borrowed(self) -> int:
        return self.allocated - self.within_quota

    @property
    def allocated_width(self) -> str:
        return self._percent(self.within_quota)

    @property
    def borrowed_at(self) -> str:
        return self._percent(self.within_quota)

    @property
    def borrowed_width(self) -> str:
        return self._percent(self.borrowed)

    @property
    def lent_at(self) -> str:
        return self._percent(max(self.within_quota - self.lent, 0))

    @property
    def lent_width(self) -> str:
        return self._percent(min(self.lent, self.within_quota))

    @property
    def beside_at(self) -> str:
        return self._percent(self.allocated)

    @property
    def beside_width(self) -> str:
        return self._percent(self.beside)

    @property
    def used_width(self) -> str:
        return self._percent(min(self.used or 0, self.allocated + self.beside))

    @property
    def quota_at(self) -> str | None:
        return None if self.quota is None else self._percent(self.quota)

    @property
    def fair_share_at(self) -> str | None:
        return self._percent(self.fair_share) if self.fair_share else None
