"""What holds of every log, however it came about."""

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from copilot_insights import load, loading
from copilot_insights.decoder import decode
from copilot_insights.schema import PARTS, TABLES, TOKENS, VALUES

# the same few examples every time; LAWS=5 tries five times as many others
MORE = int(os.environ.get("LAWS", "0"))
settings.register_profile(
    "laws",
    derandomize=not MORE,
    database=None,
    deadline=None,
    max_examples=40 * (MORE or 1),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("laws")

LOGS = Path(__file__).parent / "data" / "real_logs"
REAL = sorted(LOGS.glob("*/*/events.jsonl"))
SMALL = [path for path in REAL if path.stat().st_size < 60_000]

# --- logs -------------------------------------------------------------------------------------


class Writer:
    """Writes a session's lines; `do` is a step, `pick` says which of several."""

    def __init__(self, session):
        self.session = session
        self.lines = []
        self.at = datetime(2026, 3, 1, 10, tzinfo=UTC)
        self.opened = {"tool": [], "asked": [], "hook": []}
        self.replies = [0]  # of each process

    def do(self, step, agent, pick, gap):
        self.at += timedelta(milliseconds=gap)
        self.replies[-1] += step == "message"
        self.replies += [0] * (step == "resume")
        kind, data = KINDS[step], getattr(self, step)(pick, agent)
        of = {"agentId": agent} if agent else {}
        time = self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        number = f"{self.session}-{len(self.lines)}"
        event = {"type": kind, "data": data, **of, "id": number, "timestamp": time}
        self.lines.append(json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def open(self, kind):
        self.opened[kind].append(f"{kind}{len(self.lines)}")
        return self.opened[kind][-1]

    def close(self, kind, pick):
        held = self.opened[kind]
        return held.pop(pick % len(held)) if held else f"no-{kind}"

    def start(self, _pick, _agent):
        return {"sessionId": self.session, "copilotVersion": "1.0.102"}

    resume = start

    def user(self, pick, _agent):
        more = [{}, {"delivery": "steering"}, {"source": "autopilot"}, {"interactionId": "i"}]
        return {"content": "x", **more[pick]}

    def turn(self, pick, _agent):
        return {"turnId": str(pick % 2)} if pick else {}

    turn_start = turn_end = unknown = turn

    def message(self, pick, _agent):
        said = [{}, {"outputTokens": 7}, {"outputTokens": 5, "model": "m"}, {"apiCallId": "y"}]
        return {"toolRequests": [1] * (pick % 2), **said[pick]}

    def record(self, pick, _agent):
        used = {"inputTokens": 10 * pick, "outputTokens": pick, "duration": 9.5}
        return {"usage": {"model": "mn"[pick % 2], **used}}

    def tool_start(self, pick, _agent):
        again = pick == 3 and self.opened["tool"]
        call = self.opened["tool"][0] if again else self.open("tool")
        tool = ["bash", "view", "task", "ask_user"][pick]
        return {"toolCallId": call, "toolName": tool, "arguments": {"n": pick}}

    def tool_end(self, pick, _agent):
        ends = [
            {"success": True, "result": "x"},
            {"success": False},
            {"error": {"code": "denied"}},
            {"error": {"code": "interrupted"}},
        ]
        return {"toolCallId": self.close("tool", pick), **ends[pick]}

    def asked(self, pick, _agent):
        tools = self.opened["tool"] or [None]
        of = {"toolCallId": tools[pick % len(tools)]}
        return {"requestId": self.open("asked"), "permissionRequest": of}

    def given(self, pick, _agent):
        return {"requestId": self.close("asked", pick), "result": {"kind": "approved"}}

    def hook_start(self, pick, _agent):
        of = {"toolName": ["bash", "view"][pick % 2], "toolArgs": json.dumps({"n": pick})}
        return {"hookInvocationId": self.open("hook"), "hookType": "postToolUse", "input": of}

    def hook_end(self, pick, _agent):
        return {"hookInvocationId": self.close("hook", pick), "success": pick > 0}

    def agent_start(self, _pick, agent):
        return {"toolCallId": agent or "t", "agentName": "explore"}

    agent_end = agent_fails = agent_start

    def compact(self, _pick, _agent):
        return {}

    def compacted(self, pick, _agent):
        used = {"inputTokens": 100, "outputTokens": 10, "model": "m"}
        return {"success": pick > 0, "compactionTokensUsed": used}

    def error(self, _pick, _agent):
        return {"errorType": "query", "statusCode": 400}

    def abort(self, _pick, _agent):
        return {"reason": "user_initiated"}

    def done(self, pick, _agent):
        return {"success": pick > 0}

    def shutdown(self, pick, _agent):
        """A total of this process, of all, of what is not so, or none."""
        count = [self.replies[-1], sum(self.replies), pick, 0][pick]
        used = {"inputTokens": 100 * count, "outputTokens": 9 * count, "reasoningTokens": 3}
        metrics = {"m": {"requests": {"count": count, "cost": 0.33}, "usage": used}}
        return {"shutdownType": "routine", "modelMetrics": metrics if count else {}}


KINDS = {
    "start": "session.start",
    "resume": "session.resume",
    "user": "user.message",
    "turn_start": "assistant.turn_start",
    "message": "assistant.message",
    "record": "session.usage_record",
    "turn_end": "assistant.turn_end",
    "tool_start": "tool.execution_start",
    "tool_end": "tool.execution_complete",
    "asked": "permission.requested",
    "given": "permission.completed",
    "hook_start": "hook.start",
    "hook_end": "hook.end",
    "agent_start": "subagent.started",
    "agent_end": "subagent.completed",
    "agent_fails": "subagent.failed",
    "compact": "session.compaction_start",
    "compacted": "session.compaction_complete",
    "error": "session.error",
    "abort": "abort",
    "done": "session.task_complete",
    "shutdown": "session.shutdown",
    "unknown": "brand.new",
}
OFTEN = ("turn_start", "message", "turn_end", "tool_start", "tool_end")
steps = st.lists(
    st.tuples(
        st.sampled_from([*list(KINDS)[1:], *OFTEN]),
        st.sampled_from([None, None, "a", "b"]),  # the agent
        st.integers(0, 3),  # which of several
        st.integers(-200, 4000),  # milliseconds since the last event
    ),
    min_size=1,
    max_size=30,
)


def written(session, script):
    """The lines of a session in which these things happened, in this order."""
    writer = Writer(session)
    for step in [("start", None, 0, 0), *script]:
        writer.do(*step)
    return writer.lines


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


logs = st.builds(
    lambda script, harm: b"".join(damaged(written("s1", script), harm)), steps, damages
)
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
    assert (
        sessions["tool_calls"].sum()
        == tables.tool_calls.height
        == tables.interactions["tool_calls"].sum()
    )
    assert sessions["subagents"].sum() == tables.subagents.height
    roots = tables.interactions.filter(tables.interactions["agent_id"] == "main")
    assert sessions["interactions"].sum() == roots.height

    booked = tables.bookings.group_by("session_id").agg(
        pl.sum(TOKENS), pl.col(TOKENS).count().name.suffix("_n")
    )
    both = sessions.select("session_id", *TOKENS).join(
        booked, on="session_id", how="left", suffix="_booked"
    )
    for name in TOKENS:
        known = both.filter(pl.col(name).is_not_null())
        assert known[name].to_list() == known[f"{name}_booked"].to_list()
        assert both.filter(pl.col(name).is_null() & (pl.col(f"{name}_n") > 0)).is_empty()

    for name, columns in VALUES.items():
        for column, words in columns.items():
            assert set(tables.table(name)[column]) <= {None, *words}
    said = set(sessions["usage_source"].drop_nulls().str.split("+").explode())
    assert said <= set(VALUES["usage"]["source"])

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


# a second process seems to begin, and a parent is lost
LOST_AND_SWAPPED = [("cut", 6, 0), ("swap", 1, 0)]


@given(st.sampled_from(SMALL), damages, st.integers(0, 100_000), st.binary(max_size=20))
@example(LOGS / "1.0.102" / "big" / "events.jsonl", LOST_AND_SWAPPED, 0, b"")
@example(LOGS / "1.0.102" / "denied" / "events.jsonl", LOST_AND_SWAPPED, 0, b"")
def test_real_logs_stand_any_damage(path, harm, where, noise):
    data = b"".join(damaged(path.read_bytes().splitlines(keepends=True), harm))
    where %= len(data) + 1
    data = data[:where] + noise + data[where + len(noise) :]
    tables = tables_of(data)
    assert_sums(tables, non_empty(data))
    assert_nothing_negative(tables)


# --- order ------------------------------------------------------------------------------------


@given(st.sampled_from(SMALL), st.randoms(use_true_random=False), st.integers(1, 40))
def test_the_order_of_lines_is_that_of_parents(path, random, moves):
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    for _ in range(moves):
        lines.insert(random.randrange(len(lines)), lines.pop(random.randrange(len(lines))))
    tables, right = tables_of(b"".join(lines)), tables_of(data)
    moved = tables.incidents.filter(kind="out_of_order")
    assert (moved.height > 0) == (b"".join(lines) != data)
    for name in ("interactions", "llm_calls", "tool_calls", "usage", "bookings", "subagents"):
        assert_frame_equal(tables.table(name), right.table(name))
    names = [name for name in right.sessions.columns if name != "path"]
    assert_frame_equal(tables.sessions[names], right.sessions[names])
    rest = tables.incidents.filter(pl.col("kind") != "out_of_order")
    assert_frame_equal(rest, right.incidents)


def test_a_log_that_stands_backwards_is_read_forwards():
    path = LOGS / "1.0.102" / "sub2" / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    tables, right = tables_of(b"".join(reversed(lines))), load(path)
    assert_frame_equal(tables.llm_calls, right.llm_calls)
    assert tables.incidents.filter(kind="out_of_order").height == len(lines) - 1


# --- bytes ------------------------------------------------------------------------------------

PIECES = rb"""{"type":" abort" session.shutdown" tool.execution_start" ,"data":{
"modelMetrics":{"m": "usage": "inputTokens": 1e999 -1 NaN null [ ] { } }} , : " \ \ud83d \u0000
"id":"1" "timestamp":7"""
RAW = (b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r\n", b" ")
json_like = st.lists(st.sampled_from([*PIECES.split(), *RAW]), max_size=40).map(b"".join)


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
        assert together.table(name).height == sum(
            tables.table(name).height for tables in apart.values()
        )


@settings(max_examples=30 * (MORE or 1))
@given(st.lists(st.tuples(steps, damages), min_size=2, max_size=2), st.booleans())
def test_tables_of_disjoint_logs_together_are_those_of_each(scripts, in_batches):
    names = ["s1", "s2"]
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


@pytest.mark.parametrize("python", [None, sys.executable, "/bin/false"])
def test_real_logs_in_batches_and_processes(python, monkeypatch):
    """In one process, with a further one, and with one that fails."""
    paths = [path.parent for path in SMALL if path.parts[-3] == "1.0.102"]
    apart = {}
    for path in paths:
        tables = load(path, events=True)
        apart[tables.sessions["session_id"][0]] = tables
    monkeypatch.setattr(loading, "_BATCH", 1)
    if python:
        monkeypatch.setattr(loading, "_WORTH_A_PROCESS", 1)
        monkeypatch.setattr(sys, "executable", python)
    assert_together_is_apart(load(paths, events=True), apart)


def test_a_further_process_takes_no_module_from_where_it_is_run(monkeypatch, tmp_path):
    (tmp_path / "msgspec.py").write_text("open('planted', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "_BATCH", 1)
    monkeypatch.setattr(loading, "_WORTH_A_PROCESS", 1)
    paths = [path.parent for path in SMALL if path.parts[-3] == "1.0.102"]
    assert load(paths).sessions.height == len(paths)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize(
    ("names", "first"),
    [("hello hello-fork tools-copy tools", 3), ("hello-fork tools-copy hello", 2)],
)
def test_a_fork_is_read_again_with_its_original(names, first, tmp_path, monkeypatch):
    """… when it must be, because another log of their batch has a copy in a further one, or
    because its original is in a further one.
    """
    source = {path.parts[-2]: path.read_bytes() for path in SMALL if path.parts[-3] == "1.0.102"}
    own = b'{"type":"user.message","id":"its-own","data":{}}\n'
    sizes = []
    for number, name in enumerate(names.split()):
        data = source[name.partition("-")[0]] + (own if name.endswith("-fork") else b"")
        stated = json.loads(data.partition(b"\n")[0])["data"]["sessionId"]
        folder = name if "-" in name else stated  # as the CLI names an original's
        path = tmp_path / str(number) / folder / "events.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        sizes.append(len(data))
    together = load(tmp_path)
    monkeypatch.setattr(loading, "_BATCH", sum(sizes[:first]))
    apart = load(tmp_path)
    assert together.sessions.height == apart.sessions.height == 3
    for name in TABLES:
        assert_frame_equal(together.table(name), apart.table(name))


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


def pairs(name, before, after, *keys):
    """Each row of a table: key, as it was, and what of it changed. None may be gone."""
    new = keyed(after.table(name), *keys)
    for key, old in keyed(before.table(name), *keys).items():
        yield key, old, changes(old, new[key])


def assert_closed_rows_stand(before, after):
    """What more bytes may change of the rows that a log's beginning gave.

    Nothing is taken away. Events and usage statements stand as they are. A span that was
    closed stands as it is; but a model, or the call that a hook belongs to, may get known,
    and a wait that was open may turn out to be part of a tool call. Open spans get what
    closing them gives. Rows that sum up (sessions, bookings, sub-agents, interactions that
    are not over) sum up more.
    """
    for name in ("events", "usage"):
        old, new = before.table(name), after.table(name)
        assert_frame_equal(new.head(old.height), old)
    assert_calls_stand(before, after)
    assert_tools_and_waits_stand(before, after)
    assert_interactions_stand(before, after)
    assert_sums_grow(before, after)


def assert_calls_stand(before, after):
    said = {"started_at", "interaction", "turn_id", "interaction_id", "replied_at", "output_tokens"}
    for key, old, diff in pairs("llm_calls", before, after, "agent_id", "evidence", "turn"):
        if old["evidence"] == "compaction" and old["status"] == "open":
            continue
        if old["ended_at"]:
            assert set(diff) <= {"model"}, (key, diff)
        may = {"model"} | said
        assert all(learned(*diff[name]) for name in may & set(diff)), (key, diff)


def waits_open(tables):
    return any((frame["outcome"] == "open").any() for frame in (tables.permissions, tables.hooks))


HELD = {"permission_ms", "hook_ms", "run_ms"}
ENDED = {"ended_at", "duration_ms", "status", "exit_code", "error_code", "result_bytes"}


def assert_tools_and_waits_stand(before, after):
    for key, old, diff in pairs("tool_calls", before, after, "tool_call_id"):
        if old["status"] == "open":
            assert {name for name in diff if not learned(*diff[name])} <= HELD | ENDED, (key, diff)
        else:
            assert set(diff) <= (HELD if waits_open(before) else set()), (key, diff)
    for key, old, diff in pairs("permissions", before, after, "request_id"):
        assert old["outcome"] == "open" or not diff, (key, diff)
    for key, old, diff in pairs("hooks", before, after, "hook_invocation_id"):
        known = {name for name in diff if learned(*diff[name])} & {"tool_call_id"}
        assert old["outcome"] == "open" or set(diff) == known, (key, diff)


def assert_interactions_stand(before, after):
    open_tools = before.tool_calls.filter(pl.col("status") == "open")
    open_calls = before.llm_calls.filter(pl.col("ended_at").is_null())
    latest = before.interactions.group_by("agent_id").agg(pl.max("interaction"))
    going_on = {x for frame in (open_tools, open_calls, latest) for x in frame["interaction"]}
    for key, _old, diff in pairs("interactions", before, after, "interaction"):
        fixed = {"agent_id", "kind", "started_at", "interaction_id"} & set(diff)
        assert all(learned(*diff[name]) for name in fixed), (key, diff)
        assert key[0] in going_on or waits_open(before) or not diff, (key, diff)


def assert_sums_grow(before, after):
    for key, old, diff in pairs("subagents", before, after, "agent_id"):
        assert all(diff[n][1] > old[n] for n in {"turns", "tool_calls"} & set(diff)), (key, diff)
    grows = {"bytes", *(n for n, kind in TABLES["sessions"].items() if kind == pl.Int64)}
    grows -= {n for n in grows if n.endswith(("_ms", "_tokens"))}
    grows -= {"failed_llm_calls", "lines_added", "lines_removed", "files_modified"}
    for key, old, diff in pairs("sessions", before, after, "session_id"):
        # the last line was torn, and is whole now
        may = {"rejected_lines"}
        fallen = {n for n in (grows - may) & set(diff) if diff[n][1] < old[n]}
        assert not fallen, (key, diff)
    lasting = pl.col("kind").is_in(["error", "abort", "truncation", "retry", "unpaired_end"])
    on = ["seq", "kind", "detail"]
    gone = before.incidents.filter(lasting).join(
        after.incidents, on=on, how="anti", nulls_equal=True
    )
    assert gone.is_empty()


@settings(max_examples=80 * (MORE or 1))
@given(
    logs,
    st.integers(0, 20_000),
    st.one_of(st.none(), st.binary(max_size=30), json_like, sound_logs),
)
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
