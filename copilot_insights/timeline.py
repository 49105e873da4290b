"""A waterfall in characters: a line per prompt, turn and tool, its bar under a common time
axis. A session of more lines than are wanted is drawn in strips instead: each line is the
next stretch of time, each of its cells what took most of it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from textwrap import wrap
from typing import Any, Final, NamedTuple

import polars as pl

from copilot_insights import units
from copilot_insights.render import cells, fit
from copilot_insights.reports import Line, Section
from copilot_insights.rows import unrolled
from copilot_insights.schema import MAIN
from copilot_insights.waterfall import Axis, Waterfall

LIMIT: Final = 100
"""Lines of a picture, unless others are asked for."""

# what is drawn → its character, its colour, its words in the legend
_INK: Final[dict[str, tuple[str, str, str]]] = {
    "fold": ("≈", "dim", "idle, folded"),
    "folded": ("┊", "dim", ""),
    "interaction": ("─", "dim", ""),
    "turn": ("·", "dim", ""),
    "model": ("░", "blue", "model"),
    "compaction": ("▚", "cyan", "compaction"),
    "tool": ("█", "green", "tool"),
    "failed": ("▓", "red", "tool failed"),
    "hook": ("~", "magenta", "hook"),
    "permission": ("?", "yellow", "waits for you"),
    "open": ("▷", "yellow", "no end in the log"),
    "user": ("▼", "bold", "message"),
    "nudge": ("↻", "bold", "nudge"),
    "error": ("✗", "bold red", "error"),
    "abort": ("■", "bold red", "abort"),
}
_RANK: Final = {kind: n for n, kind in enumerate(_INK)}
_POINTS: Final = frozenset({"open", "user", "nudge", "error", "abort"})
_DEPTH: Final = {"interaction": 0, "tool": 2, "error": 0, "abort": 0, "fold": 0}
_BAD: Final = frozenset({"failed", "denied", "error"})
_GOOD: Final = frozenset({"ok", "answered", "task_complete", None})
_Bar = dict[str, Any]


class _Span(NamedTuple):
    """A stretch of the axis and what is drawn there."""

    start: float
    end: float
    kind: str


@dataclass(frozen=True)
class _Row:
    """A line: label, start, latency, tokens (in, out), and what is drawn, the last on top."""

    label: str
    style: str
    from_ms: int
    duration_ms: int | None
    tokens: tuple[int | None, int | None]
    spans: list[_Span]


def timeline(
    fall: Waterfall, head: tuple[tuple[str, str], ...] = (), limit: int | None = None
) -> Section:
    """The bars as a section that terminals draw. `head` are the lines above it; `limit` is
    how many lines the picture may have before it is drawn in strips, 0 for any number.
    """
    most = LIMIT if limit is None else limit

    def picture(width: int) -> Iterator[Line]:
        rows = list(_rows(fall))
        if not rows:
            yield (("nothing in it has a time", "dim"),)
        elif most and len(rows) > most:
            yield from _strips(fall, width, most)
        else:
            yield from _lines(fall.axis, rows, width)

    note = f"{units.plural(fall.untimed, 'call')} without a time." if fall.untimed else ""
    return Section("timeline", "", fall.bars, lines=head, picture=picture, note=note)


# --- a line per call ----------------------------------------------------------------------


def _rows(fall: Waterfall) -> Iterator[_Row]:
    """The lines in order of time, a sub-agent's below the tool call that started it."""
    bars = fall.bars.to_dicts()
    turns = {bar["turn"] for bar in bars if bar["kind"] == "turn"}
    tools = {bar["tool_call_id"] for bar in bars if bar["kind"] == "tool"}
    within: defaultdict[Any, list[_Bar]] = defaultdict(list)  # a turn's model, a tool's waits
    own: defaultdict[str, list[_Bar]] = defaultdict(list)
    for bar in bars:
        if bar["kind"] == "model" and bar["turn"] in turns:
            within["turn", bar["turn"]].append(bar)
        elif bar["kind"] in {"permission", "hook"} and bar["tool_call_id"] in tools:
            within["tool", bar["tool_call_id"]].append(bar)
        else:
            own[bar["agent_id"]].append(bar)
    subs = fall.lanes.filter(pl.col("agent_id") != MAIN)
    names = dict(subs.select("agent_id", "name").iter_rows())
    started: defaultdict[Any, list[str]] = defaultdict(list)
    for sub, call in subs.select("agent_id", "tool_call_id").iter_rows():
        started[call if call in tools else None].append(sub)
    own[MAIN] += _between(fall)

    def agent(name: str, depth: int) -> Iterator[Any]:
        for bar in sorted(own[name], key=lambda b: (b["from_ms"], _RANK[b["kind"]])):
            level = depth + _DEPTH.get(bar["kind"], 1)
            key = bar["kind"], bar.get("turn" if bar["kind"] == "turn" else "tool_call_id")
            yield _row(bar, within[key], level, names.get(name), fall.axis)
            for sub in started.pop(key[1], ()) if bar["kind"] == "tool" else ():
                yield agent(sub, level + 1)

    yield from unrolled(agent(MAIN, 0))
    # no call is known of them, or nobody made it, as damaged logs have it
    for call in (None, *started):
        for name in started.pop(call, ()):
            yield from unrolled(agent(name, 0))


