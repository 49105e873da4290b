"""Which source each token, credit and millisecond comes from.

Usage: per call from `session.usage_record`, else the session store, else the message's
output tokens. Per session the sum over calls where it is complete, else the totals that
`session.shutdown` states, else what is known; sources are never added for the same call.
Time: an interaction's wall time is cut into parts that do not overlap and add up to it.
"""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

import polars as pl

from copilot_insights.reader import Events
from copilot_insights.schema import AMOUNTS, MAIN, PARTS, STATEMENT, TOKENS
from copilot_insights.spans import MESSAGE, collect, total

_STORE: Final = "session-store.db"
_STORE_SCHEMA: Final = {
    "session_id": pl.String,
    "agent_id": pl.String,
    "record_model": pl.String,
    "input_tokens": pl.Int64,
    "cache_read_tokens": pl.Int64,
    "cache_write_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "reasoning_tokens": pl.Int64,
    "nano_aiu": pl.Float64,
    "premium_requests": pl.Float64,
    "duration_ms": pl.Int64,
    "record_ttft_ms": pl.Int64,
    "record_initiator": pl.String,
    "finish_reason": pl.String,
    "at": pl.String,
}


def _text(column: str) -> str:
    return f"CASE typeof({column}) WHEN 'text' THEN {column} END"


def _number(column: str, most: int = 2**53) -> str:
    # a column of SQLite holds values of any type
    sound = f"typeof({column}) IN ('integer', 'real') AND {column} BETWEEN 0 AND {most}"
    return f"CASE WHEN {sound} THEN {column} END"


def _count(column: str) -> str:
    return f"CAST(round({_number(column)}) AS INTEGER)"


_QUERY: Final = f"""
    SELECT {_text("session_id")}, coalesce({_text("agent_id")}, ?), {_text("model")},
      {", ".join(map(_count, TOKENS))}, {_number("total_nano_aiu", 10**15)},
      CASE WHEN initiator IS NULL OR initiator = 'user'
        THEN {_number("request_multiplier", 10**15)} ELSE 0 END,
      {_count("duration_ms")}, {_count("time_to_first_token_ms")},
      {_text("initiator")}, {_text("finish_reason")}, {_text("created_at")}
    FROM assistant_usage_events WHERE initiator IS NOT 'compaction' ORDER BY id
"""  # noqa: S608 (our own names)


def store_beside(logs: Iterable[str]) -> pl.DataFrame:
    """Usage from the session stores in whose home the logs lie; empty where there is none.

    The store is opened read-only and never locked. A store that can't be read (another
    version, damaged) is the same as none: every number that it has is a second source.
    """
    homes = {os.path.dirname(os.path.abspath(log)) for log in logs}  # noqa: PTH100, PTH120 (many)
    places = {os.path.join(home, up, _STORE) for home in homes for up in ("..", "../..")}  # noqa: PTH118
    stores = sorted({Path(place).resolve() for place in places if os.path.isfile(place)})  # noqa: PTH113
    rows = [(*row, number) for number, store in enumerate(stores) for row in _rows(store)]
    frame = pl.DataFrame(rows, {**_STORE_SCHEMA, "store": pl.Int64}, orient="row", strict=False)
    if len(stores) > 1:  # the same store in two places: of a session the one that knows most
        known = frame.group_by("session_id", "store").len().sort("len", "store")
        most = known.unique("session_id", keep="last")
        frame = frame.join(most, on=["session_id", "store"], how="semi", maintain_order="left")
    return frame.drop("store")


def _rows(store: Path) -> list[tuple[object, ...]]:
    # without a write-ahead log nothing is pending: then not even a lock file is touched
    still = "" if store.with_name(f"{_STORE}-wal").exists() else "&immutable=1"
    try:
        with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro{still}", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode(errors="replace")
            return connection.execute(_QUERY, (MAIN,)).fetchall()
    except sqlite3.Error:
        return []


TOTALS: Final = {"session.shutdown": "shutdown", "session.usage_checkpoint": "checkpoint"}
"""Events that state totals → the name of that source."""

# --- usage --------------------------------------------------------------------------------


