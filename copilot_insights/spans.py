"""Events → calls: turns, tool calls, permissions, hooks, sub-agents, interactions.

Everything here pairs a start with its end. An end closes the latest open start with the
same key; a start that nothing closes has a null end and no duration; an end that closes
nothing is kept where it is evidence of a call. A duration is never negative: where the
clock went back it is null. Order is file order (`row`), never time.
"""

from typing import Final

import polars as pl

from copilot_insights.reader import Events
from copilot_insights.schema import AMOUNTS, CATEGORY, MAIN, TOKENS

TURN_START: Final = "assistant.turn_start"
TURN_END: Final = "assistant.turn_end"
MESSAGE: Final = "assistant.message"
USER: Final = "user.message"
STARTED: Final = "subagent.started"

LOOP: Final = (
    TURN_START, TURN_END, MESSAGE, "assistant.reasoning", "session.usage_record",
    "tool.execution_start", "tool.execution_complete", "external_tool.requested",
    "external_tool.completed", "permission.requested", "permission.completed", "session.error",
    "abort", "session.task_complete", "session.compaction_start", "session.compaction_complete",
    "session.truncation", STARTED, "subagent.completed", "subagent.failed",
)  # fmt: skip
"""Events that the loop writes while it runs: they belong to an interaction."""

LOOP_HOOKS: Final = (
    "preToolUse", "postToolUse", "postToolUseFailure", "permissionRequest", "errorOccurred",
    "agentStop", "subagentStart", "subagentStop", "preCompact", "preMcpToolCall",
)  # fmt: skip
"""Hooks that run within the loop; the others run between interactions."""

