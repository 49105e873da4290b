"""Where telemetry goes: the OpenTelemetry SDK's own exporters, with all standard OTEL_*
variables, over HTTP/protobuf or gRPC, into a file of OTLP/JSON lines, or to the console.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from copilot_insights.errors import InsightsError

PROTOCOLS: Final = ("http/protobuf", "grpc")
_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_DEFAULT: Final = {"http/protobuf": "http://localhost:4318", "grpc": "http://localhost:4317"}


class Failure(NamedTuple):
    """Why something did not arrive; `refused`: it would not the next time, either."""

    reason: str
    refused: bool
    partly: int = 0
    """So many of the batch were refused, and the others taken: it must not be sent again."""


@dataclass
class Target:
    """A receiver; `name` tells it from others, in words that people read too."""

    name: str
    spans: SpanExporter
    metrics: MetricExporter
    partial: list[Failure] = field(default_factory=list)
    """Where a receiver's partial success is put while a batch is sent."""

    def send_spans(self, spans: Sequence[ReadableSpan]) -> Failure | None:
        """Delivers them, retrying as the SDK does: with back-off, until its time-out."""
        with _complaints() as said:
            done = self.spans.export(spans) is SpanExportResult.SUCCESS
        return self._partly() if done else _failure(said)

    def send_metrics(self, data: MetricsData) -> Failure | None:
        """The same for metrics."""
        with _complaints() as said:
            done = self.metrics.export(data) is MetricExportResult.SUCCESS
        return self._partly() if done else _failure(said)

    def _partly(self) -> Failure | None:
        return self.partial.pop() if self.partial else None

    def close(self) -> None:
        """Releases what it holds."""
        self.spans.shutdown()
        self.metrics.shutdown()


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What the SDK logs meanwhile: the only place where it says why it failed."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("opentelemetry")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


_TRANSIENT: Final = re.compile(r"Transient error (.*) encountered while exporting", re.DOTALL)
_REFUSED: Final = re.compile(
    r"code: 4\d\d|INVALID_ARGUMENT|UNIMPLEMENTED|UNAUTHENTICATED|PERMISSION_DENIED|max_request_size"
)


def _failure(said: list[str]) -> Failure:
    """In words, from what the SDK logged."""
    text = said[-1] if said else "no reason is given"
    passing = [found[1] for line in said if (found := _TRANSIENT.search(line))]
    if passing and "code:" not in text:
        text = passing[-1]
    text = " ".join(text.split()).rstrip(".")
    if "due to timeout" in text:
        text = "no answer in time (OTEL_EXPORTER_OTLP_TIMEOUT)"
    for sign in ("Connection refused", "Name or service not known", "timed out", "reset by peer"):
        if sign.lower() in text.lower():
            text = sign.lower()
    return Failure(text.removeprefix("Failed to export ")[:200], bool(_REFUSED.search(text)))


def protocol(asked: str | None) -> str:
    """What is asked for, or the standard variable says. Raises InsightsError."""
    name = asked or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
    name = {"http": "http/protobuf"}.get(name, name)
    if name not in PROTOCOLS:
        known = ", ".join(PROTOCOLS)
        raise InsightsError(f"no protocol {name}", f"Use --protocol {known}.", exit_code=2)
    return name


def otlp(endpoint: str | None, protocol: str) -> Target:
    """A receiver of OTLP at a base URL, by default that of the standard variables. Raises
    InsightsError.
    """
    where = endpoint or os.environ.get(_ENDPOINT) or _DEFAULT[protocol]
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import (  # noqa: PLC0415
            metric_exporter as metrics,
        )
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as traces  # noqa: PLC0415

        return Target(
            f"grpc {where}",
            traces.OTLPSpanExporter(endpoint=endpoint),
            metrics.OTLPMetricExporter(endpoint=endpoint),
        )
    from opentelemetry.exporter.otlp.proto.http import (  # noqa: PLC0415
        metric_exporter,
        trace_exporter,
    )

    if not where.startswith(("http://", "https://")):
        raise InsightsError(f"{where} is no URL", "Use one like http://host:4318.", exit_code=2)
    base = endpoint.rstrip("/") if endpoint else None
    partial: list[Failure] = []
    return Target(
        f"http {where.rstrip('/')}",
        trace_exporter.OTLPSpanExporter(
            endpoint=base and f"{base}/v1/traces", session=_session("TRACES", partial.append)
        ),
        metric_exporter.OTLPMetricExporter(
            endpoint=base and f"{base}/v1/metrics", session=_session("METRICS", partial.append)
        ),
        partial,
    )


