"""The report as a page, in a real browser; and the command that writes it."""

import json
import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from uuid import UUID, uuid5

import polars as pl
import pytest

from copilot_insights import load, metrics
from copilot_insights.charts import CHARTS
from copilot_insights.filters import Filter
from copilot_insights.report_page import report_page
from copilot_insights.schema import TABLES
from copilot_insights.units import NOTHING
from tests.test_waterfall import HOSTILE, ROOT, session_lines

SAMPLES = ROOT / "sample_logs"
MANY = 1000
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def page_of(*paths):
    return report_page(load(paths), Filter())


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A thousand sessions: the samples again and again, with other ids, over three months."""
    root = tmp_path_factory.mktemp("many")
    logs = [p.read_text(encoding="utf-8") for p in sorted(SAMPLES.glob("*/events.jsonl"))]
    for n in range(MANY):
        text = _ID.sub(lambda m, n=n: str(uuid5(UUID(m[0]), str(n))), logs[n % len(logs)])
        day = date(2026, 9, 1) + timedelta(days=n * 5 % 91)
        path = root / f"s{n}" / "events.jsonl"
        path.parent.mkdir()
        path.write_text(text.replace("2026-12-01T", f"{day}T"), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def many_page(many):
    return page_of(many)


def drawn(page):
    """Chart → how many marks it has: bars, boxes, points, lines."""
    page.evaluate("report.draw()")
    return page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".plot")].map(p => [
          p.dataset.chart,
          p.querySelectorAll(".bars path, .boxes path, path.box, .points path, .lines path").length
        ]))"""
    )


def numbers(page, name):
    """The numbers of a table of the page, row by row, as JSON has them."""
    return page.evaluate(
        """name => [...document.querySelectorAll(`[data-name="${name}"] tbody tr`)].map(
          r => [...r.cells].filter(c => c.dataset.v).map(c => Number(c.dataset.v)))""",
        name,
    )


def column(page, title):
    at = page.locator("#list th").all_inner_texts().index(title)
    return page.locator(f"#list tbody tr td:nth-child({at + 1})").all_inner_texts()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_every_chart_of_the_samples_is_drawn(opened, width, scheme):
    page, said = opened(page_of(SAMPLES), width, scheme)
    marks = drawn(page)
    assert set(marks) == set(CHARTS) - {"credits", "output"}  # no sample states credits but 0
    assert all(marks.values()), marks
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#much").get_by_text("0 credits are stated").count() == 1
    assert said == []


def test_a_thousand_sessions_are_drawn_sorted_and_filtered(opened, many_page):
    def first(page):
        page.wait_for_function("report.first")
        return page.evaluate("report.first")

    few = first(opened(page_of(SAMPLES))[0])
    page, said = opened(many_page)
    assert len(many_page) < 8_000_000
    # nearly all of it is plotly's own, which both read: a thousand sessions cost little more
    assert first(page) < 4 * few
    assert page.evaluate("report.drawn()") < len(drawn(page))  # those in view, at first
    assert all(drawn(page).values())
    assert "1,000" in page.locator("#much .tiles").inner_text()
    assert page.locator("#list tbody tr").count() == 50
    page.get_by_role("button", name="Show all 1,000").click()
    assert page.locator("#list tbody tr").count() == MANY
    header = page.locator("#list th", has_text="tokens in")
    for direction, sign in (("descending", -1), ("ascending", 1)):
        header.get_by_role("button").press("Enter")
        assert header.get_attribute("aria-sort") == direction
        cells = [c for c in column(page, "tokens in") if c != NOTHING]
        values = [int(c.replace(",", "")) for c in cells]
        assert values == sorted(values, key=lambda v, sign=sign: sign * v)
        assert set(column(page, "tokens in")[len(cells) :]) == {NOTHING}  # unknown is last
    page.get_by_role("button", name=re.compile("^stuck")).click()
    assert set(column(page, "worth a look")) <= {"stuck", "failing stuck", "costly stuck"}
    some = page.locator("#list tbody tr").count()
    assert 0 < some < MANY
    page.locator("#find").fill("cut off shop")
    assert set(column(page, "end")) == {"cut off"}
    assert page.locator("#count").inner_text().endswith("1,000 in all")
    page.locator("#find").fill("nothing has this")
    assert page.locator("#list tbody tr").count() == 0
    assert said == []


