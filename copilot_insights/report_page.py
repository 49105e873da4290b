"""The report as a page: what the command `report` says, with pictures and a table of sessions
to sort and filter. Every number on it is of a section of `reports` or `breakdowns`.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from hashlib import sha384
from typing import Any, Final, cast

import polars as pl

from copilot_insights import breakdowns, reports, units
from copilot_insights.charts import CHARTS, ON_DARK, Figure, plotlyjs
from copilot_insights.filters import Filter
from copilot_insights.page import Remote, asset, document, inert
from copilot_insights.render import LEFT, cell, clean
from copilot_insights.reports import Column, Section
from copilot_insights.tables import Tables

_NUMBERS: Final = 60  # rows below a picture
_ROWS: Final = 200  # of other tables
_SESSIONS: Final = 5000
_BARS: Final = 60  # in a tile
_PERCENT: Final = "\N{NO-BREAK SPACE}%"


def report_page(
    tables: Tables,
    chosen: Filter,
    tz: str = "UTC",
    *,
    cdn: bool = False,
    links: Mapping[str, str] | None = None,
) -> str:
    """The page of the tables that are chosen already; they must have `reports.USED`.

    With cdn, plotly is fetched when the page is opened, instead of being in it. `links` are
    addresses of sessions' pages, by session id.
    """
    sections = {s.name: s for s in reports.report(tables, chosen, tz)}
    writer = _Writer(tables, tz)
    head = sections["overview"]
    parts = [
        ("much", "How much", _much(writer, sections)),
        ("time", "Where the time went", _time(writer, sections)),
        ("tools", "Tools", _tools(writer)),
        ("sessions", "Sessions worth a look", _sessions(writer)),
        ("agents", "Sub-agents", _agents(writer, sections)),
        ("context", "Context", writer.chart("context")),
        ("quality", "How good the data is", _data(sections)),
    ]
    nav = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in parts)
    main = "\n".join(
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{title}</h2>\n{of}\n'
        "</section>"
        for name, title, of in parts
    )
    number = units.plural(head.frame["sessions"][0], "session")
    about = next((text for label, text in head.lines if label == "sessions"), "")
    about = " · ".join([number, *about.split(" · ")[1:]])
    body = f"""<header>