_CALL: Final = ["session", "turn"]


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
    1.0.85) with each message, or the error that came instead. An interaction begins with a
    user message of its agent; the loop of an agent that has none begins with its first
    event. A message that steers a running loop is an interaction that nothing else is of.
    """
    kind = pl.col("type")
    instead = kind.is_in([MESSAGE, "session.error"])
    steering = _steering(events)
    numbered = (
        events.base.lazy()
        .join(steering, on="row", how="left", maintain_order="left")
        .with_columns(
            turns=(kind == TURN_START).cum_max().over("agent"),
            users=(kind == USER).any().over("agent"),
            before=(kind == USER).cum_sum().over("agent"),
            loop=kind.is_in(LOOP),
        )
        .with_columns(
            is_turn=(kind == TURN_START) | (instead & ~pl.col("turns")),
            loop=pl.col("loop") & ~((kind == STARTED) & pl.col("users")),
        )
        .with_columns(
            begins=(kind == USER)
            | (pl.col("loop") & (pl.col("before") == 0) & (pl.col("loop").cum_sum().over("agent") == 1)),
        )
        .with_columns(
            turn=pl.when("is_turn").then(pl.col("is_turn").cum_sum().over("session").cast(pl.Int64) - 1),
            interaction=pl.when("begins").then(pl.col("begins").cum_sum().over("session").cast(pl.Int64) - 1),
            previous_at=pl.col("at").shift(1).over("agent"),
        )
        .with_columns(
            pl.col("turn").forward_fill().over("agent"),
            interaction=pl.coalesce(
                pl.when("steers").then("interaction"),
                pl.when(pl.col("steers").is_null()).then("interaction").forward_fill().over("agent"),
            ),
        )
        .drop("turns", "users", "before", "steers")
        .collect()
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
    """Which end closes which start: columns `row` (of the start) and `row_end`.

    Starts and ends of one key nest like brackets; an end without an open start is left out.
    """
    step = pl.when(opens).then(1).otherwise(-1)
    return (
        both.filter(pl.all_horizontal(pl.col(keys).is_not_null()))
        .with_columns(opens=opens, sum=step.cum_sum().over(keys))
        .with_columns(low=pl.min_horizontal(pl.col("sum").cum_min(), 0).over(keys))
        .with_columns(last=pl.col("low").shift(1, fill_value=0).over(keys))
        .filter(pl.col("opens") | (pl.col("low") == pl.col("last")))
        .with_columns(level=pl.col("sum") - pl.col("low") + pl.when("opens").then(0).otherwise(1))
        .with_columns(start=pl.col("row").shift(1).over([*keys, "level"]))
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
    start, run = pl.col("type") == TURN_START, ["agent", "process"]
    opened = pl.when(start).then("turn_id").forward_fill().over(run)
    closed = pl.when(~start).then("turn_id").backward_fill().over(run)
    given = pl.coalesce("turn_id", pl.when(start).then(closed).otherwise(opened), pl.lit(""))
    return spans(events, TURN_START, TURN_END, [*run, "turn_id"], given.alias("turn_id"))


# --- model calls --------------------------------------------------------------------------


def llm_calls(events: Events, store: pl.LazyFrame) -> pl.LazyFrame:
    """A row per model call that the log gives evidence of.

    Evidence is a `turn_start`, else a message of an agent that never wrote one, and each
    compaction. Latency is start → reply, never start → `turn_end`: tools run within a turn.
    Extra columns: row, row_end (of the turn), seq, session, agent, process.
    """
    turns = turn_spans(events)
    turns = turns.filter(pl.col("row").is_not_null()).select(
        "row", "row_end", "seq", *_CALL, "session_id", "agent", "agent_id", "interaction", "process",
        "turn_id", "interaction_id", "model", evidence=pl.lit("turn"), started_at="at", ended_at="at_end",
    )  # fmt: skip
    messages = events.of(MESSAGE)
    alone = events.of(MESSAGE, "session.error").filter("is_turn").select(
        "row", "seq", *_CALL, "session_id", "agent", "agent_id", "interaction", "process",
        "turn_id", "interaction_id", "model", started_at="previous_at", ended_at="at",
        evidence=pl.when(pl.col("type") == MESSAGE).then(pl.lit("message")).otherwise(pl.lit("error")),
    )  # fmt: skip
    # what is written behind a turn's end is no reply: 1.0.102 opens a woken run like this
    ends = turns.select(*_CALL, "row_end").filter(pl.col("row_end").is_not_null())
    replies = messages.join(ends, on=_CALL, how="left", maintain_order="left").filter(
        pl.col("row_end").is_null() | (pl.col("row") < pl.col("row_end"))
    )
    replies = replies.group_by(_CALL).agg(
        pl.col("at", "row").first().name.prefix("reply_"),
        pl.col("api_call_id", "model").drop_nulls().first().name.prefix("reply_"),
        total("tool_requests").alias("tool_requests"),
        total("output_tokens").alias("message_tokens"),
    )
    records = _records(events).group_by(_CALL).agg(
        *(total(name).alias(name) for name in AMOUNTS),
        total("duration_ms").alias("duration_ms"),
        pl.col("ttft_ms", "initiator", "model", "api_call_id").first().name.prefix("record_"),
        pl.col("finish_reason").last(),
        recorded=pl.lit(value=True),
    )
    # a tool that starts shows that there was a reply, should its line be damaged
    acted = events.of("tool.execution_start").group_by(_CALL).agg(acted_at=pl.col("at").first())
    aborts = events.of("abort").select(*_CALL, aborted=pl.lit(value=True)).unique()
    errors = events.of("session.error").select(*_CALL, failed=pl.lit(value=True)).unique()
    calls = pl.concat([turns, alone], how="diagonal_relaxed").sort("row")
    for more in (replies, records, acted, aborts, errors):
        calls = calls.join(more, on=_CALL, how="left", maintain_order="left")
    answered = pl.any_horizontal(
        pl.col(name).is_not_null() for name in ("reply_row", "recorded", "acted_at")
    )
    ended = pl.col("row_end").is_not_null()
    calls = calls.with_columns(
        replied_at="reply_at",
        status=pl.when(answered).then(pl.lit("ok"))
        .when(pl.col("aborted")).then(pl.lit("aborted"))
        .when(ended | pl.col("failed") | (pl.col("evidence") == "error")).then(pl.lit("error"))
        .otherwise(pl.lit("open")),
        model=pl.coalesce("reply_model", "record_model", "model"),
        api_call_id=pl.coalesce("reply_api_call_id", "record_api_call_id"),
    )  # fmt: skip
    calls = _with_store(calls, store)
    cut = pl.col("status").is_in(["error", "aborted"])
    calls = calls.with_columns(
        usage_source=pl.when(pl.col("recorded")).then(pl.lit("usage_record"))
        .when(pl.col("stored")).then(pl.lit("store"))
        .when(pl.col("message_tokens").is_not_null()).then(pl.lit("message")),
        output_tokens=pl.coalesce("output_tokens", "message_tokens"),
        ttft_ms="record_ttft_ms", initiator="record_initiator",
        llm_ms=pl.coalesce(
            "duration_ms", elapsed("started_at", "replied_at"),
            pl.when(cut).then(elapsed("started_at", "ended_at")), elapsed("started_at", "acted_at"),
        ),
        llm_ms_source=pl.when(pl.col("duration_ms").is_not_null() & pl.col("recorded")).then(pl.lit("usage_record"))
        .when(pl.col("duration_ms").is_not_null()).then(pl.lit("store"))
        .when(elapsed("started_at", "replied_at").is_not_null()).then(pl.lit("message"))
        .when((cut & elapsed("started_at", "ended_at").is_not_null())
              | elapsed("started_at", "acted_at").is_not_null())
        .then(pl.lit("turn")),
    )  # fmt: skip
    compactions = _compactions(events)
    calls = pl.concat([_sent(calls, compactions), compactions], how="diagonal_relaxed")
    return _with_model(calls, events).sort("row")


def _sent(calls: pl.LazyFrame, compactions: pl.LazyFrame) -> pl.LazyFrame:
    """All but the turn that waited for an unfinished compaction: it never got to its call.

    The CLI compacts beside a call and waits for it before the next one, so a turn that is
    open behind an open compaction was killed before anything was sent.
    """
    stuck = compactions.filter(pl.col("status") == "open").group_by("agent", "process").agg(
        stuck=pl.col("row").min()
    )
    waiting = (pl.col("status") == "open") & (pl.col("row") > pl.col("stuck"))
    return (
        calls.join(stuck, on=["agent", "process"], how="left", maintain_order="left")
        .filter(~waiting.fill_null(value=False))
    )


def _records(events: Events) -> pl.LazyFrame:
    """Usage of single calls; a stream repeats a stored record as `assistant.usage`."""
    records = events.of("session.usage_record", "assistant.usage")
    again = pl.col("api_call_id").is_not_null() & ~pl.struct("session", "api_call_id").is_first_distinct()
    return records.filter(~again)


def _with_store(calls: pl.LazyFrame, store: pl.LazyFrame) -> pl.LazyFrame:
    """Usage from the session store, for agents of whose calls the log records none.

    The store has no call ids: its rows are an agent's answered calls in order, taken only
    where their numbers agree.
    """
    key = ["session_id", "agent_id"]
    place = pl.int_range(pl.len(), dtype=pl.Int64)
    wanted = calls.filter(pl.col("status") == "ok").with_columns(
        place=place.over(key), size=pl.len().over(key).cast(pl.Int64),
        known=pl.col("recorded").any().over(key),
    ).filter(~pl.col("known").fill_null(value=False)).select("row", *key, "place", "size")  # fmt: skip
    rows = store.with_columns(
        place=place.over(key), size=pl.len().over(key).cast(pl.Int64), stored=pl.lit(value=True)
    )
    names = [*AMOUNTS, "duration_ms", "record_ttft_ms", "record_initiator", "record_model", "finish_reason"]
    found = wanted.join(rows, on=[*key, "place", "size"]).select("row", "stored", pl.col(names).name.prefix("store_"))
    return (
        calls.join(found, on="row", how="left", maintain_order="left")
        .with_columns(pl.coalesce(name, f"store_{name}") for name in names)
        .with_columns(model=pl.coalesce("model", "store_record_model"))
    )


def _compactions(events: Events) -> pl.LazyFrame:
    run = ["agent", "process"]
    pairs = spans(events, "session.compaction_start", "session.compaction_complete", run)
    done = pl.col("row_end").is_not_null()
    return pairs.select(
        pl.coalesce("row", "row_end").alias("row"), pl.coalesce("seq", "seq_end").alias("seq"), "session", "session_id", "agent", "agent_id",
        pl.coalesce("interaction", "interaction_end").alias("interaction"),
        pl.coalesce("process", "process_end").alias("process"),
        pl.coalesce("model_end", "model").alias("model"),
        *(pl.col(f"{name}_end").alias(name) for name in TOKENS if name != "reasoning_tokens"),
        evidence=pl.lit("compaction"), started_at="at", replied_at="at_end", ended_at="at_end",
        status=pl.when(~done).then(pl.lit("open"))
        .when(pl.col("success_end").not_().fill_null(value=False)).then(pl.lit("error"))
        .otherwise(pl.lit("ok")),
        llm_ms=pl.coalesce("duration_ms_end", elapsed("at", "at_end")),
        llm_ms_source=pl.when(pl.col("duration_ms_end").is_not_null()).then(pl.lit("compaction"))
        .when(elapsed("at", "at_end").is_not_null()).then(pl.lit("message")),
        usage_source=pl.when(pl.col("input_tokens_end").is_not_null()).then(pl.lit("compaction")),
    )  # fmt: skip


_MODEL_EVENTS: Final = (
    "session.start", "session.resume", "session.model_change", "tool.execution_complete", MESSAGE,
    "session.usage_record", "assistant.usage", STARTED,
)  # fmt: skip


def _with_model(calls: pl.LazyFrame, events: Events) -> pl.LazyFrame:
    """The model of calls that do not name it: what the log last said of the agent, else the
    only model that the session's totals know."""
    said = events.of(*_MODEL_EVENTS).filter(pl.col("model").is_not_null())
    said = said.select("agent", "row", said="model").sort("row")
    only = (
        events.of("session.shutdown").select("session", "statements").explode("statements", empty_as_null=False)
        .select("session", only=pl.col("statements").struct.field("model")).unique()
        .group_by("session").agg(pl.col("only").first(), pl.len()).filter(pl.col("len") == 1)
        .select("session", "only")
    )  # fmt: skip
    calls = calls.sort("row")
    last = calls.join_asof(said, on="row", by="agent", check_sortedness=False)
    return last.join(only, on="session", how="left", maintain_order="left").with_columns(
        model=pl.coalesce("model", "said", "only")
    )


