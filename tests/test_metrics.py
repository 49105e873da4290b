"""Answers against plain reckoning: percentiles, parts of time, days, shares, filters."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from copilot_insights import load, metrics, reports, when
from copilot_insights.filters import Filter, select
from copilot_insights.schema import AMOUNTS, PARTS, TABLES, TOKENS

SAMPLES = Path(__file__).parent.parent / "sample_logs"
REAL = Path(__file__).parent / "data" / "real_logs"


@pytest.fixture(scope="module")
def samples():
    return load([SAMPLES])


@pytest.fixture(scope="module")
def real():
    return load([*REAL.glob("*/*/events.jsonl")])


@pytest.fixture
def log(tmp_path):
    """Tables of a session with these events: (time, type, agent, data)."""

    def of(*events, name="s"):
        lines = [
            {"type": kind, "data": data, "id": f"{name}{n}", "timestamp": stamp(at)}
            | ({"agentId": agent} if agent else {})
            for n, (at, kind, agent, data) in enumerate(events)
        ]
        place = tmp_path / name / "events.jsonl"
        place.parent.mkdir(exist_ok=True)
        place.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return load([tmp_path])

    return of


def stamp(at):
    """ISO 8601 of an instant, or of seconds after ten o'clock."""
    if not isinstance(at, datetime):
        at = datetime(2026, 3, 1, 10, tzinfo=UTC) + timedelta(seconds=at)
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


def start(at=0):
    return (at, "session.start", None, {"sessionId": "s"})


def user(at, agent=None):
    return (at, "user.message", agent, {"content": "go"})


def turn(at, seconds=1, tokens=7, model="m", agent=None):
    """A model call of so many seconds, from its start to its end."""
    said = {"content": "", "model": model, "outputTokens": tokens}
    end = at + (timedelta(seconds=seconds) if isinstance(at, datetime) else seconds)
    return [
        (at, "assistant.turn_start", agent, {"turnId": "0", "model": model}),
        (end, "assistant.message", agent, said),
        (end, "assistant.turn_end", agent, {"turnId": "0"}),
    ]


def tool(at, seconds, call, name="bash", agent=None, *, success=True):
    return [
        (at, "tool.execution_start", agent, {"toolCallId": call, "toolName": name}),
        (at + seconds, "tool.execution_complete", agent, {"toolCallId": call, "success": success}),
    ]


def only(frame):
    assert frame.height == 1
    return frame.row(0, named=True)


# --- percentiles --------------------------------------------------------------------------


def percentile(values, share):
    """By linear interpolation between the two nearest."""
    values = sorted(values)
    below, part = divmod(share * (len(values) - 1), 1)
    upper = values[min(int(below) + 1, len(values) - 1)]
    return values[int(below)] + part * (upper - values[int(below)])


@pytest.mark.parametrize(
    "durations",
    [[5], [1, 2], [3, 1, 2], [0, 0, 0, 100], [*range(1, 101)], [7] * 10 + [1000], [9, 1] * 13],
    ids=str,
)
def test_percentiles_of_tools_and_models_are_those_of_plain_reckoning(log, durations):
    at, events = 1, [start(), user(0.5)]
    for number, ms in enumerate(durations):
        events += [*turn(at, ms / 1000), *tool(at + 1, ms / 1000, f"c{number}")]
        at += 3
    tables = log(*events)
    for row in (only(metrics.tools(tables)), only(metrics.models(tables))):
        assert row["calls"] == len(durations)
        assert row["max_ms"] == max(durations)
        assert row["p50_ms"] == pytest.approx(percentile(durations, 0.5), abs=0.5)
        assert row["p95_ms"] == pytest.approx(percentile(durations, 0.95), abs=0.5)
    assert only(metrics.tools(tables))["total_ms"] == sum(durations)


