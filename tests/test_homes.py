"""Homes of the real CLI in which a session was compacted, rewound, aborted or killed.

Each has a session, the CLI's own session store (only its table of usage is kept), and in
`truth.json` what the model's HTTP server answered: every call with tokens of its own, so
that a sum tells which calls are in it. `next-day` was resumed ten seconds after the kill;
the times of its second process are a day later than recorded.
"""

import json
import shutil
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from copilot_insights import load

HOMES = sorted((Path(__file__).parent / "data" / "homes").iterdir())
homes = pytest.mark.parametrize("home", HOMES, ids=[home.name for home in HOMES])


def truth(home):
    return json.loads((home / "truth.json").read_text(encoding="utf-8"))


def without_store(home, tmp_path):
    return load([shutil.copytree(home / "session-state", tmp_path / "session-state")])


def named(name):
    return next(home for home in HOMES if home.name.startswith(name))


def by_agent(frame):
    rows = frame.group_by("agent_id").agg(pl.col("input_tokens", "output_tokens").sum())
    return {agent: [read, written] for agent, read, written in rows.iter_rows()}


@homes
def test_with_the_store_tokens_are_those_that_the_model_counted(home):
    session = load([home]).sessions.row(0, named=True)
    for name in ("input_tokens", "output_tokens"):
        assert session[name] == truth(home)[name]


@homes
def test_without_it_what_is_not_known_is_said(home, tmp_path):
    tables = without_store(home, tmp_path)
    session, kinds = tables.sessions.row(0, named=True), set(tables.incidents["kind"])
    whole = session["input_tokens"] == truth(home)["input_tokens"]
    assert session["input_tokens"] <= truth(home)["input_tokens"]
    assert whole != ("tokens_unknown" in kinds)
    assert "count_mismatch" not in kinds


def test_a_total_after_a_compaction_is_about_the_calls_since(tmp_path):
    # calls 6 to 9 of 3,000 + 137 n and 20 + 7 n tokens (n from 0, the compaction was 5); the
    # messages of this version state what the first five wrote
    tables = without_store(named("manual-compact"), tmp_path)
    assert tables.sessions["input_tokens"][0] == sum(3000 + 137 * n for n in (6, 7, 8))
    unknown = tables.incidents.filter(kind="tokens_unknown")["detail"].to_list()
    assert (tables.sessions["output_tokens"][0], unknown) == (
        truth(named("manual-compact"))["output_tokens"],
        ["calls without known input tokens: 5"],
    )


def test_the_store_remembers_what_was_rewound():
    tables = load([named("truncate-resume")])
    assert tables.sessions["usage_source"].to_list() == ["store"]
    assert tables.incidents.filter(kind="count_mismatch")["detail"].to_list() == [
        "the session store has 12 calls, the log has 10 of them"
    ]


@pytest.mark.parametrize("name", ["agentmetrics", "cancelled"])
def test_tokens_of_agents_are_those_that_the_cli_states(name, tmp_path):
    tables, agents = without_store(named(name), tmp_path), truth(named(name))["agents"]
    assert by_agent(tables.subagents) == agents
    booked = by_agent(tables.bookings)
    assert {agent: booked[agent] for agent in agents} == agents
    assert booked["main"][0] == truth(named(name))["input_tokens"] - sum(
        read for read, _ in agents.values()
    )


def test_a_killed_sub_agent_does_not_last_until_the_next_day():
    tables = load([named("next-day")])
    agent = tables.subagents.row(0, named=True)
    assert (agent["status"], agent["ended_at"]) == ("cancelled", None)
    loop = tables.interactions.filter(kind="subagent").row(0, named=True)
    assert loop["outcome"] == "open"
    assert loop["ended_at"] - loop["started_at"] < timedelta(seconds=5)


def test_the_time_of_a_call_that_was_aborted_is_the_models():
    loops = load([named("aborted-model")]).interactions
    (loop,) = loops.filter(outcome="aborted").iter_rows(named=True)
    assert loop["llm_ms"] > 6000
    assert loop["other_ms"] < 500


def test_what_a_cancelled_sub_agent_was_at_is_its_tools_time():
    loops = load([named("cancelled")]).interactions.filter(kind="subagent")
    loop = loops.row(0, named=True)
    assert (loop["outcome"], loop["tool_ms"] > 5000, loop["other_ms"] < 500) == (
        "aborted",
        True,
        True,
    )


@homes
def test_calls_are_those_that_the_model_counted(home):
    session = load([home]).sessions.row(0, named=True)
    rewound = home.name.startswith("truncate")
    for ours, counted in (("llm_calls", "model_calls"), ("tool_calls", "tool_calls")):
        assert (session[ours] < truth(home)[counted]) == rewound
        assert session[ours] <= truth(home)[counted]


def test_two_clis_on_one_session_keep_their_calls_apart(tmp_path):
    # the second wrote "interrupted" for the tool that the first was in, and went on with
    tables = without_store(named("two-processes"), tmp_path)
    assert set(tables.tool_calls["status"]) == {"ok"}
    assert tables.tool_calls["duration_ms"].null_count() == 0
    assert set(tables.llm_calls["status"]) == {"ok"}
    assert tables.interactions.select("turns", "tool_calls", "outcome").rows() == [
        (5, 5, "answered"),
        (5, 4, "answered"),
    ]
    assert "count_mismatch" not in set(tables.incidents["kind"])


@pytest.mark.parametrize("which", range(10))
@pytest.mark.parametrize("stored", [True, False])
def test_a_total_that_begins_with_what_was_read_counts_it_once(tmp_path, which, stored):
    home = shutil.copytree(named("two-processes"), tmp_path / "home")
    log = next(home.glob("session-state/*/events.jsonl"))
    lines = log.read_bytes().splitlines(keepends=True)
    records = [n for n, line in enumerate(lines) if b'"session.usage_record"' in line]
    log.write_bytes(b"".join(lines[: records[which]] + lines[records[which] + 1 :]))
    if not stored:
        (home / "session-store.db").unlink()
    session = load([home]).sessions.row(0, named=True)
    for name in ("input_tokens", "output_tokens"):
        assert session[name] == truth(home)[name]