def usage(events: Events, store: pl.LazyFrame) -> pl.LazyFrame:
    """A row per usage statement of the log, of every source; no row is a sum of others.

    Extra columns: session, process, row.
    """
    place = ["session", "session_id", "process", "row", "seq", "agent_id", "at"]
    records = events.of("session.usage_record", "assistant.usage").select(
        *place, "model", *AMOUNTS, source=pl.lit("usage_record"), requests=1
    )
    messages = (
        events.of(MESSAGE)
        .filter(pl.col("output_tokens").is_not_null())
        .select(*place, "model", "output_tokens", source=pl.lit("message"), requests=1)
    )
    compactions = (
        events.of("session.compaction_complete")
        .filter(pl.col("input_tokens").is_not_null())
        .select(*place, "model", *AMOUNTS[:4], source=pl.lit("compaction"), requests=1)
    )
    totals = statements(events, *TOTALS).with_columns(source=pl.col("type").replace_strict(TOTALS))
    sessions = events.base.lazy().group_by("session_id").agg(pl.col("session").first())
    stored = store.join(sessions, on="session_id").select(
        "session",
        "session_id",
        "agent_id",
        *AMOUNTS,
        model="record_model",
        at=pl.col("at").str.to_datetime(time_unit="ms", time_zone="UTC", strict=False),
        source=pl.lit("store"),
        requests=1,
    )
    said = pl.concat([records, messages, compactions, totals, stored], how="diagonal_relaxed")
    return said.sort("session", "row", nulls_last=True, maintain_order=True)


def statements(events: Events, *kinds: str) -> pl.LazyFrame:
    """A row per model of each total of the log."""
    place = ["session", "session_id", "process", "row", "seq", "agent_id", "at", "type"]
    exploded = (
        events.of(*kinds)
        .select(*place, "statements")
        .explode("statements", empty_as_null=False, keep_nulls=False)
    )
    fields = [field.name for field in STATEMENT.fields]
    return exploded.select(*place, *(pl.col("statements").struct.field(name) for name in fields))


def answered(calls: pl.LazyFrame) -> pl.LazyFrame:
    """The calls that the CLI counts as requests: those that got a reply, no compactions."""
    return calls.filter((pl.col("evidence") != "compaction") & (pl.col("status") == "ok"))


def totals(events: Events, calls: pl.LazyFrame) -> pl.LazyFrame:
    """What each stated total adds: session, process, row, since, last_row, requests,
    premium_requests, nano_aiu.

    Until about 1.0.68 a shutdown's total restarts with each process; later ones go on from
    the last total in the log, whichever version wrote it, and a log can hold both. Decided
    from the numbers: a total of as many requests as the last one and the calls answered
    since goes on (then `last_row` is what it goes on from and it adds the difference); one
    of just those calls, or one that falls, is a restart. Processes that crashed are part of
    a total when the numbers say so; `since` is the first process that it is about.
    """
    own = answered(calls).group_by("session", "process").agg(own=pl.len().cast(pl.Int64))
    sums = (
        statements(events, *TOTALS)
        .group_by("row")
        .agg(
            requests=pl.col("requests").sum(),
            tokens=pl.col("input_tokens").sum() + pl.col("output_tokens").sum(),
        )
    )
    stated = (
        events.of(*TOTALS)
        .filter(pl.col("statements").is_not_null())
        .select("session", "process", "row", "type", "premium_requests", "nano_aiu")
        .join(sums, on="row", how="left")
        .with_columns(pl.col("requests", "tokens").fill_null(0))
        .sort("row")
        .unique(["session", "process"], keep="last", maintain_order=True)
    )
    kept = ["requests", "tokens", "row", "process", "so_far", "nano_aiu", "premium_requests"]
    seen = (
        stated.join(own, on=["session", "process"], how="full", coalesce=True)
        .with_columns(pl.col("own").fill_null(0))
        .sort("session", "process")
        .with_columns(so_far=pl.col("own").cum_sum().over("session"))
        .filter(pl.col("row").is_not_null())
        .with_columns(pl.col(kept).shift(1).over("session").name.prefix("last_"))
        .with_columns(pl.col("last_requests", "last_tokens", "last_so_far").fill_null(0))
    )
    lately = pl.col("so_far") - pl.col("last_so_far")

    def off(expected: pl.Expr) -> pl.Expr:
        return (pl.col("requests") - expected).abs()

    go_on = pl.min_horizontal(
        off(pl.col("last_requests") + lately), off(pl.col("last_requests") + pl.col("own"))
    )
    restart = pl.min_horizontal(off(lately), off(pl.col("own")))
    falls = (pl.col("requests") < pl.col("last_requests")) | (
        pl.col("tokens") < pl.col("last_tokens")
    )
    checkpoint = pl.col("type") == "session.usage_checkpoint"
    seen = seen.with_columns(goes_on=(checkpoint | (go_on <= restart)) & ~falls).with_columns(
        base=pl.when("goes_on").then("last_requests").otherwise(0)
    )
    crashed_too = off(pl.col("base") + lately) <= off(pl.col("base") + pl.col("own"))
    before = pl.col("last_process").fill_null(-1) + 1
    rises = pl.col("goes_on") | (pl.col("nano_aiu") >= pl.col("last_nano_aiu"))
    return seen.select(
        "session",
        "process",
        "row",
        requests=pl.col("requests") - pl.col("base"),
        # an empty total is about none of the calls that there were
        since=pl.when((pl.col("requests") > pl.col("base")) | (lately == 0)).then(
            pl.when(crashed_too).then(before).otherwise("process")
        ),
        last_row=pl.when("goes_on").then("last_row"),
        premium_requests=pl.col("premium_requests")
        - pl.when("goes_on").then(pl.col("last_premium_requests").fill_null(0)).otherwise(0),
        # after a crash a process can carry credits over that it did not spend (1.0.77)
        nano_aiu=pl.col("nano_aiu")
        - pl.when(pl.col("goes_on") | ((lately == 0) & rises))
        .then(pl.col("last_nano_aiu").fill_null(0))
        .otherwise(0),
    )


