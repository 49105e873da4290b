"""The page of a waterfall, in a real browser."""

import json

import pytest

from copilot_insights import load
from copilot_insights.units import NOTHING, duration
from copilot_insights.waterfall import waterfall
from copilot_insights.waterfall_page import waterfall_page
from tests.test_waterfall import BIG, HOSTILE, ROOT, session_lines

SAMPLES = sorted(path.name for path in (ROOT / "sample_logs").iterdir() if path.is_dir())


def painted(page):
    """How many colours the picture has, and whether it has one of the tools' or model's."""
    return page.evaluate(
        """() => {
          const c = document.querySelector("canvas"), d = c.getContext("2d").getImageData(
            0, 0, c.width, c.height).data, seen = new Set();
          for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
          return seen.size;
        }"""
    )


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_every_sample_is_drawn_with_all_its_bars(opened, width, scheme):
    tables = load(ROOT / "sample_logs")
    for session in tables.sessions["session_id"]:
        page, said = opened(waterfall_page(tables, session), width, scheme)
        fall = waterfall(tables, session)
        bars = page.evaluate("waterfall.bars.map(b => [b[0], b[1], b[2], b[6], b[7]])")
        place = fall.axis.place
        assert bars == [
            [b["lane"], b["row"], b["kind"], place(b["from_ms"]), place(b["to_ms"])]
            for b in fall.bars.iter_rows(named=True)
        ]
        assert painted(page) > 10
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert said == []


def test_hovering_tells_the_numbers_and_keys_go_from_bar_to_bar(opened):
    tables = load(ROOT / "sample_logs/tools-1.0.102")
    page, said = opened(waterfall_page(tables, tables.sessions["session_id"][0]))
    assert page.locator("#tip").is_hidden()
    at = page.evaluate(
        "(() => { const n = waterfall.bars.findIndex(b => b[3] === 'bash' && b[7] - b[6] > 1000);"
        " const b = waterfall.bars[n], r = document.getElementById('view').getBoundingClientRect();"
        " const x = (waterfall.x(b[6]) + waterfall.x(b[7])) / 2;"
        " return [r.x + x, r.y + 44 + b[1] * 18 + 9]; })()"
    )
    page.mouse.move(*at)
    tip = page.locator("#tip").inner_text()
    assert "bash · ok" in tip
    assert "1.3 s" in tip
    page.locator("#view").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "took" in page.locator("#picked").inner_text()
    scale = page.evaluate("waterfall.view().scale")
    page.keyboard.press("+")
    assert page.evaluate("waterfall.view().scale") == pytest.approx(1.6 * scale)
    page.keyboard.press("0")
    assert page.evaluate("waterfall.view().scale") == pytest.approx(scale)
    page.locator("summary").click()
    page.locator("tbody tr").first.wait_for()
    assert page.locator("tbody tr").count() == page.evaluate("waterfall.bars.length")
    assert said == []


def test_times_read_as_in_all_other_places(opened):
    tables = load(ROOT / "sample_logs/tools-1.0.102")
    page, _ = opened(waterfall_page(tables, tables.sessions["session_id"][0]))
    edges = [1000, 59_950, 60_000, 3_598_000, 3_600_000, 7_199_600, 172_800_000, 1_036_800_000]
    values = [edge + off / 4 for edge in edges for off in range(-3000, 3000)]
    values += [*range(70_000), *range(70_000, 4_000_000, 997), *range(4_000_000, 10**9, 999_983)]
    assert page.evaluate("all => all.map(waterfall.duration)", values) == [*map(duration, values)]


@pytest.mark.parametrize(
    ("ms", "told"),
    [
        (999.4, "999 ms"), (999.6, "1.0 s"), (1000, "1.0 s"), (59_949, "59.9 s"),
        (59_950, "1m 00s"), (3_598_000, "59m 58s"), (3_599_500, "1h 00m"), (7_199_600, "2h 00m"),
        (172_799_499, "47h 59m"), (172_800_000, "2d 0h"), (None, NOTHING),
    ],
)  # fmt: skip
def test_a_time_is_rounded_before_its_unit_is_chosen(ms, told):
    assert duration(ms) == told


def test_nothing_that_a_log_says_runs(opened, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(session_lines(9, HOSTILE, HOSTILE, HOSTILE), encoding="utf-8")
    tables = load(path)
    text = waterfall_page(tables, "long-session", content=True)
    page, said = opened(text)
    page.locator("#view").focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
        page.mouse.move(300 + _ * 90, 300)
    page.locator("summary").click()
    page.locator("tbody tr").first.wait_for()
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert "\x1b" not in text
    assert "\u202e" not in page.evaluate("document.body.innerText")
    assert said == []


def test_the_policy_of_the_page_lets_no_other_script_run(opened):
    tables = load(ROOT / "sample_logs/error-1.0.102")
    text = waterfall_page(tables, tables.sessions["session_id"][0])
    worse = text.replace("</main>", "<script>window.hacked=1</script><img src=x onerror=hacked=1>")
    page, said = opened(worse)
    assert page.evaluate("typeof hacked") == "undefined"
    assert any("Content Security Policy" in line for line in said)


def test_content_is_in_the_page_only_when_asked_for():
    tables = load(ROOT / "sample_logs/tools-1.0.102")
    [session] = tables.sessions["session_id"]
    said = "All done: changed a.py"
    assert said not in waterfall_page(tables, session).split('id="data">')[1].split("</script>")[0]
    data = waterfall_page(tables, session, content=True).split('id="data">')[1]
    bars = json.loads(data.split("</script>")[0])["bars"]
    assert any(len(bar) > 9 and said in bar[9] for bar in bars)


def test_two_thousand_calls_stay_usable(opened, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(session_lines(BIG), encoding="utf-8")
    text = waterfall_page(load(path), "long-session")
    assert len(text) < 2_000_000
    assert "://" not in text
    page, said = opened(text)
    assert page.evaluate("waterfall.bars.filter(b => b[2] === 'tool').length") == BIG
    # at every zoom, beside a canvas that is given as many bare boxes
    drawing, plain = page.evaluate(
        """() => {
          const c = document.createElement("canvas"); c.width = 1400; c.height = 800;
          const g = c.getContext("2d"), some = waterfall.bars.length, took = [0, 0];
          for (let n = 0; n < 30; n++) {
            waterfall.zoom(1.3, 700); let t = performance.now();
            waterfall.draw(); took[0] += performance.now() - t; t = performance.now();
            for (let i = 0; i < some; i++) {
              g.fillStyle = i % 2 ? "#369" : "#963"; g.fillRect(i % 1400, i % 800, 9, 14);
            }
            took[1] += performance.now() - t;
          } waterfall.fit(); return took; }"""
    )
    assert drawing < 4 * plain
    assert said == []