def test_what_never_ended_is_counted_but_in_no_percentile_and_no_total(log):
    tables = log(start(), user(1), *turn(1), *tool(2, 3, "a"), tool(5, 1, "b")[0])
    row = only(metrics.tools(tables))
    assert (row["calls"], row["unfinished"], row["p50_ms"], row["total_ms"]) == (2, 1, 3000, 3000)
    tables = log(start(), user(1), *turn(1), tool(5, 1, "b")[0])
    row = only(metrics.tools(tables))
    assert (row["calls"], row["p50_ms"], row["max_ms"], row["total_ms"]) == (1, None, None, None)


def test_tools_that_never_ended_stand_behind_those_with_a_time(log):
    cut = [tool(9, 1, f"c{n}", f"cut{n}")[0] for n in range(12)]
    tables = log(start(), user(1), *turn(1), *tool(2, 3, "a"), *cut)
    assert metrics.tools(tables)["tool"][0] == "bash"


def test_context_grows_in_the_order_of_the_log_though_the_clock_steps_back(log):
    events = []
    for number, at in enumerate((10, 20, 15)):
        said = {"usage": {"model": "m", "inputTokens": 100 * (number + 1)}}
        used = (at + 1, "session.usage_record", None, said)
        events += [*turn(at)[:2], used, turn(at)[2]]
    grown = metrics.context(log(start(), user(1), *events), 9)
    assert grown["input_tokens"].to_list() == [100, 200, 300]


def test_failures_are_counted_and_rated(log):
    calls = [tool(n, 0.5, f"c{n}", success=n % 4 != 0) for n in range(2, 10)]
    row = only(metrics.tools(log(start(), user(1), *(event for call in calls for event in call))))
    assert (row["calls"], row["failed"], row["failure_rate"]) == (8, 2, 0.25)


def test_the_total_of_task_leaves_out_its_sub_agent(log):
    sub = {"toolCallId": "t", "agentName": "explore"}
    task = tool(2, 10, "t", "task")
    tables = log(
        start(), user(1), *turn(1), task[0],
        (3, "subagent.started", "a", sub), user(3, "a"), *turn(3, agent="a"),
        *tool(5, 4, "c", agent="a"), *turn(9, agent="a"), (11, "subagent.completed", "a", sub),
        task[1],
    )  # fmt: skip
    total = dict(metrics.tools(tables).select("tool", "total_ms").iter_rows())
    assert total == {"bash": 4000, "task": 2000}
    agent = only(metrics.agents(tables))
    assert (agent["agent_name"], agent["runs"], agent["llm_calls"]) == ("explore", 1, 2)
    assert (agent["tool_calls"], agent["total_ms"], agent["output_tokens"]) == (1, 8000, 14)


def test_a_task_in_the_background_keeps_its_own_short_time(log):
    sub = {"toolCallId": "t", "agentName": "explore"}
    tables = log(
        start(), user(1), *turn(1), *tool(2, 0.1, "t", "task"),
        (2.05, "subagent.started", "a", sub), *turn(3, agent="a"), *turn(4),
        (60, "subagent.completed", "a", sub),
    )  # fmt: skip
    assert only(metrics.tools(tables))["total_ms"] == 50
    assert only(metrics.agents(tables))["total_ms"] == 57950


# --- parts of time ------------------------------------------------------------------------


def test_the_parts_of_time_are_whole_and_parallel_tools_count_once(log):
    tables = log(
        start(), user(1), *turn(1, 2), tool(3, 4, "a")[0], tool(3, 6, "b")[0],
        tool(3, 4, "a")[1], tool(3, 6, "b")[1], *turn(9, 1), user(100), *turn(100, 5),
    )  # fmt: skip
    parts = {part: ms for part, ms, _ in metrics.time_parts(tables).iter_rows()}
    assert parts == {"llm": 8000, "tool": 6000, "permission": 0, "hook": 0, "other": 0}
    session = only(tables.sessions)
    assert session["user_ms"] == session["wall_ms"] - 14000 >= 90000


