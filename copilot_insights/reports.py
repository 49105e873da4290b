"""Named reports: tables → sections. A section is a frame for machines, and the columns and
lines of it that people read; how it looks is `render`'s business.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import polars as pl

from copilot_insights import metrics, units
from copilot_insights.filters import Filter
from copilot_insights.schema import AMOUNTS, MAIN, PARTS, TABLES
from copilot_insights.tables import Tables


@dataclass(frozen=True)
class Column:
    """A column for people. `unit` names how it reads; a higher `rank` gives way sooner
    where the terminal is narrow. `of` is the frame's column, by default `title`'s words.
    """

    of: str
    title: str
    unit: str = "text"
    rank: int = 0


Line = tuple[tuple[str, str], ...]
"""A line of a picture in characters: texts and how they look (names of rich)."""


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        name: its key in JSON.
        title: its heading; empty for none.
        frame: all of it, for machines.
        columns: what people see; none for a section of lines only.
        shown: the frame that `columns` are of, when it is not `frame`.
        lines: (label, text) pairs shown above the columns.
        note: a sentence below.
        limit: rows shown to people; all are in the other formats.
        rest: what to say of those that are not shown.
        newest: the shown rows are the last ones, not the first.
        picture: instead of columns, lines for a width in cells.
    """

    name: str
    title: str
    frame: pl.DataFrame
    columns: tuple[Column, ...] = ()
    shown: pl.DataFrame | None = None
    lines: tuple[tuple[str, str], ...] = ()
    note: str = ""
    limit: int | None = None
    rest: str = "--limit 0 shows all."
    newest: bool = False
    picture: Callable[[int], Iterable[Line]] | None = None


_AMOUNTS: Final = (
    Column("input_tokens", "tokens in", "count", 1),
    Column("cache_read_tokens", "cached", "count", 3),
    Column("output_tokens", "out", "count", 1),
    Column("reasoning_tokens", "reasoning", "count", 5),
    Column("ai_credits", "credits", "amount", 2),
    Column("premium_requests", "premium", "amount", 4),
)
PART_NAMES: Final = {
    "llm_ms": "model",
    "tool_ms": "tools",
    "permission_ms": "your answers",
    "hook_ms": "hooks",
    "other_ms": "other",
}
"""What the parts of an interaction's time are called."""
_DAYS: Final = 14
_TOP: Final = 10


# --- the report ---------------------------------------------------------------------------


def report(tables: Tables, chosen: Filter, tz: str) -> list[Section]:
    """The overview: calls, tokens, credits, time, models, tools, sub-agents, days, quality."""
    sections = [
        overview(tables, chosen, tz),
        time(tables, chosen),
        models(tables),
        tools(tables, _TOP),
    ]
    if tables.subagents.height:
        sections.append(agents(tables))
    return [*sections, daily(tables, tz, _DAYS), quality(tables)]


def overview(tables: Tables, chosen: Filter, tz: str) -> Section:
    """How much there was."""
    frame = metrics.overview(tables)
    o = frame.row(0, named=True)
    days = " to ".join(
        dict.fromkeys(units.moment(o[end], tz)[:10] for end in ("started_at", "ended_at"))
    )
    n = {name: units.count(value) for name, value in o.items() if not isinstance(value, datetime)}
    calls = f"{n['llm_calls']} in {units.plural(o['interactions'], 'interaction')}"
    cached = _of_it(o["cache_read_tokens"], o["input_tokens"], "cached")
    reasoning = _of_it(o["reasoning_tokens"], o["reasoned_tokens"], "reasoning")
    if reasoning and o["reasoned_tokens"] < o["output_tokens"]:
        reasoning = f"{reasoning[:-1]} of the {n['reasoned_tokens']} that state it)"
    packed = (
        f"and {n['compaction_input_tokens']} in, {n['compaction_output_tokens']} out "
        f"for {units.plural(o['compactions'], 'compaction')}"
    )
    cost = [
        _stated(tables, "ai_credits", o["ai_credits"], "AI credits"),
        _stated(tables, "premium_requests", o["premium_requests"], "premium requests"),
    ]
    rate = units.percent(o["failed_tool_calls"] / (o["tool_calls"] or 1))
    lines = (
        ("sessions", _list(n["sessions"], days, _versions(tables))),
        ("model calls", _list(calls, _some(o["nudges"], "nudge"), _failed(o["failed_llm_calls"]))),
        ("", _turns(o)),
        (
            "tokens",
            _list(f"{n['input_tokens']} in{cached}", f"{n['output_tokens']} out{reasoning}"),
        ),
        ("", packed if o["compaction_input_tokens"] else ""),
        ("cost", _list(*cost)),
        (
            "tool calls",
            _list(
                n["tool_calls"],
                _failed(o["failed_tool_calls"]) and f"{_failed(o['failed_tool_calls'])} ({rate})",
                o["denied_tool_calls"] and f"{n['denied_tool_calls']} of them denied",
            ),
        ),
    )
    return Section(
        "overview", _title(chosen, tz), frame, lines=tuple(line for line in lines if line[1])
    )