def _between(fall: Waterfall) -> Iterator[_Bar]:
    """What has a line and is no bar: errors, aborts, and times that are folded."""
    for mark in fall.marks.iter_rows(named=True):
        if mark["kind"] in {"error", "abort"}:
            words = (_INK[mark["kind"]][0], mark["kind"], mark["detail"])
            name, at = " ".join(filter(None, words)), mark["at_ms"]
            yield {"kind": mark["kind"], "name": name, "from_ms": at, "to_ms": at}
    for fold in fall.axis.folds:
        name = f"≈ idle {units.duration(fold.to_ms - fold.from_ms)}"
        yield {"kind": "fold", "name": name, "from_ms": fold.from_ms, "to_ms": fold.to_ms}


def _row(bar: _Bar, within: list[_Bar], depth: int, agent: str | None, axis: Axis) -> _Row:
    kind, name, status = bar["kind"], bar["name"], bar.get("status")
    duration = bar.get("duration_ms")
    call = within[0] if kind == "turn" and within else bar
    if kind == "turn":
        duration = call["duration_ms"]
    elif kind == "interaction":
        duration = None if bar["open"] else bar["to_ms"] - bar["from_ms"]
        sign = "↻" if name == "nudge" else "▼"
        name = f"◆ {agent}" if agent else f"{sign} {name}"
    words = (name or kind, None if status in _GOOD else status)
    style = {"interaction": "bold", "fold": "dim", "error": "red", "abort": "red"}.get(kind, "")
    return _Row(
        "  " * depth + " ".join(filter(None, words)),
        "red" if status in _BAD else style,
        bar["from_ms"],
        duration,
        (call.get("input_tokens"), call.get("output_tokens")),
        [span for each in (bar, *within) for span in _drawn(each, axis)],
    )


def _drawn(bar: _Bar, axis: Axis) -> Iterator[_Span]:
    bad = bar["kind"] == "tool" and bar["status"] in _BAD
    start, end = axis.place(bar["from_ms"]), axis.place(bar["to_ms"])
    yield _Span(start, end, "failed" if bad else bar["kind"])
    if bar.get("open"):
        yield _Span(end, end, "open")


_GAP: Final = "  "
_LEAST: Final = 12
"""So many cells has a name or a strip where there is room."""
_WIDE: Final = 110


