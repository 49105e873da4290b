"""Many logs: events → frames that never hold content.

The same event seen twice (by id) counts once. Always: events + rejected lines + duplicate
events = non-empty lines.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, cast

import msgspec
import polars as pl

from copilot_insights.decoder import Decoded, decode
from copilot_insights.discover import LogFile
from copilot_insights.schema import (
    AT,
    EVENT_COLUMNS,
    EVENTS,
    FIELDS,
    MAIN,
    RENAMED,
    Event,
    Other,
    StreamResult,
)


class Events:
    """Events of some logs, column-wise, a frame per type.

    `base` has every event in file order: row, session_id, seq, line, event_id, parent_id,
    type, at, agent_id, bad_fields, process (0-based: which run of the CLI), passing (an
    ephemeral turn of a stream), and two integers that are equal for the events of one
    `session` and of one `agent` of one session.
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
        empty = pl.DataFrame(
            schema={"row": pl.UInt32} | {c: EVENT_COLUMNS[c] for t in types for c in FIELDS[t]}
        )
        found = [self._payloads[t] for t in types if t in self._payloads]
        payload = pl.concat([empty, *found], how="diagonal") if found else empty
        if len(found) > 1:
            payload = payload.sort("row")
        return self.base[payload["row"]].hstack(payload.drop("row"))

    def table(self) -> pl.LazyFrame:
        """The `events` table: every event, with every column that is read."""
        rest = [frame.lazy() for frame in self._payloads.values()]
        empty = pl.LazyFrame(schema={"row": pl.UInt32, **EVENT_COLUMNS})
        payload = pl.concat([empty, *rest], how="diagonal")
        return self.base.lazy().join(payload, on="row", how="left", maintain_order="left")


class Read(NamedTuple):
    """Some logs, read.

    files: a row per log: session_id, path, layout, bytes, non_empty, rejected, duplicates,
        and what its own `session.start` says, which a fork shares with its original.
    rejected: a row per line that is no event: session_id, path, line, offset, reason.
    problems: a line per log that could not be read.
    """

    events: Events
    files: pl.DataFrame
    rejected: pl.DataFrame
    problems: list[str]


class _Column(NamedTuple):
    """A column of the events frame: fields of the payload struct (by position, and the path
    within), and what is computed of them.
    """

    name: str
    sources: tuple[tuple[int, str], ...]
    function: Callable[..., Any] | None


def _plan(name: str, struct: type[Event]) -> list[_Column]:
    data = next(f for f in msgspec.structs.fields(struct) if f.name == "data").type
    position = {f.encode_name: i for i, f in enumerate(msgspec.structs.fields(data))}
    columns = []
    for column, of in FIELDS[name].items():
        paths, function = ((of,), None) if isinstance(of, str) else (of.paths, of.function)
        split = (path.partition(".") for path in paths)
        sources = tuple((position[head], rest) for head, _, rest in split)
        columns.append(_Column(column, sources, function))
    return columns


_NAME: Final = {struct: RENAMED.get(name, name) for name, struct in EVENTS.items()}
_PLANS: Final = {s: _plan(name, s) for s, name in _NAME.items() if name in FIELDS}


def _payload(kind: type[Event], rows: list[int], events: list[Event]) -> pl.DataFrame:
    astuple = msgspec.structs.astuple
    fields = list(zip(*[astuple(e.data) for e in events], strict=True))  # type: ignore[attr-defined]
    series = [pl.Series("row", rows, pl.UInt32)]
    for column in _PLANS[kind]:
        values = [
            map(attrgetter(path), fields[place]) if path else fields[place]
            for place, path in column.sources
        ]
        got = values[0] if column.function is None else map(column.function, *values)
        series.append(_series(column.name, got))
    return pl.DataFrame(series)


def _series(name: str, values: Iterable[Any]) -> pl.Series:
    return pl.Series(
        name, values if isinstance(values, tuple) else list(values), EVENT_COLUMNS[name]
    )


class _Log(NamedTuple):
    file: LogFile
    size: int
    decoded: Decoded
    stated: str | None
    start: Event | None = None
    duplicates: int = 0
    repeats: int | None = None
    """The number of the log that it repeats events of."""


_LAYOUTS: Final = ("directory", "flat", "stdout")
_START: Final = EVENTS["session.start"]
_TURNS: Final = (EVENTS["assistant.turn_start"], EVENTS["assistant.turn_end"])


def read(files: Sequence[LogFile]) -> Read:
    """Logs as one bundle of events; the same event seen twice (by id) counts once."""
    logs, problems = [], []
    for order, file in enumerate(files):
        try:
            data = file.read()
        except OSError as error:
            problems.append(f"cannot read {file.path}: {error.strerror}")
            continue
        decoded = decode(data)
        start = next((e for e in decoded.events if type(e) is _START), None)
        stated, started = _stated(start, decoded.events)
        # the log that an event is counted in: the stored one before a stdout copy, the
        # original before its fork
        rank = (_LAYOUTS.index(file.layout), stated != file.name, started, order)
        logs.append((rank, _Log(file, len(data), decoded, stated, start)))
    return _assemble(_drop_seen([log for _, log in sorted(logs, key=itemgetter(0))]), problems)


