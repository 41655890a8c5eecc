"""Numbers as people write them, kept as the integers that Allot calculates with.

A person types GPUs, cores, GiB or minutes with a decimal point or comma; a program sends the
integers themselves. Both go through one `AmountField`, which differs only in its scale, so that a
bad amount is refused alike and the message speaks the sender's unit.

Digits beyond the resolution: GPUs and cores are cut off after thousandths (nobody gets more than
was asked, and three times 0.3333 fits one device); GiB and minutes are rounded to the nearest MiB
and second. The review beside the form shows what is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING

from django import forms
from django.core.exceptions import ValidationError
from django.utils.formats import number_format
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

# A plain decimal number: no exponent, no grouping, ASCII digits, at most one separator.
NUMBER = re.compile(r"[+-]?(?:[0-9]{1,100}(?:[.,][0-9]{0,30})?|[.,][0-9]{1,30})")
MINUS_SIGN = "\N{MINUS SIGN}"

# So much of a wrong value is repeated in its error message.
MAX_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class Unit:
    """How an amount is written.

    Attributes:
        scale: Kept integers per written unit (1000 thousandths in a GPU, 1024 MiB in a GiB).
        decimals: So many are shown; enough to get the same integer back.
    """

    scale: int
    decimals: int
    rounding: str


GPU = Unit(scale=1000, decimals=3, rounding=ROUND_FLOOR)
CORES = Unit(scale=1000, decimals=3, rounding=ROUND_FLOOR)
GIB = Unit(scale=1024, decimals=4, rounding=ROUND_HALF_EVEN)
MINUTES = Unit(scale=60, decimals=3, rounding=ROUND_HALF_EVEN)
HOURS = Unit(scale=3600, decimals=4, rounding=ROUND_HALF_EVEN)
INTEGER = Unit(scale=1, decimals=0, rounding=ROUND_FLOOR)

MIN_RUN_S, MAX_RUN_S = 60, 30 * 86_400


def shown(value: object) -> str:
    """A value for an error message: its beginning, on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"


def written(amount: int, unit: Unit, *, localised: bool = True) -> str:
    """An amount as people of the current language write it: 333 in `GPU` is 0.333, or 0,333."""
    number = (Decimal(amount) / unit.scale).quantize(Decimal(1).scaleb(-unit.decimals))
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return str(number_format(text, use_l10n=True)) if localised else text


def parse_number(text: str) -> Decimal | None:
    """The number that a person wrote with a point or a comma; None when it is none."""
    plain = text.strip().replace(MINUS_SIGN, "-")
    if not NUMBER.fullmatch(plain):
        return None
    return Decimal(plain.replace(",", "."))


class AmountField(forms.Field):
    """An integer amount, written in a unit that people use.

    Args:
        unit: How people write it.
        minimum, maximum: Inclusive limits of the kept integer.
    """

    widget = forms.TextInput
    default_error_messages = {  # noqa: RUF012 - Django's own way to declare them
        "required": _("Enter a number from %(minimum)s to %(maximum)s."),
        "not_a_number": _(
            "“%(value)s” is not a number. "
            "Enter one from %(minimum)s to %(maximum)s, such as %(example)s."
        ),
        "not_whole": _(
            "“%(value)s” is not a whole number. Enter one from %(minimum)s to %(maximum)s."
        ),
        "too_small": _("%(value)s is too small: the least is %(limit)s."),
        "too_large": _("%(value)s is too large: the most is %(limit)s."),
    }

    def __init__(
        self,
        *,
        unit: Unit,
        minimum: int,
        maximum: int,
        label: StrOrPromise = "",
        help_text: StrOrPromise = "",
        required: bool = False,
    ) -> None:
        super().__init__(label=label, help_text=help_text, required=required)
        self.unit = unit
        self.minimum = minimum
        self.maximum = maximum
        self.widget.attrs.update({"inputmode": "decimal", "autocomplete": "off", "maxlength": "40"})

    def clean(self, value: object) -> int | None:
        """Read the amount.

        Raises:
            ValidationError: `required`, `not_a_number`, `not_whole`, `too_small` or `too_large`;
                its params hold the value as it was written and the limit.
        """
        text = "" if value is None else str(value)
        if not text.strip():
            if self.required:
                raise self._error("required", value="")
            return None
        number = parse_number(text)
        if number is None:
            raise self._error("not_a_number", value=shown(text))
        if self.unit.scale == 1 and number != number.to_integral_value():
            raise self._error("not_whole", value=shown(text))
        return self._inside(number, text)

    def _inside(self, number: Decimal, text: str) -> int:
        exact = number * self.unit.scale
        amount = int(exact.to_integral_value(rounding=self.unit.rounding))
        # 1.0004 GPUs are more than one, although what remains after cutting would not be.
        judged = exact if self.unit.rounding == ROUND_FLOOR else amount
        if judged < self.minimum:
            raise self._error("too_small", value=shown(text), limit=self.minimum)
        if judged > self.maximum:
            raise self._error("too_large", value=shown(text), limit=self.maximum)
        return amount

    def _error(self, code: str, *, value: str, limit: int | None = None) -> ValidationError:
        limits = {
            "minimum": written(self.minimum, self.unit),
            "maximum": written(self.maximum, self.unit),
            "example": written(self._example(), self.unit),
        }
        shown_limit = (
            f"{limits['minimum']}–{limits['maximum']}"
            if limit is None
            else written(limit, self.unit)
        )
        params = {"value": value, "limit": shown_limit, **limits}
        return ValidationError(self.error_messages[code], code=code, params=params)

    def _example(self) -> int:
        quarter = self.unit.scale // 4 or 1
        return max(
            self.minimum, min(self.maximum, quarter if self.unit is GPU else self.unit.scale * 2)
        )

    def prepare_value(self, value: object) -> object:
        """Write a number in the person's language; what was typed stays as it was typed.

        An integer is a kept amount, a `Decimal` one in the written unit (a template's).
        """
        if isinstance(value, int):
            return written(value, self.unit)
        return str(number_format(f"{value:f}")) if isinstance(value, Decimal) else value


def time_limit_field(label: StrOrPromise, help_text: StrOrPromise) -> AmountField:
    """How long work may run; empty is no limit of its own."""
    return AmountField(
        unit=MINUTES, minimum=MIN_RUN_S, maximum=MAX_RUN_S, label=label, help_text=help_text
    )
