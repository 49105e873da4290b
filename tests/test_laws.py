"""What holds of every log, however it came about."""

import json
import os
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from copilot_insights import load, loading
from copilot_insights.decoder import decode
from copilot_insights.schema import PARTS, TABLES, TOKENS

# the same few examples every time; LAWS=5 tries five times as many others
MORE = int(os.environ.get("LAWS", "0"))
settings.register_profile(
    "laws",
    derandomize=not MORE,
    database=None,
    deadline=None,
    max_examples=50 * (MORE or 1),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("laws")

REAL = sorted((Path(__file__).parent / "data" / "real_logs").glob("*/*/events.jsonl"))
SMALL = [path for path in REAL if path.stat().st_size < 60_000]

# --- logs -------------------------------------------------------------------------------------

STEPS = (
    "user", "turn_start", "turn_start", "message", "message", "record", "turn_end", "turn_end",
    "tool_start", "tool_start", "tool_end", "tool_end", "asked", "given", "hook_start", "hook_end",
    "agent_start", "agent_end", "compact", "compacted", "error", "abort", "done", "resume",
    "shutdown", "unknown",
)  # fmt: skip
steps = st.lists(
    st.tuples(
        st.sampled_from(STEPS),
        st.sampled_from([None, None, "a", "b"]),  # the agent
        st.integers(0, 3),  # which of several
        st.integers(-200, 4000),  # milliseconds since the last event
    ),
    min_size=1,
    max_size=30,
)


def written(session, script):
    """The lines of a session in which these things happened, in this order."""
    lines = []
    at = datetime(2026, 3, 1, 10, tzinfo=UTC)
    opened = {"tool": [], "asked": [], "hook": []}
    replies = [0]  # of each process

    def new(kind):
        opened[kind].append(f"{kind}{len(lines)}")
        return opened[kind][-1]

    def one_of(kind, pick):
        return opened[kind].pop(pick % len(opened[kind])) if opened[kind] else f"no-{kind}"

    def fields(step, agent, pick):
        match step:
            case "start" | "resume":
                return f"session.{step}", {"sessionId": session, "copilotVersion": "1.0.102"}
            case "user":
                more = [{}, {"delivery": "steering"}, {"source": "autopilot"}, {"interactionId": "i"}]
                return "user.message", {"content": "x", **more[pick]}
            case "turn_start" | "turn_end":
                return f"assistant.{step}", {"turnId": str(pick % 2)} if pick else {}
            case "message":
                more = [{}, {"outputTokens": 7}, {"outputTokens": 5, "model": "m"}, {"apiCallId": "y"}]
                return "assistant.message", {"toolRequests": [1] * (pick % 2), **more[pick]}
            case "record":
                used = {"model": "mn"[pick % 2], "inputTokens": 10 * pick, "outputTokens": pick, "duration": 9.5}
                return "session.usage_record", {"usage": used}
            case "tool_start":
                call = opened["tool"][0] if pick == 3 and opened["tool"] else new("tool")
                tool = ["bash", "view", "task", "ask_user"][pick]
                return "tool.execution_start", {"toolCallId": call, "toolName": tool, "arguments": {"n": pick}}
            case "tool_end":
                more = [{"success": True}, {"success": False}, {"error": {"code": "denied"}}, {"result": "x"}]
                return "tool.execution_complete", {"toolCallId": one_of("tool", pick), **more[pick]}
            case "asked":
                call = opened["tool"][pick % len(opened["tool"])] if opened["tool"] else None
                return "permission.requested", {"requestId": new("asked"), "permissionRequest": {"toolCallId": call}}
            case "given":
                return "permission.completed", {"requestId": one_of("asked", pick), "result": {"kind": "approved"}}
            case "hook_start":
                of = {"toolName": ["bash", "view"][pick % 2], "toolArgs": json.dumps({"n": pick})}
                return "hook.start", {"hookInvocationId": new("hook"), "hookType": "postToolUse", "input": of}
            case "hook_end":
                return "hook.end", {"hookInvocationId": one_of("hook", pick), "success": pick > 0}
            case "agent_start":
                return "subagent.started", {"toolCallId": agent or "t", "agentName": "explore"}
            case "agent_end":
                kind = "failed" if pick == 3 else "completed"
                return f"subagent.{kind}", {"toolCallId": agent or "t", "agentName": "explore"}
            case "compact":
                return "session.compaction_start", {}
            case "compacted":
                used = {"inputTokens": 100, "outputTokens": 10, "model": "m"}
                return "session.compaction_complete", {"success": True, "compactionTokensUsed": used}
            case "error":
                return "session.error", {"errorType": "query", "statusCode": 400}
            case "abort":
                return "abort", {"reason": "user_initiated"}
            case "done":
                return "session.task_complete", {"success": pick > 0}
            case "shutdown":
                requests = [replies[-1], sum(replies), pick, 0][pick]
                used = {"inputTokens": 100 * requests, "outputTokens": 9 * requests, "reasoningTokens": 3}
                metrics = {"m": {"requests": {"count": requests, "cost": 0.33}, "usage": used}} if requests else {}
                return "session.shutdown", {"shutdownType": "routine", "modelMetrics": metrics}
        return "brand.new", {"turnId": "0"}

    for step, agent, pick, gap in [("start", None, 0, 0), *script]:
        at += timedelta(milliseconds=gap)
        kind, data = fields(step, agent, pick)
        replies[-1] += step == "message"
        replies += [0] * (step == "resume")
        of = {"agentId": agent} if agent else {}
        time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = {"type": kind, "data": data, **of, "id": f"{session}-{len(lines)}", "timestamp": time}
        lines.append(json.dumps(event, separators=(",", ":")).encode() + b"\n")
    return lines


damages = st.lists(
    st.tuples(
        st.sampled_from(["cut", "glue", "blank", "nul", "swap", "drop", "twice", "byte"]),
        st.integers(0, 60),
        st.integers(0, 255),
    ),
    max_size=4,
)


def damaged(lines, harm):
    """The lines after harm of these kinds was done to them."""
    lines = list(lines)
    for kind, where, amount in harm:
        at = where % len(lines)
        here = lines[at] or b"\n"
        there = amount % len(here)
        match kind:
            case "cut":
                lines[at] = here[:there]
            case "glue":
                lines[at] = here.rstrip(b"\n")
            case "blank":
                lines[at] = here + b"\n \r\n"
            case "nul":
                lines[at] = here[:there] + b"\0" * amount + here[there:]
            case "swap":
                lines[at], lines[at - 1] = lines[at - 1], lines[at]
            case "drop":
                lines[at] = b""
            case "twice":
                lines[at] = here * 2
            case "byte":
                lines[at] = here[:there] + bytes([amount]) + here[there + 1 :]
    return lines


logs = st.builds(lambda script, harm: b"".join(damaged(written("s1", script), harm)), steps, damages)
sound_logs = st.builds(lambda script: b"".join(written("s1", script)), steps)


@contextmanager
def stored(**contents):
    """A root with a log for each session name."""
    with tempfile.TemporaryDirectory() as name:
        for session, data in contents.items():
            place = Path(name) / session
            place.mkdir()
            (place / "events.jsonl").write_bytes(data)
        yield Path(name)


def tables_of(data):
    with stored(s1=data) as root:
        return load(root / "s1", events=True)


def non_empty(data):
    return sum(1 for line in data.split(b"\n") if line.strip())


# --- sums -------------------------------------------------------------------------------------


def assert_sums(tables, lines):
    """All that is said twice in the tables is said the same."""
    sessions = tables.sessions
    counted = sessions.select(pl.sum("events", "rejected_lines", "duplicate_events")).row(0)
    assert sum(counted) == lines
    assert counted[0] == tables.events.height

    calls = tables.llm_calls
    turns = calls.filter(calls["evidence"] != "compaction")
    assert sessions["llm_calls"].sum() == calls.height
    assert sessions["failed_llm_calls"].sum() == (calls["status"] == "error").sum()
    assert sessions["compactions"].sum() == calls.height - turns.height
    assert tables.interactions["turns"].sum() == turns.height
    assert sessions["turns_completed"].sum() <= sessions["turns_started"].sum()
    assert sessions["tool_calls"].sum() == tables.tool_calls.height == tables.interactions["tool_calls"].sum()
    assert sessions["subagents"].sum() == tables.subagents.height
    roots = tables.interactions.filter(tables.interactions["agent_id"] == "main")
    assert sessions["interactions"].sum() == roots.height

    booked = tables.bookings.group_by("session_id").agg(pl.sum(TOKENS), pl.col(TOKENS).count().name.suffix("_n"))
    both = sessions.select("session_id", *TOKENS).join(booked, on="session_id", how="left", suffix="_booked")
    for name in TOKENS:
        known = both.filter(pl.col(name).is_not_null())
        assert known[name].to_list() == known[f"{name}_booked"].to_list()
        assert both.filter(pl.col(name).is_null() & (pl.col(f"{name}_n") > 0)).is_empty()

    wall = (pl.col("ended_at") - pl.col("started_at")).dt.total_milliseconds()
    assert tables.interactions.filter(pl.sum_horizontal(PARTS) != wall).is_empty()
    assert sessions.filter(pl.sum_horizontal(*PARTS, "user_ms") != pl.col("wall_ms")).is_empty()
    for part in PARTS:
        assert (sessions[part].sum() == roots[part].sum()) or sessions["wall_ms"].null_count()


def assert_nothing_negative(tables):
    for name in TABLES:
        frame = tables.table(name)
        for column, kind in frame.schema.items():
            if kind.is_numeric() and column != "exit_code":
                assert not (frame[column] < 0).any(), (name, column)


@given(logs)
def test_sums_by_group_are_totals_and_nothing_is_negative(data):
    tables = tables_of(data)
    assert_sums(tables, non_empty(data))
    assert_nothing_negative(tables)


@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parts[-3]}-{path.parts[-2]}")
def test_sums_of_real_logs(path):
    tables = load(path, events=True)
    assert_sums(tables, non_empty(path.read_bytes()))
    assert_nothing_negative(tables)


