"""What the totals that a log states (`session.shutdown`, checkpoints) are about, and what each
adds to those before it.
"""

from typing import Final

import polars as pl

from copilot_insights.reader import Events
from copilot_insights.schema import STATEMENT
from copilot_insights.spans import collect

TOTALS: Final = {"session.shutdown": "shutdown", "session.usage_checkpoint": "checkpoint"}
"""Events that state totals → the name of that source."""


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


def added(events: Events, turns: pl.LazyFrame, calls: pl.LazyFrame) -> pl.LazyFrame:
    """What each stated total adds: session, process, row, requests, after, upto, last_row,
    read_upto, premium_requests, nano_aiu. It is about the calls of the numbers `after` < number
    <= `upto`.

    Until about 1.0.68 a shutdown's total restarts with each process; later ones go on from
    the last total in the log, whichever version wrote it, and a log can hold both. Decided
    from the numbers: a total of as many requests as the last one and the calls answered
    since goes on (then `last_row` is what it goes on from and it adds the difference); one
    of just those calls, or one that falls, is a restart; so is one whose process lost lines, if
    its output tokens are not the last ones and those of the calls. Processes that crashed are
    part of a total when the numbers say so. From 1.0.75 a compaction, from 1.0.79 a rewind too,
    takes the running total back to what its process began with: so a total of n requests is
    about the last n calls, and of earlier ones nothing is known. From 1.0.102 a total can also
    go on from the calls whose usage its process read in the log, up to the row `read_upto`. Such
    a one adds nothing where the usage of its own calls is known.
    """
    made = collect(answered(calls))
    seen = _known(events, made).join(
        _lost(events, turns, calls),
        on=["session", "process"],
        how="left",
        maintain_order="left",
    )
    last, upto = pl.col("last_requests"), pl.col("upto")
    lately = upto - pl.col("last_upto")
    own = pl.col("own")

    def off(*expected: pl.Expr) -> pl.Expr:
        return pl.min_horizontal((pl.col("requests") - count).abs() for count in expected)

    go_on = off(last + lately, last + own, last + upto - pl.col("packed"))
    said = pl.col("last_out") + pl.col("said") - pl.col("last_said")
    differs = (pl.col("unsaid") == pl.col("last_unsaid")) & (pl.col("out") != said)
    # a restarting total of a process that lost calls may have the number of one that goes on
    lossy = pl.col("lost").is_not_null() & (pl.col("requests") >= own) & differs
    falls = (pl.col("requests") < last) | (pl.col("tokens") < pl.col("last_tokens"))
    checkpoint = pl.col("type") == "session.usage_checkpoint"
    restart = off(lately, own)
    closer = off(pl.col("before") + own) < pl.min_horizontal(go_on, restart)
    read = closer & (pl.col("recorded") > 0) & ~checkpoint
    goes_on = (checkpoint | ((go_on <= restart) & ~lossy)) & ~falls & ~read
    before = pl.when("goes_on").then(last).when("read").then("before").otherwise(0)
    idle = pl.col("read") & pl.col("own_recorded")
    more = pl.when(idle).then(0).otherwise(pl.col("requests") - before)
    seen = seen.with_columns(goes_on=goes_on, read=read).with_columns(more=more)
    rises = pl.col("goes_on") | (pl.col("nano_aiu") >= pl.col("last_nano_aiu"))
    # a checkpoint is about the first calls: what came behind it was not stated any more
    early = pl.min_horizontal(pl.col("last_upto") + pl.col("more"), "upto")
    late = pl.max_horizontal(upto - pl.col("more"), "last_upto")
    # after a crash a process can carry credits over that it did not spend (1.0.77)
    carries = pl.col("goes_on") | ((lately == 0) & rises)
    known = {
        "premium_requests": pl.when("goes_on").then("last_premium_requests"),
        "nano_aiu": pl.when(carries).then("last_nano_aiu"),
    }
    return seen.select(
        "session",
        "process",
        "row",
        requests="more",
        read_upto=pl.when("read").then("began"),
        after=pl.when(checkpoint).then("last_upto").when(idle).then(upto).otherwise(late),
        upto=pl.when(checkpoint).then(early).otherwise(upto),
        last_row=pl.when("goes_on").then("last_row"),
        by_agent=pl.col("by_agent")
        & (~pl.col("goes_on") | pl.col("last_by_agent").fill_null(value=True)),
        **{
            name: pl.col(name)
            - pl.when("read").then(f"before_{name}").otherwise(amount).fill_null(0)
            for name, amount in known.items()
        },
    )