def _lines(axis: Axis, rows: list[_Row], width: int) -> Iterator[Line]:
    """A grid: after, label, took, on wide terminals tokens, and the bars."""
    columns = [
        ("after", [units.duration(row.from_ms) for row in rows]),
        ("took", ["" if r.duration_ms is None else units.duration(r.duration_ms) for r in rows]),
    ]
    for n, title in enumerate(("in", "out") if width >= _WIDE else ()):
        values = [row.tokens[n] for row in rows]
        columns.append((title, ["" if v is None else units.count(v) for v in values]))
    sizes = [max(len(text) for text in (title, *texts)) for title, texts in columns]
    rest = width - sum(sizes) - len(_GAP) * (len(sizes) + 1)
    label = min(max(cells(row.label) for row in rows), max(_LEAST, rest * 2 // 5))
    label = max(1, min(label, rest - _LEAST // 2))
    grid = _Grid(axis, 0, axis.length, max(1, rest - label))
    folds = [span._replace(kind="folded") for span in _folds(axis)]

    def line(texts: list[str], name: str) -> tuple[str, str, str]:
        first, *others = (text.rjust(size) for text, size in zip(texts, sizes, strict=True))
        return first + _GAP, fit(name, label), _GAP + "".join(text + _GAP for text in others)

    yield (("".join(line([title for title, _ in columns], "")) + grid.ruler(), "dim"),)
    for n, row in enumerate(rows):
        after, name, numbers = line([texts[n] for _, texts in columns], row.label)
        bars = grid.layers([*folds, *row.spans])
        yield ((after, "dim"), (name, row.style), (numbers, ""), *bars)
    yield from _legend((span for row in rows for span in row.spans), width)


def _folds(axis: Axis) -> list[_Span]:
    return [_Span(fold.place, fold.place + fold.width, "fold") for fold in axis.folds]


def _legend(spans: Iterable[_Span], width: int) -> Iterator[Line]:
    drawn = {span.kind for span in spans}
    words = [f"{sign} {text}" for kind, (sign, _, text) in _INK.items() if kind in drawn and text]
    line = ""
    for word in words:
        if line and len(line) + 3 + len(word) > width:
            yield ((line, "dim"),)
            line = ""
        line += ("   " if line else "") + word
    yield ((line, "dim"),)


@dataclass(frozen=True)
class _Grid:
    """The part of an axis from `start`, `length` long, in `width` cells."""

    axis: Axis
    start: float
    length: float
    width: int

    def _cells(self, span: _Span) -> Iterator[tuple[int, float]]:
        """The cells it touches, and the part of each that it takes."""
        scale = self.width / (self.length or 1)
        start, end = ((at - self.start) * scale for at in span[:2])
        first = min(max(0, int(start)), self.width - 1)
        for cell in range(first, min(self.width, max(first + 1, ceil(end)))):
            yield cell, min(end, cell + 1) - max(start, cell)

    def layers(self, spans: Iterable[_Span]) -> Iterator[tuple[str, str]]:
        """Each span on top of the last ones: where it takes half of a cell, or is alone."""
        drawn: list[str | None] = [None] * self.width
        for span in spans:
            for cell, part in self._cells(span):
                if part >= 1 / 2 or span.kind in _POINTS or drawn[cell] in {None, "folded", "turn"}:
                    drawn[cell] = span.kind
        return _inked(drawn)

    def most(self, spans: Iterable[_Span], points: Iterable[_Span]) -> Iterator[tuple[str, str]]:
        """In each cell what takes most of it; points on top."""
        parts: list[dict[str, float]] = [{} for _ in range(self.width)]
        for span in spans:
            for cell, part in self._cells(span):
                parts[cell][span.kind] = parts[cell].get(span.kind, 0) + part
        drawn = [max(p, key=lambda k: (p[k], _RANK[k])) if p else None for p in parts]
        for point in points:
            drawn[next(self._cells(point))[0]] = point.kind
        return _inked(drawn)

    def ruler(self) -> str:
        """Times at round distances, without those that a fold hides."""
        step = _step(self.length / max(1, self.width // 8))
        text = ""
        for n in range(int(self.length / step) + 1):
            at = int(n * step * self.width / (self.length or 1))
            label = units.duration(round(self.axis.time(self.start + n * step)))
            hidden = any(f.place < n * step < f.place + f.width for f in self.axis.folds)
            if not hidden and len(text) <= at <= self.width - len(label):
                text = text.ljust(at) + label + " "
        return text


def _inked(drawn: list[str | None]) -> Iterator[tuple[str, str]]:
    for kind, run in groupby(drawn):
        sign, style, _ = _INK[kind] if kind else (" ", "", "")
        yield sign * len(list(run)), style


_STEPS: Final = tuple(n * unit for unit in (1, 10, 100, 1000, 10_000) for n in (1, 2, 5)) + tuple(
    minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440)
)


def _step(least: float) -> float:
    """The next round number of milliseconds."""
    return next((step for step in _STEPS if step >= least), ceil(least / _STEPS[-1]) * _STEPS[-1])


# --- strips -------------------------------------------------------------------------------

_STRIPS: Final = 50
_MARKS: Final = {"nudge": "nudge", "abort": "abort"} | dict.fromkeys(
    ("error", "retry", "truncation"), "error"
)
_COUNTED: Final = {"model": "calls", "compaction": "calls", "tool": "tools"}
_NUMBERS: Final = ("calls", "tools", "failed")


def _strips(fall: Waterfall, width: int, most: int) -> Iterator[Line]:
    """A line for each stretch of time and agent that was busy in it, with its numbers: what
    began in it. Where that would be too many lines, the sub-agents share one.
    """
    axis = fall.axis
    step = _step(axis.length / min(_STRIPS, most))
    number = max(1, ceil(axis.length / step))
    strips = _cut(fall, step, number)
    names = dict(fall.lanes.select("lane", "name").iter_rows())
    if len(strips) > 2 * most:
        strips, names = _shared(strips), {0: MAIN, 1: "sub-agents"}
    after = [units.duration(round(axis.time(n * step))) for n in range(number)]
    size = max(map(len, ("after", *after)))
    # where it is narrow, names are cut first, then there are no numbers
    rest = width - size - len(_GAP)
    beside = sum(len(_GAP) + len(name) for name in _NUMBERS)
    numbers = _NUMBERS if rest - beside >= 2 * _LEAST else ()
    rest -= beside if numbers else 0
    label = 0
    if len(names) > 1:
        label = max(1, min(16, max(map(cells, names.values())), rest - len(_GAP) - _LEAST))
        rest -= label + len(_GAP)
    rest = max(1, rest)

    def line(begin: str, name: str) -> str:
        return begin.rjust(size) + _GAP + (fit(name, label) + _GAP if label else "")

    heads = "".join(_GAP + name for name in numbers)
    yield ((line("after", "") + " " * rest + heads, "dim"),)
    last = -1
    for n, lane in sorted(strips):
        strip = strips[n, lane]
        begin, last = after[n] if n != last else "", n
        counts = "".join(
            _GAP + (str(strip.counts[name]) if strip.counts[name] else "").rjust(len(name))
            for name in numbers
        )
        grid = _Grid(axis, n * step, step, rest)
        yield (
            (line(begin, names[lane]), "dim"),
            *grid.most(strip.spans, strip.points),
            (counts, ""),
        )
    drawn = (span for strip in strips.values() for span in (*strip.spans, *strip.points))
    yield from _legend(drawn, width)
    words = f"A line is {units.duration(step)}, a cell {units.duration(step / rest)}."
    for part in wrap(f"{words} --limit 0 draws a line per call.", width):
        yield ((part, "dim"),)


class _Strip:
    """What one agent did in one stretch of time."""

    def __init__(self) -> None:
        self.spans: list[_Span] = []
        self.points: list[_Span] = []
        self.counts: Counter[str] = Counter()


def _cut(fall: Waterfall, step: float, number: int) -> dict[tuple[int, int], _Strip]:
    """The strips in which something was: (number of the stretch, lane) → strip."""
    axis = fall.axis
    strips: defaultdict[tuple[int, int], _Strip] = defaultdict(_Strip)

    def first(span: _Span) -> int:
        return min(number - 1, int(span.start / step))

    def add(lane: int, span: _Span) -> None:
        for n in range(first(span), max(first(span) + 1, min(number, ceil(span.end / step)))):
            strips[n, lane].spans.append(span)

    for n in range(number):
        strips[n, 0].spans = []
    for span in _folds(axis):
        add(0, span)
    for bar in fall.bars.filter(~pl.col("kind").is_in(["interaction", "turn"])).to_dicts():
        for span in _drawn(bar, axis):
            add(bar["lane"], span)
        if what := _COUNTED.get(bar["kind"]):
            counts = strips[first(next(_drawn(bar, axis))), bar["lane"]].counts
            counts[what] += 1
            counts["failed"] += bar["status"] in _BAD
    for mark in fall.marks.iter_rows(named=True):
        at = axis.place(mark["at_ms"])
        span = _Span(at, at, _MARKS.get(mark["kind"], "user"))
        strips[first(span), mark["lane"]].points.append(span)
    return dict(strips)


def _shared(strips: dict[tuple[int, int], _Strip]) -> dict[tuple[int, int], _Strip]:
    """The same with all sub-agents in one lane."""
    shared: defaultdict[tuple[int, int], _Strip] = defaultdict(_Strip)
    for (n, lane), strip in strips.items():
        into = shared[n, min(lane, 1)]
        into.spans += strip.spans
        into.points += strip.points
        into.counts += strip.counts
    return dict(shared)
