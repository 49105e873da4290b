"""Many logs: events → frames that never hold content.

The same event seen twice (by id) counts once, and stands behind its parent, whatever order
its lines were put in. Always: events + rejected lines + duplicate events = non-empty lines.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import repeat
from typing import Any, Final, NamedTuple

import polars as pl

from copilot_insights.columns import columns, payload
from copilot_insights.decoder import Decoded, Rejected, decode
from copilot_insights.discover import LogFile
from copilot_insights.schema import EVENT_COLUMNS, EVENTS, FIELDS, MAIN, Event, StreamResult


class Events:
    """Events of some logs, column-wise, a frame per type.

    `base` has every event in the order of the file, or of `parentId` where lines were put
    before what they follow: row, key (see `columns`), session_id, seq, type, at,
    agent_id, bad_fields, process (0-based: which run of the CLI), passing (an
    ephemeral turn of a stream), shares (its log repeats events of another), and two
    integers that are equal for the events of one `session` and of one `agent` of one
    session (of two CLIs that write side by side each has a root agent of its own). Read in
    full, also line, event_id and parent_id.
    """

    def __init__(self, base: pl.DataFrame, payloads: dict[str, pl.DataFrame]) -> None:
        self.base = base
        self._payloads = payloads
        self._found: dict[tuple[str, ...], pl.DataFrame] = {}

    def with_base(self, base: pl.DataFrame) -> "Events":
        """The same events with more columns that every event has."""
        return Events(base, self._payloads)

    def of(self, *types: str) -> pl.LazyFrame:
        """Events of these types in file order: the columns of `base` and of their payloads."""
        if types not in self._found:
            self._found[types] = self._of(types)
        return self._found[types].lazy()

    def _of(self, types: tuple[str, ...]) -> pl.DataFrame:
        found = [self._payloads.get(name, _none_of(name)) for name in types]
        payload = found[0] if len(found) == 1 else pl.concat(found, how="diagonal").sort("row")
        return self.base[payload["row"]].hstack(payload.drop("row"))

    def table(self) -> pl.LazyFrame:
        """The `events` table: every event, with every column that is read."""
        rest = [frame.lazy() for frame in self._payloads.values()]
        empty = pl.LazyFrame(schema={"row": pl.UInt32, **EVENT_COLUMNS})
        payload = pl.concat([empty, *rest], how="diagonal")
        return self.base.lazy().join(payload, on="row", how="left", maintain_order="left")


@cache
def _none_of(name: str) -> pl.DataFrame:
    """The payload frame of an event type without events."""
    columns = {column: EVENT_COLUMNS[column] for column in FIELDS[name]}
    return pl.DataFrame(schema={"row": pl.UInt32, **columns})


class Read(NamedTuple):
    """Some logs, read.

    files: a row per log: session_id, path, layout, bytes, whether it ends with a newline
        (`whole`), non_empty, rejected, duplicates, the paths of logs that it repeats events
        of (`repeats`), and what its own `session.start` says, which a fork shares with its
        original.
    rejected: a row per line that is no event: session_id, path, line, offset, reason.
    moved: the rows of events that stood before their parents.
    problems: a line per log that could not be read.
    """

    events: Events
    files: pl.DataFrame
    rejected: pl.DataFrame
    moved: pl.Series
    problems: list[str]


_LAYOUTS: Final = ("directory", "flat", "stdout")
_START: Final = EVENTS["session.start"]
_CHUNK: Final = 16_384


class _Log(NamedTuple):
    """A log that was read. `stated` is the session's id and `started` its start as the log
    says them; `repeats` has the numbers of the logs that it repeats events of.
    """

    file: LogFile
    size: int
    whole: bool
    events: int
    rejected: list[Rejected]
    stated: str | None
    started: str
    start: Event | None
    duplicates: int = 0
    repeats: tuple[int, ...] = ()

    def rank(self) -> tuple[int, bool, str]:
        """Of logs that hold the same event the first counts it: the stored log before a
        stdout copy, the original before its fork.
        """
        return _LAYOUTS.index(self.file.layout), self.stated != self.file.name, self.started


def read(files: Sequence[LogFile], *, full: bool = False) -> Read:
    """Logs as one bundle of events; in full when the `events` table is wanted. A log that
    can't be read is a problem, and no more.
    """
    chunks = _Chunks(full=full)
    logs, problems = list[_Log](), []
    for file in files:
        try:
            data = file.read()
        except OSError as error:
            problems.append(f"cannot read {file.path}: {error.strerror}")
            continue
        decoded = decode(data)
        logs.append(_log(file, data, decoded))
        chunks.add(len(logs) - 1, decoded)
    base, payloads = chunks.frames()
    if _overlap(base, logs):
        base, payloads, logs = _drop_seen(base, payloads, logs)
    base, payloads, moved = _in_order(base, payloads)
    ids = _session_ids(logs)
    rejected = [
        (session, log.file.path, *line)
        for session, log in zip(ids, logs, strict=True)
        for line in log.rejected
    ]
    return Read(
        Events(_place(base, payloads, ids, logs), payloads),
        _files(logs, ids),
        pl.DataFrame(rejected, schema=_REJECTED, orient="row"),
        moved,
        problems,
    )


def _log(file: LogFile, data: bytes, decoded: Decoded) -> _Log:
    events = decoded.events
    start = next((e for e in events if type(e) is _START), None)
    if start and (said := start.data).sessionId:  # type: ignore[attr-defined]
        stated, started = said.sessionId, said.startTime or start.timestamp or "~"
    else:
        last = next((e for e in reversed(events) if isinstance(e, StreamResult)), None)
        stated, started = last.session_id if last else None, "~"
    whole = data.endswith(b"\n")
    return _Log(file, len(data), whole, len(events), decoded.rejected, stated, started, start)


class _Chunks:
    """Turns events into columns a few thousand at a time: as objects they take ten times
    the memory.
    """

    def __init__(self, *, full: bool) -> None:
        self._full = full
        self._pending: list[tuple[int, Decoded]] = []
        self._bases: list[pl.DataFrame] = []
        self._payloads: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
        self._rows = 0

    def add(self, log: int, decoded: Decoded) -> None:
        """The events of the log of that number."""
        self._pending.append((log, decoded))
        if sum(len(d.events) for _, d in self._pending) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        events = [event for _, d in self._pending for event in d.events]
        base, payloads = columns(events, self._rows, full=self._full)
        logs = [x for log, d in self._pending for x in repeat(log, len(d.events))]
        base = base.with_columns(
            pl.Series("log", logs, pl.UInt32),
            _bad_fields(base, [d for _, d in self._pending]),
        )
        if self._full:
            lines = [line for _, d in self._pending for line in d.lines]
            base = base.with_columns(pl.Series("line", lines, pl.Int64))
        self._bases.append(base)
        for name, frame in payloads.items():
            self._payloads[name].append(frame)
        self._rows += len(events)
        self._pending.clear()

    def frames(self) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
        """All events, in the order of the logs."""
        self._flush()
        payloads = {name: _sorted(pl.concat(f)) for name, f in self._payloads.items()}
        return pl.concat(self._bases, rechunk=True), payloads


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    """By row, as it usually is."""
    return frame if frame["row"].is_sorted() else frame.sort("row")


def _bad_fields(base: pl.DataFrame, decoded: list[Decoded]) -> pl.Series:
    """What of each event was missing because it was damaged, in words; mostly null."""
    named: defaultdict[int, list[str]] = defaultdict(list)
    first = 0
    for one in decoded:
        for index, name in one.bad_fields:
            named[first + index].append(name)
        first += len(one.events)
    for row in base["at"].is_null().arg_true():
        named[row].append(f"{base['type'][row]}: timestamp")
    texts = pl.Series("bad_fields", [None], dtype=pl.String).new_from_index(0, base.height)
    return texts.scatter(list(named), ["; ".join(names) for names in named.values()])


def _overlap(base: pl.DataFrame, logs: list[_Log]) -> bool:
    named = [log.stated or log.file.name for log in logs]
    return len(set(named)) < len(named) or bool(base["key"].drop_nulls().is_duplicated().any())


def _drop_seen(
    base: pl.DataFrame, payloads: dict[str, pl.DataFrame], logs: list[_Log]
) -> tuple[pl.DataFrame, dict[str, pl.DataFrame], list[_Log]]:
    """Each event once, in the order of the logs' ranks; rows and logs are counted anew."""
    order = sorted(range(len(logs)), key=lambda number: (logs[number].rank(), number))
    place = pl.DataFrame({"log": order}, schema={"log": pl.UInt32}).with_row_index("place")
    base = (
        base.join(place, on="log", maintain_order="left")
        .sort("place", maintain_order=True)
        .with_columns(log="place")
    )
    seen = pl.col("key").is_not_null() & ~pl.col("key").is_first_distinct()
    base = base.with_columns(seen=seen, first=pl.col("log").first().over("key"))
    again = base.filter("seen").group_by("log").agg(pl.len(), pl.col("first").unique())
    counts = {log: (number, first) for log, number, first in again.iter_rows()}
    base = base.filter(~pl.col("seen")).drop("seen", "first", "place")
    base, payloads = _renumbered(base, payloads)
    settled = []
    for number, index in enumerate(order):
        again_here, whose = counts.get(number, (0, ()))
        settled.append(logs[index]._replace(duplicates=again_here, repeats=tuple(sorted(whose))))
    return base, payloads, settled