# --- tools, permissions, hooks ------------------------------------------------------------


def permissions(events: Events) -> pl.LazyFrame:
    """A row per permission request. Extra columns: session, interaction."""
    pairs = spans(events, "permission.requested", "permission.completed", ["session", "request_id"])
    return pairs.with_columns(
        tool_call_id=pl.coalesce("tool_call_id", "tool_call_id_end"),
        interaction=pl.coalesce("interaction", "interaction_end"),
        started_at="at", ended_at="at_end",
        wait_ms=pl.when(pl.col("process") == pl.col("process_end")).then(elapsed("at", "at_end")),
        outcome=pl.coalesce("outcome_end", pl.when(pl.col("row_end").is_null()).then(pl.lit("open"))),
    )  # fmt: skip


def hooks(events: Events) -> pl.LazyFrame:
    """A row per hook run. Extra columns: row, session, agent, interaction, tool_call_ids.

    A preToolUse hook names its calls; one that ran after a tool is tied to the completion
    that follows it, of the same agent, tool and (where they agree) arguments.
    """
    pairs = spans(events, "hook.start", "hook.end", ["session", "request_id"]).with_columns(
        hook_invocation_id="request_id", kind=pl.coalesce("kind", "kind_end"),
        interaction=pl.coalesce("interaction", "interaction_end"),
        started_at="at", ended_at="at_end",
        duration_ms=pl.when(pl.col("process") == pl.col("process_end")).then(elapsed("at", "at_end")),
        outcome=pl.when(pl.col("row_end").is_null()).then(pl.lit("open"))
        .when(pl.col("success_end").not_().fill_null(value=False)).then(pl.lit("failed"))
        .otherwise(pl.lit("ok")),
    )  # fmt: skip
    after = pl.col("tool").is_not_null() & pl.col("tool_call_ids").is_null()
    starts = events.of("tool.execution_start").select("session", "tool_call_id", "tool", "arguments_hash")
    ends = (
        events.of("tool.execution_complete")
        .select("session", "agent", "row", "tool_call_id")
        .join(starts.unique(["session", "tool_call_id"]), on=["session", "tool_call_id"])
        .sort("row")
    )
    wanted = pairs.filter(after).with_columns(hook="row", row=pl.coalesce("row_end", "row")).sort("row")
    same = ["agent", "tool", "arguments_hash"]
    exact = wanted.join_asof(ends, on="row", by=same, strategy="forward", suffix="_done", check_sortedness=False)
    loose = wanted.join_asof(ends, on="row", by=same[:2], strategy="forward", suffix="_done", check_sortedness=False)
    tied = (
        exact.select("hook", exact="tool_call_id")
        .join(loose.select("hook", loose="tool_call_id"), on="hook")
        .select(row="hook", after=pl.coalesce("exact", "loose"))
    )
    return pairs.join(tied, on="row", how="left", maintain_order="left").with_columns(
        tool_call_ids=pl.coalesce("tool_call_ids", pl.when(pl.col("after").is_not_null()).then(pl.concat_list("after"))),
        tool_call_id=pl.coalesce(
            "after", pl.when(pl.col("tool_call_ids").list.len() == 1).then(pl.col("tool_call_ids").list.first())
        ),
    )


