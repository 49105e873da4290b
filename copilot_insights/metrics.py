"""Tables → answers, as pure functions of frames. Nothing here formats.

Percentiles are of calls that have a latency, interpolated linearly. Tokens and credits come
from `bookings`, so that any group's sum is part of the sessions' totals.
"""

from typing import Final

import polars as pl

from copilot_insights.schema import AMOUNTS, FAILED, MAIN, PARTS
from copilot_insights.spans import total
from copilot_insights.tables import Tables

_CALL: Final = pl.col("evidence") != "compaction"

WHERE: Final = pl.coalesce("repository", pl.col("cwd").str.extract(r"([^/\\]+)[/\\]*$"))
"""Where a session works, in short: its repository, else the last part of its directory."""


# --- the overview -------------------------------------------------------------------------


def loops(tables: Tables) -> pl.DataFrame:
    """The root agent's interactions, which hold all that went on meanwhile; where only
    sub-agents are looked at, theirs.
    """
    root = tables.interactions.filter(pl.col("agent_id") == MAIN)
    return root if root.height else tables.interactions


def overview(tables: Tables) -> pl.DataFrame:
    """One row of totals: counts, amounts and times of all that is looked at.

    `reasoned_tokens` are the output tokens of what states how many of them are reasoning.
    """
    calls, tools, root = tables.llm_calls, tables.tool_calls, loops(tables)
    # a turn that never got to its call is only in the sessions' own numbers
    whole, turns = tables.sessions, calls.filter(pl.col("evidence") == "turn")
    part = calls.height < whole["llm_calls"].sum()
    counts = {
        "sessions": tables.sessions.height,
        "started_at": tables.sessions["started_at"].min(),
        "ended_at": tables.sessions["ended_at"].max(),
        "interactions": root.height,
        "nudges": root.filter(pl.col("kind") == "autopilot").height,
        "llm_calls": calls.height,
        "failed_llm_calls": calls.filter(pl.col("status") == "error").height,
        "turns_started": turns.height if part else whole["turns_started"].sum(),
        "turns_completed": turns.filter(pl.col("ended_at").is_not_null()).height
        if part
        else whole["turns_completed"].sum(),
        "unlogged_turns": calls.filter(pl.col("evidence").is_in(["message", "error"])).height,
        "compactions": calls.filter(~_CALL).height,
        "tool_calls": tools.height,
        "failed_tool_calls": tools.filter(pl.col("status").is_in(FAILED)).height,
        "denied_tool_calls": tools.filter(pl.col("status") == "denied").height,
        "subagents": tables.subagents.height,
    }
    packed = calls.filter(~_CALL)
    stated = tables.bookings.filter(pl.col("reasoning_tokens").is_not_null())
    return (
        pl.DataFrame([counts])
        .hstack(tables.bookings.select(total(name) for name in AMOUNTS))
        .hstack(stated.select(reasoned_tokens=total("output_tokens")))
        .hstack(
            packed.select(
                compaction_input_tokens=total("input_tokens"),
                compaction_output_tokens=total("output_tokens"),
            )
        )
        .hstack(root.select(total(part) for part in PARTS))
        .with_columns(ai_credits=pl.col("nano_aiu") / 1e9)
        .drop("nano_aiu")
    )


def time_parts(tables: Tables) -> pl.DataFrame:
    """part, ms, share: where the time of `loops` went."""
    sums = loops(tables).select(pl.col(part).sum() for part in PARTS).row(0)
    whole = sum(sums)
    rows = [
        (part.removesuffix("_ms"), ms, ms / whole if whole else None)
        for part, ms in zip(PARTS, sums, strict=True)
    ]
    return pl.DataFrame(
        rows, schema={"part": pl.String, "ms": pl.Int64, "share": pl.Float64}, orient="row"
    )