def test_the_first_picture_needs_no_script(browser, opened, many, many_page, tmp_path):
    """Bars by day in the tiles: there before the browser has read plotly."""
    path = tmp_path / "page.html"
    path.write_text(many_page, encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    trend = page.locator('.tiles [data-name="llm_calls"] ~ .trend svg')
    assert trend.bounding_box()["height"] > 20
    heights = [
        float(h) for h in re.findall(r"v-([\d.]+)", trend.locator("path").get_attribute("d"))
    ]
    days = metrics.daily(load(many), "UTC").sort("day")["llm_calls"].to_list()
    pairs = [sum(days[n : n + 2]) for n in range(0, len(days), 2)]  # 91 days in 46 bars
    assert heights == pytest.approx([24 * p / max(pairs) for p in pairs], abs=0.1)
    assert f"the highest, {max(pairs)}, from" in trend.get_attribute("aria-label")
    assert page.locator('.tiles [data-name="ai_credits"] ~ .trend').count() == 0  # all are 0
    context.close()
    page, said = opened(many_page)
    page.wait_for_function("report.first")
    painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    assert page.evaluate(painted) < page.evaluate("report.first")
    assert said == []
    assert '<dd class="trend">' not in page_of(SAMPLES)  # of one day there is no trend


def test_a_big_history_stays_small(opened, many):
    tables = load(many)
    frames = {
        name: pl.concat(
            [tables.table(name).with_columns(pl.col("session_id") + f"-{n}") for n in range(20)]
        )
        for name in TABLES
    }
    made = report_page(replace(tables, **frames), Filter())
    assert len(made) < 15_000_000
    page, said = opened(made)
    assert "20,000" in page.locator("#much .tiles").inner_text()
    assert page.locator("#count").inner_text().endswith("15,000 more are not in this page")
    assert all(drawn(page).values())
    assert said == []


def test_the_numbers_are_those_of_the_report(opened, cli, many, many_page):
    for text, root in ((page_of(SAMPLES), SAMPLES), (many_page, many)):
        page, _ = opened(text)
        said = json.loads(cli("report", root, "--format", "json", "--tz", "UTC")[1])
        [overview] = said["overview"]
        tiles = page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll(".tiles [data-name]")].map(
              d => [d.dataset.name, Number(d.dataset.v)]))"""
        )
        assert tiles == {name: overview[name] for name in tiles}
        assert len(tiles) == 7
        for name in ("models", "tools", "agents", "daily", "time"):
            shown = numbers(page, name)
            assert len(shown) == len(said[name])
            for row, values in zip(said[name], shown, strict=True):
                assert values
                assert set(values) <= {v for v in row.values() if isinstance(v, int | float)}
        calls = page.evaluate(
            """() => { report.draw(); return document.querySelector('[data-chart="calls"]').data
              .flatMap(t => t.y).reduce((a, b) => a + b); }"""
        )
        assert calls == overview["llm_calls"]


def test_what_a_chart_shows_is_in_the_tables(opened):
    page, _ = opened(page_of(SAMPLES))
    tables = load(SAMPLES)
    drawn(page)
    boxes = page.evaluate(
        """() => { const [box] = document.querySelector('[data-chart="tool-latency"]').data;
          return box.y.map((y, i) => [y, box.median[i], box.upperfence[i]]); }"""
    )
    bash = tables.tool_calls.filter(tool="bash")["run_ms"].drop_nulls()
    assert ["bash", round(bash.median()), round(bash.quantile(0.95, "linear"))] in boxes
    context = page.evaluate(
        "document.querySelector('[data-chart=\"context\"]').data.map(t => [t.name, t.y])"
    )
    assert context[0] == ["aea8a4c6", [5406, 7417, 9428, 11439, 7482, 9493]]
    assert context[-1] == ["compacted before", [7482]]


LINK = '<a href="javascript:hacked=1">x</a><b onmouseover=hacked=1>$x$ [a](b) &lt;'


@pytest.mark.parametrize("text", [HOSTILE, LINK, "א\u202e" * 90, "x" * 3000])
def test_nothing_that_a_log_says_runs_or_breaks_the_page(opened, tmp_path, text):
    path = tmp_path / "events.jsonl"
    lines = session_lines(30, text, text, text).replace("long-session", text[:9].replace('"', ""))
    lines += json.dumps(
        {"id": "z", "type": "session.context_changed", "timestamp": "2026-11-05T00:00:00Z",
         "data": {"cwd": text, "repository": text, "branch": text}}
    )  # fmt: skip
    path.write_text(lines, encoding="utf-8")
    made = page_of(path, SAMPLES)
    for width in (1400, 400):
        page, said = opened(made, width)
        assert drawn(page)["failures"]
        page.evaluate(
            """() => document.querySelectorAll(".plot").forEach(plot => plot.data.forEach(
              (trace, curveNumber) => trace.hoverinfo === "skip"
                || Plotly.Fx.hover(plot, [{curveNumber, pointNumber: 0}])))"""
        )
        assert page.locator(".hoverlayer .hovertext").count() > 8
        assert page.evaluate("typeof hacked") == "undefined"
        assert page.locator("img, .plot a, [onmouseover]").count() == 0
        assert page.locator("script").count() == 3
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert not set("\x1b\u202e") & set(page.evaluate("document.body.textContent"))
        assert said == []
    if text == LINK:  # as it is, also in a picture
        ticks = page.locator('[data-chart="failures"] .ytick').all_text_contents()
        assert any(tick.startswith('<a href="javascript:') for tick in ticks)


def test_the_policy_lets_no_other_script_or_style_in(opened):
    worse = page_of(SAMPLES).replace(
        "</main>",
        "<script>window.hacked=1</script><img src=x onerror=hacked=1><p id=p style='color:red'>"
        "<style>body{display:none}</style></main>",
    )
    page, said = opened(worse)
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.evaluate("getComputedStyle(document.body).display") == "block"
    assert sum("Content Security Policy" in line for line in said) >= 4
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', worse)[1]
    assert "unsafe" not in policy


def test_the_theme_can_be_changed_and_charts_follow(opened):
    page, said = opened(page_of(SAMPLES))
    drawn(page)
    look = """() => [getComputedStyle(document.body).backgroundColor,
      document.querySelector('[data-chart="calls"] .xtick text').style.fill]"""
    light = page.evaluate(look)
    page.get_by_role("button", name="Change to the dark theme").press("Enter")
    dark = page.evaluate(look)
    assert not set(light) & set(dark)
    page.get_by_role("button", name="Change to the light theme").click()
    assert page.evaluate(look) == light
    assert said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_aa_asks_for(opened, scheme):
    page, _ = opened(page_of(SAMPLES), scheme=scheme)
    drawn(page)
    worst = page.evaluate(
        """() => {
          const rgb = c => (c.match(/[\\d.]+/g) || []).map(Number);
          const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255;
            return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
          const behind = e => { for (; e; e = e.parentElement) { const c = rgb(
            getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c; }
            return [255, 255, 255]; };
          let worst = [99, ""];
          for (const e of document.querySelectorAll("h1,h2,h3,p,td,th,dt,dd,a,button,summary,.tag,\\
            .legend span,.xtick text,.ytick text,footer")) {
            if (!e.textContent.trim() || !e.getClientRects().length) continue;
            const style = getComputedStyle(e);
            const a = light(e.closest("svg") ? style.fill : style.color);
            const b = light(`rgb(${behind(e.closest("svg") ? e.closest(".plot") : e)})`);
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 80)];
          }
          return worst; }"""
    )
    assert worst[0] >= 4.5, worst


def test_it_prints_in_light_with_every_chart(opened):
    page, said = opened(page_of(SAMPLES), scheme="dark")
    pdf = page.pdf(format="A4")
    assert page.evaluate("report.drawn()") == page.locator(".plot").count()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) in range(3, 12)
    assert said == []


def test_a_page_of_next_to_nothing_says_so(opened, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(session_lines(0).split("\n")[0], encoding="utf-8")
    page, said = opened(page_of(path))
    text = page.locator("main").inner_text()
    for sentence in (
        "No log here states calls.",
        "No time is known.",
        "No tool was called.",
        "No tool call failed.",
        "No sub-agent here.",
        "No log here states tokens call by call.",
    ):
        assert sentence in text
    assert page.locator("#list tbody tr").count() == 1
    assert page.locator(".plot").count() == 0
    assert said == []


# --- the command --------------------------------------------------------------------------


def test_the_command_writes_a_page_and_links_waterfalls(cli, opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("html", SAMPLES, "--tz", "UTC", "--waterfalls", "falls")
    assert (code, out) == (0, "")
    assert "copilot-report.html: 14 sessions" in err
    written = Path("copilot-report.html").read_text(encoding="utf-8")
    assert "://cdn" not in written.split('id="data"')[0]
    page, said = opened(written)
    links = page.locator("#list a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert len(links) == 14
    assert all(Path(link).is_file() for link in links)
    assert said == []
    assert cli("html", SAMPLES)[0] == 1
    assert "use --force" in cli("html", SAMPLES)[2].lower()
    assert cli("html", SAMPLES, "--force")[0] == 0
    assert cli("html", SAMPLES, "--json", "-o", "x.html")[0] == 2


def test_a_report_of_a_part_links_whole_sessions(cli, tmp_path):
    out, whole, part = tmp_path / "r.html", tmp_path / "whole", tmp_path / "part"
    words = [SAMPLES / "tools-1.0.102", "--tz", "UTC", "--force", "-o", out]
    assert cli("html", *words, "--waterfalls", whole)[0] == 0
    assert cli("html", *words, "--waterfalls", part, "--since", "2026-12-01T03:36:48")[0] == 0
    assert 'data-name="llm_calls" data-v="3"' in out.read_text(encoding="utf-8")
    [one], [other] = whole.iterdir(), part.iterdir()
    assert one.read_bytes() == other.read_bytes()


def test_a_session_cannot_name_a_file_elsewhere(cli, tmp_path):
    log = tmp_path / "events.jsonl"
    log.write_text(session_lines(3).replace("long-session", "../../up/<x>"), encoding="utf-8")
    out = tmp_path / "deep" / "down"
    out.mkdir(parents=True)
    assert cli("html", log, "-o", out / "r.html", "--waterfalls", out / "falls")[0] == 0
    [fall] = (out / "falls").iterdir()
    assert fall.name.startswith("______up__x_-")
    assert f'"falls/{fall.name}"' in (out / "r.html").read_text(encoding="utf-8")


def test_a_small_page_fetches_plotly_and_nothing_else(tmp_path, cli):
    path = tmp_path / "small.html"
    assert cli("html", SAMPLES, "--cdn", "-o", path)[0] == 0
    text = path.read_text(encoding="utf-8")
    assert len(text) < 150_000
    [script] = re.findall(r"<script src=[^>]+>", text)
    assert 'integrity="sha384-' in script
    assert len(re.findall(r"https?://", text)) == 2  # in the policy, and in the script


def test_nothing_found_is_no_page(tmp_path, cli):
    code, _, err = cli("html", SAMPLES, "--session", "zzz", "-o", tmp_path / "r.html")
    assert code == 1
    assert "nothing of 14 sessions" in err
    assert not list(tmp_path.iterdir())