def _stated(tables: Tables, column: str, amount: float | None, what: str) -> str:
    """An amount, and of how many sessions it is where some do not say."""
    known, of = tables.sessions[column].count(), tables.sessions.height
    if not known or amount is None:
        return f"{what} not stated"
    part = "" if known == of else f" (stated by {units.count(known)} of {units.count(of)} sessions)"
    return f"{units.amount(amount)} {what}{part}"


def _some(number: int, what: str) -> str:
    return units.plural(number, what) if number else ""


def _failed(number: int) -> str:
    return f"{units.count(number)} failed" if number else ""


def _title(chosen: Filter, tz: str) -> str:
    names = ("session", "repo", "branch", "model", "agent")
    picked = [f"{n} {getattr(chosen, n)}" for n in names if getattr(chosen, n)]
    if chosen.until:  # the end of a day is the beginning of the next
        picked.insert(0, f"until {_edge(chosen.until, timedelta(days=1), tz)}")
    if chosen.since:
        picked.insert(0, f"since {_edge(chosen.since, timedelta(), tz)}")
    return _list("Copilot CLI sessions", *picked)


def _edge(at: datetime, less: timedelta, tz: str) -> str:
    """A moment; a midnight as the day that is `less` before it."""
    here = at.astimezone(ZoneInfo(tz))
    day = here.time() == datetime.min.time()
    return (here.date() - less).isoformat() if day else units.moment(at, tz)


def _list(*parts: object) -> str:
    return " · ".join(str(part) for part in parts if part)


def _of_it(part: int | None, whole: int | None, what: str) -> str:
    if part is None or not whole:
        return ""
    return f" (of it {units.count(part)} {what}, {units.percent(part / whole)})"


def _versions(tables: Tables) -> str:
    versions = sorted(
        tables.sessions["cli_version"].drop_nulls().unique(),
        key=lambda version: [(len(part), part) for part in version.split(".")],  # 12 before 102
    )
    if not versions:
        return ""
    versions = [version if len(version) <= 20 else f"{version[:20]}…" for version in versions]
    shown = versions if len(versions) <= 3 else [versions[0], "…", versions[-1]]
    return f"CLI {', '.join(shown)}"


def _turns(o: dict[str, int]) -> str:
    """Why calls are not the same as turns, when they are not."""
    if o["llm_calls"] == o["turns_started"] == o["turns_completed"]:
        return ""
    cut = o["turns_started"] - o["turns_completed"]
    begun = f"{units.plural(o['turns_started'], 'turn')} started"
    return _list(
        begun,
        f"{units.count(o['turns_completed'])} completed",
        cut and f"{units.count(cut)} cut off",
        o["unlogged_turns"] and f"{units.count(o['unlogged_turns'])} by sub-agents without turns",
        o["compactions"] and units.plural(o["compactions"], "compaction"),
    )


def time(tables: Tables, chosen: Filter) -> Section:
    """Where the time went."""
    frame = metrics.time_parts(tables)
    label = pl.format("{}_ms", "part").replace_strict(PART_NAMES)
    shown = frame.with_columns(label=label, bar="share").filter(
        (pl.col("ms") > 0) | pl.col("part").is_in(["llm", "tool"])
    )
    whole = int(frame["ms"].sum())
    part = chosen.timed() or chosen.model or chosen.agent
    away = 0 if part else int(tables.sessions["user_ms"].sum())
    notes = [
        f"{units.duration(whole)} in interactions",
        away and f"waiting for the user beside that: {units.duration(away)}",
    ]
    columns = (
        Column("label", ""),
        Column("bar", "", "bar"),
        Column("share", "", "percent"),
        Column("ms", "", "ms"),
    )
    return Section(
        "time",
        "Where the time went",
        frame,
        columns,
        shown,
        note="; ".join(str(n) for n in notes if n) + ".",
    )


