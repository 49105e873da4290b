"""Which source each token, credit and millisecond comes from.

Usage: per call from `session.usage_record`, else the session store, else the message's
output tokens. Per session the sum over calls where it is complete, else the totals that
`session.shutdown` states, else what is known; sources are never added for the same call.
Time: an interaction's wall time is cut into parts that do not overlap and add up to it.
"""

from typing import Final

import polars as pl

from copilot_insights.reader import Events
from copilot_insights.schema import AMOUNTS, MAIN, PARTS, STATEMENT, TOKENS
from copilot_insights.spans import MESSAGE, collect, total
from copilot_insights.tool_calls import by_call, held

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


def statements(events: Events, *kinds: str) -> pl.LazyFrame:
    """A row per model of each total of the log, and per agent (`of_agent`) where it says so."""
    place = ["session", "session_id", "process", "row", "seq", "agent_id", "at", "type"]
    exploded = (
        events.of(*kinds)
        .select(*place, "statements")
        .explode("statements", empty_as_null=False, keep_nulls=False)
    )
    fields = [field.name for field in STATEMENT.fields if field.name != "agent_id"]
    return exploded.select(
        *place,
        *(pl.col("statements").struct.field(name) for name in fields),
        of_agent=pl.col("statements").struct.field("agent_id"),
    )


def answered(calls: pl.LazyFrame) -> pl.LazyFrame:
    """The calls that the CLI counts as requests: those that got a reply, no compactions.
    Extra columns: place (of the reply, see `_place`), number (1-based per session, in the
    order of places).
    """
    made = calls.filter((pl.col("evidence") != "compaction") & (pl.col("status") == "ok"))
    made = made.with_columns(place=_place(pl.coalesce("reply_row", "row")))
    return made.with_columns(number=pl.col("place").rank("ordinal").over("session").cast(pl.Int64))


def _place(row: pl.Expr) -> pl.Expr:
    """Order of accounting: process by process, as each CLI counts what it did itself."""
    return pl.col("process") * 2**32 + row.cast(pl.Int64)


