"""Event structs → columns. Content is not kept: what a column needs of it is measured here."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

import msgspec
import polars as pl

from copilot_insights.schema import AT, EVENT_COLUMNS, EVENTS, FIELDS, RENAMED, Event, Other


def columns(
    events: list[Event], first_row: int, *, full: bool
) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """What every event has (row, key, parent, type, at, agent_id, passing), and for each event
    type a frame of its payload's columns. `row` counts from `first_row`; `key` and `parent` are
    hashes of the event's and its parent's id, 64 bits, null without one. In full also event_id
    and parent_id.
    """
    groups: defaultdict[type[Event], tuple[list[int], list[Event]]] = defaultdict(lambda: ([], []))
    for row, event in enumerate(events, first_row):
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
    gone = pl.col("row").is_in(pl.Series(passing, dtype=pl.UInt32).implode())
    parts: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
    for kind, (rows, members) in groups.items():
        if kind in _PLANS:
            frame = payload(kind, rows, members)
            parts[_NAME[kind]].append(frame.filter(~gone) if passing else frame)
    ids = pl.Series([e.id or None for e in events], dtype=pl.String)
    parents = pl.Series([e.parent_id for e in events], dtype=pl.String)
    base = pl.DataFrame(
        {
            "row": pl.int_range(first_row, first_row + len(events), dtype=pl.UInt32, eager=True),
            "key": ids.hash().set(ids.is_null(), None),
            "parent": parents.hash().set(parents.is_null(), None),
            "type": _types(events),
            "at": _times(pl.Series([e.timestamp for e in events], dtype=pl.String)),
            "agent_id": pl.Series([e.agent_id for e in events], dtype=pl.String),
        }
    )
    if full:
        base = base.with_columns(event_id=ids, parent_id=parents)
    base = base.with_columns(passing=gone if passing else pl.lit(value=False))
    return base, {name: pl.concat(frames) for name, frames in parts.items()}


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


def payload(kind: type[Event], rows: list[int], events: list[Event]) -> pl.DataFrame:
    """The payload columns of events of one kind, by row."""
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
    dtype = EVENT_COLUMNS[name]
    items = values if isinstance(values, tuple) else list(values)
    if isinstance(dtype, pl.List):
        return _nested(items, dtype.inner).alias(name)
    return pl.Series(name, items, dtype)


def _nested(lists: Sequence[list[Any] | None], inner: Any) -> pl.Series:  # noqa: ANN401
    """A series of lists, out of one flat series: list by list it takes ten times as long."""
    rows = [row for row, items in enumerate(lists) for _ in items or ()]
    flat = pl.Series("items", [item for items in lists for item in items or ()], inner)
    grouped = pl.DataFrame([pl.Series("row", rows, pl.Int64), flat]).group_by("row").agg("items")
    known = [row for row, items in enumerate(lists) if items is not None]
    empty = pl.lit([], dtype=pl.List(inner))
    filled = pl.DataFrame({"row": pl.Series(known, dtype=pl.Int64)}).join(
        grouped, on="row", how="left"
    )
    filled = filled.with_columns(pl.col("items").fill_null(empty))
    every = pl.DataFrame({"row": pl.int_range(len(lists), eager=True)})
    return every.join(filled, on="row", how="left", maintain_order="left")["items"]


_TURNS: Final = (EVENTS["assistant.turn_start"], EVENTS["assistant.turn_end"])
_CODES: Final = {kind: code for code, kind in enumerate(_NAME)}
_NAMES: Final = pl.Series(_NAME.values(), dtype=pl.String)


def _types(events: list[Event]) -> pl.Series:
    codes = pl.Series([_CODES.get(e.__class__) for e in events], dtype=pl.UInt32)
    types = _NAMES.gather(codes)
    if codes.null_count():
        rows = codes.is_null().arg_true()
        types = types.scatter(rows, [cast("Other", events[row]).type for row in rows])
    return types


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
