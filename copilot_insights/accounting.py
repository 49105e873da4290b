"""Which source each token, credit and millisecond comes from.

Usage: per call from `session.usage_record`, else the session store, else the message's
output tokens. Per session the sum over calls where it is complete, else the totals that
`session.shutdown` states, else what is known; sources are never added for the same call.
Time: an interaction's wall time is cut into parts that do not overlap and add up to it.
"""

import polars as pl

from copilot_insights.reader import Events
from copilot_insights.schema import AMOUNTS, MAIN, PARTS, TOKENS
from copilot_insights.spans import MESSAGE, collect, total
from copilot_insights.tool_calls import by_call, held
from copilot_insights.totals import TOTALS, answered, statements, without_total

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
    totals = statements(events, *TOTALS).with_columns(
        source=pl.col("type").replace_strict(TOTALS), agent_id=pl.coalesce("of_agent", "agent_id")
    )
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


def bookings(
    events: Events, calls: pl.LazyFrame, stated: pl.LazyFrame, said: pl.LazyFrame
) -> pl.LazyFrame:
    """The usage that a session's numbers are made of, at the time of each call: a row per
    answered call. Its sums are the session's totals. Extra columns: session, by_agent
    (whether the agent's part is known, not shared out).

    Calls that state their usage are booked as they are, where that is known of all of their
    session's calls or no total of the log includes them; the others by the totals. The store
    alone counts where it has more calls than the log, which loses the lines that are rewound.
    """
    made = collect(answered(calls))
    known = pl.col("input_tokens").is_not_null()
    included = without_total(made, stated)
    # a total of more calls than the log has (lines were lost) knows more than their sum; not
    # so in a fork, whose totals are also about the calls that it shares with its original
    numbers = made.group_by("session").agg(
        whole=known.all(), calls=pl.len(), shares=pl.col("shares").any()
    )
    found = included.filter("covered").group_by("session").agg(found=pl.len())
    wanted = stated.group_by("session").agg(pl.col("requests").sum())
    stored = said.filter(pl.col("source") == "store")
    held = stored.group_by("session").agg(stored=pl.len())
    for more in (found, wanted, held):
        numbers = numbers.join(more, on="session", how="full", coalesce=True)
    fork = pl.col("shares").fill_null(value=False)
    lost = (pl.col("requests") > pl.col("found").fill_null(0)) & ~fork
    best = pl.max_horizontal(pl.col("calls", "requests").fill_null(0))
    by = collect(
        numbers.select(
            "session",
            by=pl.when((pl.col("stored") > best) & ~fork)
            .then(pl.lit("store"))
            .when(pl.col("whole") & ~lost.fill_null(value=False))
            .then(pl.lit("calls"))
            .otherwise(pl.lit("totals")),
        )
    )
    place = ["session", "session_id", "agent_id", "model"]
    at = pl.coalesce("started_at", "replied_at")
    from_store = by.filter(pl.col("by") == "store")
    by_store = stored.join(from_store, on="session", how="semi", maintain_order="left").select(
        *place, "at", *AMOUNTS, "source", by_agent=pl.lit(value=True)
    )
    by_call = (
        included.join(by, on="session", maintain_order="left")
        .filter((pl.col("by") == "calls") | ((pl.col("by") == "totals") & ~pl.col("covered")))
        .filter(pl.col("usage_source").is_not_null())
        .select(
            *place, at.alias("at"), *AMOUNTS, source="usage_source", by_agent=pl.lit(value=True)
        )
    )
    totalled = by.filter(pl.col("by") == "totals")
    books = collect(
        _books(events, stated, made)
        .join(totalled, on="session", how="semi", maintain_order="left")
        .with_row_index("book")
    )
    shares = made.select(*place, "number", at=at, weight="output_tokens")
    by_total = collect(_shared_out(books, shares))
    left = (
        books.join(by_total.select("book"), on="book", how="anti", maintain_order="left")
        .filter(pl.any_horizontal(pl.col(AMOUNTS) > 0))
        .select(
            *place[:2],
            "model",
            "source",
            "at",
            *AMOUNTS,
            agent_id=pl.coalesce("of_agent", pl.lit(MAIN)),
            by_agent=pl.col("of_agent").is_not_null(),
        )
    )
    estimated = pl.col("source").is_in(list(TOTALS.values()))
    return (
        pl.concat([by_store, by_call, by_total.drop("book"), left], how="diagonal_relaxed")
        .with_columns(estimated=estimated, by_agent=pl.col("by_agent").fill_null(value=False))
        .sort("session", "at", maintain_order=True)
    )


