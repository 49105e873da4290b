"""Telemetry of sessions while they run: each span as soon as it closes, metrics at intervals.

What a target does not take is tried again with the next change, and at every interval; what it
took is in the state, so that a restart goes on from there.
"""

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from copilot_insights.errors import InsightsError
from copilot_insights.otel.delivery import AT_ONCE, Delivery
from copilot_insights.tables import Tables, join

_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_AGAIN: Final = 5.0  # seconds until a target that failed is asked again


def interval() -> float:
    """Seconds between metrics; the standard's default is 60."""
    try:
        return max(0.1, float(os.environ.get(_INTERVAL, "60000")) / 1000)
    except ValueError:
        return 60.0


class LiveExport:
    """Sends what changes. `trouble` is what the target last said when it did not take it."""

    def __init__(self, delivery: Delivery) -> None:
        self.trouble: str | None = None
        self._delivery = delivery
        self._waiting: dict[str, Tables] = {}
        self._untold: dict[str, Tables] = {}
        self._metrics_at = time.monotonic() + interval()
        self._not_before = 0.0

    def changed(self, sessions: Mapping[str, Tables]) -> None:
        """Sessions that changed, by id: their new spans are due, and their metrics at the
        interval.
        """
        self._waiting |= sessions
        self._untold |= sessions

    def tick(self, *, last: bool = False) -> None:
        """Sends what is due; with `last`, everything."""
        now = time.monotonic()
        due = last or now >= self._metrics_at
        if now < self._not_before and not last:
            return
        try:
            if self._waiting:
                self._delivery.send(join(list(self._waiting.values())), metrics=False)
                # once more when it rests: some ends are certain only then
                rests = datetime.now(UTC) - 2 * AT_ONCE
                self._waiting = {
                    name: tables
                    for name, tables in self._waiting.items()
                    if (tables.sessions["ended_at"][0] or rests) > rests
                }
            if due:
                self._metrics_at = now + interval()
                self._tell()
            self.trouble = None
        except InsightsError as error:
            self.trouble = str(error)
            self._not_before = now + _AGAIN

    def _tell(self) -> None:
        if not self._untold:
            return
        now = datetime.now(UTC)
        self._delivery.send(join(list(self._untold.values())), now=now)
        # what may still change, or close by its silence, is looked at again
        self._untold = {
            name: tables
            for name, tables in self._untold.items()
            if not self._delivery.settled(tables.sessions.row(0, named=True), now)
        }
