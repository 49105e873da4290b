"""Metrics as Prometheus reads them: an endpoint to scrape, or OpenMetrics text with the
points' own times. Names are those of the OTLP translation in Prometheus, so that one dashboard
serves both ways: `gen_ai.execute_tool.duration` in `s` is `gen_ai_execute_tool_duration_seconds`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from copilot_insights.errors import InsightsError, cannot_listen

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from prometheus_client import Metric

_UNITS: Final = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "1": ""}
Collect = Callable[[], "MetricsData"]
"""Gives the totals so far: cumulative points of the OpenTelemetry SDK."""


@contextmanager
def serve(address: str, collect: Collect) -> Iterator[str]:
    """Answers scrapes in a thread until the block ends; gives the URL. `collect` is called at
    each scrape, in that thread. The address is HOST:PORT, :PORT or PORT; without a host only
    this machine can ask. Raises InsightsError if the address is wrong or taken.
    """
    from prometheus_client import start_http_server  # noqa: PLC0415

    host, port = _place(address)
    try:
        server, thread = start_http_server(port, host, _Source(collect))
    except OSError as error:
        raise cannot_listen(f"{host}:{port}", error) from None
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def openmetrics(data: "MetricsData") -> bytes:
    """Text with each point's own time, for `promtool tsdb create-blocks-from openmetrics`."""
    from prometheus_client.openmetrics.exposition import generate_latest  # noqa: PLC0415

    return generate_latest(_Source(lambda: data, times=True))  # type: ignore[no-untyped-call, no-any-return]


def series_name(name: str, unit: str | None, *, counter: bool = False) -> str:
    """The family's name, as the OTLP translation of Prometheus makes it."""
    words = re.sub(r"[^a-zA-Z0-9]+", "_", name).strip("_")
    suffix = "" if not unit or unit[0] == "{" else _UNITS.get(unit, unit)
    if suffix and suffix not in words.split("_"):
        words += f"_{suffix}"
    return words.removesuffix("_total") if counter else words


class _Source:
    """What prometheus_client asks for its families."""

    def __init__(self, collect: Collect, *, times: bool = False) -> None:
        self._collect, self._times = collect, times

    def collect(self) -> "Iterator[Metric]":
        """One family a metric, over all resources."""
        from prometheus_client import Metric  # noqa: PLC0415

        found: dict[str, Metric] = {}
        for of in self._collect().resource_metrics:
            resource = of.resource.attributes
            for scope in of.scope_metrics:
                for metric in scope.metrics:
                    kind = _kind(metric.data)
                    name = series_name(metric.name, metric.unit, counter=kind == "counter")
                    family = found.setdefault(name, Metric(name, metric.description or "", kind))
                    for point in metric.data.data_points:
                        labels = _labels({**_promoted(resource), **(point.attributes or {})})
                        time = point.time_unix_nano / 1e9 if self._times else None
                        _add(family, labels, point, time)
        yield from found.values()


def _kind(data: object) -> str:
    if hasattr(data, "is_monotonic"):
        return "counter" if data.is_monotonic else "gauge"
    if not hasattr(data, "aggregation_temporality"):
        return "gauge"
    return "histogram"


def _add(family: "Metric", labels: dict[str, str], point: Any, time: float | None) -> None:  # noqa: ANN401
    name = family.name
    if family.type != "histogram":
        end = "_total" if family.type == "counter" else ""
        family.add_sample(name + end, labels, point.value, time)
        return
    below = 0
    for bound, count in zip(
        [*map(float, point.explicit_bounds), float("inf")], point.bucket_counts, strict=True
    ):
        below += count
        edge = "+Inf" if bound == float("inf") else str(bound)
        family.add_sample(f"{name}_bucket", {**labels, "le": edge}, below, time)
    family.add_sample(f"{name}_count", labels, point.count, time)
    family.add_sample(f"{name}_sum", labels, point.sum, time)


def _promoted(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Of the resource only what dashboards choose by."""
    return {key: resource[key] for key in ("vcs.repository.name",) if key in resource}


def _labels(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {
        re.sub(r"[^a-zA-Z0-9_]", "_", key): str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for key, value in attributes.items()
    }


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise InsightsError(
            f"no address: {address}", "Give :PORT or HOST:PORT, such as :9464.", exit_code=2
        )
    return host.strip("[]") or "127.0.0.1", int(port)
