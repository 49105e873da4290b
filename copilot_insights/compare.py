"""Two sets of sessions against each other: what differs, by how much, and whether that is more
than chance.

The unit is the session, for the calls of one session are alike. Whether there is a difference
is decided by permuting sessions between the sets, over all measures together (the largest
standardised difference of each permutation): of two sets of one distribution 95 of 100 pairs
show none, however many measures are looked at. Intervals are of a bootstrap over sessions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import comb
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from polars import selectors

from copilot_insights import units
from copilot_insights.reports import PART_NAMES, Column, Section
from copilot_insights.schema import FAILED, MAIN, PARTS
from copilot_insights.spans import total
from copilot_insights.tables import Tables

_DRAWS: Final = 2000
_LEVEL: Final = 0.05
_ENOUGH: Final = 2 / _LEVEL
"""So many ways to deal the sessions out must there be before the rarest says anything."""
_COMMON: Final = 5
"""A tool is compared when so many sessions of each set used it."""

_Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Measure:
    """Sums over sessions, one by the other: `part` / `whole` of the session frame.

    kind: `ratio` compares by how many times, `typical` the geometric mean of times (`part` is
    a sum of logarithms), `share` by the difference.
    """

    name: str
    part: str
    whole: str
    unit: str
    kind: Literal["ratio", "typical", "share"] = "ratio"


MEASURES: Final = (
    Measure("model calls per prompt", "calls", "prompts", "amount"),
    Measure("tool calls per prompt", "tools", "prompts", "amount"),
    Measure("active time per prompt", "active_ms", "prompts", "ms"),
    Measure("tokens in per call", "input_tokens", "booked", "count"),
    Measure("tokens out per call", "output_tokens", "booked", "count"),
    Measure("AI credits per prompt", "ai_credits", "prompts", "amount"),
    Measure("premium requests per prompt", "premium_requests", "prompts", "amount"),
    Measure("model latency", "llm_log", "llm_timed", "ms", "typical"),
    Measure("tool latency", "tool_log", "tool_timed", "ms", "typical"),
    Measure("failed model calls", "failed_calls", "calls", "percent", "share"),
    Measure("failed tool calls", "failed_tools", "tools", "percent", "share"),
    Measure("cached tokens", "cache_read_tokens", "input_tokens", "percent", "share"),
    *(
        Measure(f"time: {name}", part, "active_ms", "percent", "share")
        for part, name in PART_NAMES.items()
    ),
)


def of_version(tables: Tables, version: str) -> Tables:
    """The sessions of that CLI version, or of those within it: 1.0 has 1.0.65."""
    own = pl.col("cli_version")
    chosen = (own == version) | own.str.starts_with(f"{version.rstrip('.')}.")
    return tables.of(tables.sessions.filter(chosen)["session_id"])


def doubts(a: Tables, b: Tables) -> Iterator[str]:
    """Why two sets of sessions may not be fit to be compared, a line each."""
    call = ["session_id", "agent_id", "turn", "evidence"]
    if both := a.llm_calls.join(b.llm_calls, on=call, how="semi", nulls_equal=True).height:
        yield f"{units.plural(both, 'model call')} of {a.llm_calls.height:,} in A are in B, too"
    timed = [set(side.llm_calls["llm_ms_source"].drop_nulls()) for side in (a, b)]
    if all(timed) and ("usage_record" in timed[0]) != ("usage_record" in timed[1]):
        yield (
            "model latency is not measured alike: one side's logs state the call's own time, the "
            "other's only when the turn began and the reply came"
        )


def per_session(tables: Tables) -> pl.DataFrame:
    """A row per session: the sums that measures are made of, and of each tool its calls'
    (`log:TOOL`, `timed:TOOL`). Null where the log does not say.
    """
    col = pl.col
    log = {
        name: col(name).filter(col(name) >= 0).clip(lower_bound=1).log().sum()
        for name in ("llm_ms", "run_ms")
    }
    call = col("evidence") != "compaction"
    calls = tables.llm_calls.group_by("session_id").agg(
        calls=call.sum(),
        failed_calls=(call & (col("status") == "error")).sum(),
        llm_log=log["llm_ms"],
        llm_timed=col("llm_ms").count(),
    )
    timed = tables.tool_calls.filter(col("tool") != "task")
    tools = tables.tool_calls.group_by("session_id").agg(
        tools=pl.len(), failed_tools=col("status").is_in(FAILED).sum()
    )
    times = timed.group_by("session_id").agg(
        tool_log=log["run_ms"], tool_timed=col("run_ms").count()
    )
    root = tables.interactions.filter(col("agent_id") == MAIN)
    prompts = root.group_by("session_id").agg(
        prompts=pl.len(),
        active_ms=pl.sum_horizontal(PARTS).sum(),
        **{p: col(p).sum() for p in PARTS},
    )
    known = col("input_tokens").is_not_null()
    booked = tables.bookings.group_by("session_id").agg(
        booked=known.sum(),
        **{n: total(n) for n in ("input_tokens", "output_tokens", "cache_read_tokens")},
        ai_credits=total("nano_aiu") / 1e9,
        premium_requests=total("premium_requests"),
    )
    by_tool = timed.group_by("session_id", "tool").agg(
        log=log["run_ms"], timed=col("run_ms").count()
    )
    frame = tables.sessions.select("session_id")
    for more in (calls, tools, times, prompts, booked):
        frame = frame.join(more, on="session_id", how="left")
    for name in sorted(set(by_tool["tool"].drop_nulls())):
        own = by_tool.filter(col("tool") == name).select(
            "session_id", col("log").alias(f"log:{name}"), col("timed").alias(f"timed:{name}")
        )
        frame = frame.join(own, on="session_id", how="left")
    return frame.sort("session_id")


def compare(a: pl.DataFrame, b: pl.DataFrame, *, seed: int = 0) -> pl.DataFrame:
    """A row per measure, of two frames of `per_session`: measure, unit, kind, a, b, change
    (of shares b - a, else b / a - 1), low and high (95 % interval of the change), p (adjusted
    for all measures), shown, sessions_a and sessions_b (that have it).

    The same frames give the same answer, and swapped ones its mirror image.
    """
    swap = _order(b) < _order(a)
    first, second = (b, a) if swap else (a, b)
    rows = _rows(first, second, np.random.default_rng(seed))
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    return _mirrored(frame) if swap else frame


def _order(frame: pl.DataFrame) -> tuple[list[str], list[Any]]:
    return frame["session_id"].to_list(), frame.select(selectors.numeric().sum()).rows()


_SCHEMA: Final[dict[str, Any]] = {
    "measure": pl.String, "unit": pl.String, "kind": pl.String, "a": pl.Float64, "b": pl.Float64,
    "change": pl.Float64, "low": pl.Float64, "high": pl.Float64, "p": pl.Float64,
    "shown": pl.Boolean, "sessions_a": pl.Int64, "sessions_b": pl.Int64,
}  # fmt: skip


def _mirrored(frame: pl.DataFrame) -> pl.DataFrame:
    col, share = pl.col, pl.col("kind") == "share"

    def other(name: str) -> pl.Expr:
        return pl.when(share).then(-col(name)).otherwise(1 / (1 + col(name)) - 1)

    return frame.with_columns(
        a="b", b="a", change=other("change"), low=other("high"), high=other("low"),
        sessions_a="sessions_b", sessions_b="sessions_a",
    )  # fmt: skip


def _measures(a: pl.DataFrame, b: pl.DataFrame) -> list[Measure]:
    found = list(MEASURES)
    for name in a.columns:
        if name.startswith("log:") and name in b.columns:
            tool = name.removeprefix("log:")
            if min(side[name].count() for side in (a, b)) >= _COMMON:
                found.append(Measure(f"latency of {tool}", name, f"timed:{tool}", "ms", "typical"))
    return found


def _rows(a: pl.DataFrame, b: pl.DataFrame, dice: np.random.Generator) -> list[tuple[Any, ...]]:
    measures = _measures(a, b)
    parts, wholes = (
        np.vstack([_matrix(side, [getattr(m, which) for m in measures]) for side in (a, b)])
        for which in ("part", "whole")
    )
    # a session that does not say one of the two is none for that measure
    known = ~np.isnan(parts) & (np.nan_to_num(wholes) > 0)
    parts, wholes = np.where(known, parts, 0.0), np.where(known, wholes, 0.0)
    number, height = a.height, a.height + b.height
    is_a = np.arange(height) < number
    logs = np.array([m.kind == "ratio" for m in measures])

    def level(weights: _Array) -> _Array:
        """What each measure is, for each row of weights of sessions."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value = (weights @ parts) / (weights @ wholes)
            return np.where(logs, np.log(value), value)

    def effect(left: _Array, right: _Array) -> _Array:
        with np.errstate(invalid="ignore"):
            change = level(right) - level(left)
        return np.where(np.isfinite(change), change, np.nan)

    own = is_a.astype(float)[None, :]
    seen = effect(own, 1 - own)[0]
    values = level(np.vstack([own, 1 - own]))
    p = np.full(len(measures), np.nan)
    low = high = np.full(len(measures), np.nan)
    if number and height > number and comb(height, number) >= _ENOUGH:
        ranks = dice.random((_DRAWS, height)).argsort(axis=1)
        dealt = (ranks < number).astype(float)
        chance = np.nan_to_num(effect(dealt, 1 - dealt))
        spread = chance.std(axis=0)
        spread[spread == 0] = np.inf
        largest = np.abs(chance / spread).max(axis=1)
        p = ((largest[:, None] >= np.abs(seen / spread) - 1e-9).sum(axis=0) + 1) / (_DRAWS + 1)
        p = np.where(np.isnan(seen) | np.isinf(spread), np.nan, p)
        low, high = _quantiles(effect(_resampled(dice, is_a), _resampled(dice, ~is_a)))
    return [
        _row(m, values[:, n], (seen[n], low[n], high[n]), p[n], known[is_a, n], known[~is_a, n])
        for n, m in enumerate(measures)
    ]


