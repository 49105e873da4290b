"""Sections that stand behind charts: what `reports` has not, by day, by session, by call."""

from typing import Final

import polars as pl

from copilot_insights import metrics, units
from copilot_insights.reports import PART_NAMES, Column, Section
from copilot_insights.tables import Tables

_PARTS: Final = tuple(Column(part, name, "ms") for part, name in PART_NAMES.items())
_SESSIONS: Final = 8
HOW: Final = {"open": "cut off", "exit": "exit ≠ 0"}
"""What people call the status of a call that did not go well, where it is not their word."""


def days_and_models(tables: Tables, tz: str) -> Section:
    """Calls, tokens and credits by day and model."""
    columns = (
        Column("day", "day", "day"),
        Column("model", "model"),
        Column("calls", "calls", "count"),
        Column("input_tokens", "tokens in", "count"),
        Column("cache_read_tokens", "cached", "count"),
        Column("output_tokens", "out", "count"),
        Column("ai_credits", "credits", "amount"),
    )
    return Section(
        "daily_models", f"By day and model ({tz})", metrics.daily_models(tables, tz), columns
    )


def time_by_day(tables: Tables, tz: str) -> Section:
    """Where the time of each day went."""
    columns = (Column("day", "day", "day"), *_PARTS)
    return Section("daily_time", f"Time by day ({tz})", metrics.daily_time(tables, tz), columns)


def session_time(tables: Tables) -> Section:
    """Where the time of each session went, longest first."""
    frame = metrics.session_time(tables)
    shown = frame.with_columns(id=pl.col("session_id").str.head(8))
    columns = (Column("id", "session"), Column("active_ms", "active", "ms"), *_PARTS)
    return Section("session_time", "Time by session", frame, columns, shown)


def spread(calls: pl.DataFrame, by: str, column: str) -> Section:
    """How the latencies of calls spread, for each `by`."""
    columns = (
        Column(by, by),
        Column("calls", "calls", "count"),
        Column("timed", "timed", "count"),
        Column("p5_ms", "p5", "ms"),
        Column("p25_ms", "p25", "ms"),
        Column("p50_ms", "p50", "ms"),
        Column("p75_ms", "p75", "ms"),
        Column("p95_ms", "p95", "ms"),
        Column("max_ms", "max", "ms"),
    )
    return Section(f"{by}_latency", "Latency", metrics.spread(calls, by, column), columns)


def failures(tables: Tables) -> Section:
    """Why tool calls did not go well."""
    frame = metrics.failures(tables)
    shown = frame.with_columns(how=pl.col("status").replace(HOW))
    columns = (
        Column("tool", "tool"),
        Column("how", "how it ended"),
        Column("reason", "reason"),
        Column("calls", "calls", "count"),
        Column("sessions", "sessions", "count"),
    )
    return Section("failures", "How tool calls failed or stopped", frame, columns, shown)


def context(tables: Tables) -> Section:
    """How the context grew in the sessions in which it grew largest."""
    frame = metrics.context(tables, _SESSIONS)
    shown = frame.with_columns(
        id=pl.col("session_id").str.head(8),
        packed=pl.when("compacted").then(pl.lit("compacted before")),
    )
    columns = (
        Column("id", "session"),
        Column("call", "call", "count"),
        Column("input_tokens", "tokens in", "count"),
        Column("packed", ""),
    )
    all_of = tables.sessions.height
    note = (
        f"The {units.count(frame['session_id'].n_unique())} sessions with the largest context."
        if frame["session_id"].n_unique() < all_of
        else ""
    )
    return Section("context", "How context grew", frame, columns, shown, note=note)


FLAGS: Final = ("long", "costly", "failing", "stuck")
"""Why a session is worth a look; columns of `notable`."""


def notable(tables: Tables, _tz: str = "UTC") -> Section:
    """The sessions, those worth a look first."""
    frame = metrics.notable(tables)
    why = pl.concat_str(
        [pl.when(pl.col(flag)).then(pl.lit(flag)) for flag in FLAGS],
        separator=", ",
        ignore_nulls=True,
    )
    shown = frame.with_columns(
        id=pl.col("session_id").str.head(8),
        where=metrics.WHERE,
        why=why,
        end=pl.col("ending").replace({"none": "cut off"}),
    )
    columns = (
        Column("started_at", "started", "time"),
        Column("id", "session"),
        Column("why", "worth a look"),
        Column("where", "where"),
        Column("branch", "branch"),
        Column("model", "model"),
        Column("llm_calls", "calls", "count"),
        Column("failed_llm_calls", "failed", "count"),
        Column("tool_calls", "tools", "count"),
        Column("failed_tool_calls", "tools failed", "count"),
        Column("subagents", "agents", "count"),
        Column("input_tokens", "tokens in", "count"),
        Column("output_tokens", "out", "count"),
        Column("ai_credits", "credits", "amount"),
        Column("active_ms", "active", "ms"),
        Column("end", "end"),
    )
    return Section("sessions", "Sessions", frame, columns, shown)
