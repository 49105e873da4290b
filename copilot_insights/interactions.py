"""Interactions and sub-agents: the loops that calls belong to."""

from typing import Final

import polars as pl

from copilot_insights.reader import Events
from copilot_insights.schema import MAIN, TOKENS
from copilot_insights.spans import STARTED, USER, total
from copilot_insights.tool_calls import LOOP_HOOKS

_ENDS: Final = (
    "assistant.turn_end",
    "tool.execution_complete",
    "permission.completed",
    "hook.end",
    "subagent.completed",
    "subagent.failed",
)
"""Events that end something; a CLI that resumes writes them for one that was killed."""


def subagents(
    events: Events, calls: pl.LazyFrame, tools: pl.LazyFrame, bookings: pl.LazyFrame
) -> pl.LazyFrame:
    """A row per sub-agent: first to last event of its agent id, whatever its `task` call did.
    Tokens are those of its calls, else what a total states of it.
    """
    own = events.base.lazy().filter(pl.col("agent_id") != MAIN)
    # a process that only writes ends tidies up after a killed one: nobody timed those
    lived = ~pl.col("type").is_in(_ENDS).all().over("agent", "process")
    extent = (
        own.with_columns(lived=lived | (pl.col("process") == pl.col("process").min().over("agent")))
        .filter("lived")
        .group_by("agent", maintain_order=True)
        .agg(
            pl.col("session_id", "agent_id").first(),
            first=pl.col("at").min(),
            last=pl.col("at").max(),
            processes=pl.col("process").unique(),
        )
    )
    begun = (
        events.of(STARTED)
        .group_by("agent")
        .agg(pl.col("tool_call_id", "agent_name", "model", "execution_mode", "at").first())
    )
    ends = (
        events.of("subagent.completed", "subagent.failed")
        .group_by("agent")
        .agg(
            pl.col("type", "cancelled", "tool_call_id", "agent_name", "model", "process")
            .last()
            .name.suffix("_end")
        )
    )
    made = (
        calls.filter(pl.col("evidence") != "compaction")
        .group_by("agent")
        .agg(
            turns=pl.len().cast(pl.Int64),
            call_model=pl.col("model").drop_nulls().first(),
            **{name: total(name) for name in TOKENS},
        )
    )
    used = tools.group_by("agent").agg(tool_calls=pl.len().cast(pl.Int64))
    whose = ["session_id", "agent_id"]
    stated = (
        bookings.group_by(whose)
        .agg(pl.col("by_agent").all(), *(total(name).alias(f"{name}_stated") for name in TOKENS))
        .filter("by_agent")
    )
    table = extent
    for more in (begun, ends, made, used):
        table = table.join(more, on="agent", how="left", maintain_order="left")
    table = table.join(stated, on=whose, how="left", maintain_order="left")
    return table.with_columns(
        *(pl.coalesce(f"{name}_stated", name).alias(name) for name in TOKENS),
        tool_call_id=pl.coalesce("tool_call_id", "tool_call_id_end"),
        agent_name=pl.coalesce("agent_name", "agent_name_end"),
        model=pl.coalesce("model", "model_end", "call_model"),
        started_at=pl.coalesce("at", "first"),
        ended_at=pl.when(pl.col("processes").list.contains(pl.col("process_end"))).then("last"),
        status=pl.when(pl.col("cancelled_end"))
        .then(pl.lit("cancelled"))
        .when(pl.col("type_end") == "subagent.failed")
        .then(pl.lit("failed"))
        .when(pl.col("type_end").is_not_null())
        .then(pl.lit("ok"))
        .otherwise(pl.lit("open")),
        turns=pl.col("turns").fill_null(0),
        tool_calls=pl.col("tool_calls").fill_null(0),
    )