<div><h1>{inert(head.title)}</h1><p>{inert(about)}</p></div>
<button id="theme" type="button" hidden>Dark</button>
</header>
<nav aria-label="Parts of the report">{nav}</nav>
<main>
<noscript><p class="note">Pictures and the table of sessions need the scripts of this file; every \
picture has its numbers below it.</p></noscript>
{main}
</main>
<footer>Made by copilot-insights from session logs. It holds no prompts, replies or results.
</footer>
{_quiet()}"""
    code, address = plotlyjs()
    empty = ""  # plotly adds an empty style sheet and fills it with rules
    return document(
        head.title,
        body,
        {
            "charts": writer.figures,
            "dark": ON_DARK,
            "sessions": _rows(breakdowns.notable(tables, tz), tz, links or {}),
        },
        style=asset("report.css"),
        styles=[empty],
        scripts=[
            Remote(address, _integrity(code)) if cdn else code,
            asset("report.js"),
        ],
    )


_ALONE: Final = """const { data, layout } = JSON.parse(document.getElementById("data").textContent);
Plotly.newPlot("plot", data, layout, { displaylogo: false, responsive: true });"""


def figure_page(figure: Figure) -> str:
    """A figure alone, as a page that works offline."""
    return document(
        figure.layout.title.text,
        f'<div id="plot"></div>{_quiet()}',
        json.loads(figure.to_json()),
        style="body { margin: 16px; background: white; }",
        styles=[""],
        scripts=[plotlyjs()[0], _ALONE],
    )


def _quiet() -> str:
    """Elements by which plotly takes the style sheets of its maps for there already: there are
    no maps, and the page's policy would refuse them aloud.
    """
    ids = re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotlyjs()[0])
    return "".join(f'<i id="{name}" hidden></i>' for name in dict.fromkeys(ids))


def _integrity(code: str) -> str:
    return f"sha384-{b64encode(sha384(code.encode()).digest()).decode()}"


# --- pieces -------------------------------------------------------------------------------


class _Writer:
    """Markup of charts and tables; keeps the figures that the page's script draws."""

    def __init__(self, tables: Tables, tz: str) -> None:
        self.tables = tables
        self.tz = tz
        self.figures: dict[str, Any] = {}
        self._seen: dict[Callable[..., Section], Section] = {}

    def numbers(self, name: str) -> Section:
        """What a chart is of; computed once for charts of the same."""
        of = CHARTS[name].numbers
        if of not in self._seen:
            self._seen[of] = of(self.tables, self.tz)
        return self._seen[of]

    def chart(self, name: str, title: str = "", *, numbers: bool = True) -> str:
        """A chart with its title, and its numbers behind a button. A chart of nothing is a
        sentence.
        """
        section = self.numbers(name)
        figure = json.loads(CHARTS[name].draw(section.frame).to_json())
        layout = figure["layout"]
        own = layout.pop("title")["text"]
        title = title or own
        layout["template"].pop("data", None)
        if not figure["data"]:
            said = layout["annotations"][0]["text"]
            return f'<figure class="none"><h3>{title}</h3><p class="note">{said}</p></figure>'
        self.figures[name] = figure
        table = self.table(section, _NUMBERS) if numbers else ""
        more = f"<details><summary>Numbers</summary>{table}</details>" if table else ""
        where = "in the table below" if numbers else "in a table beside it"
        return (
            f'<figure><h3 id="c-{name}">{title}</h3>'
            f'<div class="plot" data-chart="{name}" role="img" '
            f'aria-label="Chart: {title}. Its numbers are {where}."></div>{more}</figure>'
        )

    def table(self, section: Section, most: int | None = None) -> str:
        """A section's columns; numbers carry what they are in JSON."""
        frame = section.frame if section.shown is None else section.shown
        columns = [c for c in section.columns if c.unit != "bar"]
        columns = [c for c in columns if not c.rank or frame[c.of].count()]
        shown = frame.head(most) if most else frame
        head = "".join(f'<th scope="col"{_side(c)}>{c.title}</th>' for c in columns)
        rows = "".join(
            "<tr>"
            + "".join(_cell(v, c, self.tz) for v, c in zip(row, columns, strict=True))
            + "</tr>"
            for row in shown.select(c.of for c in columns).iter_rows()
        )
        if not rows:
            return '<p class="note">none</p>'
        rest = frame.height - shown.height
        more = f"{units.count(rest)} more rows are in the other formats." if rest else ""
        note = " ".join(filter(None, (section.note, more)))
        return (
            f'<div class="wide" tabindex="0" role="region" aria-label="{inert(section.title)}">'
            f'<table data-name="{section.name}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>" + _note(note)
        )


def _side(column: Column) -> str:
    return "" if column.unit in LEFT else ' class="n"'


def _cell(value: object, column: Column, tz: str) -> str:
    raw = f' data-v="{value}"' if isinstance(value, int | float) else ""
    return f"<td{_side(column)}{raw}>{inert(cell(value, column.unit, tz))}</td>"


def _note(text: str) -> str:
    return f'<p class="note">{inert(text)}</p>' if text else ""


def _titled(title: str, markup: str) -> str:
    return f'<div class="block"><h3>{title}</h3>{markup}</div>'


# --- the parts of the report --------------------------------------------------------------


