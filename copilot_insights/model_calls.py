"""Model calls: every one that the log gives evidence of, and what it took."""

from typing import Final

import polars as pl

from copilot_insights.reader import Events
from copilot_insights.schema import AMOUNTS, TOKENS
from copilot_insights.spans import MESSAGE, RECORD, STARTED, elapsed, spans, total

_CALL: Final = ["session", "turn"]
_PLACE: Final = (
    *("row", "seq", *_CALL, "session_id", "agent", "agent_id", "interaction", "process"),
    *("shares", "turn_id", "interaction_id", "model"),
)


def llm_calls(events: Events, turns: pl.LazyFrame, store: pl.LazyFrame) -> pl.LazyFrame:
    """A row per model call that the log gives evidence of.

    Evidence is a `turn_start`, else the message, usage record or error of an agent that has
    written none (see `spans.number`), and each compaction. Latency is start → reply, never
    start → `turn_end`: tools run within a turn.
    Extra columns: row, row_end (of the turn), seq, session, agent, process.
    """
    turns = turns.filter(pl.col("row").is_not_null()).select(
        *_PLACE,
        "row_end",
        evidence=pl.lit("turn"),
        started_at="at",
        ended_at="at_end",
    )
    messages = events.of(MESSAGE)
    alone = (
        events.of(MESSAGE, "session.error", RECORD)
        .filter("is_turn")
        .select(
            *_PLACE,
            started_at="previous_at",
            ended_at="at",
            evidence=pl.when(pl.col("type") == "session.error")
            .then(pl.lit("error"))
            .otherwise(pl.lit("message")),
        )
    )
    # what is written behind a turn's end is no reply: 1.0.102 opens a woken run like this
    ends = turns.select(*_CALL, "row_end").filter(pl.col("row_end").is_not_null())
    replies = (
        _within(messages, ends)
        .group_by(_CALL)
        .agg(
            pl.col("at", "row").first().name.prefix("reply_"),
            pl.col("api_call_id", "model").drop_nulls().first().name.prefix("reply_"),
            total("tool_requests").alias("tool_requests"),
            total("output_tokens").alias("message_tokens"),
        )
    )
    records = (
        _records(events, ends)
        .group_by(_CALL)
        .agg(
            *(total(name).alias(name) for name in AMOUNTS),
            total("duration_ms").alias("duration_ms"),
            pl.col("ttft_ms", "initiator", "model", "api_call_id").first().name.prefix("record_"),
            pl.col("finish_reason").last(),
            recorded=pl.lit(value=True),
        )
    )
    # a tool that starts shows that there was a reply, should its line be damaged
    acted = events.of("tool.execution_start").group_by(_CALL).agg(acted_at=pl.col("at").first())
    aborts = events.of("abort").select(*_CALL, aborted=pl.lit(value=True)).unique()
    # where a line of a turn is lost, that may be its reply
    gaps = events.base.lazy().filter("gap").select(*_CALL, torn=pl.lit(value=True)).unique()
    errors = events.of("session.error").select(*_CALL, failed=pl.lit(value=True)).unique()
    calls = pl.concat([turns, alone], how="diagonal_relaxed").sort("row")
    for more in (replies, records, acted, aborts, errors, gaps):
        calls = calls.join(more, on=_CALL, how="left", maintain_order="left")
    # … and its time is a bound only where the reply's own is not known
    calls = calls.with_columns(
        acted=pl.col("acted_at").is_not_null() & (pl.col("evidence") == "turn")
    ).with_columns(
        acted_at=pl.when(pl.col("acted") & pl.col("reply_row").is_null()).then("acted_at")
    )
    answered = pl.any_horizontal(
        pl.col(name).is_not_null() for name in ("reply_row", "recorded")
    ) | pl.col("acted")
    ended = pl.col("row_end").is_not_null()
    calls = calls.with_columns(
        replied_at="reply_at",
        status=pl.when(answered)
        .then(pl.lit("ok"))
        .when(pl.col("aborted"))
        .then(pl.lit("aborted"))
        .when(pl.col("torn") & pl.col("failed").is_null())
        .then(pl.lit("open"))
        .when(ended | pl.col("failed") | (pl.col("evidence") == "error"))
        .then(pl.lit("error"))
        .otherwise(pl.lit("open")),
        model=pl.coalesce("reply_model", "record_model", "model"),
        api_call_id=pl.coalesce("reply_api_call_id", "record_api_call_id"),
    )
    calls = _with_store(calls, store)
    cut = pl.col("status").is_in(["error", "aborted"])
    calls = calls.with_columns(
        usage_source=pl.when(pl.col("recorded"))
        .then(pl.lit("usage_record"))
        .when(pl.col("stored"))
        .then(pl.lit("store"))
        .when(pl.col("message_tokens").is_not_null())
        .then(pl.lit("message")),
        output_tokens=pl.coalesce("output_tokens", "message_tokens"),
        ttft_ms="record_ttft_ms",
        initiator="record_initiator",
        llm_ms=pl.coalesce(
            "duration_ms",
            elapsed("started_at", "replied_at"),
            pl.when(cut).then(elapsed("started_at", "ended_at")),
            elapsed("started_at", "acted_at"),
        ),
        llm_ms_source=pl.when(pl.col("duration_ms").is_not_null() & pl.col("recorded"))
        .then(pl.lit("usage_record"))
        .when(pl.col("duration_ms").is_not_null())
        .then(pl.lit("store"))
        .when(elapsed("started_at", "replied_at").is_not_null())
        .then(pl.lit("message"))
        .when(
            (cut & elapsed("started_at", "ended_at").is_not_null())
            | elapsed("started_at", "acted_at").is_not_null()
        )
        .then(pl.lit("turn")),
    )
    compactions = _compactions(events)
    calls = pl.concat([_sent(calls, compactions), compactions], how="diagonal_relaxed")
    return _with_model(calls, events).sort("row")


