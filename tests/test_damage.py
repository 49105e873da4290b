"""Damaged logs, one test for each kind of damage, and the right numbers in spite of it."""

import json
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from time import process_time

import pytest

from copilot_insights import InsightsError, load

SAMPLES = Path(__file__).parent.parent / "sample_logs"
_ids = count()
_BEGIN = datetime(2026, 3, 1, 10, tzinfo=UTC)


def clock(seconds):
    return _BEGIN + timedelta(seconds=seconds)


def line(fields):
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def event(kind, at=0, agent=None, **data):
    """A line as the CLI writes it, `at` seconds after ten o'clock, with an id of its own."""
    time = clock(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    of = {"agentId": agent} if agent else {}
    return line(
        {
            "type": kind,
            "data": data,
            **of,
            "id": f"id-{next(_ids)}",
            "timestamp": time,
            "parentId": None,
        }
    )


def changed(raw, **fields):
    """The line with other fields in its envelope; `...` leaves a field out."""
    old = json.loads(raw) | fields
    return line({name: value for name, value in old.items() if value is not ...})


def started(at=0, session="s1"):
    return event("session.start", at, sessionId=session, copilotVersion="1.0.102")


def resumed(at):
    return event("session.resume", at, eventCount=5)


def user(at, agent=None):
    return event("user.message", at, agent, content="do it")


def turn_start(at, turn="0", agent=None):
    return event("assistant.turn_start", at, agent, turnId=turn)


def turn_end(at, turn="0", agent=None):
    return event("assistant.turn_end", at, agent, turnId=turn)


def message(at, agent=None, **data):
    return event("assistant.message", at, agent, **{"content": "ok", "toolRequests": [], **data})


def tool_start(at, call="c1", agent=None, **data):
    return event("tool.execution_start", at, agent, toolCallId=call, **{"toolName": "bash", **data})


def tool_end(at, call="c1", agent=None, **data):
    return event("tool.execution_complete", at, agent, toolCallId=call, **{"success": True, **data})


def record(at, **usage):
    return event("session.usage_record", at, usage={"model": "m", **usage})


def shutdown(at, requests=None, tokens=0, premium=0.0):
    used = {
        "requests": {"count": requests, "cost": premium},
        "usage": {"inputTokens": tokens, "outputTokens": 1},
    }
    metrics = {} if requests is None else {"m": used}
    return event(
        "session.shutdown",
        at,
        shutdownType="routine",
        totalPremiumRequests=premium,
        modelMetrics=metrics,
    )


def a_turn(at, turn="0", agent=None, **said):
    """A call that is answered after a second and done after two."""
    return [
        turn_start(at, turn, agent),
        message(at + 1, agent, **said),
        turn_end(at + 2, turn, agent),
    ]


def store(place, *lines):
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"".join(lines))
    return place


def read(*places):
    """Tables of these places, every line of which is accounted for."""
    tables = load(places, events=True)
    files = [
        f for place in places for f in ([place] if place.is_file() else place.rglob("*.jsonl"))
    ]
    texts = [f.read_bytes() for f in files if "rewind-snapshots" not in f.parts]
    lines = [text for data in texts for text in data.split(b"\n") if text.strip()]
    sums = tables.sessions.select("events", "rejected_lines", "duplicate_events").sum()
    assert sum(sums.row(0)) == len(lines)
    assert tables.events.height == sums["events"][0]
    return tables


@pytest.fixture
def log(tmp_path):
    """Tables of a log with these lines."""
    return lambda *lines: read(store(tmp_path / "s1" / "events.jsonl", *lines))


def one(frame):
    assert frame.height == 1
    return frame.row(0, named=True)


def rows(frame, *columns):
    return frame.select(columns).rows()


def kinds(tables):
    return tables.incidents["kind"].to_list()


def assert_one_good_call(tables, rejected=0):
    call, session = one(tables.llm_calls), one(tables.sessions)
    assert (call["status"], call["output_tokens"], call["llm_ms"]) == ("ok", 7, 1000)
    assert (session["turns_started"], session["turns_completed"], session["interactions"]) == (
        1,
        1,
        1,
    )
    assert session["rejected_lines"] == rejected == kinds(tables).count("rejected_line")


def good_lines():
    return [started(), user(1), *a_turn(2, outputTokens=7)]


# --- bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [1, 20, -3, -2])
def test_a_torn_last_line_is_rejected_and_the_rest_stands(log, left):
    lines = good_lines()
    tables = log(*lines[:-1], lines[-1][:left])
    assert one(tables.sessions)["rejected_lines"] == 1
    assert rows(tables.llm_calls, "status", "llm_ms", "ended_at") == [("ok", 1000, None)]
    assert "open_turn" in kinds(tables)


def test_a_last_line_without_its_newline_is_whole(log):
    assert_one_good_call(log(b"".join(good_lines())[:-1]))


def test_a_last_line_torn_within_a_character(log):
    torn = event("user.message", 9, content="naïve 😀").split("😀".encode())[0] + "😀".encode()[:2]
    assert_one_good_call(log(*good_lines(), torn), rejected=1)


@pytest.mark.parametrize("run", [b"\0", b"\0" * 4096, b"\0" * 10 + b"\r", b" \0 \0"])
def test_a_run_of_nul_bytes_is_one_rejected_line(log, run):
    lines = good_lines()
    assert_one_good_call(log(*lines[:3], run, b"\n", *lines[3:]), rejected=1)
    assert_one_good_call(log(*lines, run), rejected=1)


def test_nul_bytes_around_an_event_do_not_lose_it(log):
    lines = good_lines()
    tables = log(*lines[:3], b"\0" * 99, *lines[3:-1], lines[-1][:-1], b"\0" * 99)
    assert_one_good_call(tables)
    mended = tables.incidents.filter(kind="bad_field")["detail"].to_list()
    assert mended == [
        "assistant.message: bytes that no text has, mended",
        "assistant.turn_end: bytes that no text has, mended",
    ]