def test_what_an_abort_cuts_short_went_on_until_then(log):
    asked = {"requestId": "r", "permissionRequest": {"toolCallId": "a"}}
    stop = [(9, "abort", None, {"reason": "user_initiated"}),
            (9, "assistant.turn_end", None, {"turnId": "0"})]  # fmt: skip
    begun = [start(), user(1), *turn(1, 2)[:2], tool(3, 1, "a")[0]]
    for waits, tool_ms in (([], 6000), ([(4, "permission.requested", None, asked)], 1000)):
        tables = log(*begun, *waits, *stop, user(20), *turn(20, 1))
        first = tables.interactions.row(0, named=True)
        assert first["outcome"] == "aborted"
        assert (first["llm_ms"], first["other_ms"]) == (2000, 0)
        assert (first["tool_ms"], first["permission_ms"]) == (tool_ms, 6000 - tool_ms)
        assert tables.tool_calls["run_ms"].to_list() == [None]
    # killed: nobody knows how long it ran
    tables = log(*begun, user(20), *turn(20, 1))
    assert tables.interactions["tool_ms"].to_list() == [0, 0]


def test_shares_of_time_add_up(samples, real):
    for tables in (samples, real):
        parts = metrics.time_parts(tables)
        root = tables.interactions.filter(agent_id="main")
        assert parts["ms"].sum() == root.select(pl.sum_horizontal(PARTS)).sum().item()
        assert parts["share"].sum() == pytest.approx(1)
    empty = select(samples, Filter(repo="nope"))
    assert metrics.time_parts(empty)["share"].null_count() == len(PARTS)


# --- days ---------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    "begin",
    ["2026-03-28T20:00", "2026-10-24T20:00", "2026-03-07T23:30", "2026-11-01T03:30"],
    ids=["spring EU", "autumn EU", "spring US", "autumn US"],
)
def test_each_call_is_booked_on_its_day_when_clocks_change(log, zone, begin):
    first = datetime.fromisoformat(begin).replace(tzinfo=UTC)
    times = [first + timedelta(minutes=29 * n) for n in range(100)]  # two days and two midnights
    calls = [event for n, at in enumerate(times) for event in turn(at, tokens=n)]
    tables = log(start(first), user(first), *calls)
    days, tokens = Counter(), Counter()
    for number, at in enumerate(times):
        day = at.astimezone(ZoneInfo(zone)).date()
        days[day] += 1
        tokens[day] += number
    found = metrics.daily(tables, zone)
    assert dict(found.select("day", "llm_calls").iter_rows()) == days
    assert dict(found.select("day", "output_tokens").iter_rows()) == tokens
    assert found["sessions"].to_list() == [1] * len(days)
    assert found["day"].is_sorted()


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_a_day_is_as_long_as_the_clocks_make_it(day, hours):
    since, until = (when.parse(day, "Europe/Berlin", end=end) for end in (False, True))
    assert until - since == timedelta(hours=hours)
    assert since.astimezone(ZoneInfo("Europe/Berlin")).hour == 0


def test_tools_are_of_the_day_on_which_they_began(log):
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    before, after = midnight - timedelta(seconds=5), midnight + timedelta(seconds=5)
    call = {"toolCallId": "c", "toolName": "bash"}
    tables = log(
        start(before), user(before), *turn(before), (before, "tool.execution_start", None, call),
        (after, "tool.execution_complete", None, {"toolCallId": "c", "success": True}),
        *turn(after),
    )  # fmt: skip
    found = metrics.daily(tables, "UTC").select("day", "llm_calls", "tool_calls", "tool_ms")
    assert [row[1:3] for row in found.iter_rows()] == [(1, 1), (1, 0)]
    assert found["tool_ms"][0] == 10000
    assert not found["tool_ms"][1]


# --- groups add up ------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland"])
@pytest.mark.parametrize("column", TOKENS)
def test_tokens_by_day_model_and_agent_are_those_of_the_sessions(samples, real, column, zone):
    for tables in (samples, real):
        whole = tables.sessions[column].sum()
        assert metrics.daily(tables, zone)[column].sum() == whole
        assert metrics.models(tables)[column].sum() == whole
        assert metrics.overview(tables)[column].sum() == whole
        main = tables.bookings.filter(agent_id="main")[column].sum()
        assert main + metrics.agents(tables)[column].sum() == whole
        by_session = tables.bookings.group_by("session_id").agg(pl.col(column).sum())
        told = tables.sessions.select("session_id", pl.col(column).fill_null(0))
        both = told.join(by_session, on="session_id", how="left").fill_null(0)
        assert both[column].to_list() == both[f"{column}_right"].to_list()


