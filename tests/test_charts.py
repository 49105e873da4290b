"""Charts: of any tables, with one look, escaped; and the command that draws one."""

import sys
from dataclasses import replace

import polars as pl
import pytest

from copilot_insights import breakdowns, charts, load, metrics, reports
from copilot_insights.charts import CHARTS
from copilot_insights.commands.chart import CHART_NAMES
from copilot_insights.compare import MEASURES
from copilot_insights.filters import Filter
from copilot_insights.schema import PARTS
from tests.conftest import CHROMIUM
from tests.test_waterfall import HOSTILE, ROOT, session_lines

SAMPLES = ROOT / "sample_logs"
NONE = {"credits"}  # the samples state none but 0


@pytest.fixture(scope="module")
def tables():
    return load(SAMPLES)


@pytest.mark.parametrize("name", CHARTS)
def test_each_has_a_title_units_and_something_to_see(name, tables):
    figure = charts.chart(name, tables)
    assert figure.layout.title.text
    assert figure.layout.template.layout.colorway == charts.COLORS
    assert bool(figure.data) == (name not in NONE)
    if figure.data:
        axes = [figure.layout.xaxis, figure.layout.yaxis]
        quantities = [a for a in axes if a.type not in {"category", "date"} and a.visible is None]
        assert [a for a in quantities if a.title.text]


@pytest.mark.parametrize("name", CHARTS)
def test_of_nothing_it_says_why_there_is_nothing(name, tables):
    figure = charts.chart(name, tables.of([]))
    assert not figure.data
    assert figure.layout.annotations[0].text.startswith(("No ", "0 "))


def test_the_command_line_knows_all_names():
    assert tuple(CHARTS) == CHART_NAMES


def test_what_is_not_stated_is_a_gap():
    frame = pl.DataFrame(
        {"session_id": ["s"] * 3, "call": [1, 2, 3], "input_tokens": [10, None, 30],
         "compacted": [False, False, True]}
    )  # fmt: skip
    line, mark = charts.growth(frame).data
    assert line.y == (10, None, 30)
    assert line.connectgaps is False
    assert (mark.x, mark.y) == ((3,), (30,))


def test_days_of_many_models_are_stacked_and_add_up(tables):
    part = charts.CHARTS["calls"].numbers(tables, "UTC").frame.filter(model="scripted")
    models = [part.with_columns(model=pl.lit(f"m{n}"), calls=pl.lit(n + 1)) for n in range(12)]
    figure = charts.by_day(pl.concat(models), "calls", "Calls", "calls")
    assert [trace.name for trace in figure.data][-1] == "6 others"
    assert sum(sum(trace.y) for trace in figure.data) == sum(range(1, 13))
    assert len({trace.marker.color for trace in figure.data}) == 7


def test_labels_are_text_and_stay_apart():
    assert charts.label("<b>$x$</b>&") == "&lt;b&gt;&#36;x&#36;&lt;/b&gt;&amp;"
    assert charts.label("x" * 40 + "\x1b[31m") == "x" * 31 + "…"
    assert charts.label(None) == "not stated"
    frame = pl.DataFrame({"tool": ["x" * 40 + "1", "x" * 40 + "2"], "calls": [2, 1],
                          "failed": [0, 0], "denied": [0, 0], "unfinished": [0, 0]})  # fmt: skip
    [bars] = charts.outcomes(frame).data
    assert len(set(bars.y)) == 2


def test_colours_differ_also_for_who_sees_no_red_or_green():
    """Simulated deuteranopia (Viénot 1999, on linear light): all pairs differ clearly."""

    def seen(color):
        r, g, b = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
        r, g, b = (v**2.2 for v in (r, g, b))
        yellow = 0.29275 * r + 0.70725 * g
        return yellow ** (1 / 2.2), max(0.0, -0.02234 * r + 0.02234 * g + b) ** (1 / 2.2)

    colors = [seen(c) for c in charts.COLORS]
    for n, one in enumerate(colors):
        for other in colors[n + 1 :]:
            assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.05


# --- the numbers behind -------------------------------------------------------------------


def test_what_is_split_adds_up_to_what_is_reported(tables):
    by_both = metrics.daily_models(tables, "UTC")
    for name, other in (("model", metrics.models(tables)), ("day", metrics.daily(tables, "UTC"))):
        calls = "calls" if name == "model" else "llm_calls"
        split = by_both.group_by(name).agg(pl.col("calls", "input_tokens", "ai_credits").sum())
        whole = other.select(name, calls, pl.col("input_tokens", "ai_credits").fill_null(0))
        assert sorted(split.rows(), key=str) == sorted(whole.rows(), key=str)
    parts = metrics.time_parts(tables)["ms"].to_list()
    for frame in (metrics.daily_time(tables, "UTC"), metrics.session_time(tables)):
        assert list(frame.select(pl.col(PARTS).sum()).row(0)) == parts
    failures = metrics.failures(tables)
    tools = metrics.tools(tables)
    bad = tools.select(pl.col("failed", "unfinished", "nonzero_exits").sum()).row(0)
    assert failures["calls"].sum() == sum(bad)
    spread = metrics.spread(tables.tool_calls, "tool", "run_ms")
    same = ["tool", "calls", "p50_ms", "p95_ms", "max_ms"]
    assert spread.select(same).sort("tool").equals(tools.select(same).sort("tool"))