def sessions(tables: Tables) -> pl.DataFrame:
    """The sessions with `active_ms` and `part`: whether only a part of it is looked at, which
    is then what is counted, booked and timed; `wall_ms` stays the session's.
    """
    status, key = pl.col("status"), "session_id"
    calls, turn = tables.llm_calls, pl.col("evidence") == "turn"
    root = loops(tables)
    counted = [
        calls.group_by(key).agg(
            llm_calls=pl.len(),
            failed_llm_calls=(status == "error").sum(),
            compactions=(~_CALL).sum(),
            turns_started=turn.sum(),
            turns_completed=(turn & pl.col("ended_at").is_not_null()).sum(),
        ),
        tables.tool_calls.group_by(key).agg(
            tool_calls=pl.len(), failed_tool_calls=status.is_in(FAILED).sum()
        ),
        tables.subagents.group_by(key).agg(subagents=pl.len()),
        root.group_by(key).agg(interactions=pl.len(), nudges=(pl.col("kind") == "autopilot").sum()),
    ]
    counts = [name for frame in counted for name in frame.columns if name != key]
    sums = [
        tables.bookings.group_by(key).agg(total(name) for name in AMOUNTS),
        calls.filter(~_CALL)
        .group_by(key)
        .agg(
            compaction_input_tokens=total("input_tokens"),
            compaction_output_tokens=total("output_tokens"),
        ),
        root.group_by(key).agg(total(part) for part in PARTS),
    ]
    found = tables.sessions.select(key)
    for frame in (*counted, *sums):
        found = found.join(frame, on=key, how="left", maintain_order="left")
    found = found.with_columns(
        pl.col(counts).fill_null(0).cast(pl.Int64), ai_credits=pl.col("nano_aiu") / 1e9
    ).drop("nano_aiu")
    names = [name for name in found.columns if name != key]
    both = tables.sessions.hstack(found.select(pl.col(names).name.prefix("part_")))
    own = tables.interactions.filter(pl.col("agent_id") == MAIN).group_by(key).agg(own=pl.len())
    both = both.join(own, on=key, how="left", maintain_order="left")
    whole = ("llm_calls", "tool_calls", "subagents")
    part = pl.any_horizontal(
        pl.col("interactions") != pl.col("own").fill_null(0),
        *(pl.col(name) != pl.col(f"part_{name}") for name in whole),
    )
    return (
        both.with_columns(part=part, active_ms=pl.col("wall_ms") - pl.col("user_ms"))
        .with_columns(
            *(pl.when("part").then(f"part_{name}").otherwise(name).alias(name) for name in names),
            active_ms=pl.when("part")
            .then(pl.sum_horizontal(f"part_{name}" for name in PARTS))
            .otherwise("active_ms"),
            user_ms=pl.when(~pl.col("part")).then("user_ms"),
        )
        .select(*tables.sessions.columns, "active_ms", "part")
    )


# --- groups -------------------------------------------------------------------------------


def _latency(column: str) -> list[pl.Expr]:
    values = pl.col(column)
    return [
        values.quantile(0.5, "linear").round().cast(pl.Int64).alias("p50_ms"),
        values.quantile(0.95, "linear").round().cast(pl.Int64).alias("p95_ms"),
        values.max().alias("max_ms"),
    ]


def models(tables: Tables) -> pl.DataFrame:
    """A row per model: calls (compactions too), failed, latencies, amounts booked."""
    calls = tables.llm_calls.group_by("model").agg(
        calls=pl.len().cast(pl.Int64),
        failed=(pl.col("status") == "error").sum().cast(pl.Int64),
        compactions=(~_CALL).sum().cast(pl.Int64),
    )
    timed = (
        tables.llm_calls.filter(pl.col("status") == "ok")
        .group_by("model")
        .agg(
            *_latency("llm_ms"),
            ttft_p50_ms=pl.col("ttft_ms").quantile(0.5, "linear").round().cast(pl.Int64),
        )
    )
    booked = tables.bookings.group_by("model").agg(total(name) for name in AMOUNTS)
    return (
        calls.join(timed, on="model", how="left", nulls_equal=True)
        .join(booked, on="model", how="full", coalesce=True, nulls_equal=True)
        .with_columns(ai_credits=pl.col("nano_aiu") / 1e9)
        .drop("nano_aiu")
        .sort("calls", "model", descending=[True, False], nulls_last=True)
    )


