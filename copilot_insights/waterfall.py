"""The waterfall of a session, as values: which bar stands where. Nothing here draws.

A lane is an agent, with bands of rows in it: interactions, turns, model calls, tools, waits
for permission, hooks. Bars of one row never overlap: what runs side by side stands in rows
below each other. Each row of the tables is one bar and keeps their times; a bar without an
end is `open` and drawn to the end of its interaction. Times in which nobody works are
folded.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import polars as pl

from copilot_insights.rows import COURSE, unrolled
from copilot_insights.schema import AT, MAIN
from copilot_insights.tables import Tables

BANDS: Final = {
    "interaction": "prompts",
    "turn": "turns",
    "model": "model",
    "compaction": "model",
    "tool": "tools",
    "permission": "waits",
    "hook": "hooks",
}
"""Kind of a bar → the band of rows that it stands in, from the top down."""

_ORDER: Final = {band: n for n, band in enumerate(dict.fromkeys(BANDS.values()))}

_BARS: Final[dict[str, Any]] = {
    "session_id": pl.String, "lane": pl.Int64, "agent_id": pl.String, "row": pl.Int64,
    "kind": pl.String, "name": pl.String, "status": pl.String, "open": pl.Boolean,
    "started_at": AT, "ended_at": AT, "from_ms": pl.Int64, "to_ms": pl.Int64,
    "duration_ms": pl.Int64, "interaction": pl.Int64, "turn": pl.Int64,
    "tool_call_id": pl.String, "model": pl.String, "run_ms": pl.Int64,
    "permission_ms": pl.Int64, "hook_ms": pl.Int64, "ttft_ms": pl.Int64,
    "input_tokens": pl.Int64, "output_tokens": pl.Int64, "detail": pl.String,
}  # fmt: skip
_LANES: Final[dict[str, Any]] = {
    "session_id": pl.String, "lane": pl.Int64, "agent_id": pl.String, "depth": pl.Int64,
    "name": pl.String, "status": pl.String, "tool_call_id": pl.String, "rows": pl.Int64,
}  # fmt: skip
_MARKS: Final[dict[str, Any]] = {
    "session_id": pl.String, "lane": pl.Int64, "kind": pl.String, "at": AT, "at_ms": pl.Int64,
    "detail": pl.String,
}  # fmt: skip


@dataclass(frozen=True)
class Fold:
    """An idle stretch, in milliseconds since the start, and the part of the axis it has."""

    from_ms: int
    to_ms: int
    place: float
    width: float


@dataclass(frozen=True)
class Axis:
    """Time since the session's start in ms ↔ place on the axis: equal but for the folds,
    which take little of it. Strictly monotonic both ways.
    """

    end_ms: int
    folds: tuple[Fold, ...] = ()

    @property
    def length(self) -> float:
        """The axis runs from 0 to here."""
        return self.place(self.end_ms)

    def place(self, ms: float) -> float:
        """Where a time stands."""
        n = bisect_right(self.folds, ms, key=lambda f: f.from_ms)
        if not n:
            return ms
        fold = self.folds[n - 1]
        if ms >= fold.to_ms:
            return fold.place + fold.width + (ms - fold.to_ms)
        return fold.place + (ms - fold.from_ms) * fold.width / (fold.to_ms - fold.from_ms)

    def time(self, place: float) -> float:
        """Which time stands there."""
        n = bisect_right(self.folds, place, key=lambda f: f.place)
        if not n:
            return place
        fold = self.folds[n - 1]
        if place >= fold.place + fold.width:
            return fold.to_ms + (place - fold.place - fold.width)
        return fold.from_ms + (place - fold.place) * (fold.to_ms - fold.from_ms) / fold.width


@dataclass(frozen=True)
class Waterfall:
    """One session's picture as values.

    Attributes:
        session: its row of `sessions`.
        lanes: a row per agent, each below the one that started it (`depth`); `rows` high.
        bars: a row per interaction, turn, model call, compaction, tool call, permission and
            hook. started_at and ended_at are those of the tables; from_ms and to_ms are where
            it is drawn, since the start; duration_ms is the latency that the tables state.
        marks: a row per message, nudge, error, abort, retry and truncation.
        axis: time → place.
        untimed: how many rows of the tables have no time, and so no bar.
    """

    session: dict[str, Any]
    lanes: pl.DataFrame
    bars: pl.DataFrame
    marks: pl.DataFrame
    axis: Axis
    untimed: int


def waterfall(tables: Tables, session_id: str) -> Waterfall:
    """The waterfall of a session of the tables; they must have those of COURSE.

    Raises:
        polars.exceptions.NoRowsReturnedError: there is no such session.
    """
    of = pl.col("session_id") == session_id
    session = tables.sessions.row(by_predicate=of, named=True)
    part = {name: tables.table(name).filter(of) for name in COURSE}
    agents = _agents(part)
    rows = list(_bars(part))
    bars = [bar for bar in rows if bar["started_at"] or bar["ended_at"]]
    start = session["started_at"] or min(
        (bar["started_at"] or bar["ended_at"] for bar in bars), default=None
    )
    _place(bars, part["interactions"], start)
    lanes = {agent["agent_id"]: n for n, agent in enumerate(agents)}
    heights = _pack(bars, lanes)
    marks = [
        {**mark, "lane": lanes[mark.pop("agent_id")], "at_ms": _ms(mark["at"], start)}
        for mark in _marks(part)
        if mark["at"]
    ]
    end = max(
        [bar["to_ms"] for bar in bars]
        + [mark["at_ms"] for mark in marks]
        + [_ms(session["ended_at"], start) if session["ended_at"] else 0]
    )
    own = {"session_id": session_id}
    return Waterfall(
        session,
        _frame([{**own, **a, "lane": n, "rows": heights[n]} for n, a in enumerate(agents)], _LANES),
        _frame([own | bar for bar in bars], _BARS).sort("lane", "row", "from_ms"),
        _frame([own | mark for mark in marks], _MARKS).sort("at_ms", maintain_order=True),
        _axis(bars, [mark["at_ms"] for mark in marks], end),
        len(rows) - len(bars),
    )


def _frame(rows: list[dict[str, Any]], schema: dict[str, Any]) -> pl.DataFrame:
    columns = {name: [row.get(name) for row in rows] for name in schema}
    return pl.DataFrame(columns, schema=schema)


def _ms(at: datetime, start: datetime | None) -> int:
    assert start  # noqa: S101 (where anything has a time, the session has)
    return (at - start) // timedelta(milliseconds=1)


# --- lanes --------------------------------------------------------------------------------


def _agents(part: dict[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """The root, and each sub-agent behind the agent that started it, in order of time."""
    caller = dict(part["tool_calls"].select("tool_call_id", "agent_id").iter_rows())
    known: dict[str, dict[str, Any]] = {MAIN: {"agent_id": MAIN, "name": MAIN, "parent": None}}
    for sub in part["subagents"].sort("started_at", maintain_order=True).iter_rows(named=True):
        known.setdefault(
            sub["agent_id"],
            {
                "agent_id": sub["agent_id"],
                "name": sub["agent_name"] or sub["agent_id"],
                "status": sub["status"],
                "tool_call_id": sub["tool_call_id"],
                "parent": caller.get(sub["tool_call_id"], MAIN),
            },
        )
    for name in ("llm_calls", "tool_calls", "interactions", "permissions", "hooks"):
        for agent in part[name]["agent_id"].drop_nulls().unique(maintain_order=True):
            known.setdefault(agent, {"agent_id": agent, "name": agent, "parent": MAIN})
    children: dict[str | None, list[dict[str, Any]]] = {}
    for agent in known.values():
        children.setdefault(agent["parent"], []).append(agent)

    def below(parent: str | None, depth: int) -> Iterator[Any]:
        for agent in children.pop(parent, ()):
            yield {**agent, "depth": depth}
            yield below(agent["agent_id"], depth + 1)

    order = list(unrolled(below(None, 0)))
    while children:  # damaged logs may name each other, or an agent that is not there
        order += unrolled(below(next(iter(children)), 1))
    return order


# --- bars ---------------------------------------------------------------------------------


def _bars(part: dict[str, pl.DataFrame]) -> Iterator[dict[str, Any]]:
    for loop in part["interactions"].iter_rows(named=True):
        kind = "nudge" if loop["kind"] == "autopilot" else loop["kind"]
        if kind != "steering" or loop["turns"]:  # otherwise a message into a loop: a mark
            yield {**loop, "kind": "interaction", "name": kind, "status": loop["outcome"]}
    for call in part["llm_calls"].iter_rows(named=True):
        compaction = call["evidence"] == "compaction"
        if call["evidence"] == "turn":
            yield {**call, "kind": "turn", "name": f"turn {call['turn_id'] or call['turn']}"}
        yield {
            **call,
            "kind": "compaction" if compaction else "model",
            "name": "compaction" if compaction else call["model"],
            "ended_at": _replied(call),
            "duration_ms": call["llm_ms"],
            "detail": call["finish_reason"],
        }
    for tool in part["tool_calls"].iter_rows(named=True):
        code = f"exit {tool['exit_code']}" if tool["exit_code"] is not None else None
        detail = ", ".join(filter(None, (tool["error_code"], code, tool["mcp_server"])))
        yield {**tool, "kind": "tool", "name": tool["tool"], "detail": detail or None}
    for wait in part["permissions"].iter_rows(named=True):
        yield {
            **wait,
            "kind": "permission",
            "name": wait["kind"],
            "status": wait["outcome"],
            "duration_ms": wait["wait_ms"],
        }
    for hook in part["hooks"].iter_rows(named=True):
        yield {**hook, "kind": "hook", "name": hook["kind"], "status": hook["outcome"]}


def _replied(call: dict[str, Any]) -> datetime | None:
    """When the model was done: its reply, else its latency, else the end without a reply."""
    if call["evidence"] == "compaction" or call["replied_at"]:
        return call["replied_at"]  # type: ignore[no-any-return]
    if call["started_at"] and call["llm_ms"] is not None:
        return call["started_at"] + timedelta(milliseconds=call["llm_ms"])  # type: ignore[no-any-return]
    return call["ended_at"] if call["status"] != "ok" else None


def _place(bars: list[dict[str, Any]], interactions: pl.DataFrame, start: datetime | None) -> None:
    """Gives each bar `from_ms`, `to_ms`, `open`. A clock that went back makes no bar end
    before it begins.
    """
    ends = dict(interactions.select("interaction", "ended_at").iter_rows())
    for bar in bars:
        bar["open"] = bar["ended_at"] is None
        begin = bar["started_at"] or bar["ended_at"]
        end = bar["ended_at"] or ends.get(bar.get("interaction")) or begin
        bar["from_ms"] = _ms(begin, start)
        bar["to_ms"] = max(bar["from_ms"], _ms(end, start))


def _pack(bars: list[dict[str, Any]], lanes: dict[str, int]) -> list[int]:
    """Gives each bar `lane` and `row`, the first row of its band that is free; returns how
    many rows each lane has.
    """
    bands: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for bar in bars:
        bar["lane"] = lanes[bar["agent_id"]]
        bands.setdefault((bar["lane"], _ORDER[BANDS[bar["kind"]]]), []).append(bar)
    heights = [0] * len(lanes)
    for lane, band in sorted(bands):
        free: list[int] = []  # from when each row is
        for bar in sorted(bands[lane, band], key=lambda b: (b["from_ms"], -b["to_ms"])):
            row = next((n for n, at in enumerate(free) if at <= bar["from_ms"]), len(free))
            # what took no time still stands somewhere
            free[row : row + 1] = [max(bar["to_ms"], bar["from_ms"] + 1)]
            bar["row"] = heights[lane] + row
        heights[lane] += len(free)
    return heights


def _marks(part: dict[str, pl.DataFrame]) -> Iterator[dict[str, Any]]:
    for loop in part["interactions"].filter(pl.col("agent_id") == MAIN).iter_rows(named=True):
        kind = "nudge" if loop["kind"] == "autopilot" else loop["kind"]
        yield {"agent_id": MAIN, "kind": kind, "at": loop["started_at"], "detail": None}
    wrong = pl.col("kind").is_in(["error", "abort", "retry", "truncation"])
    found = part["incidents"].filter(wrong)
    # an error of a sub-agent is often written for its caller, too
    for row in found.unique(["at", "kind", "detail"], maintain_order=True).iter_rows(named=True):
        yield {"agent_id": MAIN, "kind": row["kind"], "at": row["at"], "detail": row["detail"]}


# --- the folded axis ----------------------------------------------------------------------

_Stretch = tuple[int, int]
_WORTH_MS: Final = 500
_WORTH: Final = 0.1
_FOLDED: Final = 0.2


def _axis(bars: list[dict[str, Any]], marks: Iterable[int], end: int) -> Axis:
    """Folds stretches in which nobody works (waiting for the user, between prompts or within
    a turn) that are longer than a tenth of the work; all folds together take at most a
    fifth of the work's length.
    """
    work = _merged([*_work(bars), *((mark, mark) for mark in marks), (0, 0), (end, end)])
    busy = sum(to - from_ for from_, to in work)
    worth = max(_WORTH_MS, _WORTH * busy)
    idle = [(a[1], b[0]) for a, b in pairwise(work) if b[0] - a[1] > worth]
    width = max(1.0, min(worth / 3, _FOLDED * busy / max(1, len(idle))))
    folds: list[Fold] = []
    saved = 0.0
    for from_, to in idle:
        folds.append(Fold(from_, to, from_ - saved, width))
        saved += to - from_ - width
    return Axis(end, tuple(folds))


def _work(bars: list[dict[str, Any]]) -> Iterator[_Stretch]:
    """When a model, a tool or a hook is at work, not waiting for the user."""
    waits: dict[str, list[_Stretch]] = {}
    for bar in bars:
        if bar["kind"] == "permission" and bar.get("tool_call_id"):
            waits.setdefault(bar["tool_call_id"], []).append((bar["from_ms"], bar["to_ms"]))
    for bar in bars:
        span = (bar["from_ms"], bar["to_ms"])
        if bar["kind"] in {"model", "compaction", "hook"}:
            yield span
        elif bar["kind"] == "tool":
            held = [span] if bar["category"] == "user" else waits.get(bar["tool_call_id"], [])
            yield from _without(span, _merged(held))


def _merged(stretches: Iterable[_Stretch]) -> list[_Stretch]:
    """The same time in stretches that do not touch, in order."""
    merged: list[_Stretch] = []
    for from_, to in sorted(stretches):
        if merged and from_ <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], to))
        else:
            merged.append((from_, to))
    return merged


def _without(span: _Stretch, holes: list[_Stretch]) -> Iterator[_Stretch]:
    at, end = span
    for from_, to in holes:
        if from_ >= end or to <= at:
            continue
        if from_ > at:
            yield at, from_
        at = max(at, to)
    if at < end or not holes:
        yield at, end