def interactions(
    events: Events, calls: pl.LazyFrame, tools: pl.LazyFrame, hooks: pl.LazyFrame
) -> pl.LazyFrame:
    """A row per user message, nudge or sub-agent run and the loop it started.

    It ends with the last event that its loop wrote; `outcome` says whether that was an end.
    Extra columns: session, agent. The time columns come from `accounting.time_split`.
    """
    key = ["session", "interaction"]
    base = events.base.lazy().filter(pl.col("interaction").is_not_null())
    # what a later process wrote about a cut run is not part of the run
    process = pl.when("begins").then("process").forward_fill().over("agent")
    base = base.with_columns(own=pl.col("process") == process)
    begun = base.filter("begins").select(
        *key, "row", "agent", "session_id", "agent_id", "type", "at"
    )
    texts = events.of(USER).select("row", "interaction_id", "source", "delivery", "nudge")
    inside = (
        base.filter(pl.col("own") & (pl.col("loop") | pl.col("begins")))
        .group_by(key)
        .agg(last=pl.col("at").max())
    )
    hooked = (
        hooks.filter(pl.col("kind").is_in(LOOP_HOOKS))
        .group_by(key)
        .agg(hooked=pl.col("at_end").max())
    )
    made = (
        calls.filter(pl.col("evidence") != "compaction")
        .group_by(key)
        .agg(
            turns=pl.len().cast(pl.Int64),
            final=pl.col("status").last(),
            wants=pl.col("tool_requests").last(),
            closed=pl.col("row_end").last().is_not_null() | (pl.col("evidence").last() != "turn"),
            loop_id=pl.col("interaction_id").drop_nulls().first(),
        )
    )
    used = tools.group_by(key).agg(
        tool_calls=pl.len().cast(pl.Int64),
        unfinished=pl.col("status").is_in(["open", "interrupted"]).any(),
    )
    said = events.of("session.task_complete").filter(pl.col("success").fill_null(value=True))
    done = events.of("subagent.completed").join(base.filter("own").select("row"), on="row")
    cancelled = pl.col("cancelled").fill_null(value=False)
    aborts = [frame.select(*key) for frame in (events.of("abort"), done.filter(cancelled))]
    marks = {
        "completed": said,
        "aborted": pl.concat(aborts),
        "stopped": done.filter(~cancelled),
        "broken": events.of("subagent.failed"),
    }
    table = begun.join(texts, on="row", how="left", maintain_order="left")
    for more in (inside, hooked, made, used):
        table = table.join(more, on=key, how="left", maintain_order="left")
    for name, frame in marks.items():
        mark = frame.select(*key, pl.lit(value=True).alias(name)).unique()
        table = table.join(mark, on=key, how="left", maintain_order="left")
    user = pl.col("type") == USER
    answered = (pl.col("final") == "ok") & (pl.col("wants").fill_null(0) == 0) & pl.col("closed")
    outcome = (
        pl.when(pl.col("completed"))
        .then(pl.lit("task_complete"))
        .when(pl.col("aborted"))
        .then(pl.lit("aborted"))
        .when((pl.col("final") == "error") | pl.col("broken"))
        .then(pl.lit("error"))
        .when(answered | pl.col("stopped"))
        .then(pl.lit("answered"))
        .otherwise(pl.lit("open"))
    )
    table = table.with_columns(
        kind=pl.when(pl.col("agent_id") != MAIN)
        .then(pl.lit("subagent"))
        .when(user & pl.col("nudge"))
        .then(pl.lit("autopilot"))
        .when(user & (pl.col("delivery") == "steering"))
        .then(pl.lit("steering"))
        .when(user & (pl.col("source").is_null() | (pl.col("source") == "user")))
        .then(pl.lit("user"))
        .otherwise(pl.lit("other")),
        interaction_id=pl.coalesce("interaction_id", "loop_id"),
        started_at="at",
        ended_at=pl.max_horizontal("last", "hooked", "at"),
        turns=pl.col("turns").fill_null(0),
        tool_calls=pl.col("tool_calls").fill_null(0),
        outcome=outcome,
    )
    # a steering message shares the end of the loop that it was given to
    own = ~((pl.col("kind") == "steering") & (pl.col("turns") == 0))
    return table.with_columns(
        outcome=pl.when(own).then("outcome").forward_fill().over("agent").fill_null("open")
    )