def _own_time(tables: Tables) -> pl.DataFrame:
    """Tool calls with `own`: the time that they ran, without the sub-agents within."""
    inner = tables.subagents.select(
        "session_id", "tool_call_id", inside=pl.col("started_at"), outside=pl.col("ended_at")
    ).unique(["session_id", "tool_call_id"])
    calls = tables.tool_calls.join(
        inner, on=["session_id", "tool_call_id"], how="left", nulls_equal=False
    )
    overlap = (
        pl.when(pl.col("outside").is_not_null())
        .then(pl.min_horizontal("outside", "ended_at") - pl.max_horizontal("inside", "started_at"))
        .dt.total_milliseconds()
        .clip(lower_bound=0)
    )
    return calls.with_columns(own=(pl.col("run_ms") - overlap.fill_null(0)).clip(lower_bound=0))


def tools(tables: Tables) -> pl.DataFrame:
    """A row per tool: calls, how they ended, latencies of `run_ms`, and total run time.

    The total of `task` leaves out what its sub-agents did meanwhile: that is in their own
    calls.
    """
    calls = _own_time(tables)
    status = pl.col("status")
    return (
        calls.group_by("tool")
        .agg(
            pl.col("category").drop_nulls().first(),
            pl.len().cast(pl.Int64).alias("calls"),
            *(
                status.is_in(found).sum().cast(pl.Int64).alias(name)
                for name, found in (
                    ("failed", FAILED),
                    ("denied", ["denied"]),
                    ("unfinished", ["open", "interrupted"]),
                )
            ),
            ((pl.col("exit_code") != 0) & (status == "ok"))
            .sum()
            .cast(pl.Int64)
            .alias("nonzero_exits"),
            *_latency("run_ms"),
            total("own").alias("total_ms"),
            total("permission_ms"),
            total("hook_ms"),
        )
        .with_columns(failure_rate=pl.col("failed") / pl.col("calls"))
        .sort("total_ms", "calls", "tool", descending=[True, True, False], nulls_last=True)
    )


def agents(tables: Tables) -> pl.DataFrame:
    """A row per kind of sub-agent: runs, how they ended, model calls, tools, tokens, time."""
    runs = tables.subagents.with_columns(
        ms=(pl.col("ended_at") - pl.col("started_at")).dt.total_milliseconds()
    )
    booked = tables.bookings.group_by("session_id", "agent_id").agg(total(name) for name in AMOUNTS)
    runs = runs.drop(set(AMOUNTS) & set(runs.columns)).join(
        booked, on=["session_id", "agent_id"], how="left"
    )
    return (
        runs.group_by("agent_name", "model")
        .agg(
            runs=pl.len().cast(pl.Int64),
            failed=pl.col("status").is_in(["failed", "cancelled"]).sum().cast(pl.Int64),
            unfinished=(pl.col("status") == "open").sum().cast(pl.Int64),
            llm_calls=pl.col("turns").sum(),
            tool_calls=pl.col("tool_calls").sum(),
            **{name: total(name) for name in AMOUNTS},
            p50_ms=pl.col("ms").quantile(0.5, "linear").round().cast(pl.Int64),
            max_ms=pl.col("ms").max(),
            total_ms=total("ms"),
        )
        .with_columns(ai_credits=pl.col("nano_aiu") / 1e9)
        .drop("nano_aiu")
        .sort("total_ms", "agent_name", "model", descending=[True, False, False], nulls_last=True)
    )


def _day(at: pl.Expr, tz: str) -> pl.Expr:
    return at.dt.convert_time_zone(tz).dt.date().alias("day")


def daily(tables: Tables, tz: str) -> pl.DataFrame:
    """A row per day in the time zone `tz`, each number booked at the time of its call."""
    at = _day(pl.coalesce("started_at", "replied_at"), tz)
    calls = (
        tables.llm_calls.with_columns(at)
        .group_by("day")
        .agg(
            sessions=pl.col("session_id").n_unique().cast(pl.Int64),
            llm_calls=pl.len().cast(pl.Int64),
            failed_llm_calls=(pl.col("status") == "error").sum().cast(pl.Int64),
            llm_ms=total("llm_ms"),
        )
    )
    used = (
        _own_time(tables)
        .with_columns(_day(pl.coalesce("started_at", "ended_at"), tz))
        .group_by("day")
        .agg(
            tool_calls=pl.len().cast(pl.Int64),
            failed_tool_calls=pl.col("status").is_in(FAILED).sum().cast(pl.Int64),
            tool_ms=total("own").alias("tool_ms"),
        )
    )
    booked = (
        tables.bookings.with_columns(_day(pl.col("at"), tz))
        .group_by("day")
        .agg(total(name) for name in AMOUNTS)
    )
    counts = ["sessions", "llm_calls", "failed_llm_calls", "tool_calls", "failed_tool_calls"]
    table = calls
    for more in (used, booked):
        table = table.join(more, on="day", how="full", coalesce=True, nulls_equal=True)
    return (
        table.with_columns(pl.col(counts).fill_null(0), ai_credits=pl.col("nano_aiu") / 1e9)
        .drop("nano_aiu")
        .sort("day", nulls_last=True)
    )


