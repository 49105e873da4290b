"""The waterfall's bars are the tables' intervals, on all real logs and in any order."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from copilot_insights import load
from copilot_insights.timeline import timeline
from copilot_insights.tree import show
from copilot_insights.waterfall import Axis, Fold, waterfall
from copilot_insights.waterfall_page import waterfall_page
from tests.test_damage import a_turn, event, store

ROOT = Path(__file__).parents[1]
LOGS = sorted({*ROOT.glob("sample_logs/*/events.jsonl"), *ROOT.rglob("tests/data/**/events.jsonl")})
BIG = 2000


@pytest.fixture(scope="module")
def falls():
    """Tables and waterfall of each session of the real logs."""
    tables = load([str(path) for path in LOGS])
    return [
        (tables, session, waterfall(tables, session)) for session in tables.sessions["session_id"]
    ]


def intervals(frame, *names):
    timed = frame.filter(pl.any_horizontal(pl.col("started_at", "ended_at").is_not_null()))
    return sorted(timed.select(*names, "agent_id", "started_at", "ended_at").rows(), key=repr)


def test_every_interval_of_the_tables_is_a_bar_with_its_start_and_end(falls):
    seen = set()
    for tables, session, fall in falls:
        of = pl.col("session_id") == session
        calls = tables.llm_calls.filter(of)
        expected = {
            "turn": (calls.filter(evidence="turn"), ["turn"]),
            "compaction": (calls.filter(evidence="compaction"), []),
            "tool": (tables.tool_calls.filter(of), ["tool_call_id", "turn"]),
            "permission": (tables.permissions.filter(of), ["tool_call_id"]),
            "hook": (tables.hooks.filter(of), ["tool_call_id"]),
        }
        for kind, (frame, names) in expected.items():
            bars = fall.bars.filter(kind=kind)
            assert intervals(bars, *names) == intervals(frame, *names), (session, kind)
            seen |= {kind} if bars.height else set()
    assert seen == set(expected), "the logs hold some of each"


def test_a_model_bar_is_start_to_reply(falls):
    for tables, session, fall in falls:
        calls = tables.llm_calls.filter(
            (pl.col("session_id") == session) & (pl.col("evidence") != "compaction")
        )
        bars = fall.bars.filter(kind="model")
        assert bars.height == calls.filter(pl.col("started_at").is_not_null()).height
        both = calls.filter(pl.col("replied_at").is_not_null()).join(bars, on=["turn", "agent_id"])
        assert both.filter(pl.col("replied_at") != pl.col("ended_at_right")).is_empty()


def test_bars_of_a_row_never_overlap_and_rows_have_one_band(falls):
    side_by_side = 0
    for _, session, fall in falls:
        for (_, _), row in fall.bars.sort("from_ms").group_by("lane", "row", maintain_order=True):
            ends = row["to_ms"].shift(1).drop_nulls()
            assert (ends <= row["from_ms"].tail(ends.len())).all(), session
            assert row["kind"].replace("compaction", "model").n_unique() == 1
        tools = fall.bars.filter(kind="tool")
        side_by_side += tools.select("lane", "row").n_unique() > tools["lane"].n_unique()
        assert (fall.bars["to_ms"] >= fall.bars["from_ms"]).all()
        rows = dict(fall.lanes.select("lane", "rows").iter_rows())
        for lane, row in fall.bars.select("lane", "row").iter_rows():
            assert 0 <= row < rows[lane]
    assert side_by_side


def test_what_has_no_end_is_open_and_only_that(falls):
    for _, _, fall in falls:
        assert fall.bars.filter(pl.col("open") != pl.col("ended_at").is_null()).is_empty()
    [killed] = [fall for *_, fall in falls if "sample_logs/killed" in fall.session["path"]]
    assert killed.bars.filter("open")["kind"].to_list() == ["turn", "tool"]
    assert killed.bars.filter("open")["duration_ms"].to_list() == [None, None]


def test_each_sub_agent_is_a_lane_below_its_caller(falls):
    [fall] = [fall for *_, fall in falls if "sample_logs/sub2-1.0.102" in fall.session["path"]]
    assert fall.lanes.select("name", "depth").rows() == [
        ("main", 0),
        ("explore", 1),
        ("explore", 1),
    ]


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(2, 10**9)), max_size=8), st.data())
def test_the_folded_axis_is_monotonic_and_has_an_inverse(parts, data):
    folds, at, saved = [], 0, 0.0
    for work, idle in parts:
        width = data.draw(st.floats(min(100, idle / 2), min(idle, 10**6)))
        folds.append(Fold(at + work, at + work + idle, at + work - saved, width))
        at, saved = at + work + idle, saved + idle - width
    axis = Axis(at + 1000, tuple(folds))
    times = sorted(data.draw(st.lists(st.integers(0, at + 1000), min_size=2, unique=True)))
    places = [axis.place(ms) for ms in times]
    assert all(a < b for a, b in pairwise(places))
    assert all(0 <= p <= axis.length for p in places)
    steepest = max((f.to_ms - f.from_ms) / f.width for f in folds) if folds else 1
    near = steepest * axis.length * 1e-14  # what a float can hold
    assert [axis.time(p) for p in places] == pytest.approx(times, rel=1e-12, abs=near)


def test_the_axes_of_real_sessions_fold_nothing_in_which_anybody_works(falls):
    folded = 0
    for _, _, fall in falls:
        work = fall.bars.filter(pl.col("kind").is_in(["model", "compaction", "hook"]))
        for fold in fall.axis.folds:
            folded += 1
            inside = (pl.col("from_ms") < fold.to_ms) & (pl.col("to_ms") > fold.from_ms)
            assert work.filter(inside).is_empty()
            assert fold.width < fold.to_ms - fold.from_ms
    assert folded


# --- in characters ------------------------------------------------------------------------


def drawn(fall, width, limit=None):
    picture = timeline(fall, limit=limit).picture
    return ["".join(text for text, _ in line) for line in picture(width)]


@pytest.mark.parametrize("width", [80, 200])
def test_the_timeline_fits_its_width(falls, width):
    for _, session, fall in falls:
        for limit in (None, 0, 1):
            lines = drawn(fall, width, limit)
            assert all(len(line.rstrip()) <= width for line in lines), session


def test_the_timeline_draws_each_call(falls):
    for _, session, fall in falls:
        lines = drawn(fall, 120, 0)
        alone = fall.bars.filter(
            pl.col("kind").is_in(["interaction", "turn", "tool", "compaction"])
        )
        assert len(lines) >= 2 + alone.height, session


def test_the_timeline_shows_what_ran_when(cli):
    """Tools in parallel start together; the denied one says so without colour."""
    code, out, _ = cli("show", "--timeline", ROOT / "sample_logs/demo-runner", width=80)
    assert code == 0
    assert "\x1b" not in out
    task, *_, bash, _ = [line for line in out.splitlines() if "task" in line or "bash" in line][1:5]
    assert task.index("█") == bash.index("█") or abs(task.index("█") - bash.index("█")) <= 8
    assert "view failed" in out
    assert "◆ explore" in out


def test_a_sub_agent_that_started_itself_is_still_drawn(tmp_path):
    """As a damaged log may have it: no agent that is reached made the call."""
    path = tmp_path / "events.jsonl"
    path.write_text(
        """\
{"type":"session.start","id":"1","timestamp":"2026-11-03T09:00:00.000Z","data":{"sessionId":"s"}}
{"type":"subagent.started","id":"2","timestamp":"2026-11-03T09:00:01.000Z","agentId":"a",\
"data":{"toolCallId":"t","agentName":"lost"}}
{"type":"tool.execution_start","id":"3","timestamp":"2026-11-03T09:00:02.000Z","agentId":"a",\
"data":{"toolCallId":"t","toolName":"bash"}}
""",
        encoding="utf-8",
    )
    fall = waterfall(load(path), "s")
    assert fall.lanes["name"].to_list() == ["main", "lost"]
    text = "\n".join(drawn(fall, 80))
    assert "◆ lost" in text
    assert "bash open" in text


# --- a long session -----------------------------------------------------------------------


def session_lines(calls, name="bash", model="m", agent="scout"):
    """A log of that many tool calls, three at a time, over three days."""
    at = datetime(2026, 11, 3, 9, tzinfo=UTC)
    lines = []

    def event(kind, ms, **data):
        nonlocal at
        at += timedelta(milliseconds=ms)
        stamp = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines.append(
            json.dumps({"id": f"e{len(lines)}", "type": kind, "timestamp": stamp, "data": data})
        )

    event("session.start", 0, sessionId="long-session", context={"cwd": f"/home/{name}"})
    for call in range(0, calls, 3):
        if call % 300 == 0:
            event("user.message", 20 * 3600_000 if call % 600 else 3000, content="go")
        event("assistant.turn_start", 5, turnId=str(call), model=model)
        ids = [f"{call + n}" for n in range(min(3, calls - call))]
        requests = [{"toolCallId": i} for i in ids]
        event("assistant.message", 900, toolRequests=requests, model=model, turnId=str(call))
        for i in ids:
            event("tool.execution_start", 2, toolCallId=i, toolName=name)
        if call == 3:
            event("subagent.started", 1, toolCallId=ids[0], agentName=agent)
        for i in ids:
            event("tool.execution_complete", 300, toolCallId=i, success=call % 7 > 0)
        event("assistant.turn_end", 1, turnId=str(call))
    event("session.error", 1, errorType=name, message=name)
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def long_log(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "events.jsonl"
    path.write_text(session_lines(BIG), encoding="utf-8")
    return path


def test_two_thousand_calls_fit_on_a_screen_and_all_are_counted(long_log, cli):
    code, out, _ = cli("show", "--timeline", long_log, width=80)
    lines = out.splitlines()
    assert code == 0
    assert len(lines) < 80
    head = next(n for n, line in enumerate(lines) if line.endswith("calls  tools  failed"))
    rows = [line.split() for line in lines[head + 1 : -2]]
    numbers = [[int(word) for word in row[-3:] if word.isdigit()] for row in rows]
    tools = sum(row[1] for row in numbers if len(row) > 1)
    assert tools == BIG
    assert "≈" in out
    whole = cli("show", "--timeline", long_log, "--limit", "0", width=80)[1]
    assert whole.count("bash") >= BIG


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A picture of a line per call and one in strips, with a sub-agent of a long name."""
    drawn = []
    for calls in (9, 400):
        path = tmp_path_factory.mktemp("agents") / "events.jsonl"
        path.write_text(session_lines(calls, agent="general-purpose"), encoding="utf-8")
        drawn.append(timeline(waterfall(load(path), "long-session")))
    return drawn


