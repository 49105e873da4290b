"""What sessions do now: tables → one row per session, by what is open in them."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl
import psutil

from copilot_insights import units
from copilot_insights.discover import LOG
from copilot_insights.metrics import WHERE
from copilot_insights.reports import Column, Section
from copilot_insights.rows import COURSE, Row, Rows, by_session
from copilot_insights.schema import AT, MAIN
from copilot_insights.tables import Tables

STATES: Final = (
    "asks you", "tool", "sub-agent", "model", "compaction", "hook", "starting", "your turn",
    "quiet", "killed", "ended",
)  # fmt: skip
"""Most urgent first. `quiet`: something is open, but nothing was written for a long time."""

_QUIET: Final = timedelta(minutes=30)
_STUCK: Final = {"tool": 10, "model": 5, "compaction": 5, "hook": 2}  # minutes
_SCHEMA: Final[dict[str, Any]] = {
    "session_id": pl.String, "state": pl.String, "what": pl.String, "since": AT,
    "elapsed_ms": pl.Int64, "warning": pl.String, "where": pl.String, "branch": pl.String,
    "model": pl.String, "interactions": pl.Int64, "llm_calls": pl.Int64, "tool_calls": pl.Int64,
    "failed_tool_calls": pl.Int64, "input_tokens": pl.Int64, "output_tokens": pl.Int64,
    "context_tokens": pl.Int64, "ai_credits": pl.Float64, "last_at": AT,
}  # fmt: skip


def alive(log: str) -> bool | None:
    """Whether a process works on the session of a log; None where nothing says so.

    The CLI keeps `inuse.PID.lock` in the session's directory (1.0.102), and leaves it there
    when it is killed.
    """
    locks = list(Path(log).parent.glob("inuse.*.lock")) if Path(log).name == LOG else []
    return any(map(_runs, locks)) if locks else None


def _runs(lock: Path) -> bool:
    pid = lock.name.split(".")[1]
    try:
        process = psutil.Process(int(pid))
        # a number can be given anew: its process is then younger than the lock
        return (
            process.status() != psutil.STATUS_ZOMBIE
            and process.create_time() < lock.stat().st_mtime + 2
        )
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError, OSError):
        return False


def status(tables: Tables, now: datetime) -> pl.DataFrame:
    """A row per session: its state, of `STATES`, what and since when, and its counts.

    `context_tokens` is what the root agent's last answered call read and wrote.
    """
    tables = replace(tables, sessions=tables.sessions.with_columns(where=WHERE))
    found = [_row(session, rows, now) for session, rows in by_session(tables, COURSE)]
    return ordered(pl.DataFrame(found, schema=_SCHEMA, orient="row"))


def nothing() -> pl.DataFrame:
    """No session."""
    return pl.DataFrame(schema=_SCHEMA)


def ordered(frame: pl.DataFrame) -> pl.DataFrame:
    """What needs a person first, what is over last; else the newest first."""
    order = pl.col("state").replace_strict({state: n for n, state in enumerate(STATES)})
    over = pl.col("state").is_in(["killed", "ended"])
    return frame.sort(
        over, pl.when(over).then(0).otherwise(order), "last_at",
        descending=[False, False, True], nulls_last=True,
    )  # fmt: skip


def _row(session: Row, rows: Rows, now: datetime) -> Row:
    last = session["ended_at"]
    state, what, since = _state(session, rows)
    runs = alive(session["path"])
    within = f"in {what or state}" if state != "your turn" else ""
    if session["ending"] != "none" and (runs is not True or state == "your turn"):
        state, what, since = "ended", session["ending"].replace("routine", ""), last
    elif runs is False:
        state, what, since = "killed", within, last
    elif runs is None and last and now - last > _QUIET:
        state, what, since = "quiet", within, last
    since = since or last
    elapsed = max(0, round((now - since).total_seconds() * 1000)) if since else None
    context = [
        (call["input_tokens"] or 0) + (call["output_tokens"] or 0)
        for call in rows["llm_calls"]
        if call["agent_id"] == MAIN
        and call["evidence"] != "compaction"
        and call["input_tokens"] is not None
    ]
    return {
        **{name: session[name] for name in _SCHEMA if name in session},
        "state": state,
        "what": what,
        "since": since,
        "elapsed_ms": elapsed,
        "warning": _warning(rows, state, elapsed),
        "context_tokens": context[-1] if context else None,
        "last_at": last,
    }


_State = tuple[str, str, datetime | None]


def _state(session: Row, rows: Rows) -> _State:  # noqa: C901, PLR0911 (a list of cases)
    """What is open, the most urgent first."""

    def still(table: str, open_: Callable[[Row], bool]) -> list[Row]:
        return [row for row in rows[table] if row["started_at"] and open_(row)]

    def unended(row: Row) -> bool:
        return row["ended_at"] is None

    def is_open(row: Row) -> bool:
        return bool(row["status"] == "open")

    tools = still("tool_calls", is_open)
    waits, hooks = still("permissions", unended), still("hooks", unended)
    asking = [tool for tool in tools if tool["category"] == "user"]
    working = [tool for tool in tools if tool["tool"] != "task"]
    agents, calls = still("subagents", is_open), still("llm_calls", is_open)
    loops = [row for row in rows["interactions"] if row["agent_id"] == MAIN]
    if waits:
        return "asks you", f"permission: {waits[-1]['kind'] or '?'}", waits[-1]["started_at"]
    if asking:
        return "asks you", asking[-1]["tool"], asking[-1]["started_at"]
    if working:
        return "tool", _names(working, "tool"), working[0]["started_at"]
    if agents:
        return "sub-agent", _names(agents, "agent_name"), agents[0]["started_at"]
    if calls:
        packs = calls[-1]["evidence"] == "compaction"
        name = "compaction" if packs else "model"
        return name, calls[-1]["model"] or "", calls[-1]["started_at"]
    if hooks:
        return "hook", hooks[-1]["kind"] or "", hooks[-1]["started_at"]
    if loops and loops[-1]["outcome"] == "open":
        return "starting", "", loops[-1]["ended_at"]
    return "your turn", "", session["ended_at"]


def _names(rows: list[Row], column: str) -> str:
    return ", ".join(dict.fromkeys(row[column] or "?" for row in rows))


def _warning(rows: Rows, state: str, elapsed: int | None) -> str | None:
    limit = _STUCK.get(state)
    if limit and elapsed is not None and elapsed > limit * 60_000:
        return f"stuck? nothing for {elapsed // 60_000} min"
    repeats = any(row["kind"] == "repeated_call" for row in rows["incidents"])
    return "repeats a call" if repeats and state not in {"ended", "killed"} else None


def section(frame: pl.DataFrame, sessions: int, limit: int | None = None) -> Section:
    """What is seen of it, of so many sessions in all."""
    shown = frame.with_columns(
        id=pl.col("session_id").str.head(8),
        doing=pl.concat_str("state", pl.when(pl.col("what") != "").then("what"),
                            separator=" ", ignore_nulls=True),
        waiting=pl.when(~pl.col("state").is_in(["ended"])).then("elapsed_ms"),
    )  # fmt: skip
    columns = (
        Column("id", "session"),
        Column("where", "where", "text", 3),
        Column("branch", "branch", "text", 7),
        Column("doing", "now"),
        Column("waiting", "for", "ms"),
        Column("llm_calls", "calls", "count", 1),
        Column("tool_calls", "tools", "count", 2),
        Column("failed_tool_calls", "failed", "count", 2),
        Column("context_tokens", "context", "count", 4),
        Column("input_tokens", "tokens in", "count", 3),
        Column("output_tokens", "out", "count", 5),
        Column("ai_credits", "credits", "amount", 6),
        Column("model", "model", "text", 6),
        Column("warning", "note", "text", 1),
    )
    going = frame.filter(~pl.col("state").is_in(["ended", "killed"])).height
    title = f"{going} of {units.plural(sessions, 'session')} going on"
    rest = "the terminal has no room for them."
    return Section("watch", title, frame, columns, shown, limit=limit, rest=rest)
