"""The session store beside the logs: the CLI's own table, for logs without usage records."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from polars import selectors

from copilot_insights import load
from copilot_insights.schema import TOKENS

REAL = Path(__file__).parent / "data" / "real_logs" / "1.0.102"
SCENARIOS = ["tools", "sub2", "compact", "resume", "killed", "denied"]


def home(tmp_path, scenario, *, keep=lambda _line: True):
    """A home of the CLI with one session of it."""
    folder = tmp_path / "home" / "session-state" / scenario
    folder.mkdir(parents=True)
    lines = (REAL / scenario / "events.jsonl").read_bytes().split(b"\n")
    (folder / "events.jsonl").write_bytes(b"\n".join(filter(keep, lines)))
    shutil.copy(REAL / "session-store.db", tmp_path / "home")
    return folder


def without_records(line):
    return b'"session.usage_record"' not in line and b'"session.shutdown"' not in line


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_store_says_what_the_usage_records_say(tmp_path, scenario):
    whole = load([REAL / scenario])
    stored = load([home(tmp_path, scenario, keep=without_records)])
    assert stored.sessions["usage_source"].to_list() == ["store"]
    for name in (*TOKENS, "premium_requests"):
        assert stored.sessions[name].to_list() == whole.sessions[name].to_list()
    columns = ["model", "llm_ms", "ttft_ms", "initiator", *TOKENS]
    assert stored.llm_calls.select(columns).equals(whole.llm_calls.select(columns))


@pytest.mark.parametrize("which", range(5))
def test_the_store_fills_a_single_record_that_was_lost(tmp_path, which):
    records = iter(range(5))

    def keep(line):
        return b'"session.shutdown"' not in line and not (
            b'"session.usage_record"' in line and next(records) == which
        )

    tables = load([home(tmp_path, "tools", keep=keep)])
    session = tables.sessions.row(0, named=True)
    assert (session["input_tokens"], session["output_tokens"]) == (27_168, 110)
    assert session["usage_source"] == "store+usage_record"
    assert "tokens_unknown" not in tables.incidents["kind"]


def test_a_usage_record_goes_before_the_store(tmp_path):
    tables = load([home(tmp_path, "tools")])
    assert tables.sessions["usage_source"].to_list() == ["usage_record"]
    assert set(tables.usage["source"]) == {"usage_record", "store", "shutdown"}


@pytest.mark.parametrize("damage", [b"", b"no database at all", b"SQLite format 3\0" + bytes(99)])
def test_a_store_that_cannot_be_read_is_none(tmp_path, damage):
    log = home(tmp_path, "tools", keep=without_records)
    (tmp_path / "home" / "session-store.db").write_bytes(damage)
    tables = load([log])
    assert tables.sessions["input_tokens"].to_list() == [None]
    # an empty one is a store without tables
    assert [text[:12] for text in tables.problems] == (["cannot read "] if damage else [])


@pytest.mark.parametrize("value", ["'abc'", "x'ff00'", "-1000", "9e999", "4611686018427387904"])
@pytest.mark.parametrize(
    ("column", "ours"),
    [("input_tokens", "input_tokens"), ("duration_ms", "llm_ms"), ("output_tokens", None),
     ("total_nano_aiu", None), ("request_multiplier", None), ("time_to_first_token_ms", "ttft_ms")],
)  # fmt: skip
def test_an_odd_value_in_the_store_is_no_value(tmp_path, column, ours, value):
    log = home(tmp_path, "tools", keep=without_records)
    before = load([log])
    with closing(sqlite3.connect(tmp_path / "home" / "session-store.db")) as store:
        store.execute(f"UPDATE assistant_usage_events SET {column} = {value}")  # noqa: S608
        store.commit()
    tables = load([log])
    assert tables.sessions["llm_calls"].to_list() == before.sessions["llm_calls"].to_list()
    if ours and ours != "llm_ms":
        assert tables.llm_calls[ours].null_count() == tables.llm_calls.height
    for frame in (tables.sessions, tables.llm_calls):
        numbers = frame.select(selectors.numeric())
        assert all((row or 0) >= 0 for rows in numbers.iter_rows() for row in rows)


def test_odd_texts_in_the_store_are_no_texts(tmp_path):
    log = home(tmp_path, "tools", keep=without_records)
    with closing(sqlite3.connect(tmp_path / "home" / "session-store.db")) as store:
        for column in ("model", "agent_id", "initiator", "finish_reason", "created_at"):
            store.execute(f"UPDATE assistant_usage_events SET {column} = x'ff'")  # noqa: S608
        store.execute("UPDATE assistant_usage_events SET model = CAST(x'6dff' AS TEXT)")
        store.commit()
    tables = load([log])
    assert tables.sessions["input_tokens"][0] > 0
    assert tables.sessions["llm_calls"].to_list() == [5]


def test_the_store_is_left_as_it_was(tmp_path):
    log = home(tmp_path, "tools", keep=without_records)
    before = sorted((p.name, p.read_bytes()) for p in log.parents[1].glob("session-store*"))
    load([log])
    assert sorted((p.name, p.read_bytes()) for p in log.parents[1].glob("session-store*")) == before