def _much(writer: _Writer, sections: Mapping[str, Section]) -> str:
    o = sections["overview"].frame.row(0, named=True)
    known = writer.tables.sessions["ai_credits"].count()
    of = writer.tables.sessions.height
    failed = o["failed_tool_calls"]
    tiles = (
        ("Sessions", "sessions", units.count, units.plural(o["interactions"], "interaction")),
        ("Model calls", "llm_calls", units.count, _of(o["failed_llm_calls"], None, "failed")),
        ("Tokens in", "input_tokens", units.count,
         _share(o["cache_read_tokens"], o["input_tokens"], "cached")),
        ("Tokens out", "output_tokens", units.count,
         _share(o["reasoning_tokens"], o["reasoned_tokens"], "reasoning")),
        ("AI credits", "ai_credits", units.amount,
         f"stated by {units.count(known)} of {units.count(of)} sessions" if known < of else ""),
        ("Tool calls", "tool_calls", units.count, _of(failed, o["tool_calls"], "failed")),
        ("Sub-agents", "subagents", units.count, ""),
    )  # fmt: skip
    daily = sections["daily"].frame
    summed = {*daily.columns} - {"sessions"}  # a session of two days is one session
    boxes = "".join(
        f'<div><dt>{title}</dt><dd data-name="{name}" data-v="{o[name]}">{told(o[name])}</dd>'
        f"<dd>{more.replace(' %', _PERCENT)}</dd>"
        f"{_trend(daily, name, told) if name in summed else ''}</div>"
        for title, name, told, more in tiles
    )
    charts = [
        writer.chart(name, numbers=name != "tokens")
        for name in ("calls", "tokens", "credits", "model-latency")
    ]
    return (
        f'<dl class="tiles">{boxes}</dl>{_grid(charts)}'
        + _titled("Models", writer.table(sections["models"], _ROWS))
        + f"<details><summary>Every day ({inert(writer.tz)})</summary>"
        f"{writer.table(sections['daily'])}</details>"
    )


def _trend(daily: pl.DataFrame, column: str, told: Callable[[float | None], str]) -> str:
    """Small bars of a number by day, which need no script: what is seen first. A long history
    has some days in a bar; nothing for less than two bars.
    """
    known = daily.drop_nulls(["day", column])
    if known["day"].n_unique() < 2:
        return ""
    first, last = cast("date", known["day"].min()), cast("date", known["day"].max())
    days = (last - first).days // _BARS + 1
    place = (pl.col("day") - first).dt.total_days() // days
    bars = known.group_by(place.alias("x")).agg(pl.col(column).sum()).sort("x")
    top = bars.filter(pl.col(column) == bars[column].max()).row(0)
    if not top[1]:
        return ""
    path = "".join(
        f"M{x} 24v-{height:.1f}h.8V24z"
        for x, value in bars.iter_rows()
        if (height := 24 * value / top[1]) >= 0.05  # else not a pixel
    )
    when = first + timedelta(days=top[0] * days)
    of = "day" if days == 1 else f"{days} days"
    said = f"A bar per {of}, {first} to {last}; the highest, {told(top[1])}, from {when}."
    return (
        f'<dd class="trend"><svg viewBox="0 0 {bars["x"][-1] + 1} 24" preserveAspectRatio="none" '
        f'role="img" aria-label="{said}"><title>{said}</title><path d="{path}"/></svg></dd>'
    )


def _grid(charts: list[str]) -> str:
    """Charts beside each other; those that are but a sentence, below."""
    drawn = [chart for chart in charts if "data-chart" in chart]
    told = [chart for chart in charts if "data-chart" not in chart]
    return f'<div class="grid">{"".join(drawn)}</div>{"".join(told)}'


def _share(part: int | None, whole: int | None, what: str) -> str:
    """50 % cached; nothing where one is not known."""
    return f"{units.percent(part / whole)} {what}" if part is not None and whole else ""


def _of(part: int | None, whole: int | None, what: str) -> str:
    """9 failed, 16 %; nothing for nothing."""
    if not part:
        return ""
    share = f", {units.percent(part / whole)}" if whole else ""
    return f"{units.count(part)} {what}{share}"