BROKEN = {
    "line separator": "\u2028".encode(),
    "paragraph separator": "\u2029".encode(),
    "next line": "\x85".encode(),
    "invalid utf-8": b"\xff\xfe\xc3(",
    "utf-8 of a surrogate": b"\xed\xa0\x80",
    "lone high surrogate": rb"\ud83d",
    "lone low surrogate": rb"\ude00",
    "pair the wrong way round": rb"\ude00\ud83d",
    "nul": b"\0",
    "escaped nul": rb"\u0000",
    "raw tab and escape": b"\t\x1b[31m",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("field", [b'"ok"', b'"m"'])
def test_odd_characters_in_a_string_do_not_lose_its_event(log, broken, field):
    lines = [started(), user(1), *a_turn(2, outputTokens=7, model="m")]
    tables = log(*(text.replace(field, field[:-1] + broken + b'"') for text in lines))
    assert_one_good_call(tables)
    assert one(tables.llm_calls)["model"].startswith("m")
    if field == b'"m"' and b"\xff" in broken:
        assert "bad_field" in kinds(tables)


@pytest.mark.parametrize("end", [b"\r\n", b"\n\n", b"\n \t\r\n\r\n", b" \n"])
def test_line_ends_and_blank_lines(log, end):
    assert_one_good_call(log(*(text.replace(b"\n", end) for text in good_lines())))


def test_a_byte_order_mark(log):
    tables = log(b"\xef\xbb\xbf", *good_lines())
    assert_one_good_call(tables)
    assert one(tables.sessions)["cli_version"] == "1.0.102"
    assert "bad_field" not in kinds(tables)


def test_empty_files_and_directories_are_no_sessions(tmp_path):
    store(tmp_path / "empty" / "events.jsonl")
    store(tmp_path / "blank" / "events.jsonl", b"\n\r\n  \n")
    (tmp_path / "nothing").mkdir()
    store(tmp_path / "s1" / "events.jsonl", *good_lines())
    assert_one_good_call(read(tmp_path))


def test_an_empty_file_alone_gives_empty_tables(log):
    assert log().sessions.height == 0


def test_an_empty_session_directory_alone_is_said_to_have_no_logs(tmp_path):
    with pytest.raises(InsightsError, match="no session logs"):
        load(tmp_path)


def test_a_log_of_nothing_but_damage_is_a_session_that_says_nothing(log):
    session = one(log(b"\0\0\0\n{torn").sessions)
    assert (session["session_id"], session["events"], session["rejected_lines"]) == ("s1", 0, 2)
    assert (session["wall_ms"], session["input_tokens"]) == (None, None)


@pytest.mark.parametrize("odd", [b"", b"\xff", rb"\ud83d"])
def test_a_line_of_five_megabytes(log, odd):
    big = b'"' + b"[x] " * 1_250_000 + odd + b'"'
    lines = [text.replace(b'"ok"', big) for text in good_lines()]
    tables = log(*lines)
    assert_one_good_call(tables)
    assert one(tables.sessions)["bytes"] == len(b"".join(lines))


@pytest.mark.parametrize("text", [rb"\"", rb"\\", b"1", b'",{"type":"'])
def test_a_torn_line_takes_no_longer_than_it_is_long(log, text):
    """Ten times the length takes about ten times as long, where a square would take a hundred."""

    def seconds(times):
        torn = message(9, content="?").replace(b"?", text * times)[:-90]
        began = process_time()
        assert_one_good_call(log(*good_lines(), torn), rejected=1)
        return process_time() - began

    short = min(seconds(30_000) for _ in range(3))
    assert seconds(300_000) < 30 * short


DEEP = b"[" * 100_000 + b"]" * 100_000
DEEP_OBJECT = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize("deep", [DEEP, DEEP_OBJECT], ids=["array", "object"])
def test_deeply_nested_arguments_do_not_lose_the_call(log, deep):
    nested = tool_start(3.1, arguments="?").replace(b'"?"', deep)
    tables = log(*good_lines(), nested, tool_end(3.3))
    assert_one_good_call(tables)
    assert rows(tables.tool_calls, "tool", "duration_ms", "status") == [("bash", 200, "ok")]


@pytest.mark.parametrize("kind", ["some.new_event", "assistant.turn_end", "user.message"])
@pytest.mark.parametrize("where", [b'{"a":7,"reason":7,"x":%s}', b"%s"], ids=["within", "data"])
def test_deep_nesting_anywhere_keeps_the_event(log, kind, where):
    deep = event(kind, 3, x=1).replace(b'{"x":1}', where % DEEP)
    tables = log(started(), deep, event("abort", 4))
    assert tables.events["type"].to_list() == ["session.start", kind, "abort"]
    assert tables.events["at"].to_list()[1] == clock(3)


def test_a_deep_line_that_is_torn_is_rejected(log):
    torn = event("abort", 3, x=1).replace(b'{"x":1}', b"[" * 100_000)
    assert_one_good_call(log(*good_lines(), torn[:50_000]), rejected=1)


NO_EVENTS = rb"""3 "x" null true [] [{"type":"abort"}] {} {"type":""} {"type":7} NaN hello ]]] """


@pytest.mark.parametrize("text", [*NO_EVENTS.split(), b'"' * 99, b"\xff\xfe", b"\\"])
def test_a_line_that_is_no_event_is_rejected(log, text):
    lines = good_lines()
    assert_one_good_call(log(*lines[:3], text + b"\n", *lines[3:]), rejected=1)


def test_a_rejected_line_says_where_it_is(log):
    lines = good_lines()
    incidents = log(*lines[:2], b"\n", b"{oops\n", *lines[2:]).incidents
    rejected = one(incidents.filter(incidents["kind"] == "rejected_line"))
    assert rejected["detail"].startswith(f"line 4, byte {len(b''.join(lines[:2])) + 1}: ")


def test_the_first_of_two_events_on_a_line_stands(log):
    lines = good_lines()
    glued = lines[-1][:-1] + event("abort", 5)
    assert_one_good_call(log(*lines[:-1], glued))
    assert_one_good_call(log(*lines[:-1], lines[-1][:-1] + b"garbage\n"))


@pytest.mark.parametrize("hole", [b"", b"\0" * 512])
def test_a_resume_written_behind_a_torn_line_is_seen(log, hole):
    torn = message(9, toolRequests=[{"type": "function", "name": "x"}])[:-60]
    tables = log(*good_lines(), torn + hole + resumed(20), user(21))
    assert_one_good_call_of(tables, "llm_calls", 1)
    assert (one(tables.sessions)["processes"], tables.events["type"][5]) == (2, "session.resume")


def assert_one_good_call_of(tables, table, number):
    assert getattr(tables, table).height == number == one(tables.sessions)[table]


# --- fields -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [..., None, [], "text", 5, {"turnId": None}, {"turnId": 0}])
def test_a_turn_end_with_no_or_strange_data_still_ends_its_turn(log, data):
    lines = good_lines()
    assert_one_good_call(log(*lines[:-1], changed(lines[-1], data=data)))


NO_TIMES = (
    """yesterday 2026-13-45T00:00:00.000Z 0001-01-01T00:00:00.000Z 2026-03-01T10:00:0Z.000Z!"""
)


@pytest.mark.parametrize("time", [..., None, "", 1_767_225_600_000, *NO_TIMES.split()])
def test_a_reply_without_a_readable_time_is_a_reply(log, time):
    lines = good_lines()
    lines[3] = changed(lines[3], timestamp=time)
    tables = log(*lines)
    call, interaction = one(tables.llm_calls), one(tables.interactions)
    assert (call["status"], call["output_tokens"], call["replied_at"], call["llm_ms"]) == (
        "ok",
        7,
        None,
        None,
    )
    assert (interaction["outcome"], one(tables.sessions)["wall_ms"]) == ("answered", 4000)
    assert kinds(tables).count("bad_field") == 1


@pytest.mark.parametrize(
    "time", ["10:00:03Z", "10:00:03.0Z", "10:00:03.000999Z", "12:00:03.0+02:00", "10:00:03"]
)
def test_other_forms_of_the_same_time(log, time):
    lines = good_lines()
    lines[3] = changed(lines[3], timestamp=f"2026-03-01T{time}")
    assert_one_good_call(log(*lines))


def test_no_times_at_all_are_counts_without_times(log):
    tables = log(
        *(changed(text, timestamp=...) for text in [*good_lines(), tool_start(3), tool_end(3)])
    )
    session = one(tables.sessions)
    assert (session["llm_calls"], session["failed_llm_calls"], session["tool_calls"]) == (1, 0, 1)
    assert [session[name] for name in ("started_at", "wall_ms", "llm_ms", "user_ms")] == [None] * 4
    assert rows(tables.tool_calls, "status", "duration_ms") == [("ok", None)]


@pytest.mark.parametrize(
    ("written", "tokens"),
    [("5", 5), ("5.0", 5), ("0", 0), ("null", None), ('"5"', None), ("-5", None), ("5.5", None),
     ("true", None), ("[5]", None), ("{}", None), ("1e999", None), ("-1e999", None), ("NaN", None),
     ("Infinity", None), ("-Infinity", None), ("1" * 30, None), ("9" * 5000, None)],
)  # fmt: skip
def test_a_number_that_is_none_is_missing_and_nothing_else_is(log, written, tokens):
    used = record(2.5, inputTokens="?", outputTokens=7, duration=1000.4)
    tables = log(*good_lines()[:3], used.replace(b'"?"', written.encode()), *good_lines()[3:])
    assert_one_good_call(tables)
    call = one(tables.llm_calls)
    assert (call["input_tokens"], call["usage_source"]) == (tokens, "usage_record")
    assert ("bad_field" in kinds(tables)) == (tokens is None and written != "null")


ODD = {"requests": {"count": "1"}, "usage": {"inputTokens": -9}}, {"requests": 1, "usage": []}


@pytest.mark.parametrize("metrics", [None, "m", [], *({"m": odd} for odd in (None, "x", *ODD))])
def test_totals_of_the_wrong_shape_are_no_totals(log, metrics):
    tables = log(
        *good_lines(), event("session.shutdown", 9, shutdownType="routine", modelMetrics=metrics)
    )
    session = one(tables.sessions)
    assert (session["ending"], session["input_tokens"], session["output_tokens"]) == (
        "routine",
        None,
        7,
    )


@pytest.mark.parametrize("field", ["toolCallId", "toolName"])
def test_a_number_for_a_name_is_a_missing_name(log, field):
    tables = log(started(), tool_start(1, **{} if field == "toolCallId" else {field: 7}).replace(
        *((b'"c1"', b"7") if field == "toolCallId" else (b"", b""))), tool_end(2))  # fmt: skip
    by_status = dict(rows(tables.tool_calls, "status", "duration_ms"))
    assert by_status == ({"open": None, "ok": None} if field == "toolCallId" else {"ok": 1000})
    assert "bad_field" in kinds(tables)


def test_float_premium_requests_add_up(log):
    tables = log(started(), user(1), *a_turn(2), shutdown(9, 1, 50, 0.33),
                 resumed(20), user(21), *a_turn(22), shutdown(29, 1, 60, 0.33))  # fmt: skip
    session = one(tables.sessions)
    assert (session["premium_requests"], session["input_tokens"]) == (pytest.approx(0.66), 110)
    assert tables.bookings["premium_requests"].sum() == pytest.approx(0.66)


@pytest.mark.parametrize(
    ("arguments", "size"),
    [({"command": "ls"}, 16), ('{"command": "ls"}', 23), ("", 2), ([], 2), (None, 4), (..., None)],
)  # fmt: skip
def test_arguments_of_any_shape(log, arguments, size):
    of = {} if arguments is ... else {"arguments": arguments}
    call = one(log(started(), tool_start(1, **of), tool_end(2)).tool_calls)
    assert (call["argument_bytes"], call["duration_ms"], call["status"]) == (size, 1000, "ok")


def test_arguments_in_a_string_hash_like_the_same_arguments(log):
    tables = log(
        tool_start(1, "a", arguments={"command": "ls"}),
        tool_start(2, "b", arguments='{"command": "ls"}'),
    )
    assert tables.tool_calls["arguments_hash"].n_unique() == 1


@pytest.mark.parametrize(
    ("result", "size", "code"),
    [
        ({"content": "<shellId: 0 completed with exit code 3>"}, 53, 3),
        ("<exited with exit code -1>", 28, -1),
        *[("fine", 6, None), (..., None, None), (None, 4, None), (7, 1, None)],
    ],
)
def test_a_result_of_any_shape(log, result, size, code):
    of = {} if result is ... else {"result": result}
    call = one(log(started(), tool_start(1), tool_end(2, **of)).tool_calls)
    assert (call["result_bytes"], call["exit_code"], call["status"]) == (size, code, "ok")


def test_unknown_types_and_fields_are_kept_and_counted(log):
    lines = [json.loads(text) for text in good_lines()]
    lines = [{**text, "data": {**text["data"], "newField": [1]}, "traceId": "t"} for text in lines]
    tables = log(*map(line, lines), event("brand.new", 5, turnId="0"), event("brand.new", 6))
    assert_one_good_call(tables)
    unknown = tables.incidents.filter(tables.incidents["kind"] == "unknown_type")
    assert one(unknown)["detail"] == "2 of unknown type brand.new"


# --- ids --------------------------------------------------------------------------------------


def test_an_event_written_twice_counts_once(log):
    lines = good_lines()
    tables = log(*(text for text in lines for _ in range(2)))
    assert_one_good_call(tables)
    assert one(tables.sessions)["duplicate_events"] == 5


@pytest.mark.parametrize("missing", [..., None, "", 7])
def test_events_without_an_id_are_events_of_their_own(log, missing):
    tables = log(*(changed(text, id=missing) for text in good_lines()))
    assert_one_good_call(tables)
    assert one(tables.sessions)["duplicate_events"] == 0


@pytest.mark.parametrize("agent", [None, "", "main"])
def test_the_root_agent_by_any_name(log, agent):
    lines = good_lines()
    assert_one_good_call(log(*lines[:2], *(changed(text, agentId=agent) for text in lines[2:])))


def test_a_log_without_session_start(log):
    tables = log(*good_lines()[1:], tool_start(3), resumed(60), tool_end(61), user(62))
    session = one(tables.sessions)
    assert (session["session_id"], session["processes"], session["cli_version"]) == ("s1", 2, None)
    assert rows(tables.tool_calls, "status", "duration_ms") == [("ok", None)]


def test_agents_that_nothing_started(log):
    tables = log(
        *good_lines(), message(5, "ghost"), tool_start(6, "k", "ghost"), tool_end(8, "k", "ghost")
    )
    agent = one(tables.subagents)
    assert (agent["agent_id"], agent["turns"], agent["tool_calls"], agent["status"]) == (
        "ghost",
        1,
        1,
        "open",
    )
    assert (agent["started_at"], agent["ended_at"], agent["agent_name"]) == (clock(5), None, None)
    assert one(tables.sessions)["llm_calls"] == 2


# --- spans ------------------------------------------------------------------------------------


def test_a_turn_end_without_its_start_is_no_call(log):
    tables = log(*good_lines(), turn_end(9, "1"))
    assert_one_good_call(tables)
    assert kinds(tables).count("unpaired_end") == 1


def test_a_turn_end_closes_no_turn_of_an_earlier_process(log):
    tables = log(
        started(), user(1), turn_start(2, "1"), resumed(100), user(101), turn_end(105, "1")
    )
    assert rows(tables.llm_calls, "status", "ended_at", "llm_ms") == [("open", None, None)]
    assert {"open_turn", "unpaired_end"} <= set(kinds(tables))


def test_a_turn_without_an_id_has_none(log):
    tables = log(
        started(),
        user(1),
        event("assistant.turn_start", 2),
        message(3),
        event("assistant.turn_end", 4),
    )
    assert rows(tables.llm_calls, "turn_id", "status", "ended_at") == [(None, "ok", clock(4))]


def test_turn_ends_without_an_id_close_the_latest_open_turn(log):
    ends = [event("assistant.turn_end", at) for at in (4, 5)]
    tables = log(started(), user(1), turn_start(2, "0"), turn_start(3, "1"), *ends)
    assert rows(tables.llm_calls, "turn_id", "ended_at") == [("0", clock(5)), ("1", clock(4))]


def test_a_message_before_any_turn_is_a_call(log):
    tables = log(started(), user(1), message(2), turn_end(3), *a_turn(3, "1"))
    assert rows(tables.llm_calls, "evidence", "status") == [("message", "ok"), ("turn", "ok")]


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_usage_of_a_call_whose_turn_start_is_torn(log, torn):
    turns = [a_turn(2 + 2 * n, str(n)) for n in range(3)]
    for n, turn in enumerate(turns):
        turn.insert(1, record(2.9 + 2 * n, inputTokens=100 * (n + 1), duration=900))
    turns[torn][0] = b"{torn\n"
    tables = log(started(), user(1), *turns[0], *turns[1], *turns[2])
    assert rows(tables.llm_calls, "input_tokens", "llm_ms") == [(100, 900), (200, 900), (300, 900)]
    assert one(tables.sessions)["input_tokens"] == tables.bookings["input_tokens"].sum() == 600


def test_a_turn_whose_message_is_lost_was_answered_if_its_tools_ran(log):
    tables = log(
        started(),
        user(1),
        turn_start(2),
        b"{torn\n",
        tool_start(3),
        tool_end(9),
        turn_end(9),
        *a_turn(9, "1"),
    )
    assert rows(tables.llm_calls, "status", "replied_at") == [("ok", None), ("ok", clock(10))]
    assert tables.llm_calls["llm_ms"][0] in {None, 1000}
    assert one(tables.sessions)["failed_llm_calls"] == 0


def test_a_tool_completion_without_its_start_is_a_call_without_latency(log):
    tables = log(started(), user(1), tool_end(3, success=False))
    call = one(tables.tool_calls)
    assert (call["status"], call["tool"], call["started_at"], call["duration_ms"]) == (
        "failed",
        None,
        None,
        None,
    )
    assert (call["ended_at"], "unpaired_end" in kinds(tables)) == (clock(3), True)


def test_a_tool_that_never_completed_is_open_and_has_no_latency(log):
    tables = log(started(), user(1), turn_start(2), message(3), tool_start(3), shutdown(99))
    assert rows(tables.tool_calls, "status", "ended_at", "duration_ms", "run_ms") == [
        ("open", None, None, None)
    ]
    assert one(tables.interactions)["tool_ms"] == 0
    assert "open_tool" in kinds(tables)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"success": False, "error": {"code": "interrupted"}}, "interrupted"),
        ({"success": True}, "ok"),
    ],
)
def test_a_completion_by_a_later_process_has_no_latency(log, said, status):
    tables = log(
        started(),
        user(1),
        turn_start(2),
        message(3),
        tool_start(3),
        resumed(900),
        tool_end(901, **said),
    )
    assert rows(tables.tool_calls, "status", "duration_ms", "run_ms") == [(status, None, None)]
    assert rows(tables.interactions, "ended_at", "tool_ms") == [(clock(3), 0)]