def test_few_sessions_are_worth_a_look_and_for_a_reason(tables):
    frame = metrics.notable(tables)
    assert frame.filter("stuck")["session_id"].str.head(8).to_list() == ["c63c06d1", "aea8a4c6"]
    assert frame["reasons"].to_list() == sorted(frame["reasons"], reverse=True)
    ids = [f"s{n}" for n in range(40)]
    sessions = pl.concat([tables.sessions.head(1)] * 40).with_columns(
        session_id=pl.Series(ids),
        wall_ms=pl.Series([*range(1000, 1039), 600_000]),
        user_ms=pl.lit(0, pl.Int64),
        ai_credits=pl.Series([10.0, *[1.0] * 39]),
        llm_calls=pl.lit(10, pl.Int64),
        interactions=pl.lit(0, pl.Int64),
        subagents=pl.lit(0, pl.Int64),
        tool_calls=pl.lit(0, pl.Int64),
        failed_tool_calls=pl.lit(0, pl.Int64),
        failed_llm_calls=pl.Series([2, 3, 0, 0] * 10),
    )
    calls = pl.concat([tables.llm_calls.head(1)] * 400).with_columns(session_id=pl.Series(ids * 10))
    rest = {
        name: tables.table(name).clear() for name in ("tool_calls", "subagents", "interactions")
    }
    found = metrics.notable(replace(tables, sessions=sessions, llm_calls=calls, **rest))
    assert found.filter("long")["session_id"].to_list() == ["s39"]
    assert found.filter("costly")["session_id"].to_list() == ["s0"]
    assert set(found.filter("failing")["session_id"]) == set(ids[1::4])


# --- the command --------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_a_picture(cli, tmp_path, suffix, begins):
    pytest.importorskip("kaleido", reason="needs kaleido")
    if not CHROMIUM:
        pytest.skip("needs chromium")
    path = tmp_path / f"x.{suffix}"
    code, out, err = cli("chart", "tool-latency", SAMPLES, "-o", path)
    assert (code, out, err) == (0, "", "")
    assert path.read_bytes().startswith(begins)
    assert path.stat().st_size > 5000


def test_a_chart_as_a_page(cli, opened, tmp_path):
    log = tmp_path / "events.jsonl"
    log.write_text(session_lines(30, HOSTILE, HOSTILE, HOSTILE), encoding="utf-8")
    path = tmp_path / "x.html"
    assert cli("chart", "tool-outcomes", log, "-o", path)[0] == 0
    page, said = opened(path.read_text(encoding="utf-8"))
    page.wait_for_timeout(300)
    assert page.locator(".bars path").count() == 2
    assert "</script><script>" in page.locator(".ytick text").first.text_content()
    assert page.evaluate("typeof hacked") == "undefined"
    assert said == []
    assert cli("chart", "tool-outcomes", log, "-o", path)[0] == 1


def test_without_kaleido_it_says_what_to_install(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    monkeypatch.setattr("plotly.io._kaleido.kaleido_available", lambda: False)
    code, _, err = cli("chart", "calls", SAMPLES, "-o", tmp_path / "x.png")
    assert code == 1
    assert "copilot-insights[pictures]" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nope", "-o", "x.png"], "no chart nope"),
        (["calls"], "a chart goes into a file"),
        (["calls", "-o", "x.pdf"], "a chart goes into a file"),
        (["calls", "--json"], "a chart has no --json"),
        (["calls", "-o", "x.svg", "--limit", "3"], "a chart has no --limit"),
    ],
)
def test_wrong_use_is_said(cli, words, told):
    code, _, err = cli("chart", words[0], SAMPLES, *words[1:])
    assert code == 2
    assert told in err


def test_parts_of_time_have_one_name_everywhere(cli):
    names = set(reports.PART_NAMES.values())
    assert {m.name for m in MEASURES if m.name.startswith("time: ")} == {
        f"time: {name}" for name in names
    }
    assert set(reports.PART_NAMES) == set(PARTS)
    shown = reports.time(load(SAMPLES), Filter()).shown
    assert set(shown["label"]) == names
    assert "your answers" in cli("show", f"{SAMPLES}/denied-1.0.102")[1]


def test_how_a_call_ended_has_one_word_in_chart_and_table():
    frame = pl.DataFrame(
        {"tool": ["bash"] * 3, "status": ["open", "exit", "denied"],
         "reason": [None, "exit code 3", "denied"], "calls": [3, 2, 1], "sessions": [1, 1, 1]}
    )  # fmt: skip
    told = list(charts.reasons(frame).data[0].y)
    assert told == ["bash · cut off", "bash · exit code 3", "bash · denied"]
    shown = breakdowns.failures(load(SAMPLES)).shown
    assert {*shown["how"]} <= {"cut off", "exit ≠ 0", "failed", "denied", "interrupted"}