def models(tables: Tables) -> Section:
    """Calls, latency and amounts by model."""
    columns = (
        Column("model", "model"),
        Column("calls", "calls", "count"),
        Column("failed", "failed", "count", 3),
        Column("p50_ms", "p50", "ms"),
        Column("p95_ms", "p95", "ms", 1),
        Column("max_ms", "max", "ms", 4),
        Column("ttft_p50_ms", "first token", "ms", 6),
        *_AMOUNTS,
    )
    retries = tables.incidents.filter(pl.col("kind") == "retry").height
    note = (
        f"{units.plural(retries, 'retry', 'retries')}, their waiting is in no call."
        if retries
        else ""
    )
    return Section("models", "Models", metrics.models(tables), columns, note=note)


def tools(tables: Tables, limit: int | None = None) -> Section:
    """Calls, failures and latency by tool; longest in total first."""
    frame = metrics.tools(tables)
    whole = frame["total_ms"].max() or 1
    shown = frame.with_columns(share=pl.col("total_ms") / whole)
    columns = (
        Column("tool", "tool"),
        Column("calls", "calls", "count"),
        Column("failed", "failed", "count"),
        Column("failure_rate", "rate", "percent", 4),
        Column("denied", "denied", "count", 6),
        Column("unfinished", "cut off", "count", 5),
        Column("nonzero_exits", "exit ≠ 0", "count", 5),
        Column("p50_ms", "p50", "ms"),
        Column("p95_ms", "p95", "ms"),
        Column("max_ms", "max", "ms", 1),
        Column("total_ms", "total", "ms"),
        Column("share", "", "bar", 2),
        Column("permission_ms", "permission", "ms", 7),
        Column("hook_ms", "hooks", "ms", 7),
        Column("category", "kind", "text", 8),
    )
    note = (
        "Run time: without waiting for permissions, hooks and people; the total of task also "
        "without its sub-agent."
    )
    return Section("tools", "Tools", frame, columns, shown, note=note, limit=limit)


def agents(tables: Tables) -> Section:
    """What sub-agents did and cost."""
    frame = metrics.agents(tables)
    several = frame["agent_name"].is_duplicated().any()  # of one kind, with several models
    columns = (
        Column("agent_name", "sub-agent"),
        Column("model", "model", "text", 0 if several else 3),
        Column("runs", "runs", "count"),
        Column("failed", "failed", "count", 2),
        Column("unfinished", "cut off", "count", 4),
        Column("llm_calls", "calls", "count"),
        Column("tool_calls", "tools", "count", 2),
        *_AMOUNTS[:3],
        Column("p50_ms", "p50", "ms", 1),
        Column("max_ms", "max", "ms", 4),
        Column("total_ms", "total", "ms"),
    )
    return Section("agents", "Sub-agents", frame, columns)


def daily(tables: Tables, tz: str, limit: int | None = None) -> Section:
    """The trend by day."""
    frame = metrics.daily(tables, tz)
    shown = frame.with_columns(share=pl.col("llm_calls") / (frame["llm_calls"].max() or 1))
    columns = (
        Column("day", "day", "day"),
        Column("llm_calls", "calls", "count"),
        Column("share", "", "bar", 2),
        Column("sessions", "sessions", "count", 3),
        Column("failed_llm_calls", "failed", "count", 6),
        Column("tool_calls", "tools", "count", 2),
        Column("failed_tool_calls", "tools failed", "count", 5),
        *_AMOUNTS,
        Column("llm_ms", "model time", "ms", 4),
        Column("tool_ms", "tool time", "ms", 4),
    )
    return Section("daily", f"By day ({tz})", frame, columns, shown, limit=limit, newest=True)


