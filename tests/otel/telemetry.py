"""The CLI's own telemetry, as its file exporter writes it: a JSON object a line."""

import json
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"
REAL = DATA / "real_logs"
EVERY_LOG = sorted(DATA.glob("*/*/*/events.jsonl"))


def runs(version):
    """Names of the runs of a version that left telemetry."""
    return [path.parent.name for path in sorted((REAL / version).glob("*/otel.jsonl"))]


def lines(version, run, kind):
    """Its spans, or metrics."""
    text = (REAL / version / run / "otel.jsonl").read_text(encoding="utf-8")
    return [line for line in map(json.loads, text.splitlines()) if line["type"] == kind]
