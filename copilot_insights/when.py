"""What people write for a time, and the time zone of this machine."""

import os
import re
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from tzlocal import get_localzone_name

from copilot_insights.errors import InsightsError

_FIXED: Final = re.compile(r"(?:[A-Za-z]{3,}|<[\w+-]{3,}>)([+-]?)(\d{1,2})")  # of POSIX, west is +
_AGO: Final = re.compile(r"(\d{1,5})([mhdw])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def zone(name: str | None) -> str:
    """A time zone's IANA name; this machine's for None. Raises InsightsError."""
    try:
        if name:
            return ZoneInfo(name).key
        given = os.environ.get("TZ", "").removeprefix(":")
        # where it doesn't know the name, tzlocal goes on to the zone of the machine
        if not given or os.path.isabs(given):  # noqa: PTH117 (also of a text that is no path)
            return get_localzone_name() or "UTC"
        name = f"{given} ($TZ)"
        fixed = _FIXED.fullmatch(given)
        return ZoneInfo(f"Etc/GMT{fixed[1] or '+'}{int(fixed[2])}" if fixed else given).key
    except (KeyError, OSError, ValueError):
        raise InsightsError(
            f"no time zone {name or 'of this machine'}",
            "Use --tz with a name like Europe/Berlin or UTC.",
            exit_code=2,
        ) from None


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def parse(text: str | None, tz: str, *, end: bool = False) -> datetime | None:
    """An instant in UTC: a date, a time, `today`, `yesterday`, or how long ago (7d).

    A day means its beginning in `tz`, with `end` the beginning of the next one.

    Raises:
        InsightsError: it is none of these.
    """
    if text is None:
        return None
    now = datetime.now(ZoneInfo(tz))
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    if found := _AGO.fullmatch(text):
        return (now - timedelta(**{_UNITS[found[2]]: int(found[1])})).astimezone(UTC)
    days = {"today": midnight, "yesterday": midnight - timedelta(days=1)}
    try:
        whole = text in days or _is_day(text)
        time = days.get(text) or datetime.fromisoformat(text)
        if whole and time.date() != date.max:  # the last of all days has no end
            # on the wall clock: a day with a change of clocks is not 24 hours long
            time += timedelta(days=1) if end else timedelta(0)
        return (time if time.tzinfo else time.replace(tzinfo=ZoneInfo(tz))).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InsightsError(
            f"no time: {text}",
            "Use 2026-11-30, 2026-11-30T12:00, today, yesterday, 12h or 7d.",
            exit_code=2,
        ) from None
