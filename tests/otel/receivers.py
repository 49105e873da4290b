"""Receivers of OTLP over HTTP and gRPC that decode with the official protobuf classes, and can
be told to misbehave.
"""

import socket
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

Traces, Metrics = trace_pb2.ExportTraceServiceRequest, metrics_pb2.ExportMetricsServiceRequest

Refused = trace_pb2.ExportTraceServiceResponse


class Received:
    """What arrived: spans by how often each id came, and data points in order."""

    def __init__(self):
        self.times = Counter()
        self.spans = {}
        self.points = []
        self.requests = 0
        self.headers = []

    def traces(self, request):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.times[span.span_id.hex()] += 1
                    self.spans[span.span_id.hex()] = json_format.MessageToDict(span)

    def metrics(self, request):
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    for point in getattr(metric, kind).data_points:
                        self.points.append((metric.name, kind, json_format.MessageToDict(point)))

    def totals(self):
        """The last value of each series of a counter, and the count of a histogram."""
        last = {}
        for name, _, point in self.points:
            series = sorted((a["key"], str(a["value"])) for a in point.get("attributes", ()))
            last[name, tuple(series)] = float(
                point.get("count", point.get("asInt", point.get("asDouble", 0)))
            )
        return last


@contextmanager
def http(behave=lambda _n: 200):
    """A server on loopback: (url, Received). `behave` gives for the number of each request a
    status, or "reset" (the connection breaks before it is taken), "taken" (after), "slow",
    "partial" (one item is refused; which, it does not say).
    """
    received = Received()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                received.requests += 1
                answer = behave(received.requests)
                received.headers.append(dict(self.headers))
            if answer == "reset":
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
                return
            if answer == "slow":
                time.sleep(0.3)
                answer = 200
            reply = b""
            if answer == "partial":
                answer = 200
                why = {"error_message": "too old", "rejected_spans": 1}
                reply = Refused(partial_success=why).SerializeToString()
            if answer in {200, "taken"}:
                with lock:
                    if self.path == "/v1/traces":
                        received.traces(Traces.FromString(body))
                    else:
                        assert self.path == "/v1/metrics"
                        received.metrics(Metrics.FromString(body))
            if answer == "taken":
                self.connection.close()
                return
            self.send_response(answer)
            if answer == 429:
                self.send_header("retry-after", "0")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def grpc_server(behave=lambda _n: None):
    """The same over gRPC; `behave` gives the status that a request fails with, or None."""
    received = Received()

    def answer(context):
        received.requests += 1
        if code := behave(received.requests):
            context.abort(code, "as it was told")

    class TraceService(trace_grpc.TraceServiceServicer):
        def Export(self, request, context):  # noqa: N802
            answer(context)
            received.traces(request)
            return trace_pb2.ExportTraceServiceResponse()

    class MetricsService(metrics_grpc.MetricsServiceServicer):
        def Export(self, request, context):  # noqa: N802
            answer(context)
            received.metrics(request)
            return metrics_pb2.ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_grpc.add_TraceServiceServicer_to_server(TraceService(), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(MetricsService(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", received
    finally:
        server.stop(None).wait()


def free_port():
    """Of loopback, where nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
