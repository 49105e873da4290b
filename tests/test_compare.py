"""`compare`: it stays silent where there is nothing, and finds what is there."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from copilot_insights import discover, load, loading
from copilot_insights.compare import compare, per_session, sections, verdict

SAMPLES = Path(__file__).parent.parent / "sample_logs"
REAL = Path(__file__).parent / "data" / "real_logs"


def drawn(seed, sessions, *, slower=1.0, failing=0.1):
    """Sessions of one distribution: some prompts with some calls each, alike within a session."""
    dice = np.random.default_rng(seed)
    prompts = dice.integers(1, 6, sessions)
    calls = prompts * dice.integers(1, 9, sessions)
    own = dice.normal(np.log(2000 * slower), 0.3, sessions)  # a session's own speed
    tools = calls + dice.integers(0, 5, sessions)
    log = [float(dice.normal(mean, 0.5, n).sum()) for mean, n in zip(own, calls, strict=True)]
    tool_log = [float(dice.normal(5, 1, n).sum()) for n in tools]
    parts = dice.random((sessions, 5)) * 1e5
    return pl.DataFrame(
        {
            "session_id": [f"{seed:05}-{n:04}" for n in range(sessions)],
            "calls": calls, "failed_calls": dice.binomial(calls, 0.05), "llm_log": log,
            "llm_timed": calls, "tools": tools, "failed_tools": dice.binomial(tools, failing),
            "tool_log": tool_log, "tool_timed": tools, "prompts": prompts,
            "active_ms": parts.sum(axis=1), "llm_ms": parts[:, 0], "tool_ms": parts[:, 1],
            "permission_ms": parts[:, 2], "hook_ms": parts[:, 3], "other_ms": parts[:, 4],
            "booked": calls, "input_tokens": calls * dice.integers(5000, 30000, sessions),
            "output_tokens": calls * dice.integers(20, 900, sessions),
            "cache_read_tokens": calls * dice.integers(0, 5000, sessions),
            "ai_credits": [None] * sessions, "premium_requests": prompts.astype(float),
        },
        schema_overrides={"ai_credits": pl.Float64},
    )  # fmt: skip


@pytest.mark.parametrize("sizes", [(12, 20), (60, 40)])
def test_of_one_distribution_95_of_100_pairs_show_nothing(sizes):
    silent = sum(
        not compare(drawn(2 * n, sizes[0]), drawn(2 * n + 1, sizes[1]))["shown"].any()
        for n in range(100)
    )
    # 95 by construction; 89 to 100 holds 99.5 of 100 such counts
    assert 89 <= silent <= 100


def test_a_latency_that_is_30_percent_longer_is_found():
    found = held = 0
    for n in range(20):
        frame = compare(drawn(n, 80), drawn(100 + n, 80, slower=1.3))
        row = frame.row(by_predicate=pl.col("measure") == "model latency", named=True)
        found += row["shown"]
        held += row["low"] < 0.3 < row["high"]
    assert found >= 18
    assert held >= 16, "a 95 % interval holds the truth nearly always"


def test_a_failure_rate_that_doubled_is_found():
    frame = compare(drawn(1, 80), drawn(2, 80, failing=0.2))
    assert verdict(frame).startswith("B differs from A: failed tool calls +")


def test_the_same_again_and_mirrored():
    a, b = drawn(1, 30), drawn(2, 50, slower=1.2)
    frame = compare(a, b)
    assert_frame_equal(frame, compare(a, b))
    mirror = compare(b, a)
    assert_frame_equal(mirror.select("a", "b"), frame.select(a="b", b="a"))
    assert mirror["p"].to_list() == frame["p"].to_list()
    shares = frame["kind"] == "share"
    there, back = frame.filter(shares)["change"], mirror.filter(shares)["change"]
    assert (there + back).drop_nulls().to_list() == pytest.approx([0] * there.drop_nulls().len())
    times = (1 + frame.filter(~shares)["change"]) * (1 + mirror.filter(~shares)["change"])
    assert times.drop_nulls().to_list() == pytest.approx([1] * times.drop_nulls().len())


def test_what_a_side_does_not_say_is_null():
    row = compare(drawn(1, 30), drawn(2, 30)).row(
        by_predicate=pl.col("measure") == "AI credits per prompt", named=True
    )
    assert [row[name] for name in ("a", "b", "change", "low", "high", "p")] == [None] * 6
    assert row["shown"] is False


@pytest.mark.parametrize("sizes", [(1, 1), (3, 2), (1, 30)])
def test_of_few_sessions_nothing_is_concluded(sizes):
    frame = compare(drawn(1, sizes[0]), drawn(2, sizes[1]))
    assert frame["p"].is_null().all()
    assert "nothing can be concluded" in verdict(frame)
    assert sections(frame, ("x", "y"), sizes)[0].shown.height


def test_values_are_those_of_the_report():
    tables = load(SAMPLES)
    frame = compare(per_session(tables), per_session(tables))
    a = dict(frame.select("measure", "a").iter_rows())
    assert a["model calls per prompt"] == pytest.approx(61 / 18)
    assert a["failed tool calls"] == pytest.approx(9 / 58)
    assert frame["change"].drop_nulls().abs().max() < 1e-9
    assert not frame["shown"].any()


def test_the_command(cli):
    sides = REAL / "1.0.65", REAL / "1.0.102"
    code, out, err = cli("compare", *sides, width=120)
    assert (code, err) == (0, "")
    assert "95 % interval" in out
    assert max(map(len, cli("compare", *sides, width=80)[1].splitlines())) <= 80
    rows = json.loads(cli("compare", *sides, "--json")[1])
    assert {row["measure"] for row in rows} > {"model latency", "latency of bash"}
    code, out, _ = cli("compare", "--by", "version", "1.0.65", "1.0.102", REAL, "--json")
    assert json.loads(out) == rows
    code, out, _ = cli("compare", "..2026-12-01T03:40", "2026-12-01T03:40..", SAMPLES)
    assert code == 0
    assert cli("compare", "--by", "model", "mock", "scripted", SAMPLES)[0] == 0
    assert cli("compare", "--by", "colour", "a", "b", SAMPLES)[0] == 2
    assert "what is no side." in cli("compare", "what", "ever", SAMPLES)[2]
    assert cli("compare", *sides, SAMPLES)[0] == 2
    code, _, err = cli("compare", "--by", "model", "mock", "nothing like that", SAMPLES)
    assert code == 1
    assert "no session in nothing like that" in err


def test_a_day_ends_a_time_before_it_and_begins_another(cli):
    code, _, err = cli("compare", "..2026-12-01", "2026-12-01..", SAMPLES, "--tz", "UTC")
    assert code == 1, "all of the samples are of that day"
    assert "no session in ..2026-12-01" in err
    code, out, _ = cli("compare", "..2026-12-02", "2026-12-01..", SAMPLES, "--tz", "UTC")
    assert code == 0
    assert "62 model calls of 62 in A are in B, too" in out


def test_a_version_is_that_one_or_what_is_within(cli):
    assert cli("compare", "--by", "version", "1.0.1", "1.0.65", REAL)[0] == 1
    code, out, _ = cli("compare", "--by", "version", "1.0.12", "1.0", REAL)
    assert code == 0
    assert "1.0.12 · 17 sessions" in out
    assert "in A are in B, too" in out
    alike = "model latency is not measured alike"
    assert alike in cli("compare", "--by", "version", "1.0.65", "1.0.102", REAL, width=200)[1]
    assert alike not in cli("compare", "--by", "version", "1.0.12", "1.0.65", REAL, width=200)[1]


def test_a_side_is_what_a_path_is(cli, monkeypatch, tmp_path):
    sides = REAL / "1.0.65", REAL / "1.0.102"
    whole = cli("compare", *sides, "--json")
    assert cli("compare", REAL / "1.0.6*", REAL / "1.0.[1]02", "--json") == whole
    log = next((REAL / "1.0.102").rglob("events.jsonl"))
    monkeypatch.setattr(discover, "_stdin", log.read_bytes)
    assert cli("compare", log, "-")[0] == 0
    code, out, err = cli("compare", "../nothere", log)
    assert (code, out) == (1, "")
    assert "no such file or directory: ../nothere" in err
    picture = tmp_path / "d.HTML"
    assert cli("compare", *sides, "-o", picture)[:2] == (0, "")
    assert picture.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    "words",
    [
        ["--by", "model", "mock", "scripted"],
        ["--by", "version", "1.0.65", "1.0.102"],
        ["..2026-12-01T03:40", "2026-12-01T03:40.."],
    ],
)
def test_logs_of_both_sides_are_read_once(cli, monkeypatch, words):
    read = []
    load = loading.load
    monkeypatch.setattr(loading, "load", lambda *a, **k: read.append(a) or load(*a, **k))
    assert cli("compare", *words, SAMPLES, "--agent", "main")[0] == 0
    assert len(read) == 1