# incident → what one and many are called, and whether `check` minds it
_KINDS: Final[dict[str, tuple[str, str, bool]]] = {
    "unreadable": ("unreadable place", "unreadable places", True),
    "rejected_line": ("line not an event", "lines not events", True),
    "bad_field": ("event damaged", "events damaged", True),
    "lost_lines": ("gap of lost lines", "gaps of lost lines", True),
    "out_of_order": ("event out of order", "events out of order", False),
    "clock_back": ("clock set back", "clocks set back", False),
    "unpaired_end": ("end without a start", "ends without a start", True),
    "count_mismatch": ("total disagrees", "totals disagree", True),
    "open_turn": ("turn cut off", "turns cut off", True),
    "open_tool": ("tool cut off", "tools cut off", True),
    "tokens_unknown": ("session's tokens unknown", "sessions' tokens unknown", False),
    "unknown_type": ("unknown event type", "unknown event types", False),
}
PROBLEMS: Final = tuple(kind for kind, (_, _, problem) in _KINDS.items() if problem)
_SOURCES: Final = {
    "usage_record": "usage records",
    "store": "the session store",
    "shutdown": "shutdown totals",
    "checkpoint": "checkpoints",
    "message": "messages (output only)",
}


def quality(tables: Tables) -> Section:
    """What was damaged, cut, unknown or estimated, and where the numbers come from."""
    frame = metrics.quality(tables)
    found = {row["kind"]: row for row in frame.iter_rows(named=True)}
    words = [
        units.plural(found[kind]["incidents"], one, many)
        for kind, (one, many, _) in _KINDS.items()
        if kind in found
    ]
    if repeats := int(tables.sessions["duplicate_events"].sum()):
        words.append(f"{units.plural(repeats, 'event')} found again and counted once")
    read = units.plural(int(tables.sessions["events"].sum()), "event")
    lines = [("read", _list(read, *(words or ["nothing damaged, nothing open"])))]
    sources: dict[str, int] = {}
    for value in tables.sessions["usage_source"]:
        for source in (value or "").split("+"):
            sources[source] = sources.get(source, 0) + 1
    told = [f"{_SOURCES[s]} {units.count(n)}" for s, n in sources.items() if s in _SOURCES]
    if sources.get(""):
        told.append(f"not stated {units.count(sources[''])}")
    lines.append(("tokens from", f"{_list(*told)} (sessions)"))
    if tables.bookings["estimated"].any():
        lines.append(("estimated", "stated totals are shared out to calls for days and sub-agents"))
    return Section("quality", "Data quality", frame, lines=tuple(lines))


# --- lists --------------------------------------------------------------------------------


def sessions(tables: Tables) -> Section:
    """One line per session, newest last."""
    found = metrics.sessions(tables).sort("started_at", nulls_last=False)
    frame = found.drop("active_ms", "part")
    shown = found.with_columns(
        id=pl.col("session_id").str.head(8),
        where=metrics.WHERE,
        end=pl.when(pl.col("ending") == "routine")
        .then(pl.lit(""))
        .otherwise(pl.col("ending").replace({"none": "cut off"})),
    )
    columns = (
        Column("started_at", "started", "time"),
        Column("id", "session"),
        Column("where", "where", "text", 3),
        Column("branch", "branch", "text", 6),
        Column("model", "model", "text", 3),
        Column("cli_version", "CLI", "text", 5),
        Column("llm_calls", "calls", "count"),
        Column("failed_llm_calls", "failed", "count", 6),
        Column("tool_calls", "tools", "count", 1),
        Column("failed_tool_calls", "tools failed", "count", 4),
        Column("subagents", "agents", "count", 7),
        *_AMOUNTS,
        Column("active_ms", "active", "ms"),
        Column("end", "end", "text", 1),
    )
    note = "Of each session the part that was chosen." if found["part"].any() else ""
    return Section("sessions", "Sessions", frame, columns, shown, note=note, limit=40, newest=True)


def turns(tables: Tables) -> Section:
    """One line per model call: how long it took, what it cost, which tools it asked for."""
    order = tables.sessions.select("session_id", "started_at").rename({"started_at": "begun"})
    frame = metrics.turns(tables).join(order, on="session_id", how="left")
    frame = frame.sort("begun", maintain_order=True).drop("begun")
    shown = frame.with_columns(
        id=pl.col("session_id").str.head(8),
        agent=pl.when(pl.col("agent_id") == MAIN)
        .then(pl.lit(""))
        .otherwise(pl.col("agent_id").str.head(8)),
        what=pl.when(pl.col("evidence") == "compaction")
        .then(pl.lit("compaction"))
        .otherwise("turn_id"),
        state=pl.when(pl.col("status") != "ok").then("status"),
    )
    columns = (
        Column("started_at", "started", "time"),
        Column("id", "session"),
        Column("agent", "agent", "text", 0),
        Column("interaction", "loop", "count", 5),
        Column("what", "turn", "text", 0),
        Column("model", "model", "text", 3),
        Column("state", "status", "text", 1),
        Column("llm_ms", "model time", "ms"),
        Column("ttft_ms", "first token", "ms", 6),
        *_AMOUNTS[:3],
        Column("reasoning_tokens", "reasoning", "count", 6),
        Column("tools", "tools", "text", 2),
        Column("tool_ms", "tool time", "ms", 2),
    )
    return Section("turns", "Model calls", frame, columns, shown, limit=40, newest=True)


