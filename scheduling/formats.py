"""Amounts, times and money as people of the current language read them.

Amounts are integers inside; pages show GPUs and cores as decimals, memory in MiB or GiB, and spans
in the two largest units that matter. Sentences (`scheduling.texts`), templates and forms use these
functions alike.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext, ngettext, pgettext

MIB_PER_GIB = 1024
MIB_PER_TIB = 1024 * 1024
BYTES_PER_KIB = 1024
BYTES_PER_MIB = 1024 * 1024
NO_BREAK = "\N{NO-BREAK SPACE}"

SMALLEST_SHOWN = Decimal("0.01")

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 24 * HOUR_S


def decimal(value: Decimal | float | int, places: int) -> str:
    """A number with at most so many decimals and no trailing zeros, as the language writes it."""
    step = Decimal(1).scaleb(-places)
    text = f"{Decimal(str(value)).quantize(step, rounding=ROUND_HALF_EVEN):f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return str(number_format(text, use_l10n=True, force_grouping=len(text) > 4))


def gpus(milli: int) -> str:
    """GPUs from thousandths: 333 is 0.333."""
    return decimal(Decimal(milli) / 1000, 3)


def cores(milli: int) -> str:
    """Cores from thousandths."""
    return decimal(Decimal(milli) / 1000, 2)


def cores_text(milli: int) -> str:
    """Cores with the word: 1 core, 2 cores, 0.5 cores."""
    if milli % 1000:
        return pgettext("part of a core", "%(count)s cores") % {"count": cores(milli)}
    count = milli // 1000
    return ngettext("%(count)s core", "%(count)s cores", count) % {"count": cores(milli)}


def memory(mib: int) -> str:
    """Memory with its unit, to a tenth."""
    scale, unit = memory_unit(mib)
    return f"{decimal(Decimal(mib) / scale, 1)}{NO_BREAK}{unit}"


def memory_pair(part: int, whole: int) -> str:
    """Part and whole in the whole's unit: 12 / 192 GiB."""
    scale, unit = memory_unit(whole)
    numbers = f"{decimal(Decimal(part) / scale, 1)} / {decimal(Decimal(whole) / scale, 1)}"
    return f"{numbers}{NO_BREAK}{unit}"


def memory_unit(mib: int) -> tuple[int, str]:
    """The unit in which so much memory is written, as MiB in one of it, and its word."""
    if mib >= MIB_PER_TIB:
        return MIB_PER_TIB, pgettext("unit", "TiB")
    if mib >= MIB_PER_GIB:
        return MIB_PER_GIB, pgettext("unit", "GiB")
    return 1, pgettext("unit", "MiB")


def size(num_bytes: int) -> str:
    """The size of a file."""
    if num_bytes >= BYTES_PER_MIB:
        return memory(round(num_bytes / BYTES_PER_MIB))
    if num_bytes >= BYTES_PER_KIB:
        unit = pgettext("unit", "KiB")
        return f"{decimal(num_bytes / BYTES_PER_KIB, 0)}{NO_BREAK}{unit}"
    unit = pgettext("unit", "B")
    return f"{decimal(num_bytes, 0)}{NO_BREAK}{unit}"


def milliseconds(seconds: float) -> str:
    """A duration of less than a few seconds."""
    unit = pgettext("unit of time", "ms")
    return f"{decimal(seconds * 1000, 1)}{NO_BREAK}{unit}"


def money(amount: Decimal) -> str:
    """An amount of money; what rounds to nothing is told from nothing."""
    is_tiny = 0 < amount < SMALLEST_SHOWN
    shown = hundredths(SMALLEST_SHOWN if is_tiny else amount)
    text = f"< {shown}" if is_tiny else shown
    return pgettext("money", "%(amount)s RUB").replace(" ", NO_BREAK) % {"amount": text}


def hundredths(amount: Decimal) -> str:
    """An amount of money without its currency, for columns of them."""
    # `number_format` would cut, not round.
    rounded = amount.quantize(SMALLEST_SHOWN, rounding=ROUND_HALF_EVEN)
    return str(number_format(rounded, decimal_pos=2, use_l10n=True, force_grouping=True))


def percent(fraction: float) -> str:
    return f"{decimal(fraction * 100, 0)}{NO_BREAK}%"


def duration(seconds: float) -> str:
    """A span in at most two units: 45 s, 12 min, 5 h 12 min, 3 d 4 h."""
    whole = max(int(seconds), 0)
    if whole < MINUTE_S:
        return _span(whole, "s")
    if whole < HOUR_S:
        return _span(whole // MINUTE_S, "min")
    if whole < DAY_S:
        return _two(whole, HOUR_S, "h", MINUTE_S, "min")
    return _two(whole, DAY_S, "d", HOUR_S, "h")


def skew(seconds: float) -> str:
    """How far a clock is from ours, with its sign: +3.5 s, −12 min."""
    sign = "+" if seconds > 0 else "−"
    if abs(seconds) < MINUTE_S:
        return f"{sign}{decimal(abs(seconds), 1)}{NO_BREAK}{pgettext('unit of time', 's')}"
    return sign + duration(abs(seconds))


def _two(whole: int, large_s: int, large: str, small_s: int, small: str) -> str:
    rest = whole % large_s // small_s
    first = _span(whole // large_s, large)
    return f"{first} {_span(rest, small)}" if rest else first


def _span(count: int, unit: str) -> str:
    units = {
        "s": pgettext("unit of time", "s"),
        "min": pgettext("unit of time", "min"),
        "h": pgettext("unit of time", "h"),
        "d": pgettext("unit of time", "d"),
    }
    return f"{count}{NO_BREAK}{units[unit]}"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """How long ago, or in how long."""
    seconds = ((now or timezone.now()) - moment).total_seconds()
    if abs(seconds) < 2:
        return gettext("just now")
    if seconds < 0:
        return gettext("in %(time)s") % {"time": duration(-seconds)}
    return gettext("%(time)s ago") % {"time": duration(seconds)}


def absolute(moment: datetime) -> str:
    """Date and time with the zone of the person who reads."""
    local = timezone.localtime(moment)
    return f"{date_format(local, 'DATE_FORMAT')}, {local:%H:%M:%S} {zone_name(local)}"


def clock(moment: datetime) -> str:
    """The time of day, with the date unless it is today."""
    local = timezone.localtime(moment)
    if local.date() == timezone.localdate():
        return f"{local:%H:%M:%S}"
    return f"{date_format(local, 'SHORT_DATE_FORMAT')} {local:%H:%M}"


def clock_with_zone(moment: datetime) -> str:
    """The same for a text that is read apart from its page."""
    return f"{clock(moment)} {zone_name(timezone.localtime(moment))}"


def zone_name(local: datetime) -> str:
    """`MSK`, or the offset where the zone has no letters."""
    name = local.tzname() or ""
    return name if name.isalpha() else f"UTC{local:%z}"


def seconds_since(moment: datetime | None, until: datetime | None = None) -> float:
    """Seconds from a moment until another (now by default); 0 where it never came."""
    if moment is None:
        return 0.0
    return max(((until or timezone.now()) - moment) / timedelta(seconds=1), 0.0)