def bookings(events: Events, calls: pl.LazyFrame, stated: pl.LazyFrame) -> pl.LazyFrame:
    """The usage that a session's numbers are made of, at the time of each call: a row per
    answered call. Its sums are the session's totals. Extra columns: session.

    Calls that state their usage are booked as they are, where that is known of all of their
    session's calls or no total of the log includes them; the others by the totals.
    """
    made = answered(calls)
    known = pl.col("input_tokens").is_not_null()
    # a total of more calls than the log has (lines were lost) knows more than their sum; not
    # so in a fork, whose totals are also about the calls that it shares with its original
    lost = (
        without_total(made, stated)
        .filter(pl.col("covered") & ~pl.col("shares"))
        .group_by("session")
        .agg(found=pl.len())
        .join(stated.group_by("session").agg(pl.col("requests").sum()), on="session")
        .filter(pl.col("requests") > pl.col("found"))
    )
    whole = collect(
        made.group_by("session")
        .agg(whole=known.all())
        .join(lost.select("session", lost=pl.lit(value=True)), on="session", how="left")
        .with_columns(pl.col("whole") & pl.col("lost").is_null())
    )
    place = ["session", "session_id", "agent_id", "model"]
    at = pl.coalesce("started_at", "replied_at")
    by_call = (
        without_total(made.join(whole, on="session"), stated)
        .filter((pl.col("whole") | ~pl.col("covered")) & pl.col("usage_source").is_not_null())
        .select(*place, at.alias("at"), *AMOUNTS, source="usage_source")
    )
    books = collect(_books(events, stated, whole).with_row_index("book"))
    shares = made.select(*place, "process", at=at, weight="output_tokens")
    by_total = collect(_shared_out(books, shares))
    left = books.join(by_total.select("book").unique(), on="book", how="anti").select(
        "session", "session_id", "model", "source", "at", *AMOUNTS, agent_id=pl.lit(MAIN)
    )
    estimated = pl.col("source").is_in(list(TOTALS.values()))
    return (
        pl.concat([by_call, by_total.drop("book"), left], how="diagonal_relaxed")
        .with_columns(estimated=estimated)
        .sort("session", "at", maintain_order=True)
    )