def test_subagents_interleave_with_the_tools_of_the_root(log):
    a, b = a_turn(3, agent="a", outputTokens=10), a_turn(3, agent="b", outputTokens=20)
    tasks = [tool_start(3, call, toolName="task") for call in ("ta", "tb")]
    inside = [
        a[0],
        b[0],
        tool_start(3, "k", "a"),
        tool_start(3.5),
        b[1],
        a[1],
        tool_end(4, "k", "a"),
    ]
    ends = [a[2], tool_end(4.5), b[2], tool_end(6, "tb"), tool_end(7, "ta"), turn_end(7)]
    tables = log(started(), user(1), turn_start(2), *tasks, *inside, *ends)
    assert rows(tables.llm_calls, "agent_id", "output_tokens", "llm_ms", "ended_at")[1:] == [
        ("a", 10, 1000, clock(5)), ("b", 20, 1000, clock(5)),
    ]  # fmt: skip
    assert sorted(rows(tables.tool_calls, "tool_call_id", "agent_id", "duration_ms")) == [
        ("c1", "main", 1000), ("k", "a", 1000), ("ta", "main", 4000), ("tb", "main", 3000),
    ]  # fmt: skip
    assert (
        one(tables.interactions.filter(tables.interactions["agent_id"] == "main"))["tool_ms"]
        == 4000
    )