def _lost(events: Events, turns: pl.LazyFrame, calls: pl.LazyFrame) -> pl.LazyFrame:
    """Processes with traces of calls that were lost (not of those that failed: they say why):
    session, process, lost.
    """
    silent = (pl.col("status") != "ok") & pl.col("failed").is_null() & pl.col("aborted").is_null()
    traces = [
        calls.filter(silent & (pl.col("evidence") == "turn")),
        turns.filter(pl.col("row").is_null()),
        events.base.lazy().filter("gap"),
    ]
    lost = pl.concat([trace.select("session", "process") for trace in traces])
    return lost.unique().with_columns(lost=pl.lit(value=True))


def _known(events: Events, made: pl.LazyFrame) -> pl.LazyFrame:
    """The last total of each process (requests, tokens, out, amounts), that of the process before
    it (`last_…`), and what the log says of the answered calls up to it.

    upto: the number of the last of them; own: how many are of its process (own_recorded: all with
    usage records); packed: `upto` at the process's last compaction; said, unsaid: the output
    tokens of them, and of how many these are not known; before, recorded, before_…: how many calls
    its process found in the log, those with usage records, and what these cost.
    """
    process = ["session", "process"]
    recorded = pl.col("usage_source") == "usage_record"
    counted = made.sort("place").select(
        *process, "place", upto="number", out="output_tokens", recorded=recorded
    )
    upto = counted.select(
        "session",
        "place",
        "upto",
        said=pl.col("out").fill_null(0).cum_sum().over("session"),
        unsaid=pl.col("out").is_null().cum_sum().over("session"),
    )
    runs = counted.group_by(process).agg(
        first=pl.col("upto").min(),
        own_recorded=pl.col("recorded").fill_null(value=False).all(),
    )
    packed = (
        events.of("session.compaction_complete")
        .filter(pl.col("success").fill_null(value=True))
        .select(*process, place=_place(pl.col("row")))
        .sort("place")
        .join_asof(upto.select("session", "place", packed="upto"), on="place", by="session",
                   check_sortedness=False)
        .select(*process, "place", pl.col("packed").fill_null(0))
    )  # fmt: skip
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
    stated = (
        events.of(*TOTALS)
        .filter(pl.col("statements").is_not_null())
        .select(*process, "row", "type", "premium_requests", "nano_aiu")
        .join(sums, on="row", how="left")
        .with_columns(pl.col("requests", "tokens", "out").fill_null(0), place=_place(pl.col("row")))
        .sort("place")
        .unique(process, keep="last", maintain_order=True)
        .join_asof(upto, on="place", by="session", check_sortedness=False)
        .join_asof(packed, on="place", by=process, check_sortedness=False)
    )
    for more in (runs, _found(events, made)):
        stated = stated.join(more, on=process, how="left", maintain_order="left")
    numbers = ["requests", "tokens", "out", "upto", "said", "unsaid"]
    rest = ["row", "nano_aiu", "premium_requests", "by_agent"]
    return (
        stated.with_columns(pl.col(numbers).fill_null(0))
        .with_columns(pl.col(*numbers, *rest).shift(1).over("session").name.prefix("last_"))
        .with_columns(
            *(pl.col(f"last_{name}").fill_null(0) for name in numbers),
            own=(pl.col("upto") - pl.col("first") + 1).clip(lower_bound=0).fill_null(0),
        )
    )


def _found(events: Events, made: pl.LazyFrame) -> pl.LazyFrame:
    """What each process found in the log when it began (the row): session, process, began,
    before, recorded, before_premium_requests, before_nano_aiu. Beside another CLI that is not
    all that was made before its own calls.
    """
    row = pl.col("row").cast(pl.Int64)
    told = pl.col("usage_source") == "usage_record"
    calls = (
        made.with_columns(row=pl.col("place") % 2**32)
        .sort("row")
        .select(
            "session",
            "row",
            before=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("session"),
            recorded=told.fill_null(value=False).cum_sum().over("session"),
            before_premium_requests=_so_far("premium_requests", told),
            before_nano_aiu=_so_far("nano_aiu", told),
        )
    )
    began = events.base.lazy().group_by("session", "process").agg(row.min().alias("row"))
    return (
        began.sort("row")
        .join_asof(calls, on="row", by="session", check_sortedness=False)
        .rename({"row": "began"})
        .with_columns(pl.col("before", "recorded").fill_null(0))
    )


def _so_far(name: str, where: pl.Expr) -> pl.Expr:
    return pl.when(where).then(name).fill_null(0).cum_sum().over("session")


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
