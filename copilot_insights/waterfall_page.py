"""A waterfall as a page that needs nothing else: one file, no network, nothing that a log
says can run in it. Drawn on a canvas, which thousands of calls do not slow down.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from copilot_insights import units
from copilot_insights.content import Content
from copilot_insights.page import asset, document, inert
from copilot_insights.render import clean
from copilot_insights.tables import Tables
from copilot_insights.tree import heading
from copilot_insights.waterfall import BANDS, Waterfall, waterfall

_SIGNS: Final = {
    "user": ("▼", "message"),
    "steering": ("▽", "message into a running loop"),
    "nudge": ("↻", "nudge: autopilot goes on"),
    "other": ("▽", "message of the system"),
    "error": ("✗", "error"),
    "abort": ("■", "abort"),
    "retry": ("⟳", "retry"),
    "truncation": ("✂", "truncation"),
}
_BAD: Final = frozenset({"error", "abort"})
_LEGEND: Final = {
    "interaction": "prompt and its loop",
    "turn": "turn",
    "model": "model",
    "compaction": "compaction",
    "tool": "tool",
    "failed": "tool failed or denied",
    "permission": "waits for you",
    "hook": "hook",
    "fold": "idle, folded",
}
_NUMBERS: Final = (
    ("took", "duration_ms", units.duration),
    ("run time", "run_ms", units.duration),
    ("waited for permission", "permission_ms", units.duration),
    ("hooks", "hook_ms", units.duration),
    ("first token", "ttft_ms", units.duration),
    ("tokens in", "input_tokens", units.count),
    ("tokens out", "output_tokens", units.count),
)
_SAID: Final = 20_000


def waterfall_page(
    tables: Tables, session_id: str, tz: str = "UTC", *, content: bool = False
) -> str:
    """The page of one session of the tables, which must have `rows.COURSE`. With
    content, what was said, read again from the log.
    """
    fall = waterfall(tables, session_id)
    said = Content(Path(fall.session["path"])) if content else None
    facts = "".join(
        f"<div><dt>{label}</dt><dd>{inert(value)}</dd></div>"
        for label, value in heading(fall.session, tz)
        if value
    )
    kinds = {*fall.bars["kind"], *(["fold"] if fall.axis.folds else [])}
    if fall.bars.filter(status="failed").height or fall.bars.filter(status="denied").height:
        kinds.add("failed")
    legend = "".join(
        f'<span><i class="bg-{kind}"></i>{named}</span>'
        for kind, named in _LEGEND.items()
        if kind in kinds
    )
    bars = units.plural(fall.bars.height, "bar")
    untimed = f" {units.plural(fall.untimed, 'call')} without a time." if fall.untimed else ""
    body = f"""<main>
<h1>Waterfall of a session</h1>
<dl>{facts}</dl>
<div class="bar">
<button id="in" aria-label="Zoom in">+</button>
<button id="out" aria-label="Zoom out">&minus;</button>
<button id="fit">Whole session</button>
{legend}
</div>
<div id="view" tabindex="0" role="application" aria-label="Waterfall: {bars} in time; \
the arrow keys go from one to the next" aria-describedby="picked">
<canvas></canvas><div></div></div>
<p class="help">Drag to move, Ctrl + wheel or + and &minus; to zoom, 0 for all; ← → go from bar to \
bar. A fading bar has no end in the log.{untimed}</p>
<div id="picked" aria-live="polite"></div>
<details><summary>The same as a table</summary><div class="wide"><table>
<thead><tr><th>after</th><th>agent</th><th>kind</th><th>what</th><th>took</th><th>status</th></tr></thead>
<tbody></tbody></table></div></details>
<noscript>The picture is drawn by a script in this file.</noscript>
</main>
<div id="tip" hidden></div>"""
    return document(
        f"Session {session_id}",
        body,
        _data(fall, said),
        style=asset("waterfall.css"),
        scripts=[asset("waterfall.js")],
    )


def _data(fall: Waterfall, said: Content | None) -> dict[str, Any]:
    """What the script draws: bars as lists in the order that it names."""
    axis = fall.axis
    knots = [(0.0, 0)]
    for fold in axis.folds:
        knots += [(fold.place, fold.from_ms), (fold.place + fold.width, fold.to_ms)]
    knots.append((axis.length, axis.end_ms))
    return {
        "length": axis.length,
        "knots": knots,
        "folds": [
            (fold.place, fold.width, units.duration(fold.to_ms - fold.from_ms))
            for fold in axis.folds
        ],
        "lanes": [
            {
                "name": clean(lane["name"]),
                "depth": lane["depth"],
                "rows": _bands(fall, lane["lane"], lane["rows"]),
            }
            for lane in fall.lanes.iter_rows(named=True)
        ],
        "bars": [_bar(bar, fall, said) for bar in fall.bars.iter_rows(named=True)],
        "marks": [_mark(mark, fall) for mark in fall.marks.iter_rows(named=True)],
    }


def _bands(fall: Waterfall, lane: int, rows: int) -> list[str]:
    names = [""] * rows
    for row, kind in fall.bars.filter(lane=lane).select("row", "kind").iter_rows():
        names[row] = BANDS[kind]
    return names


def _bar(bar: dict[str, Any], fall: Waterfall, said: Content | None) -> list[Any]:
    row = [
        bar["lane"],
        bar["row"],
        bar["kind"],
        clean(bar["name"] or bar["kind"]),
        "no end in the log"
        if bar["open"] and bar["status"] == "open"
        else clean(bar["status"] or ""),
        int(bar["open"]),
        fall.axis.place(bar["from_ms"]),
        fall.axis.place(bar["to_ms"]),
        list(_facts(bar)),
    ]
    if said and (text := _said(bar, said)):
        more = f"\n… {units.count(len(text) - _SAID)} characters more" if len(text) > _SAID else ""
        lines = (clean(line) for line in text[:_SAID].split("\n"))
        row.append("\n".join(lines) + more)
    return row


def _facts(bar: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "after", units.duration(bar["from_ms"])
    if bar["duration_ms"] is None and bar["started_at"] and bar["ended_at"]:
        yield "took", units.duration(bar["to_ms"] - bar["from_ms"])
    for label, column, told in _NUMBERS:
        if bar[column] is not None and not (bar[column] == 0 and column in _IF_ANY):
            yield label, told(bar[column])
    if bar["kind"] == "turn" and bar["model"]:
        yield "model", clean(bar["model"])
    if bar["detail"]:
        yield "detail", clean(bar["detail"])


_IF_ANY: Final = frozenset({"permission_ms", "hook_ms"})


def _said(bar: dict[str, Any], said: Content) -> str | None:
    agent = bar["agent_id"]
    if bar["kind"] == "interaction":
        return said.user(agent, bar["started_at"])
    if bar["kind"] == "model":
        return said.assistant(agent, bar["ended_at"])
    return said.tool(bar["tool_call_id"]) if bar["kind"] == "tool" else None


def _mark(mark: dict[str, Any], fall: Waterfall) -> dict[str, Any]:
    sign, words = _SIGNS[mark["kind"]]
    text = " · ".join(filter(None, (words, mark["detail"], units.duration(mark["at_ms"]))))
    return {
        "at": fall.axis.place(mark["at_ms"]),
        "sign": sign,
        "said": clean(text),
        "bad": mark["kind"] in _BAD,
    }