def _renumbered(
    base: pl.DataFrame, payloads: dict[str, pl.DataFrame]
) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """With rows in the order that `base` is in now, and none that is not there any more."""
    old = base.select("row").with_row_index("new")
    payloads = {
        name: frame.join(old, on="row").with_columns(row="new").drop("new").sort("row")
        for name, frame in payloads.items()
    }
    return base.with_columns(row=pl.int_range(pl.len(), dtype=pl.UInt32)), payloads


def _in_order(
    base: pl.DataFrame, payloads: dict[str, pl.DataFrame]
) -> tuple[pl.DataFrame, dict[str, pl.DataFrame], pl.Series]:
    """Each event behind its parent, which is what its CLI wrote before it; and the rows of
    those that were not. Damaged logs only: else the order of the file is that of writing.
    """
    odd = base.filter(pl.col("parent").ne_missing(pl.col("key").shift(1)))
    early = odd.join(
        base.select("log", "key", behind="row"),
        left_on=["log", "parent"],
        right_on=["log", "key"],
    ).filter(pl.col("behind") > pl.col("row"))
    order, moved = list(range(base.height)), list[int]()
    for log in early["log"].unique():
        events = base.filter(pl.col("log") == log).select("row", "key", "parent")
        rows = events["row"].to_list()
        found, late = _behind_parents(events)
        order[rows[0] : rows[-1] + 1] = found
        moved += late
    if moved:
        base, payloads = _renumbered(base[order], payloads)
    now = dict(zip(order, range(len(order)), strict=True)) if moved else {}
    return base, payloads, pl.Series([now[row] for row in moved], dtype=pl.UInt32)