def totals(events: Events, turns: pl.LazyFrame, calls: pl.LazyFrame) -> pl.LazyFrame:
    """What each stated total adds: session, process, row, requests, after, upto, last_row,
    premium_requests, nano_aiu. It is about the calls of the numbers `after` < number <= `upto`.

    Until about 1.0.68 a shutdown's total restarts with each process; later ones go on from
    the last total in the log, whichever version wrote it, and a log can hold both. Decided
    from the numbers: a total of as many requests as the last one and the calls answered
    since goes on (then `last_row` is what it goes on from and it adds the difference); one
    of just those calls, or one that falls, is a restart; so is one whose process lost lines, if
    its output tokens are not the last ones and those of the calls. Processes that crashed are
    part of a total when the numbers say so. From 1.0.75 a compaction, from 1.0.79 a rewind too,
    takes the running total back to what its process began with: so a total of n requests is
    about the last n calls, and of earlier ones nothing is known. From 1.0.102 a total can also
    go on from the calls that its process read in the log.
    """
    made = collect(answered(calls))
    counted = made.select("session", "process", "number", "place", out="output_tokens").sort(
        "place"
    )
    # traces of calls that were lost: not of those that failed, which say why
    silent = (pl.col("status") != "ok") & pl.col("failed").is_null() & pl.col("aborted").is_null()
    traces = [
        calls.filter(silent & (pl.col("evidence") == "turn")),
        turns.filter(pl.col("row").is_null()),
        events.base.lazy().filter("gap"),
    ]
    lost = pl.concat([trace.select("session", "process") for trace in traces])
    # what a CLI read in the log when it began: beside another CLI that is not all before its own
    found = made.select(
        "session",
        row=pl.col("place") % 2**32,
        before=(pl.col("place") % 2**32).rank("ordinal").over("session").cast(pl.Int64),
    ).sort("row")
    began = events.base.lazy().group_by("session", "process").agg(row=pl.col("row").min())
    began = (
        began.with_columns(pl.col("row").cast(pl.Int64))
        .sort("row")
        .join_asof(found, on="row", by="session", check_sortedness=False)
        .select("session", "process", pl.col("before").fill_null(0))
    )
    upto = counted.select(
        "session",
        "place",
        upto="number",
        said=pl.col("out").fill_null(0).cum_sum().over("session"),
        unsaid=pl.col("out").is_null().cum_sum().over("session"),
    )
    packed = (
        events.of("session.compaction_complete")
        .filter(pl.col("success").fill_null(value=True))
        .select("session", "process", place=_place(pl.col("row")))
        .sort("place")
        .join_asof(upto, on="place", by="session", check_sortedness=False)
        .select("session", "process", "place", packed=pl.col("upto").fill_null(0))
    )
    sums = (
        statements(events, *TOTALS)
        .group_by("row")
        .agg(
            requests=pl.col("requests").sum(),
            tokens=pl.col("input_tokens").sum() + pl.col("output_tokens").sum(),
            out=pl.col("output_tokens").sum(),
            by_agent=pl.col("of_agent").is_not_null().any(),
        )
    )
    kept = ["requests", "tokens", "out", "row", "upto", "said", "unsaid"]
    kept += ["nano_aiu", "premium_requests", "by_agent"]
    seen = (
        events.of(*TOTALS)
        .filter(pl.col("statements").is_not_null())
        .select("session", "process", "row", "type", "premium_requests", "nano_aiu")
        .join(sums, on="row", how="left")
        .with_columns(pl.col("requests", "tokens", "out").fill_null(0), place=_place(pl.col("row")))
        .sort("place")
        .unique(["session", "process"], keep="last", maintain_order=True)
        .join_asof(upto, on="place", by="session", check_sortedness=False)
        .join_asof(packed, on="place", by=["session", "process"], check_sortedness=False)
        .join(
            counted.group_by("session", "process").agg(first=pl.col("number").min()),
            on=["session", "process"],
            how="left",
            maintain_order="left",
        )
        .join(began, on=["session", "process"], how="left", maintain_order="left")
        .join(
            lost.unique().with_columns(lost=pl.lit(value=True)),
            on=["session", "process"],
            how="left",
            maintain_order="left",
        )
        .with_columns(pl.col("upto", "said", "unsaid").fill_null(0))
        .with_columns(pl.col(kept).shift(1).over("session").name.prefix("last_"))
        .with_columns(pl.col(f"last_{name}").fill_null(0) for name in kept[:-3] if name != "row")
    )
    lately = pl.col("upto") - pl.col("last_upto")
    own = (pl.col("upto") - pl.col("first") + 1).clip(lower_bound=0).fill_null(0)

    def off(*expected: pl.Expr) -> pl.Expr:
        return pl.min_horizontal((pl.col("requests") - count).abs() for count in expected)

    last = pl.col("last_requests")
    go_on = off(last + lately, last + own, last + pl.col("upto") - pl.col("packed"))
    more = pl.col("said") - pl.col("last_said")
    differs = (pl.col("unsaid") == pl.col("last_unsaid")) & (
        pl.col("out") != pl.col("last_out") + more
    )
    # a restarting total of a process that lost calls may have the number of one that goes on
    lossy = pl.col("lost").is_not_null() & (pl.col("requests") >= own) & differs
    falls = (pl.col("requests") < last) | (pl.col("tokens") < pl.col("last_tokens"))
    checkpoint = pl.col("type") == "session.usage_checkpoint"
    restart = off(lately, own)
    read = (off(pl.col("before") + own) < pl.min_horizontal(go_on, restart)) & ~checkpoint
    goes_on = (checkpoint | ((go_on <= restart) & ~lossy)) & ~falls & ~read
    base = pl.when("goes_on").then(last).when("read").then("before").otherwise(0)
    seen = seen.with_columns(goes_on=goes_on, read=read, lately=lately).with_columns(
        more=pl.col("requests") - base
    )
    rises = pl.col("goes_on") | (pl.col("nano_aiu") >= pl.col("last_nano_aiu"))
    # a checkpoint is about the first calls: what came behind it was not stated any more
    early = pl.min_horizontal(pl.col("last_upto") + pl.col("more"), "upto")
    late = pl.max_horizontal(pl.col("upto") - pl.col("more"), "last_upto")
    return seen.select(
        "session",
        "process",
        "row",
        requests="more",
        after=pl.when(checkpoint).then("last_upto").otherwise(late),
        upto=pl.when(checkpoint).then(early).otherwise("upto"),
        last_row=pl.when("goes_on").then("last_row"),
        by_agent=pl.col("by_agent")
        & (~pl.col("goes_on") | pl.col("last_by_agent").fill_null(value=True)),
        premium_requests=pl.col("premium_requests")
        - pl.when("goes_on").then(pl.col("last_premium_requests").fill_null(0)).otherwise(0),
        # after a crash a process can carry credits over that it did not spend (1.0.77)
        nano_aiu=pl.col("nano_aiu")
        - pl.when(pl.col("goes_on") | ((pl.col("lately") == 0) & rises))
        .then(pl.col("last_nano_aiu").fill_null(0))
        .otherwise(0),
    )


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
        _books(events, stated)
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


def _books(events: Events, stated: pl.LazyFrame) -> pl.LazyFrame:
    """What each total adds to the last one, by model, and by agent where both totals say it;
    and the calls that it is about, `after` to `upto`.
    """
    said = statements(events, *TOTALS)
    key = ["row", "model", "of_agent"]
    known = stated.select("row", "last_row", "after", "upto", "process", "by_agent")
    fine = (
        said.join(known, on="row", maintain_order="left")
        .with_columns(of_agent=pl.when("by_agent").then("of_agent"))
        .group_by(key, maintain_order=True)
        .agg(
            pl.col("session", "session_id", "at", "type", "last_row", "after", "upto").first(),
            *(total(name).alias(name) for name in AMOUNTS),
        )
    )
    # the total before it may name agents though this one does not
    wanted = known.select("by_agent", row="last_row").drop_nulls("row")
    last = (
        said.join(wanted, on="row")
        .with_columns(of_agent=pl.when("by_agent").then("of_agent"))
        .group_by(key)
        .agg(total(name).alias(f"last_{name}") for name in AMOUNTS)
        .rename({"row": "last_row"})
    )
    more = {name: pl.col(name) - pl.col(f"last_{name}").fill_null(0) for name in AMOUNTS}
    difference = fine.join(
        last,
        on=["last_row", *key[1:]],
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


def without_total(answered: pl.LazyFrame, stated: pl.LazyFrame) -> pl.LazyFrame:
    """The calls, with `covered`: whether a total of the log includes them."""
    spans = stated.select("session", "after", "upto").sort("upto")
    calls = answered.sort("number").join_asof(
        spans,
        left_on="number",
        right_on="upto",
        by="session",
        strategy="forward",
        check_sortedness=False,
    )
    return calls.with_columns(covered=(pl.col("number") > pl.col("after")).fill_null(value=False))


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