def _books(events: Events, stated: pl.LazyFrame, whole: pl.LazyFrame) -> pl.LazyFrame:
    """What each total adds to the last one, by model, for the processes `since` to `until`;
    of sessions that do not state the usage of every call.
    """
    said = statements(events, *TOTALS)
    last = said.select("model", pl.col(AMOUNTS).name.prefix("last_"), last_row="row")
    more = {name: pl.col(name) - pl.col(f"last_{name}").fill_null(0) for name in AMOUNTS}
    return (
        said.join(stated.select("row", "since", "last_row"), on="row")
        .join(last, on=["last_row", "model"], how="left", nulls_equal=True)
        .join(whole, on="session", how="left")
        .filter(~pl.col("whole").fill_null(value=False))
        .select(
            "session",
            "session_id",
            "model",
            "since",
            "at",
            until="process",
            source=pl.col("type").replace_strict(TOTALS),
            **{name: amount.clip(lower_bound=0) for name, amount in more.items()},
        )
    )


def _shared_out(books: pl.LazyFrame, made: pl.LazyFrame) -> pl.LazyFrame:
    """Books among the calls that they are about: by their output tokens where these are
    known of all, else equally. Whole numbers stay whole and sums exact.
    """
    shares = books.drop("at").join(
        made.drop("session_id"), on=["session", "model"], nulls_equal=True, maintain_order="left"
    )
    shares = shares.filter(pl.col("process").is_between("since", "until"))
    weights = shares.group_by("book").agg(
        even=pl.col("weight").is_null().any() | (pl.col("weight").sum() == 0),
        all=pl.col("weight").sum(),
        number=pl.len(),
    )
    shares = shares.join(weights, on="book", maintain_order="left").with_columns(
        weight=pl.when("even").then(1).otherwise("weight"),
        all=pl.when("even").then("number").otherwise("all"),
    )
    part = pl.col("weight").cum_sum().over("book") / pl.col("all")

    def so_far(name: str) -> pl.Expr:
        share = pl.col(name) * part
        return (share.round().cast(pl.Int64) if name in TOKENS else share).alias(name)

    upto = shares.with_columns(so_far(name) for name in AMOUNTS)
    return upto.select(
        "book",
        "session",
        "session_id",
        "model",
        "source",
        "agent_id",
        "at",
        *(pl.col(n) - pl.col(n).shift(1, fill_value=0).over("book") for n in AMOUNTS),
    )


def without_total(answered: pl.LazyFrame, stated: pl.LazyFrame) -> pl.LazyFrame:
    """The calls, with `covered`: whether a total of the log includes them."""
    spans = stated.select("session", "since", until="process").sort("until")
    calls = answered.sort("process").join_asof(
        spans,
        left_on="process",
        right_on="until",
        by="session",
        strategy="forward",
        check_sortedness=False,
    )
    return calls.with_columns(covered=(pl.col("process") >= pl.col("since")).fill_null(value=False))


def session_usage(
    events: Events, calls: pl.LazyFrame, stated: pl.LazyFrame, booked: pl.LazyFrame
) -> pl.LazyFrame:
    """A row per session: amounts, usage_source, ai_credits, compaction tokens."""
    sums = booked.group_by("session").agg(
        *(total(name) for name in AMOUNTS),
        usage_source=pl.col("source").unique().sort().str.join("+"),
    )
    said = stated.group_by("session").agg(premium=total("premium_requests"), nano=total("nano_aiu"))
    streamed = (
        events.of("result").group_by("session").agg(streamed=pl.col("premium_requests").last())
    )
    packed = (
        calls.filter(pl.col("evidence") == "compaction")
        .group_by("session")
        .agg(
            compaction_input_tokens=total("input_tokens"),
            compaction_output_tokens=total("output_tokens"),
        )
    )
    table = events.base.lazy().select("session").unique()
    for more in (sums, said, streamed, packed):
        table = table.join(more, on="session", how="left")
    return table.with_columns(
        premium_requests=pl.coalesce("premium", "premium_requests", "streamed"),
        ai_credits=pl.coalesce("nano", "nano_aiu") / 1e9,
    )


# --- time ---------------------------------------------------------------------------------