def test_one_tool_call_id_twice_is_two_calls(log):
    asked = event(
        "permission.requested", 2.5, requestId="r", permissionRequest={"toolCallId": "c1"}
    )
    given = event("permission.completed", 3.0, requestId="r", result={"kind": "approved"})
    tables = log(
        started(),
        user(1),
        turn_start(1),
        tool_start(2),
        asked,
        given,
        tool_end(4),
        tool_start(5),
        tool_end(8),
    )
    assert rows(tables.tool_calls, "duration_ms", "permission_ms", "run_ms") == [
        (2000, 500, 1500),
        (3000, 0, 3000),
    ]
    assert rows(tables.interactions, "tool_ms", "permission_ms") == [(4500, 500)]


def test_an_async_task_returns_at_once_while_its_agent_runs_on(log):
    of = {"agent": "a", "toolCallId": "t", "agentName": "explore"}
    begins, ends = event("subagent.started", 2.01, **of), event("subagent.completed", 63, **of)
    task = [tool_start(2, "t", toolName="task"), begins, tool_end(2.07, "t"), user(2.1, "a")]
    root = [turn_end(2.1), *a_turn(3, "1")]
    lines = [started(), user(1), turn_start(1), message(2), *task, *root]
    tables = log(*lines, *a_turn(60, agent="a"), ends)
    agent = one(tables.subagents)
    assert (agent["started_at"], agent["ended_at"], agent["status"]) == (
        clock(2.01),
        clock(63),
        "ok",
    )
    assert rows(tables.tool_calls, "tool", "duration_ms") == [("task", 70)]
    assert rows(tables.interactions, "kind", "ended_at") == [
        ("user", clock(5)),
        ("subagent", clock(63)),
    ]