def _books(events: Events, stated: pl.LazyFrame, made: pl.LazyFrame) -> pl.LazyFrame:
    """What each total adds to what it goes on from, by model, and by agent where both say it;
    and the calls that it is about, `after` to `upto`.
    """
    said = statements(events, *TOTALS)
    read = pl.col("read_upto").is_not_null()
    known = stated.filter(~read | (pl.col("requests") > 0)).select(
        "row", "session", "read_upto", "after", "upto", "by_agent",
        base=pl.when(read).then("row").otherwise("last_row"),
    )  # fmt: skip
    key = ["row", "model", "of_agent"]
    of_agent = pl.when("by_agent").then("of_agent")
    fine = (
        said.drop("session")
        .join(known, on="row", maintain_order="left")
        .with_columns(of_agent=of_agent)
        .group_by(key, maintain_order=True)
        .agg(
            pl.col("session", "session_id", "at", "type", "base", "after", "upto").first(),
            *(total(name).alias(name) for name in AMOUNTS),
        )
    )
    # the total before it may name agents though this one does not
    last = said.join(known.filter(~read).select("base", "by_agent"), left_on="row", right_on="base")
    found = (
        made.join(known.filter(read), on="session")
        .filter(
            pl.col("row") < pl.col("read_upto").cast(pl.Int64),
            pl.col("usage_source") == "usage_record",
        )
        .with_columns(row="base", of_agent="agent_id")
    )
    names = ["row", "model", "of_agent", "by_agent", *AMOUNTS]
    bases = (
        pl.concat([last.select(names), found.select(names)], how="vertical_relaxed")
        .with_columns(of_agent=of_agent)
        .group_by(key)
        .agg(total(name).alias(f"base_{name}") for name in AMOUNTS)
        .rename({"row": "base"})
    )
    more = {name: pl.col(name) - pl.col(f"base_{name}").fill_null(0) for name in AMOUNTS}
    difference = fine.join(
        bases,
        on=["base", "model", "of_agent"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return difference.select(
        "session",
        "session_id",
        "model",
        "of_agent",
        "after",
        "upto",
        "at",
        source=pl.col("type").replace_strict(TOTALS),
        **{name: amount.clip(lower_bound=0) for name, amount in more.items()},
    )


def _shared_out(books: pl.LazyFrame, made: pl.LazyFrame) -> pl.LazyFrame:
    """Books among the calls that they are about: by their output tokens where these are
    known of all, else equally. Whole numbers stay whole and sums exact.
    """
    shares = books.drop("at").join(
        made.drop("session_id"),
        on=["session", "model"],
        nulls_equal=True,
        maintain_order="left_right",
    )
    shares = shares.filter(
        (pl.col("number") > pl.col("after"))
        & (pl.col("number") <= pl.col("upto"))
        & (pl.col("of_agent").is_null() | (pl.col("of_agent") == pl.col("agent_id")))
    )
    weights = shares.group_by("book").agg(
        even=pl.col("weight").is_null().any() | (pl.col("weight").sum() == 0),
        all=pl.col("weight").sum(),
        number=pl.len(),
        by_agent=pl.col("agent_id").n_unique() == 1,
    )
    shares = (
        shares.drop("number")
        .join(weights, on="book", maintain_order="left")
        .with_columns(
            weight=pl.when("even").then(1).otherwise("weight"),
            all=pl.when("even").then("number").otherwise("all"),
        )
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
        "by_agent",
        *(pl.col(n) - pl.col(n).shift(1, fill_value=0).over("book") for n in AMOUNTS),
    )


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

    calls = cut(calls.with_columns(at="started_at", at_end=pl.coalesce("replied_at", "ended_at")))
    tools, permissions, hooks = cut(tools), cut(permissions), cut(hooks)
    ran = pl.col("duration_ms").is_not_null() | (
        (pl.col("status") == "open") & pl.col("cut").is_not_null()
    )
    tools = tools.filter(ran.fill_null(value=False))

    frames = [
        _marks(calls, llm=1),
        _marks(tools.filter(~pl.col("waits_for_user")), tool=1),
        _marks(tools.filter(pl.col("waits_for_user")), permission=1),
        _marks(permissions, permission=1),
        _marks(hooks, hook=1),
        _marks(held(tools, permissions), tool=-1),
        _marks(held(tools, by_call(hooks)), tool=-1),
    ]
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


def _marks(frame: pl.LazyFrame, **weights: int) -> pl.LazyFrame:
    """What begins (+) and stops (-) to be so at `at` and `at_end`, with its weight."""
    both = frame.filter((pl.col("at_end") >= pl.col("at")).fill_null(value=False))
    key = ["session", "interaction"]
    zero = dict.fromkeys(("llm", "tool", "permission", "hook"), 0)
    begin = both.select(*key, t="at", **{k: pl.lit(n) for k, n in (zero | weights).items()})
    stop = both.select(*key, t="at_end", **{k: pl.lit(-n) for k, n in (zero | weights).items()})
    return pl.concat([begin, stop])