def test_counts_by_group_are_those_of_the_sessions(samples, real):
    for tables in (samples, real):
        s = tables.sessions.select(pl.col(pl.Int64, pl.Float64).sum()).row(0, named=True)
        days, tools = metrics.daily(tables, "UTC"), metrics.tools(tables)
        o = only(metrics.overview(tables))
        for name in ("llm_calls", "failed_llm_calls", "tool_calls", "failed_tool_calls"):
            assert days[name].sum() == o[name] == s[name]
        assert (
            metrics.models(tables)["calls"].sum() == metrics.turns(tables).height == s["llm_calls"]
        )
        assert (tools["calls"].sum(), tools["failed"].sum()) == (
            s["tool_calls"],
            s["failed_tool_calls"],
        )
        assert days["tool_ms"].sum() == tools["total_ms"].sum()
        assert metrics.agents(tables)["runs"].sum() == o["subagents"] == s["subagents"]
        for name in ("turns_started", "turns_completed", "compactions", *PARTS):
            assert o[name] == s[name]
        for name in AMOUNTS[-1:]:
            assert (o[name] or 0) == pytest.approx(s[name])


# --- filters ------------------------------------------------------------------------------


def test_no_filter_is_everything(samples):
    assert select(samples, Filter()) is samples


@pytest.mark.parametrize("name", ["llm_calls", "tool_calls", "interactions", "bookings", "usage"])
def test_before_and_after_a_moment_are_everything_once(samples, name):
    times = samples.llm_calls["started_at"].drop_nulls().sort()
    for moment in times.gather([0, len(times) // 3, len(times) // 2, -1]):
        before = select(samples, Filter(until=moment)).table(name)
        after = select(samples, Filter(since=moment)).table(name)
        assert before.height + after.height == samples.table(name).height
        at = "at" if "at" in before.columns else "started_at"
        assert all(value < moment for value in before[at].drop_nulls())
        assert all(value >= moment for value in after[at].drop_nulls())


def test_sessions_one_by_one_are_everything_once(samples):
    for name in TABLES:
        parts = [
            select(samples, Filter(session=i)).table(name).height
            for i in samples.sessions["session_id"]
        ]
        assert sum(parts) == samples.table(name).height


def test_main_and_the_sub_agents_are_everything_once(samples):
    main, others = (select(samples, Filter(agent=agent)) for agent in ("main", "explore"))
    for name in ("llm_calls", "tool_calls", "interactions", "bookings"):
        whole = samples.table(name)
        assert main.table(name).height + others.table(name).height == whole.height
    assert set(others.sessions["session_id"]) == set(samples.subagents["session_id"])


def test_a_model_has_its_calls_with_their_tools_and_loops(log):
    tables = log(
        start(), user(1), *turn(1, model="gpt-big"), *tool(2, 1, "a", "bash"), user(10),
        *turn(10, model="opus"), *tool(11, 1, "b", "view"), *turn(12, model="opus"),
    )  # fmt: skip
    chosen = select(tables, Filter(model="OPUS"))
    assert chosen.llm_calls["model"].to_list() == ["opus", "opus"]
    assert chosen.tool_calls["tool"].to_list() == ["view"]
    assert chosen.interactions["interaction"].to_list() == [1]
    assert only(metrics.overview(chosen))["output_tokens"] == 14
    assert not select(tables, Filter(model="none")).sessions.height


def test_damage_stays_with_its_session_whatever_time_is_asked_for(log, tmp_path):
    log(start(), user(1), *turn(1))
    with (tmp_path / "s" / "events.jsonl").open("a") as file:
        file.write("damage\n")
    tables = load([tmp_path])
    kinds = select(tables, Filter(since=datetime(2026, 1, 1, tzinfo=UTC))).incidents["kind"]
    assert "rejected_line" in kinds.to_list()
    assert not select(tables, Filter(since=datetime(2027, 1, 1, tzinfo=UTC))).incidents.height


@pytest.mark.parametrize(
    "chosen",
    [
        Filter(),
        Filter(
            since=datetime(2026, 12, 1, 3, 36, tzinfo=UTC), until=datetime(2027, 1, 1, tzinfo=UTC)
        ),
        Filter(model="mock", agent="explore"),
        Filter(repo="shop", session="a", branch="m", agent="main"),
    ],
)
def test_the_overview_needs_no_more_than_the_columns_it_names(samples, chosen):
    narrow = load([SAMPLES], only=reports.OVERVIEW)
    assert set(narrow.llm_calls.columns) < set(samples.llm_calls.columns)
    pairs = zip(
        reports.report(select(samples, chosen), chosen, "UTC"),
        reports.report(select(narrow, chosen), chosen, "UTC"),
        strict=True,
    )
    for whole, part in pairs:
        assert (whole.lines, whole.note) == (part.lines, part.note)
        assert_frame_equal(whole.frame, part.frame)


@pytest.mark.parametrize(
    "chosen",
    [
        Filter(agent="explore"),
        Filter(agent="main"),
        Filter(model="mock", agent="main"),
        Filter(since=datetime(2026, 12, 1, 3, 37, 32, tzinfo=UTC)),
        Filter(until=datetime(2026, 12, 1, 3, 37, 36, tzinfo=UTC)),
        # behind the beginning of an interaction, before its first call
        Filter(since=datetime(2026, 12, 1, 3, 37, 14, 623_000, tzinfo=UTC)),
    ],
    ids=repr,
)
def test_of_sessions_only_what_is_chosen_is_counted(samples, chosen):
    part = select(samples, chosen)
    sessions, whole = metrics.sessions(part), metrics.overview(part).row(0, named=True)
    assert sessions["part"].any()
    for name in ("llm_calls", "failed_llm_calls", "tool_calls", "subagents", *TOKENS, *PARTS):
        assert sessions[name].sum() == (whole[name] or 0), name
    active = sessions.filter("part")
    assert (
        active["active_ms"].to_list()
        == active.select(pl.sum_horizontal(PARTS)).to_series().to_list()
    )


def test_whole_sessions_are_what_the_table_says(real):
    sessions = metrics.sessions(real)
    assert not sessions["part"].any()
    assert_frame_equal(sessions.drop("part", "active_ms"), real.sessions)


def test_a_report_of_a_sub_agent_is_of_its_own_interactions(samples):
    part = select(samples, Filter(agent="explore"))
    overview, runs = metrics.overview(part), part.subagents.height
    assert overview["interactions"].item() == runs == 5
    assert metrics.time_parts(part)["ms"].sum() > 0


def test_the_share_of_reasoning_is_of_output_that_states_it(samples):
    overview = reports.report(samples, Filter(), "UTC")[0]
    said = dict(overview.lines)["tokens"]
    assert said.endswith("1,282 out (of it 225 reasoning, 23 % of the 968 that state it)")


def test_the_title_says_which_time_was_chosen(samples):
    def title(**when_):
        return reports.overview(samples, Filter(**when_), "Europe/Berlin").title

    day = datetime(2026, 11, 30, 23, tzinfo=UTC)  # midnight in Berlin
    assert title(since=day, until=day + timedelta(days=1)).endswith(
        "since 2026-12-01 · until 2026-12-01"
    )
    assert title(until=day + timedelta(hours=1)).endswith("until 2026-12-01 01:00")


def test_a_completion_without_its_start_is_of_its_own_time(log):
    done = tool(2, 3, "a")[1]
    tables = log(start(), user(1), *turn(1), done)
    moment = datetime(2026, 3, 1, 10, 0, 4, tzinfo=UTC)
    assert select(tables, Filter(since=moment)).tool_calls.height == 1
    assert select(tables, Filter(until=moment)).tool_calls.height == 0


def test_sub_agents_of_one_kind_with_several_models_can_be_told_apart(samples):
    columns = {column.of: column.rank for column in reports.agents(samples).columns}
    assert columns["model"] == 0