@pytest.mark.parametrize("width", range(20, 201))
def test_a_picture_of_any_width_is_drawn(pictures, width):
    for section in pictures:
        lines = ["".join(text for text, _ in line) for line in section.picture(width)]
        if width >= 40:  # the least that a terminal is taken for
            assert max(map(cell_len, lines)) <= width
            assert "bash" in "".join(lines) or "--limit 0" in " ".join(lines[-2:])


def test_strips_show_all_whatever_their_limit_and_say_so_on_a_narrow_terminal(long_log, cli):
    for width in (40, 60, 100):
        code, out, _ = cli("show", "--timeline", "--limit", "20", long_log, width=width)
        assert code == 0
        assert "more:" not in out
        assert "--limit 0 draws a line per call." in " ".join(out.split())


def agents(callers):
    """A log of sub-agents, each started by a call of the one named: of itself, or another."""
    lines = [event("session.start", sessionId="s"), event("user.message", content="hi")]
    for name, caller in callers.items():
        lines.append(event("tool.execution_start", 1, caller, toolCallId=name, toolName="task"))
        lines.append(event("subagent.started", 2, name, toolCallId=name, agentName="scout"))
        lines += [event("user.message", 2, name, content="go"), *a_turn(3, "0", name)]
    return lines


DEEP = {f"a{n}": f"a{n - 1}" if n else None for n in range(1100)}