def tool_calls(events: Events, permissions: pl.LazyFrame, hooks: pl.LazyFrame) -> pl.LazyFrame:
    """A row per tool call. Extra columns: row, session, agent, waits_for_user.

    `duration_ms` is start → completion as the CLI times it; `run_ms` is what is left of it
    without waiting for permissions, hooks and people.
    """
    key = ["session", "tool_call_id"]
    # a second process says "interrupted" of a call that the first goes on with and completes
    cut = (pl.col("error_code") == "interrupted").fill_null(value=False)
    ended = pl.col("type") == "tool.execution_complete"
    superseded = pl.when(cut & (ended & ~cut).any().over(key)).then(None).otherwise("tool_call_id")
    pairs = spans(events, "tool.execution_start", "tool.execution_complete", key, superseded.alias("tool_call_id"))
    waits = _held(pairs, permissions, key).group_by("row").agg(permission_ms=pl.col("ms").sum())
    own = hooks.filter(pl.col("kind").is_in(LOOP_HOOKS)).with_columns(tool_call_id="tool_call_ids")
    own = own.explode("tool_call_id", empty_as_null=False)
    hooked = _held(pairs, own, key).group_by("row").agg(hook_ms=pl.col("ms").sum())
    code = pl.col("error_code_end")
    done = pl.col("row_end").is_not_null()
    cut = (code == "interrupted").fill_null(value=False)
    calls = pairs.join(waits, on="row", how="left", maintain_order="left").join(
        hooked, on="row", how="left", maintain_order="left"
    )
    mcp = pl.col("mcp_server").is_not_null()
    calls = calls.with_columns(
        turn=pl.coalesce("turn", "turn_end"), interaction=pl.coalesce("interaction", "interaction_end"),
        category=pl.when(mcp).then(pl.lit("mcp")).otherwise(
            pl.col("tool").replace_strict(CATEGORY, default="other", return_dtype=pl.String)),
        started_at="at", ended_at=pl.when(~cut).then("at_end"),
        status=pl.when(~done).then(pl.lit("open")).when(cut).then(pl.lit("interrupted"))
        .when(code.is_in(["denied", "rejected"])).then(pl.lit("denied"))
        .when(pl.col("success_end").not_().fill_null(value=False) | code.is_not_null()).then(pl.lit("failed"))
        .otherwise(pl.lit("ok")),
        error_code="error_code_end", result_bytes="result_bytes_end",
    )  # fmt: skip
    user = pl.col("category") == "user"
    shell = pl.col("category") == "shell"
    # a completion by a later process ends no run that anybody timed
    calls = calls.with_columns(
        exit_code=pl.when(shell | pl.col("tool").is_null()).then("exit_code_end"),
        duration_ms=pl.when(~cut & (pl.col("process") == pl.col("process_end"))).then(elapsed("at", "at_end")),
    ).with_columns(
        hook_ms=pl.when(pl.col("duration_ms").is_not_null()).then(pl.col("hook_ms").fill_null(0)),
        permission_ms=pl.when(pl.col("duration_ms").is_not_null()).then(
            pl.when(user).then("duration_ms").otherwise(pl.col("permission_ms").fill_null(0))),
    )  # fmt: skip
    return calls.with_columns(
        run_ms=(pl.col("duration_ms") - pl.col("permission_ms") - pl.col("hook_ms")).clip(lower_bound=0),
        waits_for_user=user,
        row=pl.coalesce("row", "row_end"),
    ).sort("row")