def table(tables: Tables, name: str) -> Section:
    """A table, whole."""
    columns = tuple(
        Column(column, column, _UNITS.get(str(dtype), "text"), rank)
        for rank, (column, dtype) in enumerate(TABLES[name].items())
    )
    return Section(name, "", tables.table(name), columns)


_UNITS: Final = {
    "Int64": "number",
    "Float64": "number",
    "Datetime(time_unit='ms', time_zone='UTC')": "stamp",
}


def check(tables: Tables) -> Section:
    """Every incident that is a problem, the unknown types, and what can't be read."""
    unread = [{"kind": "unreadable", "detail": problem} for problem in tables.problems]
    every = pl.concat([pl.DataFrame(unread, TABLES["incidents"]), tables.incidents])
    found = every.filter(pl.col("kind").is_in(list(_KINDS))).join(
        tables.sessions.select("session_id", "path"), on="session_id", how="left"
    )
    shown = found.with_columns(
        id=pl.col("session_id").str.head(8),
        what=pl.col("kind").replace_strict({kind: one for kind, (one, _, _) in _KINDS.items()}),
        order=pl.col("kind").replace_strict({kind: n for n, kind in enumerate(_KINDS)}),
        log=pl.col("path").str.split("/").list.tail(2).list.join("/"),
    ).sort("order", maintain_order=True)
    columns = (
        Column("id", "session"),
        Column("what", "what"),
        Column("detail", "where"),
        Column("log", "log", "text", 6),
        Column("at", "time", "time", 5),
    )
    number = found.filter(pl.col("kind").is_in(PROBLEMS)).height
    problems = units.plural(number, "problem")
    if number < found.height:
        problems += f" and {units.plural(found.height - number, 'doubt')}"
    events = units.plural(int(tables.sessions["events"].sum()), "event")
    title = f"{problems} in {units.plural(tables.sessions.height, 'session')}, {events}"
    return Section("check", title, found, columns, shown)


USED: Final = (
    "interactions",
    "llm_calls",
    "tool_calls",
    "bookings",
    "subagents",
    "incidents",
)
"""The tables that reports are made of, besides `sessions`."""

_PLACE: Final = ("session_id", "agent_id", "interaction", "turn", "started_at", "ended_at")
OVERVIEW: Final[dict[str, Sequence[str]]] = {
    "interactions": (*_PLACE, "kind", *PARTS),
    "llm_calls": (
        *_PLACE, "evidence", "model", "status", "replied_at", "llm_ms", "ttft_ms",
        "input_tokens", "output_tokens",
    ),
    "tool_calls": (
        *_PLACE, "tool_call_id", "tool", "category", "status", "exit_code", "run_ms",
        "permission_ms", "hook_ms",
    ),
    "bookings": ("session_id", "agent_id", "model", "at", "estimated", *AMOUNTS),
    "subagents": tuple(TABLES["subagents"]),
    "incidents": tuple(TABLES["incidents"]),
}  # fmt: skip
"""The columns that `report`, and what can be chosen with it, is made of: a corpus of many
gigabytes has millions of calls.
"""

NAMED: Final[dict[str, Callable[[Tables, Filter, str], list[Section]]]] = {
    "report": report,
    "sessions": lambda t, _f, _tz: [sessions(t)],
    "turns": lambda t, _f, _tz: [turns(t)],
    "tools": lambda t, _f, _tz: [tools(t)],
    "models": lambda t, _f, _tz: [models(t)],
    "agents": lambda t, _f, _tz: [agents(t)],
    "daily": lambda t, _f, tz: [daily(t, tz)],
    "check": lambda t, _f, _tz: [check(t)],
}
"""Report → its sections, of tables that are chosen already, in a time zone."""
