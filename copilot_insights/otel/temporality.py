"""Points of sessions → OTLP metrics: cumulative (running totals over all sessions, each at its
session's end) or delta (what the session added, over its own time).

As the standard says, OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE chooses; the default is
cumulative.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.metrics import export as sdk

from copilot_insights.otel.metrics import METRICS, Distribution, Point
from copilot_insights.otel.spans import resource, scope

_DELTA: Final = {"delta", "lowmemory"}
_MS: Final = 1_000_000


class Added(NamedTuple):
    """A point whose value is what a series has gained since what was sent of its session."""

    point: Point
    key: str
    whole: str


def preferred() -> bool:
    """Whether the user prefers delta."""
    name = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    return os.environ.get(name, "").lower() in _DELTA


def key_of(point: Point) -> str:
    """The series of a point as text."""
    return json.dumps([point.name, dict(point.attributes)], sort_keys=True)


def _packed(value: float | Distribution) -> str:
    return json.dumps(asdict(value) if isinstance(value, Distribution) else value)


def _unpacked(text: str) -> float | Distribution:
    value = json.loads(text)
    if isinstance(value, dict):
        return Distribution(**{**value, "counts": tuple(value["counts"])})
    return float(value) if isinstance(value, float) else value


def added(points: Iterable[Point], sent: dict[str, str]) -> list[Added]:
    """Of a session's points what is not in `sent` (series → amount) yet."""
    found = []
    for point in points:
        key, whole = key_of(point), _packed(point.value)
        if key not in sent:
            found.append(Added(point, key, whole))
        elif sent[key] != whole:
            more = _less(point.value, _unpacked(sent[key]))
            if more is not None:
                found.append(Added(point._replace(value=more), key, whole))
    return found


def _less(value: float | Distribution, before: float | Distribution) -> float | Distribution | None:
    """The rise from `before`; None where there is none: a counter never falls."""
    if isinstance(value, Distribution) and isinstance(before, Distribution):
        pairs = zip(value.counts, before.counts, strict=True)
        counts = tuple(max(0, new - old) for new, old in pairs)
        if not sum(counts):
            return None
        rise = max(0.0, value.sum - before.sum)
        return replace(value, counts=counts, count=sum(counts), sum=rise)
    if isinstance(value, Distribution) or isinstance(before, Distribution):
        return None
    return value - before if value > before else None


def _more(value: float | Distribution, other: float | Distribution) -> float | Distribution:
    if isinstance(value, Distribution) and isinstance(other, Distribution):
        counts = tuple(a + b for a, b in zip(value.counts, other.counts, strict=True))
        return Distribution(
            counts, value.count + other.count, value.sum + other.sum,
            min(value.min, other.min), max(value.max, other.max),
        )  # fmt: skip
    if isinstance(value, Distribution) or isinstance(other, Distribution):
        return other
    return value + other


def summed(points: Iterable[Point]) -> sdk.MetricsData:
    """Points of many sessions added up: one cumulative point a series."""
    sums: dict[tuple[str, Any], Point] = {}
    for point in points:
        series = point.name, point.attributes
        if other := sums.get(series):
            start, end = min(other.start, point.start), max(other.end, point.end)
            more = _more(other.value, point.value)
            sums[series] = point._replace(start=start, end=end, value=more)
        else:
            sums[series] = point
    news = [Added(point, key_of(point), "") for point in sums.values()]
    return Totals(delta=False).metrics(news)


class Totals:
    """The running totals of a target's series."""

    def __init__(
        self,
        counted: Iterable[tuple[str, str]] = (),
        *,
        delta: bool,
        extent: tuple[int, int] | None = None,
    ) -> None:
        """`counted` are the amounts (series, amount) that it was sent, and `extent`
        the first start and the last end of these.
        """
        self._delta = delta
        self._values: dict[str, float | Distribution] = {}
        self._ends: dict[str, int] = {}
        self._first: int | None = extent[0] if extent else None
        self._last = extent[1] if extent else 0
        for key, text in counted:
            value = _unpacked(text)
            self._values[key] = _more(self._values[key], value) if key in self._values else value

    def metrics(self, news: Iterable[Added]) -> sdk.MetricsData:
        """The points as one request's data, in the order that they come in."""
        by_name: defaultdict[str, list[Any]] = defaultdict(list)
        for point, key, _ in news:
            by_name[point.name].append(self._data_point(point, key))
        metrics = [_metric(name, found, delta=self._delta) for name, found in by_name.items()]
        # of no version: a version's series would not go on where the last one's ended
        own = resource(None)
        said = own.attributes.items()
        shown = {k: v for k, v in said if (k, v) != ("service.version", "unknown")}
        scoped = sdk.ScopeMetrics(scope(None), metrics, "")
        where = type(own)(shown, own.schema_url)
        return sdk.MetricsData([sdk.ResourceMetrics(where, [scoped], own.schema_url)])

    def extent(self) -> tuple[int, int]:
        """The first start and the last end of what was made into metrics; nanoseconds."""
        return self._first or 0, max(self._ends.values(), default=self._last)

    def _data_point(self, point: Point, key: str) -> Any:  # noqa: ANN401
        start, end, value = point.start, point.end, point.value
        if not self._delta:
            if self._first is None:
                self._first = start
            value = _more(self._values[key], value) if key in self._values else value
            # of two sessions the one that ended first may be found last
            end = max(end, self._ends.get(key, self._last) + _MS)
            start = min(self._first, end)
            self._values[key], self._ends[key] = value, end
        attributes = dict(point.attributes)
        if isinstance(value, Distribution):
            return sdk.HistogramDataPoint(
                attributes, start, end, value.count, value.sum, value.counts,
                METRICS[point.name].bounds, value.min, value.max,
            )  # fmt: skip
        return sdk.NumberDataPoint(attributes, start, end, value)


def _metric(name: str, points: list[Any], *, delta: bool) -> sdk.Metric:
    unit, description, bounds = METRICS[name]
    kind = sdk.AggregationTemporality
    temporality = kind.DELTA if delta else kind.CUMULATIVE
    data: Any = (
        sdk.Histogram(points, temporality)
        if bounds
        else sdk.Sum(points, temporality, is_monotonic=True)
    )
    return sdk.Metric(name, description, unit, data)