def test_calls_of_two_agents_may_have_one_id(log):
    tables = log(
        *(started(), user(1), turn_start(2)),
        tool_start(3, "same", "a"),
        tool_start(3, "same", "b", toolName="view"),
        tool_end(4, "same", "a", success=False, error={"code": "failure"}),
        tool_end(12, "same", "b"),
        turn_end(13),
    )
    assert rows(tables.tool_calls, "agent_id", "tool", "duration_ms", "status") == [
        ("a", "bash", 1000, "failed"),
        ("b", "view", 9000, "ok"),
    ]


def test_a_hook_before_a_tool_holds_up_no_other(log):
    hook = {"hookInvocationId": "h", "hookType": "preToolUse"}
    tables = log(
        *(started(), user(0), turn_start(1), tool_start(2, "c1")),
        event("hook.start", 3, **hook, input={"toolCalls": [{"id": "c2"}]}),
        event("hook.end", 5, **hook, success=True),
        *(tool_start(6, "c2"), tool_end(7, "c2"), tool_end(10, "c1"), turn_end(10)),
    )
    loop = one(tables.interactions)
    assert (loop["tool_ms"], loop["hook_ms"]) == (8000, 0)


@pytest.mark.parametrize("first", ["its own end", "another process"])
def test_interrupted_of_a_call_that_was_completed_is_no_call(log, first):
    cut = tool_end(6, success=False, error={"code": "interrupted"})
    begun = [started(), user(1), turn_start(2), tool_start(3)]
    both = (
        [tool_end(5), resumed(6), cut] if first == "its own end" else [resumed(6), cut, tool_end(7)]
    )
    assert [status for (status,) in rows(log(*begun, *both).tool_calls, "status")] == ["ok"]


