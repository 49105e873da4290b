"""How fast telemetry goes out, beside the least that sending the same spans could cost.

    python tests/bench/bench_otel.py [--megabytes 500] [--repeat 3]

On the corpus of bench.py, in turn and several times over, into one receiver on loopback that
reads and forgets:

    bare     spans that are there already, through the SDK's exporter, in batches of 512
    path     the same from tables: made, looked up in the state, noted, sent, confirmed

and prints spans per second, their ratio, and time and peak memory of the whole command.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bench import corpus, timed

BARE = """
import sys, time
from copilot_insights import load
from copilot_insights.otel.delivery import USED
from copilot_insights.otel.exporters import otlp
from copilot_insights.otel.spans import spans
ready = [made.span for made in spans(load(sys.argv[1], only=USED))]
target = otlp(sys.argv[2], "http/protobuf")
start = time.perf_counter()
for first in range(0, len(ready), 512):
    assert not target.send_spans(ready[first : first + 512])
print(len(ready), time.perf_counter() - start)
"""
PATH = """
import sys, time
from copilot_insights import load
from copilot_insights.otel.delivery import USED, Delivery, What
from copilot_insights.otel.exporters import otlp
from copilot_insights.otel.state import State
tables = load(sys.argv[1], only=USED)
target = otlp(sys.argv[2], "http/protobuf")
with State(None, "bench") as state:
    start = time.perf_counter()
    sending = Delivery(target, state, What(metrics=False))
    sending.send(tables)
    print(sending.sent.spans, time.perf_counter() - start)
"""


class Sink(BaseHTTPRequestHandler):
    """Reads and forgets."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    """Runs it all and prints a table."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--megabytes", type=int, default=500)
    arguments.add_argument("--repeat", type=int, default=3)
    options = arguments.parse_args()
    root = str(corpus(options.megabytes))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    speeds = {"bare": [], "path": []}
    for _ in range(options.repeat):
        for name, script in (("bare", BARE), ("path", PATH)):
            command = [sys.executable, "-c", script, root, url]
            out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
            count, seconds = out.split()
            speeds[name].append(int(count) / float(seconds))
    bare, path = (statistics.median(speeds[name]) for name in ("bare", "path"))
    with tempfile.TemporaryDirectory() as folder:
        state = str(Path(folder) / "state.db")
        words = [sys.executable, "-m", "copilot_insights.cli", "export", "otel", root]
        seconds, peak = timed([*words, "--endpoint", url, "--state", state], memory=True)
    print(f"bare     {bare:9,.0f} spans/s   x 1.00")
    print(f"path     {path:9,.0f} spans/s   x {path / bare:.2f}")
    print(f"whole command, metrics too: {seconds:.0f} s, peak memory {peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
