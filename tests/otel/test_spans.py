"""Spans made from a log against those that CLI 1.0.102 sent for the same run."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from copilot_insights import load
from copilot_insights.otel.spans import OPEN, resource, spans
from tests.test_damage import event, good_lines, store

from .telemetry import EVERY_LOG, REAL, lines, runs

LATEST = "1.0.102"
# its file holds only the last of the run's three processes
LAST_PROCESS = {"resume"}
WHOLE = [run for run in runs(LATEST) if run not in LAST_PROCESS]
KINDS = {0: "INTERNAL", 2: "CLIENT"}
FAR = 100  # ms

# what is not equal, and why
NOT_IN_THE_LOG = {
    "server.address", "server.port",  # of the model
    "gen_ai.request.stream",
    "github.copilot.context.skills", "github.copilot.context.mcp_server_names",
    "github.copilot.sandbox.enforcement_state",  # an event
    "github.copilot.session.usage_info",  # an event, which the CLI does not store
    "github.copilot.user.message.agent_mode", "github.copilot.user.message.turn_id",
    "github.copilot.hook.tool_names", "github.copilot.hook.decision",
    "github.copilot.pre_tokens", "github.copilot.post_tokens", "github.copilot.tokens_removed",
    "github.copilot.messages_removed",
    "exception.message",  # may hold what was said
}  # fmt: skip
MORE_THAN_THE_CLI = {
    "github.copilot.git.branch", "github.copilot.git.repository",  # the latter is ours
    OPEN,
    "process.exit.code",
}  # fmt: skip
MEASURED_ELSEWHERE = {
    # the log's own number of the usage record; the CLI's telemetry starts its clock elsewhere,
    # and leaves it out for sub-agents
    "gen_ai.response.time_to_first_chunk",
    "github.copilot.hook.duration",  # of the log's two events
}
UNKNOWN_OF_SUBAGENTS = {"github.copilot.agent.type"}  # built in, or the user's own


def ours(version, run):
    return [made.span for made in spans(load(REAL / version / run / "events.jsonl"))]


def ms(time):
    return time[0] * 1000 + time[1] / 1e6


def flat(span, by_id):
    """Of either side: its key (names, kind, status, call id), start, end, attributes, events."""
    if isinstance(span, dict):
        parent = by_id.get(span.get("parentSpanId"))
        key = (span["name"], parent and parent["name"], KINDS[span["kind"]], span["status"]["code"])
        events = Counter(event["name"] for event in span["events"])
        attributes, begin, end = span["attributes"], ms(span["startTime"]), ms(span["endTime"])
    else:
        parent = span.parent and by_id[span.parent.span_id]
        code = 0 if span.status.is_unset else span.status.status_code.value
        key = (span.name, parent and parent.name, span.kind.name, code)
        events = Counter(event.name for event in span.events)
        attributes = json.loads(json.dumps(dict(span.attributes)))
        begin, end = span.start_time / 1e6, span.end_time / 1e6
    return (*key, attributes.get("gen_ai.tool.call.id")), begin, end, attributes, events


def sides(run):
    """Equal spans of both sides, in order of their starts."""
    mine, its = ours(LATEST, run), lines(LATEST, run, "span")
    mine = [flat(span, {s.context.span_id: s for s in mine}) for span in mine]
    its = [flat(span, {s["spanId"]: s for s in its}) for span in its]
    return sorted(mine, key=lambda s: s[1]), sorted(its, key=lambda s: s[1])


@pytest.mark.parametrize("run", WHOLE)
def test_the_tree_is_that_of_the_cli(run):
    mine, its = sides(run)
    assert Counter(span[0] for span in mine) == Counter(span[0] for span in its)


def pairs(run):
    mine, its = defaultdict(list), defaultdict(list)
    for side, found in zip((mine, its), sides(run), strict=True):
        for span in found:
            side[span[0]].append(span)
    for key, found in mine.items():
        yield from zip(found, its[key], strict=True)


@pytest.mark.parametrize("run", WHOLE)
def test_times_are_those_of_the_cli(run):
    for mine, its in pairs(run):
        assert abs(mine[1] - its[1]) < FAR, mine[0]
        assert abs(mine[2] - its[2]) < FAR, mine[0]


def close(a, b):
    if isinstance(a, float) or isinstance(b, float):
        return a == pytest.approx(b, abs=0.002)
    return a == b


@pytest.mark.parametrize("run", WHOLE)
def test_attributes_are_those_of_the_cli(run):
    for (key, _, _, mine, _), (_, _, _, its, _) in pairs(run):
        unknown = UNKNOWN_OF_SUBAGENTS if "gen_ai.agent.name" in its else set()
        missing = set(its) - set(mine) - NOT_IN_THE_LOG - unknown
        more = set(mine) - set(its) - MORE_THAN_THE_CLI - MEASURED_ELSEWHERE
        both = set(mine) & set(its) - MEASURED_ELSEWHERE
        wrong = {name for name in both if not close(mine[name], its[name])}
        assert not missing | more | wrong, (key, missing, more, wrong)


@pytest.mark.parametrize("run", WHOLE)
def test_events_are_those_of_the_cli(run):
    for mine, its in pairs(run):
        known = {name: n for name, n in its[4].items() if name not in NOT_IN_THE_LOG}
        assert mine[4] == known, mine[0]


@pytest.mark.parametrize("run", ["killed", "sigkill"])
def test_a_killed_run_has_spans_of_which_the_cli_sent_none(run):
    mine = {span.name: span for span in ours(LATEST, run)}
    assert set(mine) == {"invoke_agent", "chat mock-model", "execute_tool bash"}
    assert not lines(LATEST, run, "span") if run in runs(LATEST) else True
    assert {name for name, span in mine.items() if span.attributes.get(OPEN)} == {
        "invoke_agent",
        "execute_tool bash",
    }
    tool, root = mine["execute_tool bash"], mine["invoke_agent"]
    assert tool.end_time <= root.end_time, "it ends with the last event of its agent"


def test_a_resumed_session_has_the_spans_of_all_its_processes():
    roots = [span for span in ours(LATEST, "resume") if span.parent is None]
    last = [span for span in lines(LATEST, "resume", "span") if "parentSpanId" not in span]
    assert (len(roots), len(last)) == (3, 1)
    assert abs(roots[-1].start_time / 1e6 - ms(last[0]["startTime"])) < FAR


@pytest.fixture(scope="module")
def everything():
    return load(EVERY_LOG)


def test_every_log_gives_whole_trees(everything):
    by_session = defaultdict(list)
    for made in spans(everything):
        by_session[made.session_id].append(made.span)
    assert len(by_session) > 40
    seen = set()
    for found in by_session.values():
        ids = {span.context.span_id: span for span in found}
        assert len(ids) == len(found)
        assert not seen & set(ids)
        seen |= set(ids)
        for span in found:
            assert span.end_time >= span.start_time
            if span.parent:
                parent = ids[span.parent.span_id]
                assert parent.context.trace_id == span.context.trace_id
        for earlier, later in pairwise(span.events for span in found if span.events):
            assert [e.timestamp for e in earlier] == sorted(e.timestamp for e in earlier)
            assert later


def test_every_call_and_tool_is_a_span(everything):
    names = Counter(made.span.name.split()[0] for made in spans(everything))
    calls = everything.llm_calls.filter(everything.llm_calls["evidence"] != "compaction")
    assert names["chat"] == calls.height
    assert names["execute_tool"] == everything.tool_calls.height


def test_a_span_is_the_same_alone_and_among_others(everything):
    together = {m.span.context.span_id: m.span.to_json() for m in spans(everything)}
    for path in EVERY_LOG[::9]:
        for made in spans(load(path)):
            assert together[made.span.context.span_id] == made.span.to_json()


@pytest.mark.parametrize("run", ["sub2", "hooks", "never", "denied", "compact", "error"])
def test_a_final_span_stays_as_it_is_while_the_log_grows(run, tmp_path):
    """At each line: what was final is so at the end, and never gone."""
    data = (REAL / LATEST / run / "events.jsonl").read_bytes().splitlines(keepends=True)
    place = tmp_path / "events.jsonl"
    place.write_bytes(b"".join(data))
    whole = {m.span.context.span_id: m.span.to_json() for m in spans(load(place))}
    for stop in range(2, len(data), 3):
        place.write_bytes(b"".join(data[:stop]))
        for made in spans(load(place)):
            if made.final:
                assert made.span.to_json() == whole[made.span.context.span_id], (stop, made)


def test_the_resource_is_the_cli_s_unless_the_user_says_otherwise(monkeypatch):
    resource.cache_clear()
    assert dict(resource("1.0.102").attributes) == {
        "service.name": "github-copilot",
        "service.version": "1.0.102",
    }
    resource.cache_clear()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a,service.version=9")
    assert dict(resource("1.0.102").attributes) == {
        "service.name": "mine",
        "service.version": "9",
        "team": "a",
    }
    resource.cache_clear()


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("query 429", {"github.copilot.error_status_code": 429}),
        ("query", {}),
        ("query \u00b2", {}),
        ("query 99999999999999999999", {}),
        ("query " + "9" * 5000, {}),
    ],
)
def test_an_error_has_a_status_code_only_where_it_is_one(kind, status, tmp_path):
    log = store(
        tmp_path / "s" / "events.jsonl", *good_lines(), event("session.error", 5, errorType=kind)
    )
    errors = [e for made in spans(load(log)) for e in made.span.events if "exception" in e.name]
    told = {"exception.type": "SessionTurnError", "github.copilot.error_type": "query"}
    assert [dict(error.attributes) for error in errors] == [told | status]
