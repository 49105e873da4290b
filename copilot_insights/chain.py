"""What `parentId` says: the order of events, the process that wrote each, and what is lost.

The CLI writes into each event the id of the one that it wrote before it (from 1.0.14 on always),
so a sound log is a chain. Every frame here is `base` of some logs (see `reader.Events`), with the
number of each event's log.
"""

from collections import defaultdict
from typing import Final

import polars as pl


def in_order(base: pl.DataFrame) -> tuple[list[int], list[int]]:
    """Rows with each event behind its parent, none if they are so already, as the rows of sound
    logs are; and at which places of that order those stand that did not in their own log.
    """
    odd = base.filter(pl.col("parent").ne_missing(pl.col("key").shift(1)))
    early = odd.join(
        base.select("session", "key", behind="row"),
        left_on=["session", "parent"],
        right_on=["session", "key"],
    ).filter(pl.col("behind") > pl.col("row"))
    if not early.height:
        return [], []
    order, moved = list(range(base.height)), set[int]()
    for session in early["session"].unique():
        events = base.filter(pl.col("session") == session).select("row", "key", "parent", "log")
        found, late = _behind_parents(events)
        for place, row in zip(events["row"], found, strict=True):
            order[place] = row
        moved |= late
    return order, [place for place, row in enumerate(order) if row in moved]


def _behind_parents(events: pl.DataFrame) -> tuple[list[int], set[int]]:
    """Rows in the order of parents, otherwise as they stand; and those whose parent stands behind
    them in their own log. The events of a circle stay behind all others.
    """
    places = events.select("key", "log", "row").iter_rows()
    ahead = {key: (log, row) for key, log, row in places if key is not None}
    waiting: defaultdict[int, list[tuple[int, int | None]]] = defaultdict(list)
    order, late = list[int](), set[int]()
    for row, key, parent, log in events.iter_rows():
        if parent in ahead and parent != key:
            waiting[parent].append((row, key))
            where, behind = ahead[parent]
            if where == log and behind > row:
                late.add(row)
            continue
        free = [(row, key)]
        while free:
            row_now, key_now = free.pop()
            order.append(row_now)
            ahead.pop(key_now, None)
            free += reversed(waiting.pop(key_now, ()))
    circles = sorted(row for left in waiting.values() for row, _ in left)
    return order + circles, late


def gaps(base: pl.DataFrame, chained: pl.Series) -> pl.Series:
    """`gap`: whether the line before an event is lost, as its parent is in no log. `chained` says
    of each event whether its log names only events that were written.
    """
    odd = base.filter(
        chained
        & pl.col("parent").is_not_null()
        & pl.col("parent").ne_missing(pl.col("key").shift(1))
    )
    lost = odd.join(base.select(parent="key"), on="parent", how="anti")
    no = pl.Series("gap", [False], dtype=pl.Boolean).new_from_index(0, base.height)
    return no.scatter(lost["row"], values=True)


_BEGIN: Final = ("session.start", "session.resume")
_FIRST: Final = ("session.model_change", "system.message", "user.message", "assistant.turn_start")


def begins(base: pl.DataFrame) -> pl.Series:
    """Whether a process of the CLI begins with an event: it is a `session.resume`, or what
    stands behind a `session.shutdown`, as that line may be lost and `disableResume` leaves it
    out. Not so of what another CLI writes, whose parent stands before, nor of what the one
    that ends still writes.
    """
    first = (pl.col("seq") == 0) | pl.col("type").is_in(_BEGIN)
    last = (pl.col("type").shift(1) == "session.shutdown") & (
        pl.col("log") == pl.col("log").shift(1)
    )
    found = base.select(first.alias("begins"), behind=~first & last.fill_null(value=False))
    behind = base.filter(found["behind"] & (base["type"] != "session.shutdown"))
    if not behind.height:
        return found["begins"]
    ends = base["key"].gather(behind["row"] - 1)
    parents = behind.with_columns(end=ends).join(
        base.select("session", parent="key", known=pl.lit(value=True)),
        on=["session", "parent"],
        how="left",
    )
    follows = pl.col("parent").is_null() | pl.col("parent").eq_missing(pl.col("end"))
    more = parents.filter(
        pl.when(follows).then(pl.col("type").is_in(_FIRST)).otherwise(pl.col("known").is_null())
    )
    return found["begins"].scatter(more["row"], values=True)


def side_by_side(base: pl.DataFrame) -> pl.DataFrame:
    """Who wrote an event, where two CLIs write to one session at once: row, `writer` (its
    process); no rows of other sessions. Each event's parent is what its CLI wrote before it
    (from 1.0.14), so one whose parent is the last of an earlier process is of that process.
    """
    known = base.select("session", "key", elder="process")
    astray = (
        base.filter(
            (pl.col("process") > 0)
            & ~pl.col("begins")
            & pl.col("parent").ne_missing(pl.col("key").shift(1))
        )
        .join(known, left_on=["session", "parent"], right_on=["session", "key"])
        .filter(pl.col("elder") < pl.col("process"))
    )
    found: list[tuple[int, int]] = []
    for session in astray["session"].unique():
        events = base.filter(pl.col("session") == session).select(
            "row", "key", "parent", "begins", "process"
        )
        last: dict[int | None, int] = {}  # what each process wrote last → the process
        ends: dict[int, int | None] = {}
        writers = []
        writer = 0
        for _, key, parent, begins, process in events.iter_rows():
            # whose parent was lost is of the process that wrote the event before it
            writer = process if begins else last.get(parent, writer)
            last.pop(ends.get(writer), None)
            ends[writer] = key
            if key is not None:  # a parent that is not said is not the event without an id
                last[key] = writer
            writers.append(writer)
        if writers != events["process"].to_list():
            found += zip(events["row"], writers, strict=True)
    return pl.DataFrame(found, {"row": pl.UInt32, "writer": pl.Int64}, orient="row")
