"""Many logs: events → frames that never hold content.

The same event seen twice (by id) counts once, and stands behind its parent, whatever order
its lines were put in. Always: events + rejected lines + duplicate events = non-empty lines.
"""

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from itertools import repeat
from typing import Any, Final, NamedTuple

import polars as pl

from copilot_insights import chain
from copilot_insights.columns import columns, payload
from copilot_insights.decoder import Decoded, Rejected, decode
from copilot_insights.discover import LogFile
from copilot_insights.schema import EVENT_COLUMNS, EVENTS, FIELDS, MAIN, Event, StreamResult


class Events:
    """Events of some logs, column-wise, a frame per type.

    `base` has every event in the order of the file, or of `parentId` where lines were put
    before what they follow: row, key (see `columns`), session_id, seq, type, at,
    agent_id, bad_fields, process (0-based: which run of the CLI), passing (an
    ephemeral turn of a stream), shares (its log repeats events of another), what was lost before
    it (gap, behind_rejected), back (its time is before that of the event before it), and two
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


_UNCHAINED: Final = re.compile(r"0\..*|1\.0\.(?:\d|10)(?:\D.*)?")
_JITTER: Final = timedelta(seconds=1)  # events that are written at once
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
    version: str
    start: Event | None
    duplicates: int = 0
    repeats: tuple[int, ...] = ()

    def rank(self) -> tuple[int, bool, str, int]:
        """Of logs that hold the same event the first counts it: the stored log before a
        stdout copy, the original before its fork, and that before its own.
        """
        layout = _LAYOUTS.index(self.file.layout)
        return layout, self.stated != self.file.name, self.started, self.events

    def chained(self) -> bool:
        """Whether each event's parent is one of the log: not in a stream, and up to CLI 1.0.10
        a third of the parents were never written.
        """
        return self.file.layout != "stdout" and not _UNCHAINED.fullmatch(self.version)


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
    ids = _session_ids(logs)
    names = list(dict.fromkeys(ids))
    codes = {name: code for code, name in enumerate(names)}
    of = pl.Series("session", [codes[i] for i in ids], dtype=pl.UInt32)
    base = base.with_columns(of.gather(base["log"]))
    order, moved = chain.in_order(base)
    if order:
        base, payloads = _renumbered(base[order], payloads)
    rejected = [
        (session, log.file.path, *line)
        for session, log in zip(ids, logs, strict=True)
        for line in log.rejected
    ]
    return Read(
        Events(_place(base, payloads, names, logs), payloads),
        _files(logs, ids),
        pl.DataFrame(rejected, schema=_REJECTED, orient="row"),
        pl.Series(moved, dtype=pl.UInt32),
        problems,
    )


def _log(file: LogFile, data: bytes, decoded: Decoded) -> _Log:
    events = decoded.events
    start = next((e for e in events if type(e) is _START), None)
    said: Any = start.data if start else None  # type: ignore[attr-defined]
    if start and said.sessionId:
        stated, started = said.sessionId, said.startTime or start.timestamp or "~"
    else:
        last = next((e for e in reversed(events) if isinstance(e, StreamResult)), None)
        stated, started = last.session_id if last else None, "~"
    version = (said.copilotVersion if said else None) or ""
    whole, lines = data.endswith(b"\n"), len(events)
    return _Log(file, len(data), whole, lines, decoded.rejected, stated, started, version, start)


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
            _behind_rejected(base, [d for _, d in self._pending]),
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


def _behind_rejected(base: pl.DataFrame, decoded: list[Decoded]) -> pl.Series:
    """Whether the lines just before an event were rejected."""
    behind = list[int]()
    first = 0
    for one in decoded:
        found = {bisect(one.lines, line) for line, _, _ in one.rejected}
        behind += [first + index for index in found if index < len(one.events)]
        first += len(one.events)
    no = pl.Series("behind_rejected", [False], dtype=pl.Boolean).new_from_index(0, base.height)
    return no.scatter(behind, values=True)


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
    base: pl.DataFrame, payloads: dict[str, pl.DataFrame], names: list[str], logs: list[_Log]
) -> pl.DataFrame:
    """Says of each event which session, agent and process it is of, and what was lost before
    it; `names` has the id of each session.
    """
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
    base = base.with_columns(agent_id=own, shares=shares.gather(base["log"]))
    base = base.join(children, on="row", how="left", maintain_order="left")
    base = base.with_columns(agent_id=pl.coalesce("agent_id", "child"))
    seq = pl.int_range(pl.len(), dtype=pl.Int64).over("session")
    base = base.with_columns(seq=seq)
    base = base.with_columns(begins=chain.begins(base)).with_columns(
        process=pl.col("begins").cum_sum().over("session").cast(pl.Int64) - 1
    )
    base = base.join(chain.side_by_side(base), on="row", how="left", maintain_order="left")
    chained = pl.Series([log.chained() for log in logs], dtype=pl.Boolean)
    back = (pl.col("at") < pl.col("at").shift(1) - _JITTER) & (
        pl.col("log") == pl.col("log").shift(1)
    )
    base = base.with_columns(
        chain.gaps(base, chained.gather(base["log"])), back=back.fill_null(value=False)
    )
    agent = pl.col("agent_id").cast(pl.Categorical).to_physical().cast(pl.Int64) + 1
    root = pl.when(pl.col("agent_id").is_null()).then("writer").fill_null(0)
    return base.with_columns(
        pl.col("agent_id").fill_null(MAIN),
        session_id=pl.Series(names, dtype=pl.String).gather(base["session"]),
        process=pl.coalesce("writer", "process"),
        agent=pl.col("session").cast(pl.Int64) * 2**44 + pl.coalesce(agent, root * 2**32),
    ).drop("child", "log", "parent", "begins", "writer")


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