def _within(events: pl.LazyFrame, ends: pl.LazyFrame) -> pl.LazyFrame:
    """Without what stands behind the end of its turn."""
    return events.join(ends, on=_CALL, how="left", maintain_order="left").filter(
        pl.col("row_end").is_null() | (pl.col("row") < pl.col("row_end"))
    )


def _sent(calls: pl.LazyFrame, compactions: pl.LazyFrame) -> pl.LazyFrame:
    """All but the turn that waited for an unfinished compaction: it never got to its call.

    The CLI compacts beside a call and waits for it before the next one, so a turn that is
    open behind an open compaction was killed before anything was sent.
    """
    stuck = (
        compactions.filter(pl.col("status") == "open")
        .group_by("agent", "process")
        .agg(stuck=pl.col("row").min())
    )
    waiting = (pl.col("status") == "open") & (pl.col("row") > pl.col("stuck"))
    return calls.join(stuck, on=["agent", "process"], how="left", maintain_order="left").filter(
        ~waiting.fill_null(value=False)
    )


def _records(events: Events, ends: pl.LazyFrame) -> pl.LazyFrame:
    """Usage of single calls, with the turn of the message that it is about; a stream repeats
    a stored record as `assistant.usage`, behind everything else.
    """
    call = ["session", "api_call_id"]
    records = events.of("session.usage_record", "assistant.usage")
    again = pl.col("api_call_id").is_not_null() & ~pl.struct(call).is_first_distinct()
    replies = events.of(MESSAGE).filter(pl.col("api_call_id").is_not_null())
    replies = replies.select(*call, turn_of="turn").unique(call, keep="first")
    records = records.filter(~again).join(replies, on=call, how="left", maintain_order="left")
    known = records.filter(pl.col("turn_of").is_not_null()).with_columns(turn="turn_of")
    rest = _within(records.filter(pl.col("turn_of").is_null()), ends)
    return pl.concat([known, rest.select(known.collect_schema().names())]).sort("row")


def _with_store(calls: pl.LazyFrame, store: pl.LazyFrame) -> pl.LazyFrame:
    """Usage from the session store, for calls that the log has no record of.

    The store has no call ids: its rows are an agent's answered calls in order, taken only
    where their numbers agree.
    """
    key = ["session_id", "agent_id"]
    place = pl.int_range(pl.len(), dtype=pl.Int64)
    wanted = (
        calls.filter(pl.col("status") == "ok")
        .with_columns(
            place=place.over(key),
            size=pl.len().over(key).cast(pl.Int64),
        )
        .filter(pl.col("recorded").is_null())
        .select("row", *key, "place", "size")
    )
    rows = store.with_columns(
        place=place.over(key), size=pl.len().over(key).cast(pl.Int64), stored=pl.lit(value=True)
    )
    names = [
        *AMOUNTS,
        "duration_ms",
        "record_ttft_ms",
        "record_initiator",
        "record_model",
        "finish_reason",
    ]
    found = wanted.join(rows, on=[*key, "place", "size"]).select(
        "row", "stored", pl.col(names).name.prefix("store_")
    )
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
        pl.coalesce("row", "row_end").alias("row"),
        pl.coalesce("seq", "seq_end").alias("seq"),
        "session",
        "session_id",
        "agent",
        "agent_id",
        pl.coalesce("interaction", "interaction_end").alias("interaction"),
        pl.coalesce("process", "process_end").alias("process"),
        pl.coalesce("model_end", "model").alias("model"),
        *(pl.col(f"{name}_end").alias(name) for name in TOKENS if name != "reasoning_tokens"),
        evidence=pl.lit("compaction"),
        started_at="at",
        replied_at="at_end",
        ended_at="at_end",
        status=pl.when(~done)
        .then(pl.lit("open"))
        .when(pl.col("success_end").not_().fill_null(value=False))
        .then(pl.lit("error"))
        .otherwise(pl.lit("ok")),
        llm_ms=pl.coalesce("duration_ms_end", elapsed("at", "at_end")),
        llm_ms_source=pl.when(pl.col("duration_ms_end").is_not_null())
        .then(pl.lit("compaction"))
        .when(elapsed("at", "at_end").is_not_null())
        .then(pl.lit("message")),
        usage_source=pl.when(pl.col("input_tokens_end").is_not_null()).then(pl.lit("compaction")),
    )


_MODEL_EVENTS: Final = (
    "session.start",
    "session.resume",
    "session.model_change",
    "tool.execution_complete",
    MESSAGE,
    "session.usage_record",
    "assistant.usage",
    STARTED,
)


def _with_model(calls: pl.LazyFrame, events: Events) -> pl.LazyFrame:
    """The model of calls that do not name it: what the log last said of the agent, else the
    only model that the session's totals know.
    """
    said = events.of(*_MODEL_EVENTS).filter(pl.col("model").is_not_null())
    said = said.select("agent", "row", said="model").sort("row")
    stated = events.of("session.shutdown").select("session", "row", "statements")
    models = pl.col("statements").list.eval(pl.element().struct.field("model"))
    only = stated.filter(models.list.len() == 1).select("session", "row", only=models.list.first())
    calls = calls.sort("row").join_asof(said, on="row", by="agent", check_sortedness=False)
    calls = calls.join_asof(
        only.sort("row"), on="row", by="session", strategy="forward", check_sortedness=False
    )
    return calls.with_columns(model=pl.coalesce("model", "said", "only"))
