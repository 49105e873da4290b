"""Following logs: whatever happens to the files, what is told equals a fresh read."""

import errno
import json
import os
import shutil
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from copilot_insights import load
from copilot_insights.follow import Follower
from copilot_insights.schema import TABLES

REAL = Path(__file__).parent / "data" / "real_logs" / "1.0.102"
LINES = (REAL / "tools" / "events.jsonl").read_bytes().splitlines(keepends=True)
OTHER = (REAL / "sub" / "events.jsonl").read_bytes().splitlines(keepends=True)
WANTED = {name: tuple(TABLES[name]) for name in ("sessions", "llm_calls", "tool_calls")}


def follower(*paths, eager=True):
    return Follower(paths, wanted=WANTED, eager=eager)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9)),
        st.tuples(st.just("torn"), st.integers(1, 30)),
        st.tuples(st.just("cut"), st.integers(0, 9)),
        st.tuples(st.just("replace"), st.integers(1, 9)),
        st.tuples(st.just("remove"), st.just(0)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_what_is_told_last_equals_a_fresh_read(tmp_path_factory, plan):
    place = tmp_path_factory.mktemp("root") / "s1" / "events.jsonl"
    place.parent.mkdir()
    following = follower(place.parent.parent)
    told, lines = None, []
    for step, number in plan:
        text = b""
        if step in {"append", "torn"}:
            lines = LINES[: len(lines) + number]
            text = b'{"type":"assistant.turn_st'[:number] if step == "torn" else b""
        elif step == "cut":
            lines = lines[:number]
        elif step == "replace":
            place.unlink(missing_ok=True)
            lines = OTHER[:number]
        else:
            place.unlink(missing_ok=True)
            lines = []
        if step != "remove":
            place.write_bytes(b"".join(lines) + text)
            os.utime(place, ns=(time.time_ns(), time.time_ns()))
        change = following.poll()
        told = change.tables or (None if change.gone else told)
        if not lines:
            continue
        place.with_name("fresh.jsonl").write_bytes(b"".join(lines))
        fresh = load(place.with_name("fresh.jsonl"))
        place.with_name("fresh.jsonl").unlink()
        assert told is not None
        for name in ("llm_calls", "tool_calls"):
            assert_frame_equal(
                told.table(name).drop("session_id"), fresh.table(name).drop("session_id")
            )


# logs of one history: an original, its fork (with lines of its own), a copy under another
# root, and a saved stream; and one that has nothing to do with them
ORIGINAL = json.loads(LINES[0])["data"]["sessionId"]
OWN = [line.replace(b'"id":"', b'"id":"own-') for line in LINES[5:9]]
HISTORIES = {
    f"root/{ORIGINAL}/events.jsonl": LINES,
    "root/fork/events.jsonl": [*LINES[:12], *OWN],
    f"twin/{ORIGINAL}/events.jsonl": LINES[:20],
    "root/saved.jsonl": LINES[3:9],
    "root/other/events.jsonl": OTHER,
}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(sorted(HISTORIES)), st.integers(0, 30)),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_logs_that_share_events_are_told_as_a_fresh_read_has_them(tmp_path_factory, plan):
    home = tmp_path_factory.mktemp("home")
    following = follower(home / "root", home / "twin")
    told = {}
    for changes in plan:
        for name, length in changes:
            place = home / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"".join(HISTORIES[name][:length]))
            os.utime(place, ns=(time.time_ns(), time.time_ns()))
            if not length:
                place.unlink()
        change = following.poll()
        told |= change.tables.apart() if change.tables else {}
        for session in change.gone:
            del told[session]
        there = [path for path in (home / "root", home / "twin") if any(path.rglob("*.jsonl"))]
        fresh = load(there).apart() if there else {}
        assert told.keys() == fresh.keys()
        for session, tables in fresh.items():
            for name in WANTED:
                assert_frame_equal(told[session].table(name), tables.table(name))


def test_one_place_that_is_not_there_does_not_hide_the_others(tmp_path):
    for name in ("a", "b"):
        place = tmp_path / name / "s1" / "events.jsonl"
        place.parent.mkdir(parents=True)
        place.write_bytes(LINES[0].replace(b'"sessionId":"', b'"sessionId":"' + name.encode()))
    following = follower(tmp_path / "a", tmp_path / "later", tmp_path / "b")
    assert following.poll().tables.sessions.height == 2
    shutil.rmtree(tmp_path / "b")
    assert following.poll().gone == ["b" + ORIGINAL]


def test_a_log_that_cannot_be_read_is_said_and_tried_again(tmp_path, monkeypatch):
    place = tmp_path / "s1" / "events.jsonl"
    place.parent.mkdir()
    place.write_bytes(b"".join(LINES))
    following = follower(tmp_path)

    def fails(_path):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fails)
        for _ in range(2):
            change = following.poll()
            assert (change.tables, change.problems) == (
                None,
                [f"cannot read {place}: Input/output error"],
            )
    change = following.poll()
    assert change.tables.sessions.height == 1
    assert change.problems == []


def test_logs_that_appear_later_are_found(tmp_path):
    following = follower(tmp_path / "home")
    assert following.poll().tables is None
    place = tmp_path / "home" / "session-state" / "s1" / "events.jsonl"
    place.parent.mkdir(parents=True)
    place.write_bytes(LINES[0])
    assert following.poll().tables.sessions.height == 1
    assert following.poll().tables is None, "nothing is new"
    with place.open("ab") as file:
        file.writelines(LINES[1:])
    assert following.poll().tables.sessions["events"][0] == len(LINES)
    shutil.rmtree(place.parent)
    assert following.poll().gone == [json.loads(LINES[0])["data"]["sessionId"]]


def test_what_is_idle_costs_next_to_nothing(tmp_path):
    """A look at 300 sessions costs about as much as asking for the size of each."""
    for number in range(300):
        place = tmp_path / f"s{number}" / "events.jsonl"
        place.parent.mkdir()
        place.write_bytes(LINES[0].replace(b'"id":"', f'"id":"{number:03}'.encode()))
    following = follower(tmp_path, eager=False)
    assert following.poll().tables.sessions.height >= 1

    def seconds(look):
        start = time.process_time()
        for _ in range(100):
            look()
        return time.process_time() - start

    plain = seconds(lambda: [path.stat() for path in tmp_path.glob("*/events.jsonl")])
    assert seconds(following.poll) < 4 * plain