def _behind_parents(events: pl.DataFrame) -> tuple[list[int], list[int]]:
    """Rows in the order of parents, otherwise as they stand; and those that had to wait. The
    events of a circle stay behind all others.
    """
    ahead = set(events["key"].drop_nulls())
    waiting: defaultdict[int, list[tuple[int, int | None]]] = defaultdict(list)
    order, late = list[int](), list[int]()
    for row, key, parent in events.iter_rows():
        if parent in ahead and parent != key:
            waiting[parent].append((row, key))
            late.append(row)
            continue
        free = [(row, key)]
        while free:
            row_now, key_now = free.pop()
            order.append(row_now)
            ahead.discard(key_now)
            free += reversed(waiting.pop(key_now, ()))
    circles = sorted(row for left in waiting.values() for row, _ in left)
    return order + circles, late


def _session_ids(logs: list[_Log]) -> list[str]:
    """The session each log belongs to.

    Logs that state the same session are one, unless a stored log has another name and,
    beside events seen before, some of its own: that is a fork. Not so if the other has no name
    of its own either and nothing more: that is an older copy. A stream that states no session
    (it was cut) is of the one whose events it repeats.
    """
    owner: dict[str, _Log] = {}
    ids: list[str] = []
    for log in logs:
        stated, name = log.stated or log.file.name, log.file.name
        if log.file.layout == "stdout":
            cut = log.stated is None and log.repeats
            ids.append(ids[log.repeats[0]] if cut else stated)
            continue
        first = owner.setdefault(stated, log)
        older = first.file.name != stated and log.duplicates >= first.events
        fork = first.file.name != name and 0 < log.duplicates < log.events and not older
        ids.append(name if fork else stated)
    return ids


