"""Whatever happens to the process, the log holds whole lines and the session goes on."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from copilot_insights import load
from copilot_insights.errors import InsightsError
from copilot_insights.runner.log import EventLog, read_events
from copilot_insights.runner.scripts import ScriptedModel, load_scripts
from copilot_insights.runner.session import Session, Settings
from copilot_insights.runner.workspace import list_sessions
from tests.runner.shapes import read
from tests.runner.support import HERE, REAL, SCRIPTS


def test_killed_at_a_hundred_random_instants(tmp_path, clean_environment):
    arguments = [sys.executable, str(HERE / "crash.py"), str(tmp_path), "100", "7"]
    done = subprocess.run(
        arguments, env=clean_environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["logs"] + result["before_the_first_message"] == 100
    assert len(result["last_line"]) > 3  # the instants were spread over the run
    sessions = load(sorted(tmp_path.glob("*/killed.jsonl"))).sessions
    rejected = sessions["rejected_lines"].sum()
    assert sessions["events"].sum() + rejected == result["lines"] + result["torn"]
    assert rejected <= result["torn"]  # only a newline may be missing


def resume(home, session_id):
    async def main():
        model = ScriptedModel(load_scripts(SCRIPTS))
        session = Session.resume(Settings(home, home, model), session_id)
        said = await session.send_and_wait("[[script:hello]] again", 10)
        await session.shutdown()
        return said

    return asyncio.run(main())


def places(value, path=()):
    """The path of every value within a JSON value."""
    yield path
    pairs = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else pairs:
        yield from places(inner, (*path, key))


def replaced(value, path, new):
    """The JSON value with another at that path, or without it."""
    if not path:
        return new
    inner = value[path[0]]
    value = value.copy()
    if len(path) == 1 and new is ...:
        del value[path[0]]
    else:
        value[path[0]] = replaced(inner, path[1:], new)
    return value


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    scenario=st.sampled_from(["sub2", "tools", "hooks", "denied"]),
    harm=st.lists(
        st.tuples(
            st.integers(0, 10**9),
            st.integers(0, 10**9),
            st.sampled_from([..., None, 7, -0.5, "x", [], [1], {}, {"a": []}, True]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_a_log_with_damaged_fields_resumes_or_is_refused(tmp_path_factory, scenario, harm):
    events = read(REAL / "1.0.102" / scenario / "events.jsonl")
    for number, where, new in harm:
        which = number % len(events)
        found = list(places(events[which]))[1:]
        if found:
            events[which] = replaced(events[which], found[where % len(found)], new)
    home = tmp_path_factory.mktemp("home")
    path = home / "session-state" / "s" / "events.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    with contextlib.suppress(InsightsError):
        assert resume(home, "s") == "Hello there, done."
    assert not list(path.parent.glob("inuse.*"))
    assert len(list_sessions(home)) <= 1


def test_a_damaged_log_hides_no_other_session(tmp_path):
    good = (REAL / "1.0.102" / "tools" / "events.jsonl").read_bytes()
    logs = {"torn": good[:-40], "list": b"[1]\n", "deep": b"[" * 10**5, "empty": b"", "good": good,
            "odd": good.replace(b'"context":{', b'"context":[],"was":{', 1)}  # fmt: skip
    for name, data in logs.items():
        path = tmp_path / "session-state" / name / "events.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    assert {entry["sessionId"] for entry in list_sessions(tmp_path)} == {"torn", "good"}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(min_value=0, max_value=10**9))
def test_a_log_cut_at_any_byte_resumes(tmp_path_factory, cut):
    raw = (REAL / "1.0.102" / "sub2" / "events.jsonl").read_bytes()
    first = raw.index(b"\n") + 1
    cut = first + cut % (len(raw) - first + 1)
    home = tmp_path_factory.mktemp("home")
    path = home / "session-state" / "s" / "events.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(raw[:cut])
    assert resume(home, "s") == "Hello there, done."
    whole = raw[:cut].rsplit(b"\n", 1)[0] + b"\n"
    assert path.read_bytes().startswith(whole)
    events = read(path)
    assert all(b["parentId"] == a["id"] for a, b in pairwise(events))
    opened = {e["data"]["toolCallId"] for e in events if e["type"] == "tool.execution_start"}
    closed = {e["data"]["toolCallId"] for e in events if e["type"] == "tool.execution_complete"}
    assert opened == closed


def test_calls_without_a_result_are_answered_as_interrupted(tmp_path):
    path = tmp_path / "session-state" / "s" / "events.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes((REAL / "1.0.102" / "killed" / "events.jsonl").read_bytes())
    resume(tmp_path, "s")
    events = read(path)
    at = [event["type"] for event in events].index("session.resume")
    data = events[at]["data"]
    assert data["eventCount"] == at
    assert events[at + 1]["type"] == "tool.execution_complete"
    assert events[at + 1]["data"]["error"]["code"] == "interrupted"


@pytest.mark.parametrize("scenario", ["resume", "sub2", "compact", "hooks", "denied", "sdk"])
def test_a_log_of_the_real_cli_can_be_resumed(scenario, tmp_path):
    path = tmp_path / "session-state" / "s" / "events.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes((REAL / "1.0.102" / scenario / "events.jsonl").read_bytes())
    before = len(read(path))
    resume(tmp_path, "s")
    events = read(path)
    assert events[before]["type"] == "session.resume"
    total = events[-1]["data"]["modelMetrics"]
    records = sum(event["type"] == "session.usage_record" for event in events)
    assert sum(entry["requests"]["count"] for entry in total.values()) == records


def test_a_session_in_which_nothing_was_said_leaves_no_log(tmp_path):
    async def main():
        session = Session.create(Settings(tmp_path, tmp_path, ScriptedModel({"x": []})))
        await session.shutdown()
        return session.log.path

    assert not asyncio.run(main()).exists()


def test_two_processes_do_not_write_one_log(tmp_path):
    path = tmp_path / "session-state" / "s" / "events.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes((REAL / "1.0.102" / "hello" / "events.jsonl").read_bytes())
    held = EventLog(path)
    with pytest.raises(InsightsError, match="in use by another process"):
        EventLog(path)
    held.close()
    EventLog(path).close()


class Nameless(ScriptedModel):
    """A model that cannot say its name, which the first event of a process wants."""

    def __init__(self):
        self.scripts = {}

    @property
    def name(self):
        raise LookupError("no name")


@pytest.mark.parametrize(
    ("open_", "scenario"), [(Session.create, None), (Session.resume, "hello")], ids=["new", "old"]
)
def test_a_session_that_cannot_be_opened_is_free_for_others(open_, scenario, tmp_path):
    path = tmp_path / "session-state" / "s" / "events.jsonl"
    path.parent.mkdir(parents=True)
    log = REAL / "1.0.102" / str(scenario) / "events.jsonl"
    path.write_bytes(log.read_bytes() if scenario else b"")
    with pytest.raises(LookupError, match="no name") as caught:
        open_(Settings(tmp_path, tmp_path, Nameless()), "s")
    assert [file.name for file in path.parent.iterdir()] == ["events.jsonl"]
    EventLog(path).close()
    del caught  # till here it keeps what was half made


def test_a_log_that_cannot_be_taken_over_is_free_for_others(tmp_path):
    path = tmp_path / "events.jsonl"
    path.touch()
    in_use = tmp_path / f"inuse.{os.getpid()}.lock"
    in_use.mkdir()
    with pytest.raises(InsightsError, match="cannot be written: Is a directory") as caught:
        EventLog(path)
    in_use.rmdir()
    EventLog(path).close()
    del caught


@pytest.mark.parametrize("text", ["not a log\n", '{"type":"user.message","data":{}}\n', "[]\n"])
def test_what_is_no_log_is_not_resumed(text, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InsightsError, match=r"does not begin with session\.start"):
        EventLog(path)
    assert path.read_text(encoding="utf-8") == text


def test_damaged_lines_in_the_middle_are_passed_over_and_kept(tmp_path):
    lines = (REAL / "1.0.102" / "hello" / "events.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join([*lines[:3], b"\x00\xff garbage\n", b"[1]\n", *lines[3:]]))
    events, size = read_events(path)
    assert len(events) == len(lines)
    assert size == path.stat().st_size


def test_any_text_survives_the_log(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    texts = ["\u2028\u2029\x85", "\ud800 lone", "\x00\x1b[31m", "😀 漢字", "\r\n\t"]
    for text in texts:
        log.append(log.make("user.message", {"content": text}, ephemeral=False))
    log.close()
    raw = (tmp_path / "events.jsonl").read_bytes()
    assert raw.count(b"\n") == len(texts)
    assert [json.loads(line)["data"]["content"] for line in raw.splitlines()] == texts


def test_a_full_disk_leaves_whole_lines_and_is_said(tmp_path):
    """/dev/full fails every write; what could not be written is written once it can be."""

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, _):
            raise OSError(28, "No space left on device")

        def truncate(self, size):
            self.file.truncate(size)

    async def main():
        model = ScriptedModel(load_scripts(SCRIPTS))
        session = Session.create(Settings(tmp_path, tmp_path, model))
        errors = []
        session.on(lambda e: errors.append(e["data"]) if e["type"] == "session.error" else None)
        await session.send_and_wait("[[script:hello]] one", 10)
        real = session.log._file  # noqa: SLF001  # a disk cannot be filled here
        session.log._file = Full(real)  # type: ignore[assignment]  # noqa: SLF001
        await session.send_and_wait("[[script:hello]] two", 10)
        session.log._file = real  # noqa: SLF001
        await session.shutdown()
        return session.log, errors

    log, errors = asyncio.run(main())
    assert [error["errorType"] for error in errors] == ["persistence"]
    assert [e["id"] for e in read(log.path)] == [e["id"] for e in log.events]