def test_a_call_that_two_resumes_call_interrupted_is_one(log):
    cut = {"success": False, "error": {"code": "interrupted"}}
    begun = [started(), user(1), turn_start(2), tool_start(3)]
    tables = log(*begun, resumed(6), tool_end(6, **cut), resumed(8), tool_end(8, **cut))
    assert rows(tables.tool_calls, "status", "duration_ms") == [("interrupted", None)]


# --- totals -----------------------------------------------------------------------------------

_TOTALS = {
    "restarting": [(5, 500), (1, 100), (2, 200)],
    "cumulative": [(5, 500), (6, 600), (8, 800)],
    "restarting, then going on": [(5, 500), (1, 100), (3, 300)],
    "going on over a crash": [(5, 500), None, (8, 800)],
    "stated once, after two crashes": [None, None, (8, 800)],
}


@pytest.mark.parametrize("totals", _TOTALS.values(), ids=_TOTALS)
def test_several_shutdowns(log, totals):
    lines = []
    for process, (calls, stated) in enumerate(zip((5, 1, 2), totals, strict=True)):
        at = process * 100
        lines += [resumed(at) if process else started(), user(at + 1)]
        lines += [text for n in range(calls) for text in a_turn(at + 2 + 2 * n, str(n))]
        lines += [shutdown(at + 50, *stated)] if stated else []
    tables = log(*lines)
    session = one(tables.sessions)
    assert (session["processes"], session["llm_calls"], session["ending"]) == (3, 8, "routine")
    assert (session["input_tokens"], session["usage_source"]) == (800, "shutdown")
    assert (tables.bookings["input_tokens"].sum(), "count_mismatch" in kinds(tables)) == (
        800,
        False,
    )


def test_restarting_totals_with_a_crash_are_those_that_are_known(log):
    runs = [(user(at + 1), *a_turn(at + 2)) for at in (0, 20, 30)]
    crash = [resumed(20), *runs[1], resumed(30)]
    tables = log(started(), *runs[0], shutdown(9, 1, 50), *crash, *runs[2], shutdown(39, 1, 60))
    assert one(tables.sessions)["input_tokens"] == 110
    assert "tokens_unknown" in kinds(tables)