def _held(pairs: pl.LazyFrame, holds: pl.LazyFrame, key: list[str]) -> pl.LazyFrame:
    """For each wait or hook of a tool call: `row` of the call's start, and the milliseconds
    of it that fall into the call. A call id can be used twice: the latest start counts."""
    starts = pairs.filter(pl.col("row").is_not_null()).select(
        *key, pl.col("row").alias("start"), from_="at", to="at_end"
    ).sort("start")  # fmt: skip
    holds = holds.filter(pl.col("at").is_not_null() & pl.col("at_end").is_not_null())
    holds = holds.select(*key, "at", "at_end", done="row_end").sort("done")
    found = holds.join_asof(starts, left_on="done", right_on="start", by=key, check_sortedness=False)
    within = pl.min_horizontal("to", "at_end") - pl.max_horizontal("from_", "at")
    return found.filter(pl.col("start").is_not_null() & pl.col("to").is_not_null()).select(
        row="start", ms=within.dt.total_milliseconds().clip(lower_bound=0)
    )


# --- agents and interactions --------------------------------------------------------------


def subagents(events: Events, calls: pl.LazyFrame, tools: pl.LazyFrame) -> pl.LazyFrame:
    """A row per sub-agent: first to last event of its agent id, whatever its `task` call did."""
    extent = (
        events.base.lazy().filter(pl.col("agent_id") != MAIN)
        .group_by("agent", maintain_order=True)
        .agg(pl.col("session_id", "agent_id").first(), first=pl.col("at").min(), last=pl.col("at").max())
    )  # fmt: skip
    begun = events.of(STARTED).group_by("agent").agg(
        pl.col("tool_call_id", "agent_name", "model", "execution_mode", "at").first()
    )
    ends = events.of("subagent.completed", "subagent.failed").group_by("agent").agg(
        pl.col("type", "cancelled", "tool_call_id", "agent_name", "model").last().name.suffix("_end")
    )
    own = calls.filter(pl.col("evidence") != "compaction").group_by("agent").agg(
        turns=pl.len().cast(pl.Int64), call_model=pl.col("model").drop_nulls().first(),
        **{name: total(name) for name in TOKENS},
    )  # fmt: skip
    used = tools.group_by("agent").agg(tool_calls=pl.len().cast(pl.Int64))
    table = extent
    for more in (begun, ends, own, used):
        table = table.join(more, on="agent", how="left", maintain_order="left")
    return table.with_columns(
        tool_call_id=pl.coalesce("tool_call_id", "tool_call_id_end"),
        agent_name=pl.coalesce("agent_name", "agent_name_end"),
        model=pl.coalesce("model", "model_end", "call_model"),
        started_at=pl.coalesce("at", "first"),
        ended_at=pl.when(pl.col("type_end").is_not_null()).then("last"),
        status=pl.when(pl.col("cancelled_end")).then(pl.lit("cancelled"))
        .when(pl.col("type_end") == "subagent.failed").then(pl.lit("failed"))
        .when(pl.col("type_end").is_not_null()).then(pl.lit("ok")).otherwise(pl.lit("open")),
        turns=pl.col("turns").fill_null(0), tool_calls=pl.col("tool_calls").fill_null(0),
    )  # fmt: skip


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
    begun = base.filter("begins").select(*key, "row", "agent", "session_id", "agent_id", "type", "at")
    texts = events.of(USER).select("row", "interaction_id", "source", "delivery", "nudge")
    inside = base.filter(pl.col("own") & (pl.col("loop") | pl.col("begins"))).group_by(key).agg(
        last=pl.col("at").max()
    )
    hooked = hooks.filter(pl.col("kind").is_in(LOOP_HOOKS)).group_by(key).agg(hooked=pl.col("at_end").max())
    made = calls.filter(pl.col("evidence") != "compaction").group_by(key).agg(
        turns=pl.len().cast(pl.Int64), final=pl.col("status").last(), wants=pl.col("tool_requests").last(),
        closed=pl.col("row_end").last().is_not_null() | (pl.col("evidence").last() != "turn"),
        loop_id=pl.col("interaction_id").drop_nulls().first(),
    )  # fmt: skip
    used = tools.group_by(key).agg(
        tool_calls=pl.len().cast(pl.Int64), unfinished=pl.col("status").is_in(["open", "interrupted"]).any()
    )
    said = events.of("session.task_complete").filter(pl.col("success").fill_null(value=True))
    marks = {
        "completed": said,
        "aborted": events.of("abort"),
        "stopped": events.of("subagent.completed"),
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
        pl.when(pl.col("completed")).then(pl.lit("task_complete"))
        .when(pl.col("aborted")).then(pl.lit("aborted"))
        .when((pl.col("final") == "error") | pl.col("broken")).then(pl.lit("error"))
        .when(answered | pl.col("stopped")).then(pl.lit("answered"))
        .otherwise(pl.lit("open"))
    )  # fmt: skip
    table = table.with_columns(
        kind=pl.when(pl.col("agent_id") != MAIN).then(pl.lit("subagent"))
        .when(user & pl.col("nudge")).then(pl.lit("autopilot"))
        .when(user & (pl.col("delivery") == "steering")).then(pl.lit("steering"))
        .when(user & (pl.col("source").is_null() | (pl.col("source") == "user"))).then(pl.lit("user"))
        .otherwise(pl.lit("other")),
        interaction_id=pl.coalesce("interaction_id", "loop_id"),
        started_at="at", ended_at=pl.max_horizontal("last", "hooked", "at"),
        turns=pl.col("turns").fill_null(0), tool_calls=pl.col("tool_calls").fill_null(0), outcome=outcome,
    )  # fmt: skip
    # a steering message shares the end of the loop that it was given to
    own = ~((pl.col("kind") == "steering") & (pl.col("turns") == 0))
    return table.with_columns(
        outcome=pl.when(own).then("outcome").forward_fill().over("agent").fill_null("open")
    )


