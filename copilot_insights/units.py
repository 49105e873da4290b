"""Numbers as people read them. Null is a dash: the log does not say."""

from datetime import date, datetime
from math import floor
from typing import Final
from zoneinfo import ZoneInfo

NOTHING: Final = "\N{EN DASH}"


def count(value: float | None) -> str:
    """12,345; 1.23M from a million on."""
    if value is None:
        return NOTHING
    if abs(value) >= 1e9:
        return f"{value / 1e9:.2f}G"
    return f"{value / 1e6:.2f}M" if abs(value) >= 1e6 else f"{value:,.0f}"


def amount(value: float | None) -> str:
    """Credits and premium requests: two decimals, more for small ones."""
    if value is None:
        return NOTHING
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def duration(ms: float | None) -> str:
    """830 ms, 1.2 s, 3m 12s, 2h 03m, 12d 4h."""
    if ms is None:
        return NOTHING
    # rounded before it is compared: never 1000 ms or 60.0 s; waterfall.js does the same
    if (whole := _half_up(ms)) < 1000:
        return f"{whole} ms"
    if (tenths := _half_up(ms / 100)) < 600:
        return f"{tenths / 10} s"
    minutes, rest = divmod(_half_up(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minutes:02d}m"
    return f"{hours // 24}d {hours % 24}h"


def _half_up(value: float) -> int:
    return floor(value + 0.5)


def percent(share: float | None) -> str:
    """62 %; "<1 %" for what is more than nothing."""
    if share is None:
        return NOTHING
    return "<1 %" if 0 < share < 0.01 else f"{share * 100:.0f} %"


def moment(value: datetime | None, tz: str) -> str:
    """2026-12-01 03:37 in the time zone `tz`."""
    return NOTHING if value is None else f"{value.astimezone(ZoneInfo(tz)):%Y-%m-%d %H:%M}"


def day(value: date | None) -> str:
    """2026-12-01."""
    return NOTHING if value is None else value.isoformat()


def plural(number: int, one: str, many: str = "") -> str:
    """1 call, 2 calls."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def bar(share: float | None, width: int) -> str:
    """A bar of eighths of a cell, `width` cells for the whole."""
    eighths = round((share or 0) * width * 8)
    rest = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    text = "█" * (eighths // 8) + rest
    return text or ("▏" if share else "")
