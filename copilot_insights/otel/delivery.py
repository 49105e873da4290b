"""Sends the news of sessions to a target, and remembers them: each span once, each counter's
rise once, in batches, also over restarts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar

from copilot_insights import units
from copilot_insights.errors import InsightsError
from copilot_insights.otel import metrics as points
from copilot_insights.otel import spans
from copilot_insights.otel.content import Said
from copilot_insights.otel.exporters import Failure, Target
from copilot_insights.otel.state import State
from copilot_insights.otel.temporality import Added, Totals, added, preferred
from copilot_insights.rows import COURSE, Row, Rows, by_session
from copilot_insights.tables import Tables

USED: Final = tuple(dict.fromkeys((*COURSE, *points.USED)))
"""The tables that telemetry is made of, besides `sessions`."""

SETTLED: Final = timedelta(minutes=10)
"""Of a log that nobody has written to for so long, what is open is sent as it is."""

AT_ONCE: Final = timedelta(seconds=1)
"""Within so long of a span's end follows what may put it off."""

_Item = TypeVar("_Item")
_SPANS: Final = 512  # the SDK's own batch
_POINTS: Final = 2000


def profile(name: str) -> points.Profile:
    """The metric profile of that name. Raises InsightsError."""
    for known in points.PROFILES:
        if name == known:
            return known
    raise InsightsError(f"no profile {name}", f"Use {' or '.join(points.PROFILES)}.", exit_code=2)


@dataclass
class Sent:
    """What arrived, and what had before."""

    spans: int = 0
    points: int = 0
    sessions: int = 0
    earlier: int = 0
    waiting: int = 0
    """Spans that are still open, of sessions that may go on."""

    refused: int = 0
    """Spans and points that the target will not have."""

    def __str__(self) -> str:
        return f"{self.spans:,} spans and {self.points:,} points"


@dataclass(frozen=True)
class What:
    """What is to be sent."""

    traces: bool = True
    metrics: bool = True
    profile: points.Profile = "latest"
    content: bool = False
    """Also what was said."""


class Delivery:
    """A target, its state, and the counts of what it got."""

    def __init__(self, target: Target, state: State, what: What) -> None:
        self.sent = Sent()
        self._target, self._state, self._what = target, state, what
        self._totals = self._new_totals()
        self._refusal = ""
        self._spans: list[spans.Made] = []
        self._points: list[tuple[str, Added]] = []
        self._sizes: list[tuple[str, int]] = []

    def send(
        self,
        tables: Tables,
        *,
        now: datetime | None = None,
        progress: Callable[[float], None] | None = None,
        metrics: bool = True,
    ) -> None:
        """Everything of these sessions that the target has not got; metrics only if asked.

        Raises InsightsError when it does not take it, after what it took is noted; the same
        call sends the rest.
        """
        now = now or datetime.now(UTC)
        self._refusal, self.sent.refused = "", 0
        try:
            for number, (session, rows) in enumerate(by_session(tables, USED), 1):
                self._session(session, rows, now, metrics=metrics and self._what.metrics)
                if progress:
                    progress(number / tables.sessions.height)
            self._flush(whole=True)
        except BaseException:
            self._spans.clear()
            self._points.clear()
            self._sizes.clear()
            self._totals = self._new_totals()
            raise

    def _whole(self, session: str) -> str:
        """What stands for all of a session that is asked for."""
        what = self._what
        return f"{session}\0{what.traces:d}{what.metrics:d}{what.profile}"

    @staticmethod
    def settled(session: Row, now: datetime) -> bool:
        """Whether what is open in a session is to be taken as it is."""
        ended = session["ended_at"]
        return session["ending"] != "none" or (ended is not None and now - ended > SETTLED)

    def _new_totals(self) -> Totals:
        delta = preferred()
        counted = () if delta else self._state.counted()
        return Totals(counted, delta=delta, extent=self._state.extent())

    def _session(self, session: Row, rows: Rows, now: datetime, *, metrics: bool) -> None:
        name, size = session["session_id"], session["bytes"] or 0
        if self._state.size(self._whole(name)) == size:
            self.sent.earlier += 1
            return
        settled = self.settled(session, now)
        rests = session["ended_at"] is not None and now - session["ended_at"] > AT_ONCE
        self._add(session, rows, settled=settled, rests=rests, metrics=metrics)
        if settled and metrics == self._what.metrics:
            self._sizes.append((self._whole(name), size))
        if len(self._spans) >= _SPANS or len(self._points) >= _POINTS:
            self._flush(whole=False)

    def _add(self, session: Row, rows: Rows, *, settled: bool, rests: bool, metrics: bool) -> None:
        name, what = session["session_id"], self._what
        before = len(self._spans), len(self._points)
        if what.traces:
            sent = self._state.sent(name)
            content = Said(Path(session["path"])) if what.content else None
            for made in spans.session_spans(session, rows, content):
                if made.span.context.span_id in sent:
                    continue
                if made.final or settled or (made.ended and rests):
                    self._spans.append(made)
                else:
                    self.sent.waiting += 1
        if metrics:
            counted = dict(self._state.counted(name))
            found = points.session_points(session, rows, what.profile, settled=settled)
            self._points += ((name, one) for one in added(found, counted))
        if (len(self._spans), len(self._points)) != before:
            self.sent.sessions += 1

    def _flush(self, *, whole: bool) -> None:
        for batch in _batches(self._spans, _SPANS, whole=whole):
            noted = [(made.session_id, made.span.context.span_id) for made in batch]
            number = self._state.note_spans(noted)
            failure = self._target.send_spans([made.span for made in batch])
            if (taken := self._taken(failure, len(batch))) is not None:
                self._state.confirm_spans(number)
                self.sent.spans += taken
        for some in _batches(self._points, _POINTS, whole=whole):
            amounts = [(name, one.key, one.whole) for name, one in some]
            self._state.note_amounts(amounts)
            data = self._totals.metrics(one for _, one in some)
            if (taken := self._taken(self._target.send_metrics(data), len(some))) is not None:
                self._state.confirm_amounts(amounts)
                self._state.extend(self._totals.extent())
                self.sent.points += taken
        if whole:
            if self._refusal:
                message = f"{self._target.name} refused {units.plural(self.sent.refused, 'item')}"
                delivered = f"Delivered: {self.sent}"
                raise InsightsError(f"{message}: {self._refusal}", f"{delivered}.")
            self._state.finish(self._sizes)
            self._sizes.clear()

    def _taken(self, failure: Failure | None, items: int) -> int | None:
        """How many of a batch arrived; one that is refused (None) must not hold up the others."""
        if failure is None:
            return items
        refused = failure.partly or (items if failure.refused else 0)
        if refused:
            self.sent.refused += refused
            self._refusal = failure.reason
            return max(0, items - refused) if failure.partly else None
        raise InsightsError(
            f"{self._target.name} cannot be reached: {failure.reason}",
            f"Delivered: {self.sent}; the same command sends the rest.",
        )


def _batches(items: list[_Item], size: int, *, whole: bool) -> Iterator[list[_Item]]:
    """Takes batches off the list; the last one only as a whole, unless all is asked for."""
    while len(items) >= size or (whole and items):
        yield items[:size]
        del items[:size]