def _place(
    base: pl.DataFrame, payloads: dict[str, pl.DataFrame], ids: list[str], logs: list[_Log]
) -> pl.DataFrame:
    """Says of each event which session, agent and process it is of."""
    names = list(dict.fromkeys(ids))
    codes = {name: code for code, name in enumerate(names)}
    session = pl.Series([codes[i] for i in ids], dtype=pl.UInt32).gather(base["log"])
    shares = pl.Series([log.duplicates > 0 for log in logs], dtype=pl.Boolean)
    # a log may say "main" where it usually says nothing
    own = pl.when(~pl.col("agent_id").is_in(["", MAIN])).then("agent_id")
    # before 1.0.44 a sub-agent's events say only which tool call it runs in
    child = [
        frame.select("row", child=key)
        for name, frame in payloads.items()
        if (key := "tool_call_id" if name.startswith("subagent.") else "parent_tool_call_id")
        in frame.columns
    ]
    empty = pl.DataFrame(schema={"row": pl.UInt32, "child": pl.String})
    children = pl.concat([empty, *child]).drop_nulls()
    base = base.with_columns(agent_id=own, session=session, shares=shares.gather(base["log"]))
    base = base.join(children, on="row", how="left", maintain_order="left")
    base = base.with_columns(agent_id=pl.coalesce("agent_id", "child"))
    seq = pl.int_range(pl.len(), dtype=pl.Int64).over("session")
    base = base.with_columns(seq=seq)
    base = base.with_columns(begins=_begins(base)).with_columns(
        process=pl.col("begins").cum_sum().over("session").cast(pl.Int64) - 1
    )
    base = base.join(_side_by_side(base), on="row", how="left", maintain_order="left")
    agent = pl.col("agent_id").cast(pl.Categorical).to_physical().cast(pl.Int64) + 1
    root = pl.when(pl.col("agent_id").is_null()).then("writer").fill_null(0)
    return base.with_columns(
        pl.col("agent_id").fill_null(MAIN),
        session_id=pl.Series(names, dtype=pl.String).gather(session),
        process=pl.coalesce("writer", "process"),
        agent=pl.col("session").cast(pl.Int64) * 2**44 + pl.coalesce(agent, root * 2**32),
    ).drop("child", "log", "parent", "begins", "writer")


_BEGIN: Final = ("session.start", "session.resume")
_FIRST: Final = ("session.model_change", "system.message", "user.message", "assistant.turn_start")


def _begins(base: pl.DataFrame) -> pl.Series:
    """Whether a process of the CLI begins with an event: it is a `session.resume`, or what
    stands behind a `session.shutdown`, as that line may be lost and `disableResume` leaves it
    out. Not so of what another CLI writes, whose parent stands before, nor of what the one
    that ends still writes.
    """
    first = (pl.col("seq") == 0) | pl.col("type").is_in(_BEGIN)
    last = (pl.col("type").shift(1) == "session.shutdown") & (
        pl.col("log") == pl.col("log").shift(1)
    )
    begins = base.select(first.alias("begins"), behind=~first & last.fill_null(value=False))
    behind = base.filter(begins["behind"] & (base["type"] != "session.shutdown"))
    if not behind.height:
        return begins["begins"]
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
    return begins["begins"].scatter(more["row"], values=True)


def _side_by_side(base: pl.DataFrame) -> pl.DataFrame:
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


_REJECTED: Final = {
    "session_id": pl.String,
    "path": pl.String,
    "line": pl.Int64,
    "offset": pl.Int64,
    "reason": pl.String,
}
_FILES: Final[dict[str, Any]] = {
    "session_id": pl.String,
    "path": pl.String,
    "layout": pl.String,
    "bytes": pl.Int64,
    "whole": pl.Boolean,
    "non_empty": pl.Int64,
    "rejected": pl.Int64,
    "duplicates": pl.Int64,
    "repeats": pl.List(pl.String),
}


def _files(logs: list[_Log], ids: list[str]) -> pl.DataFrame:
    rows = [
        (
            session,
            log.file.path,
            log.file.layout,
            log.size,
            log.whole,
            log.events + len(log.rejected),
            len(log.rejected),
            log.duplicates,
            [logs[number].file.path for number in log.repeats],
        )
        for session, log in zip(ids, logs, strict=True)
    ]
    files = pl.DataFrame(rows, schema=_FILES, orient="row")
    starts = [log.start or _START() for log in logs] or [_START()]
    own = payload(_START, list(range(len(starts))), starts).head(len(logs))
    return files.hstack(own.drop("row"))
