"""The numbers against what really happened.

Every run under data was made by the real CLI: `truth.json` has the model calls counted at
the model's own HTTP server, `otel.jsonl` what the CLI itself exported; more_logs has runs
that go wrong (kills, upgrades within a session, steering, agents in agents). Set
MORE_REAL_LOGS to a folder of the same shape to try other versions and scenarios.
"""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from copilot_insights import load
from copilot_insights.schema import PARTS

ROOTS = [Path(__file__).parent / "data" / name for name in ("real_logs", "more_logs")]
if more := os.environ.get("MORE_REAL_LOGS"):
    ROOTS.append(Path(more))
RUNS = sorted(path.parent for root in ROOTS for path in root.glob("*/*/events.jsonl"))
NAMES = [f"{run.parent.name}-{run.name}" for run in RUNS]
runs = pytest.mark.parametrize("run", RUNS, ids=NAMES)

# 1.0.12 to 1.0.85 time the tools with the model call (shared/spec/otel.md, section 6)
HONEST_CHAT = ("1.0.102",)


@cache
def tables(run):
    return load([run])


def lines(run, kind):
    text = (run / "events.jsonl").read_bytes()
    return [e for e in map(json.loads, text.split(b"\n")[:-1]) if e["type"] == kind]


def telemetry(run, operation):
    path = run / "otel.jsonl"
    spans = (
        map(json.loads, path.read_text(encoding="utf-8").split("\n")[:-1]) if path.exists() else ()
    )
    return [
        s for s in spans
        if s["type"] == "span" and s["attributes"].get("gen_ai.operation.name") == operation
    ]  # fmt: skip


def milliseconds(span):
    (s1, n1), (s2, n2) = span["startTime"], span["endTime"]
    return (s2 - s1) * 1e3 + (n2 - n1) / 1e6


@runs
def test_model_calls_are_those_that_the_model_counted(run):
    session = tables(run).sessions.row(0, named=True)
    assert session["llm_calls"] == json.loads((run / "truth.json").read_text())["model_calls"]


@runs
def test_turns_are_the_lines_of_the_log(run):
    session = tables(run).sessions.row(0, named=True)
    assert session["turns_started"] == len(lines(run, "assistant.turn_start"))
    assert session["turns_completed"] == len(lines(run, "assistant.turn_end"))


@runs
def test_tool_latency_is_that_of_the_cli(run):
    spans = {s["attributes"]["gen_ai.tool.call.id"]: s for s in telemetry(run, "execute_tool")}
    calls = tables(run).tool_calls.filter(tables(run).tool_calls["duration_ms"].is_not_null())
    for call in calls.iter_rows(named=True):
        if span := spans.get(call["tool_call_id"]):
            assert call["duration_ms"] == pytest.approx(milliseconds(span), abs=50)
            assert call["tool"] == span["attributes"]["gen_ai.tool.name"]


@runs
def test_no_latency_without_a_completion_of_its_own(run):
    completed = {e["data"]["toolCallId"] for e in lines(run, "tool.execution_complete")}
    for call in tables(run).tool_calls.iter_rows(named=True):
        finished = call["status"] in {"ok", "failed", "denied"}
        assert finished == (call["duration_ms"] is not None)
        assert finished <= (call["tool_call_id"] in completed)


@runs
def test_model_latency(run):
    calls = tables(run).llm_calls
    replied = calls.filter((calls["evidence"] == "turn") & (calls["status"] == "ok"))
    if run.parent.name in HONEST_CHAT:
        spans = {s["attributes"].get("gen_ai.response.id"): s for s in telemetry(run, "chat")}
        for call in replied.iter_rows(named=True):
            if span := spans.get(call["api_call_id"]):
                assert call["llm_ms"] == pytest.approx(milliseconds(span), abs=100)
    assert replied["llm_ms"].null_count() == 0


@runs
def test_tokens_are_those_of_the_cli(run):
    session = tables(run).sessions.row(0, named=True)
    spans = [s["attributes"] for s in telemetry(run, "chat")]
    spans = [
        a
        for a in spans
        if "gen_ai.usage.input_tokens" in a and not a.get("gen_ai.conversation.compacted")
    ]
    answered = session["llm_calls"] - session["failed_llm_calls"] - session["compactions"]
    if spans and len(spans) == answered:
        for column, attribute in (
            ("input_tokens", "input_tokens"),
            ("output_tokens", "output_tokens"),
            ("cache_read_tokens", "cache_read.input_tokens"),
        ):
            assert session[column] == sum(a.get(f"gen_ai.usage.{attribute}", 0) for a in spans)


@pytest.mark.parametrize(
    ("version", "tokens"),
    [
        ("1.0.12", (32563 + 6588 + 13353, 110 + 20 + 41, "shutdown")),
        ("1.0.65", (29886 + 6042 + 12251, 110 + 20 + 41, "shutdown")),
        ("1.0.102", (43752, 171, "usage_record")),
    ],
)
def test_three_processes_restarting_and_cumulative_totals(version, tokens):
    session = tables(ROOTS[0] / version / "resume").sessions.row(0, named=True)
    assert session["processes"] == 3
    assert (session["input_tokens"], session["output_tokens"], session["usage_source"]) == tokens


@runs
def test_parts_of_the_time_add_up(run):
    for row in tables(run).interactions.iter_rows(named=True):
        wall = (row["ended_at"] - row["started_at"]).total_seconds() * 1000
        assert sum(row[part] for part in PARTS) == round(wall)
        assert all(row[part] >= 0 for part in PARTS)
    for row in tables(run).sessions.iter_rows(named=True):
        assert row["wall_ms"] == row["user_ms"] + sum(row[part] for part in PARTS)


@runs
def test_every_line_is_accounted_for(run):
    session = tables(run).sessions.row(0, named=True)
    text = (run / "events.jsonl").read_bytes()
    count = len([line for line in text.split(b"\n") if line.strip()])
    assert session["events"] + session["rejected_lines"] + session["duplicate_events"] == count