RESUMED = (SAMPLES / "resume-1.0.12" / "events.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("which", [30, 37])
def test_a_process_begins_behind_a_shutdown_though_nothing_says_that_it_was_resumed(log, which):
    session = one(log(*RESUMED[: which - 1], *RESUMED[which:]).sessions)
    assert (session["processes"], session["llm_calls"]) == (3, 8)
    assert (session["input_tokens"], session["output_tokens"]) == (52_504, 171)


def test_what_a_process_writes_behind_its_shutdown_is_its_own(log):
    tables = log(*good_lines(), tool_start(8), shutdown(9, 1, 50), tool_end(10))
    assert one(tables.sessions)["processes"] == 1
    assert one(tables.tool_calls)["duration_ms"] == 2000


@pytest.mark.parametrize(("which", "left"), [(40, 8), (53, 8), (54, 7)])
def test_a_restarting_total_of_more_calls_than_are_left_does_not_go_on(log, which, left):
    """A turn_start leaves a message that says its tokens, a message only its turn."""
    tables = log(*RESUMED[: which - 1], RESUMED[which - 1][:-40] + b"\n", *RESUMED[which:])
    session = one(tables.sessions)
    assert (session["llm_calls"], session["input_tokens"], session["output_tokens"]) == (
        8,
        52_504,
        171,
    )
    said = tables.incidents.filter(kind="count_mismatch")["detail"].to_list()
    assert said == ["the totals state 8 requests, the log has 7 answered calls"][left - 7 :]


def test_lost_lines_are_said_and_their_total_does_not_go_on(log):
    tables = log(*RESUMED[:52], *RESUMED[55:])
    session = one(tables.sessions)
    assert (session["llm_calls"], session["input_tokens"], session["output_tokens"]) == (
        7,
        52_504,
        171,
    )
    gap = one(tables.incidents.filter(kind="lost_lines"))
    assert (gap["seq"], gap["detail"]) == (52, "what stood before session.shutdown is gone")


def test_a_call_whose_reply_was_lost_did_not_fail(log):
    session = one(log(*RESUMED[:53], *RESUMED[54:]).sessions)
    assert (session["llm_calls"], session["failed_llm_calls"]) == (8, 0)


def test_a_line_that_was_rejected_is_not_said_to_be_lost_too(log):
    tables = log(*RESUMED[:10], RESUMED[10][:-9] + b"\n", *RESUMED[11:])
    assert kinds(tables).count("rejected_line") == 1
    assert "lost_lines" not in kinds(tables)


@pytest.mark.parametrize("version", ["1.0.2", "1.0.10", "0.0.400"])
def test_parents_that_old_versions_never_wrote_are_not_lost(log, version):
    tables = log(*(text.replace(b'"1.0.12"', f'"{version}"'.encode()) for text in RESUMED[::2]))
    assert "lost_lines" not in kinds(tables)


@pytest.mark.parametrize("what", ["error", "abort"])
def test_a_failed_call_does_not_make_a_total_restart_that_goes_on(log, what):
    cut = turn_end(115, "9") if what == "error" else event("abort", 115, reason="user_initiated")
    why = [event("session.error", 116, message="x")] if what == "error" else [turn_end(116, "9")]
    first = [started(), user(1), *a_turn(2, outputTokens=1), *a_turn(5, "1", outputTokens=1)]
    second = [resumed(30), user(31), *a_turn(32, outputTokens=1), shutdown(40, 1, 30)]
    third = [resumed(100), *a_turn(102, outputTokens=1), turn_start(114, "9"), cut, *why]
    tables = log(*first, shutdown(20, 2, 50), *second, *third, shutdown(120, 2, 80))
    assert one(tables.sessions)["input_tokens"] == 50 + 80


def test_a_restarting_total_is_told_by_its_output_tokens_where_no_other_fell(log):
    first = [user(1), *a_turn(2, outputTokens=1), shutdown(5, 1, 50)]
    second = [user(11), *a_turn(12, outputTokens=1), turn_start(15, "1"), turn_end(17, "1")]
    tables = log(started(), *first, resumed(10), *second, shutdown(20, 2, 90))
    assert one(tables.sessions)["input_tokens"] == 140


def test_no_shutdown_leaves_what_messages_say(log):
    session = one(log(*good_lines()).sessions)
    assert (session["ending"], session["input_tokens"], session["output_tokens"]) == (
        "none",
        None,
        7,
    )
    assert session["usage_source"] == "message"


def test_an_empty_total_hides_nothing(log):
    session = one(log(*good_lines(), shutdown(9)).sessions)
    assert (session["ending"], session["output_tokens"], session["usage_source"]) == (
        "routine",
        7,
        "message",
    )


def test_a_total_of_fewer_calls_than_there_were_is_about_the_last(log):
    # 1.0.79 to 1.0.92 forget at a rewind, which leaves no trace in the log
    lines = [text for n in range(4) for text in a_turn(2 + 2 * n, str(n))]
    tables = log(started(), user(1), *lines, shutdown(20, 1, 60))
    assert tables.bookings["input_tokens"].sum() == 60
    assert tables.bookings.filter(source="shutdown")["at"].to_list() == [clock(8)]
    assert "tokens_unknown" in kinds(tables)


def test_a_checkpoint_is_about_the_calls_before_it(log):
    stated = changed(shutdown(6, 2, 80), type="session.usage_checkpoint")
    turns = [a_turn(at, model="m", outputTokens=1) for at in (2, 4, 7)]
    tables = log(started(), user(1), *turns[0], *turns[1], stated, *turns[2])
    assert tables.bookings["input_tokens"].to_list() == [40, 40, None]
    assert "tokens_unknown" in kinds(tables)


# --- several logs -----------------------------------------------------------------------------


@pytest.mark.parametrize("shorter", ["a", "b"])
def test_a_session_under_two_roots_counts_once(tmp_path, shorter):
    lines = [*good_lines(), shutdown(9, 1, 50)]
    for root in "ab":
        copy = [*lines[:3], lines[3][:50]] if root == shorter else lines
        store(tmp_path / root / "s1" / "events.jsonl", *copy)
    tables = read(tmp_path / "a", tmp_path / "b")
    session = one(tables.sessions)
    assert (session["events"], session["duplicate_events"], session["rejected_lines"]) == (6, 3, 1)
    assert (session["llm_calls"], session["input_tokens"], session["wall_ms"]) == (1, 50, 9000)
    assert rows(tables.llm_calls, "status", "llm_ms", "turn") == [("ok", 1000, 0)]


@pytest.mark.parametrize("which", range(1, 56))
def test_copies_damaged_in_different_places_complete_each_other(tmp_path, which):
    whole = (SAMPLES / "resume-1.0.12", "llm_calls", "tool_calls", "interactions", "wall_ms")
    right = load(whole[0]).sessions.select(*whole[1:], "ending", "input_tokens", "output_tokens")
    other, name = (which + 20) % 56, json.loads(RESUMED[0])["data"]["sessionId"]
    for root, lost in (("a", which), ("b", other)):
        store(tmp_path / root / name / "events.jsonl", *RESUMED[:lost], *RESUMED[lost + 1 :])
    tables = read(tmp_path / "a", tmp_path / "b")
    assert tables.sessions.select(right.columns).rows() == right.rows()
    assert not {"lost_lines", "out_of_order"} & set(kinds(tables))


@pytest.mark.parametrize("order", [["early", "mid", "late"], ["late", "mid", "early"]])
def test_older_copies_under_any_names_are_the_same_session(tmp_path, order):
    lines = [*good_lines(), shutdown(9, 1, 50)]
    for name, size in (("early", 2), ("mid", 4), ("late", 6)):
        store(tmp_path / name / "events.jsonl", *lines[:size])
    session = one(read(*(tmp_path / name for name in order)).sessions)
    assert (session["session_id"], session["events"], session["input_tokens"]) == ("s1", 6, 50)


@pytest.mark.parametrize("stated", ["s2", "s1"])
def test_a_fork_counts_only_what_it_adds(tmp_path, stated):
    lines = good_lines()
    first = changed(lines[0], data={"sessionId": stated, "startTime": "2026-03-01T10:01:00.000Z"})
    store(tmp_path / "s1" / "events.jsonl", *lines, user(10), *a_turn(11, outputTokens=3))
    store(
        tmp_path / "s2" / "events.jsonl",
        first,
        *lines[1:],
        resumed(60),
        user(61),
        *a_turn(62, outputTokens=5),
    )
    tables = read(tmp_path)
    counts = ("session_id", "llm_calls", "output_tokens", "duplicate_events")
    assert sorted(rows(tables.sessions, *counts)) == [("s1", 2, 10, 0), ("s2", 1, 5, 5)]
    assert rows(tables.interactions, "session_id", "interaction") == [
        ("s1", 0),
        ("s1", 1),
        ("s2", 0),
    ]


@pytest.mark.parametrize("order", [["s2", "s3", "s1"], ["s3", "s2", "s1"], ["s1", "s3", "s2"]])
def test_forks_of_forks_are_told_apart_in_any_order(tmp_path, order):
    lines = good_lines()
    second = [*lines, user(10), *a_turn(11, outputTokens=3)]
    third = [*second, user(20), *a_turn(21, outputTokens=5)]
    for name, own in (("s1", lines), ("s2", second), ("s3", third)):
        store(tmp_path / name / "events.jsonl", *own)
    tables = read(*(tmp_path / name for name in order))
    counts = ("session_id", "llm_calls", "output_tokens", "duplicate_events")
    assert sorted(rows(tables.sessions, *counts)) == [
        ("s1", 1, 7, 0),
        ("s2", 1, 3, 5),
        ("s3", 1, 5, 9),
    ]


def streamed(lines):
    """What `copilot -p … --output-format json` prints of a session: more and less than its log."""
    extra = changed(event("assistant.message_delta", 3.5, deltaContent="o"), ephemeral=True)
    result = {"type": "result", "timestamp": "2026-03-01T10:00:08.000Z", "sessionId": "s1"}
    result |= {"exitCode": 0, "usage": {"premiumRequests": 0.33}}
    return [
        *lines[1:3],
        extra,
        *lines[3:5],
        changed(event("session.idle", 5), ephemeral=True),
        line(result),
    ]


def test_a_saved_stream_alone_is_a_session(tmp_path):
    tables = read(store(tmp_path / "saved.jsonl", *streamed(good_lines())))
    assert_one_good_call(tables)
    session = one(tables.sessions)
    assert (session["session_id"], session["layout"], session["cli_version"]) == (
        "s1",
        "stdout",
        None,
    )
    assert (session["premium_requests"], session["ending"]) == (0.33, "routine")


@pytest.mark.parametrize("name", ["saved.jsonl", "s1.jsonl"])
def test_a_saved_stream_beside_its_log_adds_nothing_twice(tmp_path, name):
    lines = [*good_lines(), shutdown(8, 1, 50, 0.33)]
    root = tmp_path / "root"
    store(root / "s1" / "events.jsonl", *lines)
    tables = read(root, store(tmp_path / name, *streamed(lines)))
    assert_one_good_call(tables)
    session = one(tables.sessions)
    assert (session["events"], session["duplicate_events"], session["layout"]) == (
        9,
        4,
        "directory",
    )
    assert (session["input_tokens"], session["premium_requests"]) == (50, 0.33)


def test_turns_that_only_pass_in_a_stream_are_neither_started_nor_cut_off(tmp_path):
    """CLI 1.0.65 says a sub-agent's turns in the stream, and does not store them."""
    lines = good_lines()
    passing = [
        changed(event(kind, 3.2, "call-1", turnId="9"), ephemeral=True)
        for kind in ("assistant.turn_start", "assistant.turn_end")
    ]
    store(tmp_path / "root" / "s1" / "events.jsonl", *lines)
    stream = streamed(lines)
    alone = store(tmp_path / "saved.jsonl", *stream[:3], *passing, *stream[3:])
    for paths in ([alone], [tmp_path / "root", alone]):
        session = one(read(*paths).sessions)
        assert (session["turns_started"], session["turns_completed"]) == (1, 1)


def test_usage_that_only_the_stream_has_goes_to_its_own_call(tmp_path):
    lines = [started(), user(1), *a_turn(2, apiCallId="x"), *a_turn(4, "1", apiCallId="y")]
    parent = json.loads(lines[2])["id"], json.loads(lines[5])["id"]
    used = [
        changed(
            event("assistant.usage", at, model="m", apiCallId=call, inputTokens=tokens),
            parentId=before,
        )
        for at, call, tokens, before in ((2.9, "x", 100, parent[0]), (4.9, "y", 200, parent[1]))
    ]
    store(tmp_path / "root" / "s1" / "events.jsonl", *lines)
    stream = store(tmp_path / "s1.jsonl", *lines[1:3], used[0], *lines[3:6], used[1], *lines[6:])
    tables = read(tmp_path / "root", stream)
    assert rows(tables.llm_calls, "api_call_id", "input_tokens") == [("x", 100), ("y", 200)]


def test_copies_under_rewind_snapshots_are_no_sessions(tmp_path):
    lines = good_lines()
    store(tmp_path / "s1" / "events.jsonl", *lines)
    for copy in (
        "s1/rewind-snapshots/backups/b1",
        "s2/rewind-snapshots",
        "s3/rewind-snapshots/backups",
    ):
        store(tmp_path / copy / "events.jsonl", *good_lines()[:3])
    assert_one_good_call(read(tmp_path))
    with pytest.raises(InsightsError, match="no session logs"):
        load(tmp_path / "s2")


FIRST = {
    "blank": b"\n",
    "nul": b"\0\0\0\n",
    "bom": b"\xef\xbb\xbf",
    "invalid utf-8": b'{"type":"abort","data":{"reason":"\xff"},"id":"x"}\n',
    "deep": b'{"type":"abort","data":{"a":' + DEEP + b'},"id":"x"}\n',
    "torn": b'{"type":"session.start","da\n',
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_flat_log_whose_first_line_is_damaged(tmp_path, first):
    store(tmp_path / "s1.jsonl", first, *good_lines())
    session = one(read(tmp_path).sessions)
    assert (session["session_id"], session["llm_calls"], session["output_tokens"]) == ("s1", 1, 7)


# --- time -------------------------------------------------------------------------------------


def test_events_out_of_time_order_keep_the_order_of_the_file(log):
    tables = log(
        started(5), user(6), turn_start(7), message(4), tool_start(9), tool_end(8), turn_end(10)
    )
    call, tool = one(tables.llm_calls), one(tables.tool_calls)
    assert (call["status"], call["llm_ms"], tool["status"], tool["duration_ms"]) == (
        "ok",
        None,
        "ok",
        None,
    )
    back = tables.incidents.filter(kind="clock_back")["seq"].to_list()
    assert back == [3]  # a second can be the jitter of events that are written at once
    session = one(tables.sessions)
    assert (session["started_at"], session["ended_at"], session["wall_ms"]) == (
        clock(4),
        clock(10),
        6000,
    )


@pytest.mark.parametrize("days", [1, 12])
def test_a_session_over_days_books_each_call_on_its_own_day(log, days):
    late = 13 * 3600 + 54 * 60  # 23:54
    later = late + (days - 1) * 86400 + 12 * 60  # 00:06
    lines = [started(late)]
    for at, tokens in ((late, 10), (later, 20)):
        begin, *rest = a_turn(at)
        lines += [user(at), begin, record(at + 1, inputTokens=tokens, outputTokens=1), *rest]
    tables = log(*lines)
    booked = rows(tables.bookings, "at", "input_tokens")
    assert [(at.date().isoformat(), tokens) for at, tokens in booked] == [
        ("2026-03-01", 10), (clock(later).date().isoformat(), 20),
    ]  # fmt: skip
    session = one(tables.sessions)
    assert (session["wall_ms"], session["input_tokens"]) == ((later - late + 2) * 1000, 30)
    assert session["user_ms"] == (later - late - 2) * 1000