def _time(writer: _Writer, sections: Mapping[str, Section]) -> str:
    note = _note(sections["time"].note)
    days = writer.chart("time-days") + writer.chart("time-sessions")
    return f"{writer.chart('time', 'All interactions together')}{note}{days}"


def _tools(writer: _Writer) -> str:
    charts = [
        writer.chart(name, numbers=name != "tool-outcomes")
        for name in ("tool-latency", "tool-outcomes", "failures")
    ]
    # all tools, not the ten that the terminal shows
    return _grid(charts) + _titled("All tools", writer.table(reports.tools(writer.tables), _ROWS))


def _sessions(writer: _Writer) -> str:
    flags = "".join(
        f'<button type="button" class="flag" data-flag="{flag}" aria-pressed="false">{flag}'
        "</button>"
        for flag in breakdowns.FLAGS
    )
    return f"""<p class="note">Long or costly: three times the median or more, and among the top \
twentieth (long from a minute on). Failing: three calls or more, and a fifth of all. Stuck: cut \
off within a call, or one call repeated.</p>
<div class="bar" id="filters">
<label for="find">Filter</label>
<input id="find" type="search" autocomplete="off" spellcheck="false">
{flags}<span id="count" role="status"></span></div>
<div class="wide" tabindex="0" role="region" aria-label="Table of sessions">
<table id="list"><thead><tr></tr></thead><tbody></tbody></table></div>
<p><button type="button" id="more" hidden></button></p>
{writer.chart("sessions", "Tokens against active time", numbers=False)}"""


def _agents(writer: _Writer, sections: Mapping[str, Section]) -> str:
    if "agents" not in sections:
        return '<p class="note">No sub-agent here.</p>'
    section = sections["agents"]
    tokens = int(section.frame["input_tokens"].sum())
    whole = sections["overview"].frame["input_tokens"][0]
    note = (
        f"Sub-agents read {units.count(tokens)} tokens, {units.percent(tokens / whole)} of all."
        if tokens and whole
        else ""
    )
    return _note(note) + writer.table(section, _ROWS) + writer.chart("agents", numbers=False)


def _data(sections: Mapping[str, Section]) -> str:
    lines = [*sections["overview"].lines, *sections["quality"].lines]
    rows, last = [], ""
    for name, text in lines:
        last = name or last
        rows.append(f"<div><dt>{name}</dt><dd>{inert(text)}</dd></div>")
    return f'<dl class="facts">{"".join(rows)}</dl>'


# --- the table of sessions ----------------------------------------------------------------


def _rows(section: Section, tz: str, links: Mapping[str, str]) -> dict[str, Any]:
    """Columns and rows for the script: of each cell what is shown, and what it sorts by where
    that is something else.
    """
    frame = section.frame if section.shown is None else section.shown
    shown = frame.head(_SESSIONS)
    columns = [
        c
        for c in section.columns
        if shown[c.of].count() or c.of in {"llm_calls", "started_at", "id", "active_ms"}
    ]
    rows = []
    for session, *row in shown.select("session_id", *(c.of for c in columns)).iter_rows():
        cells = [_sortable(value, column, tz) for value, column in zip(row, columns, strict=True)]
        rows.append([clean(session), links.get(session), cells])
    flags = [
        [i for i, on in enumerate(f) if on] for f in shown.select(breakdowns.FLAGS).iter_rows()
    ]
    return {
        "columns": [(c.title, int(c.unit not in LEFT), c.of) for c in columns],
        "rows": [[*row, on] for row, on in zip(rows, flags, strict=True)],
        "flags": breakdowns.FLAGS,
        "left": frame.height - shown.height,
    }


def _sortable(value: object, column: Column, tz: str) -> Any:  # noqa: ANN401 (a cell of JSON)
    text = cell(value, column.unit, tz)
    if isinstance(value, datetime | date):
        return [text, value.isoformat()]
    return text if column.unit in LEFT or value is None else [text, value]