def _session(signal: str, say: Callable[[Failure], None]) -> Any:  # noqa: ANN401
    """A requests.Session that says what a receiver refused though it answered 200, which the
    SDK does not read. None where a credential provider has a session of its own.
    """
    import requests  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped] # noqa: PLC0415
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: PLC0415

    provider = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_{}CREDENTIAL_PROVIDER"
    if os.environ.get(provider.format("")) or os.environ.get(provider.format(f"{signal}_")):
        return None

    def read(response: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
        if 300 <= response.status_code < 400:
            # the SDK follows none, and takes it for an answer
            where = response.headers.get("location", "another address")
            reason = f"it answers {response.status_code} and points to {where[:100]}"
            say(Failure(reason, refused=True))
        if response.status_code != requests.codes.ok:
            return
        try:
            if signal == "TRACES":
                spans = trace_service_pb2.ExportTraceServiceResponse.FromString(response.content)
                number = spans.partial_success.rejected_spans
                text = spans.partial_success.error_message
            else:
                data = metrics_service_pb2.ExportMetricsServiceResponse.FromString(response.content)
                number = data.partial_success.rejected_data_points
                text = data.partial_success.error_message
        except DecodeError:  # a receiver that answers in JSON or HTML has taken it all the same
            return
        if number > 0:
            reason = " ".join(text.split())[:200] or "no reason is given"
            say(Failure(reason, refused=True, partly=number))

    session = requests.Session()
    session.hooks["response"].append(read)
    return session


def file(path: Path, stream: IO[str]) -> Target:
    """A file of OTLP/JSON, an export request a line."""
    from opentelemetry.exporter.otlp.json.file import (  # noqa: PLC0415
        metric_exporter,
        trace_exporter,
    )

    return Target(
        f"file {path.resolve()}",
        trace_exporter.FileSpanExporter(stream=stream),
        metric_exporter.FileMetricExporter(stream=stream),
    )


def console(stream: IO[str]) -> Target:
    """A line of text for each span and point."""
    return Target("console", _ConsoleSpans(stream), _ConsoleMetrics(stream))


def nowhere(name: str) -> Target:
    """Takes everything, as the target of that name might."""
    return Target(name, _ConsoleSpans(None), _ConsoleMetrics(None))


def _line(text: str) -> str:
    """The SDK's JSON in one line; what is not ASCII, and could act on a terminal, escaped."""
    return json.dumps(json.loads(text)) + "\n"


class _ConsoleSpans(SpanExporter):
    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """A line a span, in place of the SDK's thirty."""
        if self._stream:
            self._stream.writelines(_line(span.to_json()) for span in spans)
        return SpanExportResult.SUCCESS


class _ConsoleMetrics(MetricExporter):
    def __init__(self, stream: IO[str] | None) -> None:
        super().__init__()
        self._stream = stream

    def export(self, metrics_data: MetricsData, *_: Any, **__: Any) -> MetricExportResult:  # noqa: ANN401
        """A line a request."""
        if self._stream:
            self._stream.write(_line(metrics_data.to_json()))
        return MetricExportResult.SUCCESS

    def shutdown(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Nothing is held."""

    def force_flush(self, *_: Any, **__: Any) -> bool:  # noqa: ANN401
        """Nothing is held."""
        return True