def turns(tables: Tables) -> pl.DataFrame:
    """A row per model call with the tools that it asked for."""
    used = tables.tool_calls.group_by("session_id", "turn").agg(
        tools=pl.col("tool").drop_nulls().unique(maintain_order=True).str.join(" "),
        tool_calls=pl.len().cast(pl.Int64),
        failed_tools=pl.col("status").is_in(FAILED).sum().cast(pl.Int64),
        tool_ms=total("run_ms"),
    )
    return tables.llm_calls.join(used, on=["session_id", "turn"], how="left", maintain_order="left")


def quality(tables: Tables) -> pl.DataFrame:
    """kind, incidents, sessions: what was damaged, cut, unknown or disagrees; `unreadable` are
    the places and logs of which nothing is known.
    """
    unread = len(tables.problems)
    rows = [("unreadable", unread, None)] if unread else []
    schema = {"kind": pl.String, "incidents": pl.Int64, "sessions": pl.Int64}
    found = tables.incidents.group_by("kind").agg(
        incidents=pl.len().cast(pl.Int64),
        sessions=pl.col("session_id").n_unique().cast(pl.Int64),
    )
    return pl.concat([pl.DataFrame(rows, schema, orient="row"), found]).sort(
        "incidents", "kind", descending=[True, False]
    )


# --- what pictures are made of ------------------------------------------------------------


def daily_models(tables: Tables, tz: str) -> pl.DataFrame:
    """A row per day and model: calls, and the amounts booked. A day's rows add up to
    `daily`'s row, a model's to `models`' row.
    """
    keys = ["day", "model"]
    calls = (
        tables.llm_calls.with_columns(_day(pl.coalesce("started_at", "replied_at"), tz))
        .group_by(keys)
        .agg(calls=pl.len().cast(pl.Int64))
    )
    booked = (
        tables.bookings.with_columns(_day(pl.col("at"), tz))
        .group_by(keys)
        .agg(total(name) for name in AMOUNTS)
    )
    return (
        calls.join(booked, on=keys, how="full", coalesce=True, nulls_equal=True)
        .with_columns(pl.col("calls").fill_null(0), ai_credits=pl.col("nano_aiu") / 1e9)
        .drop("nano_aiu")
        .sort(keys, nulls_last=True)
    )


def daily_time(tables: Tables, tz: str) -> pl.DataFrame:
    """A row per day: the parts of `loops` that began on it."""
    return (
        loops(tables)
        .with_columns(_day(pl.col("started_at"), tz))
        .group_by("day")
        .agg(total(part) for part in PARTS)
        .sort("day", nulls_last=True)
    )


def session_time(tables: Tables) -> pl.DataFrame:
    """A row per session: the parts of `loops`, and their sum `active_ms`; longest first."""
    return (
        loops(tables)
        .group_by("session_id")
        .agg(total(part) for part in PARTS)
        .with_columns(active_ms=pl.sum_horizontal(PARTS))
        .sort("active_ms", "session_id", descending=[True, False])
    )


def spread(calls: pl.DataFrame, by: str, column: str) -> pl.DataFrame:
    """A row per `by`: calls, and of those that have `column`: how many (timed), five
    percentiles and the extremes. Longest in sum first.
    """
    value = pl.col(column)
    at = {"p5_ms": 0.05, "p25_ms": 0.25, "p50_ms": 0.5, "p75_ms": 0.75, "p95_ms": 0.95}
    return (
        calls.group_by(by)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            value.count().cast(pl.Int64).alias("timed"),
            value.min().alias("min_ms"),
            *(value.quantile(q, "linear").round().cast(pl.Int64).alias(n) for n, q in at.items()),
            value.max().alias("max_ms"),
            total(column).alias("sum_ms"),
        )
        .sort("sum_ms", "calls", by, descending=[True, True, False], nulls_last=True)
    )