def _stated(start: Event | None, events: list[Event]) -> tuple[str | None, str]:
    """The session's id and start, as the log says them."""
    if start and (data := start.data).sessionId:  # type: ignore[attr-defined]
        return data.sessionId, data.startTime or start.timestamp or "~"
    last = next((e for e in reversed(events) if isinstance(e, StreamResult)), None)
    return (last.session_id if last else None), "~"


def _drop_seen(logs: list[_Log]) -> list[_Log]:
    ids = pl.Series([e.id or None for log in logs for e in log.decoded.events], dtype=pl.String)
    if not ids.drop_nulls().is_duplicated().any():
        return logs
    seen: dict[str, int] = {}
    return [_drop_seen_of(log, number, seen) for number, log in enumerate(logs)]


def _drop_seen_of(log: _Log, number: int, seen: dict[str, int]) -> _Log:
    """The log without what is in `seen`, event id → number of the log it was first seen in."""
    old = log.decoded
    bad = dict(old.bad_fields)
    new = Decoded([], [], old.rejected, [])
    repeats = None
    for index, (event, line) in enumerate(zip(old.events, old.lines, strict=True)):
        if event.id:
            if event.id in seen:
                repeats = seen[event.id] if repeats is None else repeats
                continue
            seen[event.id] = number
        if index in bad:
            new.bad_fields.append((len(new.events), bad[index]))
        new.events.append(event)
        new.lines.append(line)
    duplicates = len(old.events) - len(new.events)
    return log._replace(decoded=new, duplicates=duplicates, repeats=repeats)


def _assemble(logs: list[_Log], problems: list[str]) -> Read:
    events = [event for log in logs for event in log.decoded.events]
    groups: defaultdict[type[Event], tuple[list[int], list[Event]]] = defaultdict(lambda: ([], []))
    for row, event in enumerate(events):
        rows, members = groups[event.__class__]
        rows.append(row)
        members.append(event)
    # a stream of 1.0.65 shows the turns of sub-agents that its stored log is silent about
    passing = [
        row
        for kind in _TURNS
        for row, event in zip(*groups.get(kind, ([], [])), strict=True)
        if event.ephemeral
    ]
    parts: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
    for kind, (rows, members) in groups.items():
        if kind in _PLANS:
            parts[_NAME[kind]].append(_payload(kind, rows, members))
    payloads = {name: pl.concat(frames).sort("row") for name, frames in parts.items()}
    if passing:
        gone = pl.col("row").is_in(passing)
        payloads = {name: frame.filter(~gone) for name, frame in payloads.items()}
    ids = _session_ids(logs)
    rejected = [
        (session, log.file.path, *line)
        for session, log in zip(ids, logs, strict=True)
        for line in log.decoded.rejected
    ]
    return Read(
        Events(_base(events, logs, ids, payloads, passing), payloads),
        _files(logs, ids),
        pl.DataFrame(rejected, schema=_REJECTED, orient="row"),
        problems,
    )


_REJECTED: Final = {
    "session_id": pl.String,
    "path": pl.String,
    "line": pl.Int64,
    "offset": pl.Int64,
    "reason": pl.String,
}
_FILES: Final = {
    "session_id": pl.String,
    "path": pl.String,
    "layout": pl.String,
    "bytes": pl.Int64,
    "non_empty": pl.Int64,
    "rejected": pl.Int64,
    "duplicates": pl.Int64,
}


def _files(logs: list[_Log], ids: list[str]) -> pl.DataFrame:
    rows = [
        (
            session,
            log.file.path,
            log.file.layout,
            log.size,
            log.decoded.non_empty() + log.duplicates,
            len(log.decoded.rejected),
            log.duplicates,
        )
        for session, log in zip(ids, logs, strict=True)
    ]
    starts = [log.start or _START() for log in logs]
    own = _payload(_START, list(range(len(logs))), starts).drop("row")
    return pl.DataFrame(rows, schema=_FILES, orient="row").hstack(own)


def _session_ids(logs: list[_Log]) -> list[str]:
    """The session each log belongs to.

    Logs that state the same session are one, unless a stored log has another name and,
    beside events seen before, some of its own: that is a fork. A stream that states no
    session (it was cut) is of the one whose events it repeats.
    """
    owner: dict[str, str] = {}
    ids: list[str] = []
    for log in logs:
        stated, name = log.stated or log.file.name, log.file.name
        if log.file.layout == "stdout":
            cut = log.stated is None and log.repeats is not None
            ids.append(ids[log.repeats] if cut and log.repeats is not None else stated)
            continue
        other = owner.setdefault(stated, name) != name
        ids.append(name if other and log.duplicates and log.decoded.events else stated)
    return ids


