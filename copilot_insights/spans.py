"""Ordinals and pairs: which turn and interaction an event is of, which end closes a start.

An end closes the latest open start with the
same key; a start that nothing closes has a null end and no duration; an end that closes
nothing is kept where it is evidence of a call. A duration is never negative: where the
clock went back it is null. Order is file order (`row`), never time.
"""

from typing import Final

import polars as pl

from copilot_insights.reader import Events

TURN_START: Final = "assistant.turn_start"
TURN_END: Final = "assistant.turn_end"
MESSAGE: Final = "assistant.message"
USER: Final = "user.message"
RECORD: Final = "session.usage_record"
STARTED: Final = "subagent.started"

LOOP: Final = (
    TURN_START,
    TURN_END,
    MESSAGE,
    "assistant.reasoning",
    "session.usage_record",
    "tool.execution_start",
    "tool.execution_complete",
    "external_tool.requested",
    "external_tool.completed",
    "permission.requested",
    "permission.completed",
    "session.error",
    "abort",
    "session.task_complete",
    "session.compaction_start",
    "session.compaction_complete",
    "session.truncation",
    STARTED,
    "subagent.completed",
    "subagent.failed",
)
"""Events that the loop writes while it runs: they belong to an interaction."""


def collect(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The same, computed: for what several others are made of. Batches are small, which the
    streaming engine is slower at.
    """
    return frame.collect(engine="in-memory").lazy()


def elapsed(start: str, end: str) -> pl.Expr:
    """Milliseconds between two times; null where the end is missing or before the start."""
    ms = (pl.col(end) - pl.col(start)).dt.total_milliseconds()
    return pl.when(ms >= 0).then(ms)


def total(column: str) -> pl.Expr:
    """The sum; null, not 0, where no value is known."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


# --- ordinals -----------------------------------------------------------------------------


def number(events: Events) -> Events:
    """Gives every event its `turn` and `interaction` (0-based per session).

    A turn begins with its `turn_start`; for agents that have written none (sub-agents before
    1.0.85) with each message, or the error that came instead; and so does one whose `turn_start`
    was lost. An interaction begins with a
    user message of its agent, or with an agent's first event: the message that a sub-agent
    is started with belongs to that one. A message that steers a running loop is an
    interaction that nothing else is of.
    """
    kind = pl.when(~pl.col("passing")).then("type")
    loop = kind.is_in(LOOP)
    given = (pl.col("users") == 1) & (pl.col("loops") > 0) & (pl.col("deeds") == 0)
    within = pl.when(kind.is_in([TURN_START, TURN_END])).then(kind == TURN_START)
    depth = (kind == TURN_START).cast(pl.Int64) - (kind == TURN_END).cast(pl.Int64)
    said = pl.when(kind.is_in([RECORD, MESSAGE])).then(kind == RECORD)
    # what a CLI that resumes writes about the calls of another
    tidies = (kind == "tool.execution_complete") & (pl.col("process") > 0)
    instead = (
        (kind.is_in([MESSAGE, "session.error"]) & ~pl.col("turns"))
        | (kind == RECORD)
        | ((kind == MESSAGE) & (pl.col("gap") | pl.col("told")))
    )
    # what a message costs it says itself, up to 1.0.75
    costs = events.of(MESSAGE).filter(pl.col("output_tokens").is_not_null()).select("row")
    no = pl.Series([False], dtype=pl.Boolean).new_from_index(0, events.base.height)
    told = no.scatter(costs.collect()["row"], values=True)
    numbered = (
        events.base.lazy()
        .join(_steering(events), on="row", how="left", maintain_order="left")
        .with_columns(
            told=told,
            loop=loop,
            turns=(kind == TURN_START).cum_max().over("agent"),
            # the second: two processes on one session have turns open side by side
            within=within.forward_fill().fill_null(value=False).over("agent")
            | (depth.cum_sum().over("agent") > 0),
            recorded=said.forward_fill().shift(1).fill_null(value=False).over("agent"),
            users=(kind == USER).cum_sum().over("agent"),
            loops=loop.cum_sum().over("agent"),
            own=(loop & ~tidies).cum_sum().over("agent"),
            deeds=(loop & (kind != STARTED)).cum_sum().over("agent"),
        )
        .with_columns(
            # a record of usage is the first trace of a call whose turn_start was lost
            is_turn=(kind == TURN_START)
            | (instead & ~pl.col("within") & ~((kind == MESSAGE) & pl.col("recorded"))),
            begins=((kind == USER) & ~given)
            | (pl.col("loop") & ~tidies & (pl.col("users") == 0) & (pl.col("own") == 1)),
        )
        .with_columns(
            turn=pl.when("is_turn").then(
                pl.col("is_turn").cum_sum().over("session").cast(pl.Int64) - 1
            ),
            interaction=pl.when("begins").then(
                pl.col("begins").cum_sum().over("session").cast(pl.Int64) - 1
            ),
            previous_at=pl.col("at").shift(1).over("agent"),
        )
        .with_columns(
            pl.col("turn").forward_fill().over("agent"),
            interaction=pl.coalesce(
                pl.when("steers").then("interaction"),
                pl.when(pl.col("steers").is_null())
                .then("interaction")
                .forward_fill()
                .over("agent"),
            ),
        )
        .drop("told", "turns", "within", "recorded", "users", "loops", "own", "deeds", "steers")
        .collect(engine="in-memory")
    )
    return events.with_base(numbered)


def _steering(events: Events) -> pl.LazyFrame:
    """User messages that were given to a loop that went on: `row`, `steers`."""
    both = events.of(USER, TURN_START).with_columns(
        next=pl.when(pl.col("type") == TURN_START).then("turn_id").backward_fill().over("agent")
    )
    steers = (pl.col("delivery") == "steering") & (pl.col("next") != "0")
    return both.filter(steers).select("row", steers=pl.lit(value=True))


# --- pairing ------------------------------------------------------------------------------


def mates(both: pl.LazyFrame, keys: list[str], opens: pl.Expr) -> pl.LazyFrame:
    """Which end closes which start: columns `row` (of the start) and `row_end`. `both` has
    starts and ends by row.

    Starts and ends of one key nest like brackets; an end without an open start is left out.
    Where starts of one key are open side by side, an end closes one of its own agent first:
    some models give the calls of several agents the same ids.
    """
    opened = pl.col("opens").shift(1) & (pl.col("key") == pl.col("key").shift(1))
    marks = collect(
        both.filter(pl.all_horizontal(pl.col(keys).is_not_null()))
        .select("row", "agent", opens=opens, key=pl.struct(keys).hash())
        .sort("key", maintain_order=True)
        .with_columns(opened=opened, start=pl.col("row").shift(1))
    )
    flat = marks.filter(~pl.col("opens") & pl.col("opened"))
    flat = flat.select("key", row="start", row_end="row")
    # two starts of one key behind each other are rare, and the only case that takes counting
    several = marks.filter(pl.col("opens") & pl.col("opened")).select("key").unique()
    if several.collect().is_empty():
        return flat.drop("key")
    deep = marks.join(several, on="key", how="semi").drop("start")
    own_mates = _nested_mates(deep.with_columns(key=pl.struct("key", "agent").hash()))
    mated = pl.concat([own_mates.select("row"), own_mates.select(row="row_end")])
    left = deep.join(mated, on="row", how="anti")
    flat = flat.join(several, on="key", how="anti").drop("key")
    return pl.concat([flat, own_mates, _nested_mates(left)])


def _nested_mates(marks: pl.LazyFrame) -> pl.LazyFrame:
    step = pl.when("opens").then(1).otherwise(-1)
    level = pl.col("sum") - pl.col("low") + pl.when("opens").then(0).otherwise(1)
    return (
        marks.sort("row")
        .with_columns(sum=step.cum_sum().over("key"))
        .with_columns(low=pl.min_horizontal(pl.col("sum").cum_min(), 0).over("key"))
        .with_columns(last=pl.col("low").shift(1, fill_value=0).over("key"))
        .filter(pl.col("opens") | (pl.col("low") == pl.col("last")))
        .with_columns(level=level)
        .with_columns(start=pl.col("row").shift(1).over("key", "level"))
        .filter(~pl.col("opens"))
        .select(row="start", row_end="row")
    )


def spans(
    events: Events, start: str, end: str, keys: list[str], prepare: pl.Expr | None = None
) -> pl.LazyFrame:
    """A row per start with the end that closes it, then the ends that close nothing.

    Columns of the start, and of the end with `_end` behind their names. `prepare` changes a
    key before pairing.
    """
    both = events.of(start, end)
    if prepare is not None:
        both = both.with_columns(prepare)
    opens = pl.col("type") == start
    paired = mates(both, keys, opens)
    ends = both.filter(~opens).select(pl.all().name.suffix("_end"))
    closed = both.filter(opens).join(paired, on="row", how="left", maintain_order="left")
    shared = dict.fromkeys(("session", "session_id", "agent", "agent_id", *keys))
    return closed.join(
        ends, on="row_end", how="full", coalesce=True, maintain_order="left"
    ).with_columns(pl.coalesce(name, f"{name}_end") for name in shared)


def turn_spans(events: Events) -> pl.LazyFrame:
    """Turns: an end closes the latest open turn of its agent, of the same id where given."""
    run = ["agent", "process"]
    # where an end has no id, or a start has none, the agent's turns only nest
    given = pl.col("turn_id").is_not_null().all().over(run)
    key = pl.when(given).then("turn_id").otherwise(pl.lit("")).alias("turn_key")
    return spans(events, TURN_START, TURN_END, [*run, "turn_key"], key)
