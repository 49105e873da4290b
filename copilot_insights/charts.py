"""Frames → plotly figures, all of one look: one template, colours that colour-blind people
tell apart, units on the axes, and a gap where the log does not say.

A function takes a frame of `metrics` (its docstring says which) and computes nothing but
places. `CHARTS` names those that can be drawn of any tables. Labels out of a log are
escaped: plotly takes some HTML in every text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final, cast

import plotly.graph_objects as go
import polars as pl
from plotly.graph_objects import Figure

from copilot_insights import breakdowns, reports, units
from copilot_insights.filters import Filter
from copilot_insights.render import clean
from copilot_insights.reports import Section
from copilot_insights.tables import Tables

if TYPE_CHECKING:
    from datetime import date

__all__ = [
    "CHARTS",
    "COLORS",
    "ON_DARK",
    "TEMPLATE",
    "Chart",
    "Figure",
    "by_day",
    "chart",
    "growth",
    "label",
    "latency",
    "outcomes",
    "parts",
    "plotlyjs",
    "reasons",
    "sessions",
    "subagents",
    "time_of_days",
    "time_of_sessions",
]  # fmt: skip

# --- the look -----------------------------------------------------------------------------

BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY, PALE = (
    "#2f7fb8", "#d99000", "#009e73", "#b3669a", "#4aa8dc", "#d55e00", "#8a94a0", "#c9d1d9",
)  # fmt: skip
COLORS: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
"""The order in which series are coloured (after Okabe and Ito)."""
ON_DARK: Final = {
    BLUE: "#4a9bd4", ORANGE: "#e9b13c", GREEN: "#17b186", PURPLE: "#cf86b8", SKY: "#8ad0f5",
    RED: "#f0743a", GREY: "#8a94a0", PALE: "#484f58",
}  # fmt: skip
"""Colour → the one that takes its place on a dark page."""
INK: Final = "#1c2128"
SOFT: Final = "#57606a"
LINE: Final = "#d8dee4"

_AXIS: Final[dict[str, Any]] = {
    "automargin": True, "gridcolor": LINE, "linecolor": LINE, "zerolinecolor": LINE,
    "ticks": "outside", "ticklen": 5,
    "tickcolor": "rgba(0,0,0,0)",
    "title": {"font": {"size": 12, "color": SOFT}, "standoff": 10},
    "tickfont": {"size": 12, "color": SOFT},
}  # fmt: skip
TEMPLATE: Final = go.layout.Template(
    layout={
        "font": {"family": "system-ui, 'Segoe UI', sans-serif", "size": 13, "color": INK},
        "title": {"font": {"size": 16}, "x": 0, "xref": "container", "pad": {"l": 12},
                  "y": 0.97, "yanchor": "top"},
        "colorway": list(COLORS),
        "paper_bgcolor": "white", "plot_bgcolor": "white",
        "margin": {"l": 12, "r": 16, "t": 72, "b": 12},
        "xaxis": _AXIS, "yaxis": _AXIS,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom",
                   "xanchor": "left", "font": {"size": 12}, "traceorder": "normal",
                   "itemclick": "toggle", "title": {"text": ""}},
        "hoverlabel": {"font": {"size": 12}, "align": "left", "namelength": -1},
        "bargap": 0.25, "hovermode": "closest", "dragmode": False,
    }
)  # fmt: skip
"""What all figures share."""

_PARTS: Final = {
    part: (name, color)
    for (part, name), color in zip(
        reports.PART_NAMES.items(), (BLUE, GREEN, ORANGE, PURPLE, PALE), strict=True
    )
}
_MOST_SERIES: Final = 6
_UNNAMED: Final = "not stated"
_LABEL: Final = 32
_DAY: Final = 86_400_000
_BAR: Final = round(0.75 * _DAY)

# a log axis of milliseconds, read as people say it
_TICKS: Final = {
    1: "1 ms", 10: "10 ms", 100: "100 ms", 1_000: "1 s", 10_000: "10 s", 60_000: "1 min",
    600_000: "10 min", 3_600_000: "1 h", 36_000_000: "10 h",
}  # fmt: skip


def label(text: str | None, width: int = _LABEL) -> str:
    """The text so that plotly shows it as it is, in no more than that many characters."""
    text = clean(text or _UNNAMED)
    short = text if len(text) <= width else f"{text[: width - 1]}…"
    # $…$ is a formula where there is MathJax
    return escape(short, quote=False).replace("$", "&#36;")


def labels(texts: Iterable[str | None], width: int = _LABEL) -> list[str]:
    """Labels for categories: what is cut to the same text stays apart."""
    seen: dict[str, int] = {}
    out = []
    for text in texts:
        short = label(text, width)
        seen[short] = seen.get(short, 0) + 1
        out.append(short if seen[short] == 1 else f"{short} ({seen[short]})")
    return out


def blank(title: str, **layout: Any) -> Figure:  # noqa: ANN401 (as plotly takes it)
    """A figure of the common look without anything in it."""
    return Figure(layout={"template": TEMPLATE, "title": {"text": title}, **layout})


def nothing(figure: Figure, why: str) -> Figure:
    """The figure with a sentence where the picture would be."""
    hidden = {"visible": False}
    return figure.update_layout(
        xaxis=hidden, yaxis=hidden, height=220,
        annotations=[{"text": why, "showarrow": False, "xref": "paper", "yref": "paper",
                      "x": 0.5, "y": 0.5, "font": {"color": SOFT}}],
    )  # fmt: skip


def _scale(longest: Any) -> tuple[float, str]:  # noqa: ANN401 (polars' sum)
    """Milliseconds in the unit that suits the longest, and its name."""
    for ms, name in ((3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if (longest or 0) >= 2 * ms:
            return ms, name
    return 1, "ms"


def rows_high(rows: int, least: int = 200) -> int:
    """Pixels that so many rows of names need."""
    return max(least, 110 + 26 * rows)


def _logarithmic(longest: Any) -> dict[str, Any]:  # noqa: ANN401 (polars' max)
    """A log axis from 1 ms to past the longest."""
    top = max(longest or 1, 100) * 1.6
    shown = {at: text for at, text in _TICKS.items() if at <= top}
    return {"type": "log", "range": [-0.05, pl.Series([top]).log10()[0]],
            "tickvals": list(shown), "ticktext": list(shown.values())}  # fmt: skip


def _counted(unit: str, most: Any) -> dict[str, Any]:  # noqa: ANN401 (polars' max)
    """An axis of things that are counted: no half ones."""
    few = {"dtick": 1} if isinstance(most, int) and most <= 6 else {}
    return {"title": {"text": unit}, "rangemode": "tozero", **few}


# --- how much -----------------------------------------------------------------------------


def by_day(frame: pl.DataFrame, column: str, title: str, unit: str) -> Figure:
    """Of `metrics.daily_models`: a bar a day, models stacked; those with least together."""
    figure = blank(title, barmode="stack", height=320, yaxis={"title": {"text": unit}})
    frame = frame.drop_nulls(["day", column])
    if not frame[column].sum():
        return nothing(
            figure, f"0 {unit} are stated." if frame.height else f"No log here states {unit}."
        )
    # by calls, whatever is shown: a model has one colour in all of these charts
    order = frame.group_by("model").agg(pl.col("calls").sum())
    order = order.sort("calls", "model", descending=True)
    top = order["model"].head(_MOST_SERIES if order.height > _MOST_SERIES + 1 else 7).to_list()
    rest = frame.filter(~pl.col("model").is_in(top, nulls_equal=True))
    series = [(label(m), frame.filter(pl.col("model").eq_missing(pl.lit(m)))) for m in top]
    if rest.height:
        others = rest.group_by("day").agg(pl.col(column).sum()).sort("day")
        series.append((f"{rest['model'].n_unique()} others", others))
    colors = [*COLORS, GREY]
    for color, (name, part) in zip(colors, series, strict=False):
        figure.add_bar(
            x=[d.isoformat() for d in part["day"]],
            y=part[column].to_list(),
            name=name,
            width=_BAR,
            marker={"color": color},
            hovertemplate=f"%{{x|%Y-%m-%d}}: %{{y:,.6~g}} {unit}",
        )
    return figure.update_layout(xaxis=_days(frame["day"]), showlegend=len(series) > 1)


def _days(days: pl.Series) -> dict[str, Any]:
    """An axis of days, on which a single day is not as wide as the page."""
    first, last = cast("date", days.min()), cast("date", days.max())
    span = (last - first).days + 1
    side = max(0.6, (8 - span) / 2)
    base = pl.Series([first, last]).cast(pl.Datetime("ms")).cast(pl.Int64)
    axis: dict[str, Any] = {
        "type": "date", "range": [base[0] - side * _DAY, base[1] + side * _DAY],
        "hoverformat": "%Y-%m-%d", "tickformat": "%d %b\n%Y", "showgrid": False,
    }  # fmt: skip
    if span <= 14:
        axis |= {"dtick": _DAY, "tickmode": "linear", "tick0": first.isoformat()}
    return axis


# --- where the time went ------------------------------------------------------------------


def parts(frame: pl.DataFrame) -> Figure:
    """Of `metrics.time_parts`: one bar of all time, split."""
    figure = blank("Where the time went", barmode="stack", height=170, yaxis={"visible": False})
    whole = int(frame["ms"].sum())
    if not whole:
        return nothing(figure, "No time is known.")
    by, unit = _scale(whole)
    for part, ms, share in frame.iter_rows():
        name, color = _PARTS[f"{part}_ms"]
        if ms:
            figure.add_bar(
                x=[ms / by], y=[""], orientation="h", name=f"{name} {units.percent(share)}",
                marker={"color": color}, text=units.percent(share) if share > 0.06 else "",
                textposition="inside", insidetextanchor="middle", textangle=0,
                customdata=[units.duration(ms)],
                hovertemplate=f"{name}: %{{customdata}}, {units.percent(share)}<extra></extra>",
            )  # fmt: skip
    return figure.update_layout(
        xaxis={"title": {"text": f"time ({unit})"}, "range": [0, whole / by]}
    )


def time_of_days(frame: pl.DataFrame) -> Figure:
    """Of `metrics.daily_time`: a bar a day, split."""
    figure = blank("Time by day", barmode="stack", height=320)
    frame = frame.drop_nulls("day")
    if not frame.select(pl.sum_horizontal(list(_PARTS))).to_series().sum():
        return nothing(figure, "No time is known.")
    by, unit = _scale(frame.select(pl.sum_horizontal(list(_PARTS))).to_series().max())
    _stack(figure, frame, [d.isoformat() for d in frame["day"]], by)
    return figure.update_layout(
        xaxis=_days(frame["day"]), yaxis={"title": {"text": f"time ({unit})"}}
    )


def time_of_sessions(frame: pl.DataFrame, most: int = 20) -> Figure:
    """Of `metrics.session_time`: a bar for each of the longest sessions, split."""
    shown = frame.filter(pl.col("active_ms") > 0).head(most)
    more = shown.height < frame.height
    figure = blank(
        f"Time of the {shown.height} longest sessions" if more else "Time by session",
        barmode="stack", height=rows_high(shown.height),
    )  # fmt: skip
    if not shown.height:
        return nothing(figure, "No time is known.")
    by, unit = _scale(shown["active_ms"].max())
    names = labels(i[:8] for i in shown["session_id"])
    _stack(figure, shown, names, by, lying=True)
    return figure.update_layout(
        xaxis={"title": {"text": f"time ({unit})"}},
        yaxis={"type": "category", "autorange": "reversed", "title": {"text": "session"}},
    )


def _stack(
    figure: Figure, frame: pl.DataFrame, at: Sequence[str], by: float, *, lying: bool = False
) -> None:
    for column, (name, color) in _PARTS.items():
        if not frame[column].sum():
            continue
        values = [None if ms is None else ms / by for ms in frame[column]]
        figure.add_bar(
            x=values if lying else at, y=at if lying else values, name=name,
            orientation="h" if lying else "v", width=None if lying else _BAR,
            marker={"color": color},
            customdata=[units.duration(ms) for ms in frame[column]],
            hovertemplate=f"{'%{y}' if lying else '%{x|%Y-%m-%d}'}: %{{customdata}}",
        )  # fmt: skip


# --- latency and failures -----------------------------------------------------------------


def latency(frame: pl.DataFrame, by: str, title: str, most: int = 15) -> Figure:
    """Of `metrics.spread`: a box from the 25th to the 75th percentile with the median in it,
    whiskers from the 5th to the 95th, and a mark at the longest.
    """
    shown = frame.filter(pl.col("timed") > 0).head(most)
    figure = blank(title, height=rows_high(shown.height))
    if not shown.height:
        return nothing(figure, "No call has a known latency.")
    names = labels(shown[by])
    at = {c: shown[c].clip(lower_bound=1).to_list() for c in shown.columns if c.endswith("_ms")}
    told = [
        f"{units.plural(row['timed'], 'call')}: half take {units.duration(row['p50_ms'])} or less, "
        f"95 % {units.duration(row['p95_ms'])}, the longest {units.duration(row['max_ms'])}"
        for row in shown.iter_rows(named=True)
    ]
    figure.add_box(
        y=names, q1=at["p25_ms"], median=at["p50_ms"], q3=at["p75_ms"],
        lowerfence=at["p5_ms"], upperfence=at["p95_ms"], orientation="h",
        name="25th to 75th percentile, whiskers 5th to 95th", line={"color": BLUE, "width": 1.5},
        fillcolor="rgba(47,127,184,0.25)", hoverinfo="skip", width=0.5,
    )  # fmt: skip
    for name, column, symbol, color, size, width in (
        ("median", "p50_ms", "line-ns-open", BLUE, 13, 2),
        ("longest", "max_ms", "diamond", RED, 8, 0),
    ):
        figure.add_scatter(
            x=at[column], y=names, mode="markers", name=name, customdata=told,
            marker={"symbol": symbol, "color": color, "size": size, "line": {"width": width}},
            hovertemplate="%{y}<br>%{customdata}<extra></extra>",
        )  # fmt: skip
    return figure.update_layout(
        xaxis={"title": {"text": "time, log scale"}, **_logarithmic(shown["max_ms"].max())},
        yaxis={"type": "category", "autorange": "reversed"},
    )


def outcomes(frame: pl.DataFrame, most: int = 15) -> Figure:
    """Of `metrics.tools`: how calls ended, tool by tool; most called first."""
    shown = frame.sort("calls", descending=True, maintain_order=True).head(most)
    figure = blank(
        "How tool calls ended", barmode="stack", height=rows_high(shown.height),
        xaxis=_counted("calls", shown["calls"].max()),
        yaxis={"type": "category", "autorange": "reversed"},
    )  # fmt: skip
    if not shown.height:
        return nothing(figure, "No tool was called.")
    names = labels(shown["tool"])
    shown = shown.with_columns(
        ok=pl.col("calls") - pl.col("failed") - pl.col("unfinished"),
        went_wrong=pl.col("failed") - pl.col("denied"),
    )
    for column, name, color, pattern in (
        ("ok", "ok", GREEN, ""),
        ("went_wrong", "failed", RED, "/"),
        ("denied", "denied", ORANGE, "x"),
        ("unfinished", "cut off", GREY, "."),
    ):
        if shown[column].sum():
            figure.add_bar(
                x=shown[column].to_list(), y=names, orientation="h", name=name,
                marker={"color": color, "pattern": {"shape": pattern, "fillmode": "overlay",
                                                    "fgcolor": "rgba(255,255,255,0.6)"}},
                customdata=shown["calls"].to_list(),
                hovertemplate=f"%{{y}}: %{{x:,}} of %{{customdata:,}} calls {name}<extra></extra>",
            )  # fmt: skip
    return figure


def reasons(frame: pl.DataFrame, most: int = 15) -> Figure:
    """Of `metrics.failures`: why calls did not go well, most frequent first."""
    shown = frame.head(most)
    figure = blank(
        "How tool calls failed or stopped", height=rows_high(shown.height),
        xaxis=_counted("calls", shown["calls"].max()),
        yaxis={"type": "category", "autorange": "reversed"},
    )  # fmt: skip
    if not shown.height:
        return nothing(figure, "No tool call failed.")
    told = []
    for row in shown.iter_rows(named=True):
        status, reason = row["status"], row["reason"]
        words = (
            row["tool"] or _UNNAMED,
            None if status == "exit" else breakdowns.HOW.get(status, status),  # its reason says it
            None if reason in {status, "failure"} else reason,
        )
        told.append(" · ".join(filter(None, words)))
    figure.add_bar(
        x=shown["calls"].to_list(), y=labels(told, 48), orientation="h", marker={"color": RED},
        customdata=shown["sessions"].to_list(),
        hovertemplate="%{y}: %{x:,} calls in %{customdata:,} sessions<extra></extra>",
    )  # fmt: skip
    return figure


# --- sessions, sub-agents, context --------------------------------------------------------


def sessions(frame: pl.DataFrame, most: int = 5000) -> Figure:
    """Of `metrics.notable`: tokens in against active time, those worth a look marked."""
    shown = frame.filter(pl.col("active_ms") > 0, pl.col("input_tokens") > 0).head(most)
    left = frame.height - shown.height
    of = f"Sessions ({shown.height} of {frame.height}: the others state no tokens)"
    figure = blank(
        of if left else "Sessions", height=380, yaxis={"title": {"text": "tokens in, log scale"}}
    )
    if not shown.height:
        return nothing(figure, "No session states its tokens.")
    for name, worth, color, symbol in (
        ("sessions", False, BLUE, "circle"),
        ("worth a look", True, RED, "diamond"),
    ):
        part = shown.filter((pl.col("reasons") > 0) == worth)
        if part.height:
            figure.add_scatter(
                x=part["active_ms"].to_list(), y=part["input_tokens"].to_list(), mode="markers",
                name=name, marker={"color": color, "symbol": symbol, "size": 8, "opacity": 0.75},
                customdata=[
                    f"{label(i[:8])}: {units.duration(ms)}, {units.count(tokens)} tokens"
                    for i, ms, tokens in part.select(
                        "session_id", "active_ms", "input_tokens").iter_rows()
                ],
                hovertemplate="%{customdata}<extra></extra>",
            )  # fmt: skip
    ticks = [n * 10**power for power in range(12) for n in (1, 2, 5)]
    low = shown["active_ms"].min()
    axis = _logarithmic(shown["active_ms"].max())
    axis["range"][0] = pl.Series([low]).log10()[0] - 0.2
    return figure.update_layout(
        xaxis={"title": {"text": "active time, log scale"}, **axis},
        yaxis={"type": "log", "tickvals": ticks, "ticktext": [units.count(n) for n in ticks]},
    )


def subagents(frame: pl.DataFrame, most: int = 15) -> Figure:
    """Of `metrics.agents`: tokens in, kind by kind, split by cache."""
    figure = blank(
        "Tokens that sub-agents read", barmode="stack", xaxis={"title": {"text": "tokens in"}},
        yaxis={"type": "category", "autorange": "reversed"},
    )  # fmt: skip
    shown = frame.drop_nulls("input_tokens").sort("input_tokens", descending=True).head(most)
    if not shown.height:
        why = "No sub-agent's tokens are known." if frame.height else "No sub-agent here."
        return nothing(figure, why)
    names = labels(
        f"{agent or 'agent'} · {model or _UNNAMED}"
        for agent, model in shown.select("agent_name", "model").iter_rows()
    )
    cached = shown["cache_read_tokens"].fill_null(0)
    for name, values, color in (
        ("from the cache", cached, SKY),
        ("read anew", shown["input_tokens"] - cached, BLUE),
    ):
        figure.add_bar(
            x=values.to_list(), y=names, orientation="h", name=name, marker={"color": color},
            hovertemplate=f"%{{y}}: %{{x:,}} tokens {name}<extra></extra>",
        )  # fmt: skip
    return figure.update_layout(height=rows_high(shown.height))


def growth(frame: pl.DataFrame) -> Figure:
    """Of `metrics.context`: tokens in, call by call; a mark where it was compacted."""
    figure = blank("Context, call by call", height=380)
    ids = frame["session_id"].unique(maintain_order=True).to_list()
    if not ids:
        return nothing(figure, "No log here states tokens call by call.")
    for n, session in enumerate(ids):
        part = frame.filter(pl.col("session_id") == session)
        few = part["input_tokens"].count() <= 60
        figure.add_scatter(
            x=part["call"].to_list(), y=part["input_tokens"].to_list(), name=label(session[:8]),
            mode="lines+markers" if few else "lines", connectgaps=False,
            line={"color": COLORS[n % len(COLORS)], "width": 2,
                  "dash": ("solid", "dash")[n // len(COLORS) % 2]},
            marker={"size": 5},
            hovertemplate="call %{x}: %{y:,} tokens",
        )  # fmt: skip
    packed = frame.filter("compacted").drop_nulls("input_tokens")
    if packed.height:
        figure.add_scatter(
            x=packed["call"].to_list(), y=packed["input_tokens"].to_list(), mode="markers",
            name="compacted before", marker={"symbol": "triangle-down", "size": 12, "color": RED},
            hovertemplate="compacted before call %{x}: %{y:,} tokens<extra></extra>",
        )  # fmt: skip
    return figure.update_layout(
        xaxis={"title": {"text": "call of the root agent"}, "tickformat": ",d"},
        yaxis={"title": {"text": "tokens in"}, "rangemode": "tozero"},
    )


def plotlyjs() -> tuple[str, str]:
    """The code of plotly.js that comes with plotly, and where the same stands on the net."""
    from plotly.offline import get_plotlyjs, get_plotlyjs_version  # noqa: PLC0415

    return get_plotlyjs(), f"https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js"


# --- by name ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chart:
    """A chart of any tables: `numbers` gives its frame, with what people read of it, and
    `draw` makes the figure of that frame.
    """

    says: str
    numbers: Callable[[Tables, str], Section]
    draw: Callable[[pl.DataFrame], Figure]


def _day_chart(column: str, title: str, unit: str) -> Chart:
    return Chart(
        title, breakdowns.days_and_models, lambda frame: by_day(frame, column, title, unit)
    )


CHARTS: Final[dict[str, Chart]] = {
    "calls": _day_chart("calls", "Model calls by day", "calls"),
    "tokens": _day_chart("input_tokens", "Tokens in by day", "tokens"),
    "output": _day_chart("output_tokens", "Tokens out by day", "tokens"),
    "credits": _day_chart("ai_credits", "AI credits by day", "credits"),
    "time": Chart("Where the time went", lambda t, _: reports.time(t, Filter()), parts),
    "time-days": Chart("Time by day", breakdowns.time_by_day, time_of_days),
    "time-sessions": Chart(
        "Time by session", lambda t, _: breakdowns.session_time(t), time_of_sessions
    ),
    "model-latency": Chart(
        "Latency by model",
        lambda t, _: breakdowns.spread(
            t.llm_calls.filter(pl.col("status") == "ok"), "model", "llm_ms"
        ),
        lambda frame: latency(frame, "model", "Latency of model calls"),
    ),
    "tool-latency": Chart(
        "Run time by tool",
        lambda t, _: breakdowns.spread(t.tool_calls, "tool", "run_ms"),
        lambda frame: latency(frame, "tool", "Run time of tool calls"),
    ),
    "tool-outcomes": Chart("How tool calls ended", lambda t, _: reports.tools(t), outcomes),
    "failures": Chart(
        "How tool calls failed or stopped", lambda t, _: breakdowns.failures(t), reasons
    ),
    "sessions": Chart("Tokens against time by session", breakdowns.notable, sessions),
    "agents": Chart("Tokens of sub-agents", lambda t, _: reports.agents(t), subagents),
    "context": Chart(
        "How context grew, and compactions", lambda t, _: breakdowns.context(t), growth
    ),
}
"""Name → chart."""


def chart(name: str, tables: Tables, tz: str = "UTC") -> Figure:
    """The chart of that name. Raises KeyError for no such chart."""
    of = CHARTS[name]
    return of.draw(of.numbers(tables, tz).frame)