def _base(
    events: list[Event],
    logs: list[_Log],
    ids: list[str],
    payloads: dict[str, pl.DataFrame],
    passing: list[int],
) -> pl.DataFrame:
    sizes = [len(log.decoded.events) for log in logs]
    names = list(dict.fromkeys(ids))
    codes = {name: code for code, name in enumerate(names)}
    session = [x for name, n in zip(ids, sizes, strict=True) for x in repeat(codes[name], n)]
    base = pl.DataFrame(
        {
            "session": pl.Series(session, dtype=pl.UInt32),
            "line": pl.Series([n for log in logs for n in log.decoded.lines], dtype=pl.Int64),
            "event_id": pl.Series([e.id or None for e in events], dtype=pl.String),
            "parent_id": pl.Series([e.parent_id for e in events], dtype=pl.String),
            "type": _types(events),
            "at": _times(pl.Series([e.timestamp for e in events], dtype=pl.String)),
            "agent_id": pl.Series([e.agent_id for e in events], dtype=pl.String),
        }
    ).with_row_index("row")
    # a log may say "main" where it usually says nothing
    base = base.with_columns(pl.when(~pl.col("agent_id").is_in(["", MAIN])).then("agent_id"))
    # before 1.0.44 a sub-agent's events say only which tool call it runs in
    child = [
        frame.select("row", child=key)
        for name, frame in payloads.items()
        if (key := "tool_call_id" if name.startswith("subagent.") else "parent_tool_call_id")
        in frame.columns
    ]
    if child:
        children = pl.concat(child).drop_nulls()
        base = base.join(children, on="row", how="left", maintain_order="left")
        base = base.with_columns(pl.coalesce("agent_id", "child").alias("agent_id")).drop("child")
    child_code = pl.col("agent_id").cast(pl.Categorical).to_physical().cast(pl.UInt64)
    seq = pl.int_range(pl.len(), dtype=pl.Int64).over("session")
    begins = pl.col("type").is_in(["session.start", "session.resume"]) | (seq == 0)
    return base.with_columns(
        pl.col("agent_id").fill_null(MAIN),
        session_id=pl.Series(names, dtype=pl.String).gather(base["session"]),
        bad_fields=_bad_fields(logs, base),
        seq=seq,
        passing=pl.col("row").is_in(passing) if passing else pl.lit(value=False),
        process=begins.cum_sum().over("session").cast(pl.Int64) - 1,
        agent=pl.col("session") * 2**32 + (child_code + 1).fill_null(0),
    )


_CODES: Final = {kind: code for code, kind in enumerate(_NAME)}
_NAMES: Final = pl.Series(_NAME.values(), dtype=pl.String)


def _types(events: list[Event]) -> pl.Series:
    codes = pl.Series([_CODES.get(e.__class__) for e in events], dtype=pl.UInt32)
    types = _NAMES.gather(codes)
    if codes.null_count():
        rows = codes.is_null().arg_true()
        types = types.scatter(rows, [cast("Other", events[row]).type for row in rows])
    return types


def _bad_fields(logs: list[_Log], base: pl.DataFrame) -> pl.Series:
    """What of each event was missing because it was damaged, in words; mostly null."""
    named: defaultdict[int, list[str]] = defaultdict(list)
    first = 0
    for log in logs:
        for index, name in log.decoded.bad_fields:
            named[first + index].append(name)
        first += len(log.decoded.events)
    for row in base.filter(pl.col("at").is_null())["row"]:
        named[row].append(f"{base['type'][row]}: timestamp")
    texts = pl.Series([None], dtype=pl.String).new_from_index(0, base.height)
    return texts.scatter(list(named), ["; ".join(names) for names in named.values()])


def _times(texts: pl.Series) -> pl.Series:
    """ISO 8601 → UTC milliseconds; null for what is no time between 2000 and 2200."""
    # "2026-12-01T03:36:46.988Z" in two pieces: five times as fast as one format with %.3f
    usual = (texts.str.len_bytes() == 24) & texts.str.ends_with("Z")
    seconds = texts.str.head(19).str.to_datetime("%Y-%m-%dT%H:%M:%S", time_unit="ms", strict=False)
    millis = texts.str.slice(20, 3).str.to_integer(dtype=pl.Int64, strict=False)
    times = seconds.dt.replace_time_zone("UTC") + (millis * 1000).cast(
        pl.Duration("us")
    ).dt.cast_time_unit("ms")
    odd = texts.is_not_null() & ~(usual & times.is_not_null() & (millis >= 0)).fill_null(
        value=False
    )
    if odd.any():  # other precisions and offsets
        times = times.zip_with(~odd, pl.Series([_time(text) for text in texts], dtype=AT))
    return times.set(~times.dt.year().is_between(2000, 2200), None)


def _time(text: str | None) -> datetime | None:
    try:
        time = datetime.fromisoformat(text or "")
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