def _quantiles(draws: _Array) -> tuple[_Array, _Array]:
    """Of each column where nearly all of its draws are numbers; else none."""
    ends = np.full((2, draws.shape[1]), np.nan)
    for n, column in enumerate(draws.T):
        known = column[~np.isnan(column)]
        if len(known) > (1 - _LEVEL) * len(column):
            ends[:, n] = np.quantile(known, [_LEVEL / 2, 1 - _LEVEL / 2])
    return ends[0], ends[1]


def _matrix(frame: pl.DataFrame, names: list[str]) -> _Array:
    columns = [pl.col(n).cast(pl.Float64).alias(str(i)) for i, n in enumerate(names)]
    return frame.select(columns).fill_null(float("nan")).to_numpy()


def _resampled(dice: np.random.Generator, members: np.ndarray[Any, Any]) -> _Array:
    """Weights of bootstrap samples of these sessions; rows are samples."""
    places = np.flatnonzero(members)
    weights = np.zeros((_DRAWS, len(members)))
    weights[:, places] = dice.multinomial(len(places), [1 / len(places)] * len(places), _DRAWS)
    return weights


def _row(
    measure: Measure,
    values: _Array,
    effects: tuple[float, float, float],
    p: float,
    in_a: np.ndarray[Any, Any],
    in_b: np.ndarray[Any, Any],
) -> tuple[Any, ...]:
    share = measure.kind == "share"
    a, b = (float(v) if share else float(np.exp(v)) for v in values)
    change, low, high = (e if share else float(np.expm1(e)) for e in effects)

    def number(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    return (
        measure.name, measure.unit, measure.kind, number(a), number(b), number(change),
        number(low), number(high), number(p), bool(p < _LEVEL), int(in_a.sum()), int(in_b.sum()),
    )  # fmt: skip


# --- for people ---------------------------------------------------------------------------


def verdict(frame: pl.DataFrame) -> str:
    """What is shown, in a sentence."""
    if frame["p"].is_null().all():
        return "too few sessions: nothing can be concluded"
    shown = frame.filter("shown").sort("p")
    if not shown.height:
        return f"no difference shown, in {frame['p'].count()} measures"
    told = [f"{row['measure']} {_change(row['change'], row['kind'])}" for row in
            shown.iter_rows(named=True)]  # fmt: skip
    more = f", and {len(told) - 3} more" if len(told) > 3 else ""
    return f"B differs from A: {', '.join(told[:3])}{more}"


def sections(
    frame: pl.DataFrame,
    names: tuple[str, str],
    sessions: tuple[int, int],
    doubts: Iterable[str] = (),
) -> list[Section]:
    """The verdict, the doubts and the table; people see what both sides have."""
    seen = frame.filter(pl.col("change").is_not_null() & ((pl.col("a") != 0) | (pl.col("b") != 0)))

    def texts(name: str) -> list[str]:
        rows = seen.iter_rows(named=True)
        if name in {"a", "b"}:
            return [_value(row[name], row["unit"]) for row in rows]
        if name == "change":
            return [_change(row["change"], row["kind"]) for row in rows]
        ends = ([_change(row[end], row["kind"]) for end in ("low", "high")] for row in rows)
        return [" to ".join(pair) if units.NOTHING not in pair else units.NOTHING for pair in ends]

    shown = seen.select(
        "measure",
        *(pl.Series(name, texts(name), pl.String) for name in ("a", "b", "change", "interval")),
        mark=pl.when("shown").then(pl.lit("differs")).otherwise(pl.lit("")),
        p="p",
    )
    lines = [
        (side, f"{name} · {units.plural(number, 'session')}")
        for side, name, number in zip("AB", names, sessions, strict=True)
    ]
    columns = (
        Column("measure", "measure"),
        Column("a", "A", "right"),
        Column("b", "B", "right"),
        Column("change", "change", "right"),
        Column("interval", "95 % interval", "right", 2),
        Column("mark", "verdict", "text", 0),
    )
    note = (
        "Latency: geometric mean. Shares change in percentage points. Intervals are of one "
        "measure alone; the verdict allows for looking at all of them."
    )
    lines += [("verdict", verdict(frame)), *(("but", doubt) for doubt in doubts)]
    return [Section("compare", "A and B", frame, columns, shown, tuple(lines), note)]


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return units.NOTHING
    if unit == "ms":
        return units.duration(value)
    if unit == "percent":
        return f"{value:.1%}".replace("%", " %")
    return units.count(round(value)) if unit == "count" else f"{value:,.2f}"


def _change(value: float | None, kind: str) -> str:
    if value is None:
        return units.NOTHING
    text = f"{value * 100:+.1f} pp" if kind == "share" else f"{value * 100:+.0f} %"
    none = {"+0 %": "0 %", "-0 %": "0 %", "+0.0 pp": "0.0 pp", "-0.0 pp": "0.0 pp"}
    return none.get(text, text)