def failures(tables: Tables) -> pl.DataFrame:
    """A row per tool and reason of a call that did not go well, most frequent first.

    status is failed, denied, open, interrupted, or exit for a command that ran and said
    no; reason is the log's own code for it, or the exit code.
    """
    status, code = pl.col("status"), pl.col("exit_code")
    exits = (status == "ok") & (code != 0)
    return (
        tables.tool_calls.filter(exits.fill_null(value=False) | (status != "ok"))
        .with_columns(
            status=pl.when(exits).then(pl.lit("exit")).otherwise(status),
            reason=pl.when(exits).then(pl.format("exit code {}", code)).otherwise("error_code"),
        )
        .group_by("tool", "status", "reason")
        .agg(calls=pl.len().cast(pl.Int64), sessions=pl.col("session_id").n_unique().cast(pl.Int64))
        .sort("calls", "tool", "status", "reason", descending=[True, False, False, False])
    )


def context(tables: Tables, most: int) -> pl.DataFrame:
    """session_id, call, input_tokens, compacted: how the root agent's context grew, of the
    `most` sessions in which it grew largest.

    A row per model call of the root, in the log's order; `compacted` says that the context was
    compacted just before it. Tokens are null where the log does not state them per call.
    """
    root = tables.llm_calls.filter(pl.col("agent_id") == MAIN).sort(
        "session_id", maintain_order=True
    )
    calls = root.with_columns(
        compacted=(~_CALL).shift(1, fill_value=False).over("session_id"),
    ).filter(_CALL)
    peak = (
        calls.group_by("session_id")
        .agg(pl.col("input_tokens").max().alias("peak"))
        .drop_nulls("peak")
        .sort("peak", "session_id", descending=[True, False])
        .head(most)
    )
    return (
        calls.join(peak, on="session_id", how="inner")
        .with_columns(call=pl.int_range(1, pl.len() + 1).over("session_id"))
        .sort("peak", "session_id", "call", descending=[True, False, False])
        .select("session_id", "call", "input_tokens", "compacted")
    )


_MUCH: Final = 3  # times the median
_RARE: Final = 0.95  # and not less than this percentile
_OFTEN: Final = 3  # failures, and a fifth of all calls


def _far(value: pl.Expr) -> pl.Expr:
    return (value >= _MUCH * value.median()) & (value >= value.quantile(_RARE, "linear"))


def notable(tables: Tables) -> pl.DataFrame:
    """The sessions with `active_ms` and why one is worth a look; those with most reasons
    first, then the newest.

    long: active three times the median or more, among the longest twentieth, and a minute;
    costly: the same of credits, or of tokens where no credits are known; failing: three
    calls or more, and a fifth of all, failed; stuck: cut off within a turn or tool, or one
    call repeated.
    """
    stuck = tables.incidents.filter(
        pl.col("kind").is_in(["open_turn", "open_tool", "repeated_call"])
    ).select("session_id", stuck=pl.lit(value=True))
    found = sessions(tables)
    # 0 credits are free, and no yardstick
    priced = (found["ai_credits"].sum() or 0) > 0
    cost = pl.col("ai_credits" if priced else "input_tokens")
    failed = pl.col("failed_llm_calls") + pl.col("failed_tool_calls")
    active = pl.col("active_ms")
    flags = {
        "long": _far(active) & (active >= 60_000),
        "costly": _far(cost) & (cost > 0),
        "failing": (failed >= _OFTEN) & (failed * 5 >= pl.col("llm_calls") + pl.col("tool_calls")),
        "stuck": pl.col("stuck"),
    }
    return (
        found.join(stuck.unique(), on="session_id", how="left")
        .with_columns(flag.fill_null(value=False).alias(name) for name, flag in flags.items())
        .with_columns(reasons=pl.sum_horizontal(pl.col(list(flags)).cast(pl.Int64)))
        .sort("reasons", "started_at", "session_id", descending=[True, True, False],
              nulls_last=True)
    )  # fmt: skip