@given(st.sampled_from(SMALL), damages, st.integers(0, 100_000), st.binary(max_size=20))
def test_real_logs_stand_any_damage(path, harm, where, noise):
    data = b"".join(damaged(path.read_bytes().splitlines(keepends=True), harm))
    where %= len(data) + 1
    data = data[:where] + noise + data[where + len(noise) :]
    tables = tables_of(data)
    assert_sums(tables, non_empty(data))
    assert_nothing_negative(tables)


# --- bytes ------------------------------------------------------------------------------------

PIECES = (
    b'{"type":"', b'abort"', b'session.shutdown"', b'tool.execution_start"', b',"data":{', b'"modelMetrics":{"m":',
    b'"usage":', b'"inputTokens":', b"1e999", b"-1", b"NaN", b"null", b"[", b"]", b"{", b"}", b"}}", b",", b":", b'"',
    b"\\", b"\\ud83d", b"\\u0000", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r\n", b'"id":"1"', b'"timestamp":7',
)  # fmt: skip
json_like = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)


@settings(max_examples=500 * (MORE or 1))
@given(st.one_of(st.binary(max_size=200), json_like, logs))
def test_decoding_accounts_for_every_line_of_any_bytes(data):
    decoded = decode(data)
    assert len(decoded.events) + len(decoded.rejected) == non_empty(data) == decoded.non_empty()
    assert len(decoded.events) == len(decoded.lines)
    at = [*decoded.lines, *(rejected.line for rejected in decoded.rejected)]
    lines = [number for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    assert sorted(at) == lines
    starts = [0, *(i + 1 for i, byte in enumerate(data) if byte == 10)]
    assert [r.offset for r in decoded.rejected] == [starts[r.line - 1] for r in decoded.rejected]


@given(json_like)
def test_tables_of_anything_like_a_log(data):
    tables = tables_of(data)
    assert_sums(tables, non_empty(data))


# --- several logs -----------------------------------------------------------------------------


def assert_together_is_apart(together, apart):
    for name in TABLES:
        for session, tables in apart.items():
            ours = together.table(name).filter(pl.col("session_id") == session)
            theirs = tables.table(name)
            if name == "sessions":
                ours, theirs = ours.drop("path"), theirs.drop("path")
            assert_frame_equal(ours, theirs)
        assert together.table(name).height == sum(tables.table(name).height for tables in apart.values())


@given(st.lists(st.tuples(steps, damages), min_size=2, max_size=3), st.booleans())
def test_tables_of_disjoint_logs_together_are_those_of_each(scripts, in_batches):
    names = ["s1", "s2", "s3"][: len(scripts)]
    data = {
        name: b"".join(damaged(written(name, script), harm))
        for name, (script, harm) in zip(names, scripts, strict=True)
    }
    with stored(**data) as root, pytest.MonkeyPatch.context() as patch:
        apart = {name: load(root / name, events=True) for name in names}
        if in_batches:
            patch.setattr(loading, "_BATCH", 1)
        # a log that lost its session.start is named by its place, which is the same here
        assert_together_is_apart(load(root, events=True), apart)


@pytest.mark.parametrize("limit", ["_BATCH", "_WORTH_A_PROCESS"])
def test_real_logs_in_batches_and_processes(limit, monkeypatch):
    paths = [path.parent for path in SMALL if path.parts[-3] == "1.0.102"]
    apart = {}
    for path in paths:
        tables = load(path, events=True)
        apart[tables.sessions["session_id"][0]] = tables
    monkeypatch.setattr(loading, limit, 1)
    assert_together_is_apart(load(paths, events=True), apart)


# --- appending --------------------------------------------------------------------------------


def keyed(frame, *keys):
    """Rows by key and, should that repeat, their number: dictionaries of their columns."""
    numbered = frame.with_columns(nth=pl.int_range(pl.len()).over(keys))
    return {tuple(row[k] for k in (*keys, "nth")): row for row in numbered.iter_rows(named=True)}


def changes(old, new):
    return {name: (value, new[name]) for name, value in old.items() if new[name] != value}


def learned(old, new):
    """Whether a value that the log did not say is known now."""
    return old is None and new is not None


def assert_closed_rows_stand(before, after):
    """What more bytes may change of the rows that a log's beginning gave.

    Nothing is taken away. Events and usage statements stand as they are. A span that was
    closed stands as it is; but a model, or the call that a hook belongs to, may get known.
    Open spans get what closing them gives. Rows that sum up (sessions, bookings, sub-agents,
    interactions that are not over) sum up more.
    """
    assert_frame_equal(after.events.head(before.events.height), before.events)
    assert_frame_equal(after.usage.head(before.usage.height), before.usage)
    waits = any((frame["outcome"] == "open").any() for frame in (before.permissions, before.hooks))

    new = keyed(after.llm_calls, "agent_id", "evidence", "turn")
    for key, old in keyed(before.llm_calls, "agent_id", "evidence", "turn").items():
        diff = changes(old, new[key])
        if old["evidence"] == "compaction" or old["ended_at"]:
            allowed = {"model"} if old["model"] is None else set()
            assert set(diff) <= allowed, (key, diff)
        fixed = {"started_at", "interaction", "turn_id", "interaction_id", "replied_at", "output_tokens"}
        assert all(learned(*diff[name]) for name in fixed & set(diff)), (key, diff)

    new = keyed(after.tool_calls, "tool_call_id")
    for key, old in keyed(before.tool_calls, "tool_call_id").items():
        diff = changes(old, new[key])
        held = {"permission_ms", "hook_ms", "run_ms"} if waits else set()
        if old["status"] != "open":
            assert set(diff) <= held, (key, diff)
        ends = {"ended_at", "duration_ms", "permission_ms", "hook_ms", "run_ms", "status", "exit_code",
                "error_code", "result_bytes"}  # fmt: skip
        assert set(diff) <= ends, (key, diff)

    new = keyed(after.permissions, "request_id")
    for key, old in keyed(before.permissions, "request_id").items():
        assert old["outcome"] == "open" or not changes(old, new[key]), key
    new = keyed(after.hooks, "hook_invocation_id")
    for key, old in keyed(before.hooks, "hook_invocation_id").items():
        diff = changes(old, new[key])
        if old["outcome"] != "open":
            assert all(name == "tool_call_id" and learned(*diff[name]) for name in diff), (key, diff)

    new = keyed(after.subagents, "agent_id")
    for key, old in keyed(before.subagents, "agent_id").items():
        assert all(new[key][name] >= old[name] for name in ("turns", "tool_calls"))

    unfinished = {
        *before.tool_calls.filter(pl.col("status") == "open")["interaction"],
        *before.llm_calls.filter(pl.col("ended_at").is_null())["interaction"],
    }
    latest = before.interactions.group_by("agent_id").agg(pl.max("interaction"))
    last = set(latest["interaction"])
    new = keyed(after.interactions, "interaction")
    for key, old in keyed(before.interactions, "interaction").items():
        diff = changes(old, new[key])
        fixed = {"agent_id", "kind", "started_at", "interaction_id"} & set(diff)
        assert all(learned(*diff[name]) for name in fixed), (key, diff)
        if key[0] not in unfinished | last and not waits:
            assert not diff, (key, diff)

    for old, now in zip(before.sessions.iter_rows(named=True), after.sessions.iter_rows(named=True), strict=False):
        counts = ("events", "processes", "interactions", "turns_started", "turns_completed", "llm_calls",
                  "tool_calls", "subagents", "compactions", "errors", "aborts", "bytes")  # fmt: skip
        assert all(now[name] >= old[name] for name in counts)

    stands = pl.col("kind").is_in(["error", "abort", "truncation", "retry", "unpaired_end"])
    gone = before.incidents.filter(stands).join(after.incidents, on=["seq", "kind", "detail"], how="anti", nulls_equal=True)
    assert gone.is_empty()


@settings(max_examples=100 * (MORE or 1))
@given(logs, st.integers(0, 20_000), st.one_of(st.none(), st.binary(max_size=30), json_like, sound_logs))
def test_more_bytes_change_nothing_but_what_they_close(data, cut, more):
    cut %= len(data) + 1
    prefix, rest = data[:cut], data[cut:] if more is None else more
    assert_closed_rows_stand(tables_of(prefix), tables_of(prefix + rest))


@pytest.mark.parametrize("path", SMALL[::4], ids=lambda path: f"{path.parts[-3]}-{path.parts[-2]}")
@pytest.mark.parametrize("part", [0.3, 0.8])
def test_a_real_log_that_grows(path, part):
    data = path.read_bytes()
    with stored(s1=data[: int(len(data) * part)], s2=data) as root:
        assert_closed_rows_stand(load(root / "s1", events=True), load(root / "s2", events=True))