@pytest.mark.parametrize(
    "callers",
    [DEEP, {"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "a", "d": "nobody"}],
    ids=["deep", "itself", "each other", "in a circle"],
)
def test_agents_however_they_are_nested_come_once(callers, tmp_path):
    tables = load(store(tmp_path / "s" / "events.jsonl", *agents(callers)))
    rows = show(tables, "s", "UTC").frame
    assert rows.filter(kind="sub-agent").height == tables.subagents.height >= len(callers)
    assert rows.filter(kind="turn").height == tables.llm_calls.height >= len(callers)
    fall = waterfall(tables, "s")
    assert {*fall.lanes["agent_id"]} >= {*callers, "main"}
    assert fall.lanes["agent_id"].is_unique().all()
    drawn = fall.bars.filter(pl.col("kind").is_in(["interaction", "turn", "tool"])).height
    lines = list(timeline(fall, (), 0).picture(80))
    assert len(lines) - drawn - len(fall.axis.folds) in {2, 3}  # the ruler, and a legend
    assert 'id="data"' in waterfall_page(tables, "s")
    if callers is DEEP:
        assert rows["depth"].max() > 2 * len(DEEP)
        assert fall.lanes["depth"].max() == len(DEEP)


HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror=hacked=1>"
    "\x1b[31m\u202egnp.exe`[bold]x[/bold]${1}"
)


def test_what_a_log_says_takes_no_effect_on_a_terminal(tmp_path, cli):
    path = tmp_path / "events.jsonl"
    path.write_text(session_lines(9, HOSTILE, HOSTILE, HOSTILE), encoding="utf-8")
    for form in ("table", "markdown", "json", "csv"):
        out = cli("show", "--timeline", path, "--format", form)[1]
        assert "\x1b" not in out
        assert "\u202e" not in out
    assert "\\x1b[31m" in cli("show", "--timeline", path, width=200)[1].replace("…", "")


def test_calls_without_a_time_are_said(tmp_path, cli):
    path = tmp_path / "events.jsonl"
    text = session_lines(6)
    path.write_text(text.replace('"timestamp"', '"when"'), encoding="utf-8")
    code, out, _ = cli("show", "--timeline", path)
    assert code == 0
    assert "without a time" in out
    fall = waterfall(load(path), "long-session")
    assert fall.bars.is_empty()
    assert fall.untimed >= 6


def test_content_of_what_cannot_be_read_twice_is_said(cli, monkeypatch):
    log = ROOT / "sample_logs/tools-1.0.102/events.jsonl"
    for words in (["--content"], ["--content", "--html"]):
        with log.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            code, out, err = cli("show", "-", *words)
        assert (code, out) == (1, "")
        assert "again for its content" in err


def test_show_says_what_cannot_be(cli, tmp_path):
    log = ROOT / "sample_logs/tools-1.0.102"
    for words in (["--html", "--timeline"], ["--timeline", "--content"], ["--html", "--json"]):
        assert cli("show", log, *words)[0] == 2
    page = tmp_path / "page.html"
    assert cli("show", log, "--html", "-o", page)[:2] == (0, "")
    assert cli("show", log, "--html", "-o", page)[0] == 1
    assert cli("show", log, "--html")[1] == page.read_text(encoding="utf-8")