def time_split(
    interactions: pl.LazyFrame,
    calls: pl.LazyFrame,
    tools: pl.LazyFrame,
    permissions: pl.LazyFrame,
    hooks: pl.LazyFrame,
) -> pl.LazyFrame:
    """Parts of the wall time: session, interaction and PARTS, in milliseconds.

    At each instant the first of these that is so: a tool runs; a permission or a person is
    waited for; a hook runs; the model is called; else other. A tool that is itself held up
    by a permission or a hook does not run. What an abort cut short went on until then, though
    it has no latency. Parts add up to the wall time exactly.
    """
    key = ["session", "interaction"]
    aborted = interactions.filter(pl.col("outcome") == "aborted").select(*key, cut="ended_at")

    def cut(frame: pl.LazyFrame) -> pl.LazyFrame:
        known = frame.join(aborted, on=key, how="left", maintain_order="left")
        return known.with_columns(at_end=pl.coalesce("at_end", "cut"))

    tools, permissions, hooks = cut(tools), cut(permissions), cut(hooks)
    ran = pl.col("duration_ms").is_not_null() | (
        (pl.col("status") == "open") & pl.col("cut").is_not_null()
    )
    tools = tools.filter(ran.fill_null(value=False))
    frames = [
        _marks(
            calls.with_columns(at="started_at", at_end=pl.coalesce("replied_at", "ended_at")), llm=1
        ),
        _marks(tools.filter(~pl.col("waits_for_user")), tool=1),
        _marks(tools.filter(pl.col("waits_for_user")), permission=1),
    ]
    timed = tools.select("session", "tool_call_id", pl.lit(1).alias("held"))
    timed = timed.unique(["session", "tool_call_id"])
    held = permissions.join(timed, on=["session", "tool_call_id"], how="left")
    frames.append(_marks(held, permission=1, tool=-pl.col("held").fill_null(0)))
    number = (
        hooks.select("row", "session", tool_call_id="tool_call_ids")
        .explode("tool_call_id", empty_as_null=False)
        .join(timed, on=["session", "tool_call_id"])
        .group_by("row")
        .agg(held=pl.len().cast(pl.Int64))
    )
    stopping = hooks.join(number, on="row", how="left")
    frames.append(_marks(stopping, hook=1, tool=-pl.col("held").fill_null(0)))
    extent = interactions.select(
        *key, pl.col("started_at").alias("from"), pl.col("ended_at").alias("to")
    )
    marks = pl.concat(frames, how="diagonal_relaxed").join(extent, on=key)
    kinds = ["llm", "tool", "permission", "hook"]
    # an interaction's marks add up to nothing, so the sums need no regard to where it begins
    state = (
        marks.filter(pl.col("from").is_not_null())
        .with_columns(t=pl.col("t").clip(pl.col("from"), pl.col("to")))
        .sort(*key, "t")
        .with_columns(pl.col(kinds).cum_sum(), next=pl.col("t").shift(-1))
        .filter(pl.any_horizontal(pl.col(kinds) > 0))
        .with_columns(
            ms=(pl.col("next") - pl.col("t")).dt.total_milliseconds(),
            part=pl.when(pl.col("tool") > 0)
            .then(pl.lit("tool"))
            .when(pl.col("permission") > 0)
            .then(pl.lit("permission"))
            .when(pl.col("hook") > 0)
            .then(pl.lit("hook"))
            .otherwise(pl.lit("llm")),
        )
    )
    parts = state.group_by(key).agg(
        pl.col("ms").filter(pl.col("part") == kind).sum().alias(f"{kind}_ms") for kind in kinds
    )
    names = [f"{kind}_ms" for kind in kinds]
    wall = (pl.col("to") - pl.col("from")).dt.total_milliseconds()
    return (
        extent.join(parts, on=key, how="left")
        .with_columns(pl.when(wall.is_not_null()).then(pl.col(names).fill_null(0)))
        .with_columns(other_ms=wall - pl.sum_horizontal(names, ignore_nulls=False))
        .select(*key, *PARTS)
    )


def _marks(frame: pl.LazyFrame, **weights: int | pl.Expr) -> pl.LazyFrame:
    """What begins (+) and stops (-) to be so at `at` and `at_end`, with its weight."""
    both = frame.filter((pl.col("at_end") >= pl.col("at")).fill_null(value=False))
    values = {name: pl.lit(w) if isinstance(w, int) else w for name, w in weights.items()}
    key = ["session", "interaction"]
    zero = {name: pl.lit(0) for name in ("llm", "tool", "permission", "hook")}
    casts = {name: (values.get(name, zero[name])).cast(pl.Int64) for name in zero}
    begin = both.select(*key, t="at", **casts)
    stop = both.select(*key, t="at_end", **{name: -value for name, value in casts.items()})
    return pl.concat([begin, stop])
