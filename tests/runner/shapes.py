"""What makes two logs the same: their shape, without ids, times, sizes and texts.

Sub-agents and the tools of one turn run side by side, so what they write interleaves by
chance, in the CLI too. The shape is therefore taken per agent, and within a turn per tool call.
"""

import difflib
import json
import pprint
from collections import Counter
from pathlib import Path
from typing import Any

LEFT_OUT = {
    "session.compaction_start": "the runner sends the whole history and never compacts it",
    "session.compaction_complete": "see session.compaction_start",
}
"""Types of the CLI that the runner does not write, each with its reason."""

OF_A_CALL = ("tool.", "permission.", "external_tool.")
SETUP = ("subagent.started", "subagent.configured", "subagent.selected", "session.model_change")


def read(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n") if line]


def _entry(event):
    data = event["data"]
    entry = {"type": event["type"]}
    for key in (
        "turnId",
        "toolName",
        "success",
        "hookType",
        "delivery",
        "agentMode",
        "isAutopilotContinuation",
        "newMode",
        "mode",
        "errorType",
        "statusCode",
        "shutdownType",
        "reason",
        "agentName",
        "cancelled",
    ):
        if key in data:
            entry[key] = data[key]
    if event["type"] == "assistant.message":
        entry["asks_for"] = [request["name"] for request in data["toolRequests"]]
    if event["type"] == "session.usage_record":
        entry["initiator"] = data["usage"]["initiator"]
        entry["numToolCalls"] = data["usage"]["numToolCalls"]
    if event["type"] == "permission.completed":
        entry["kind"] = data["result"]["kind"]
    if event["type"] == "tool.execution_complete":
        entry["exit_code"] = data.get("shellExecution", {}).get("exitCode")
        entry["error"] = (data.get("error") or {}).get("code")
    return tuple(sorted((k, str(v)) for k, v in entry.items()))


def _call_of(event, requests):
    data = event["data"]
    asked = data.get("permissionRequest") or {}
    call = data.get("toolCallId") or asked.get("toolCallId") or requests.get(data.get("requestId"))
    requests.setdefault(data.get("requestId"), call)
    return call


def _agent_shape(events):  # noqa: C901  # one rule a kind of event
    shape: list[Any] = []
    calls: dict[str, list[Any]] = {}
    hooks: Counter[Any] = Counter()
    setup: list[Any] = []
    requests: dict[str, str] = {}

    def flush():
        if calls:
            shape.append(("calls", sorted(map(tuple, calls.values()))))
        if hooks:
            shape.append(("hooks", sorted(hooks.items())))
        if setup:
            shape.append(("setup", sorted(setup)))
        calls.clear()
        hooks.clear()
        setup.clear()

    in_turn = False
    for event in events:
        kind = event["type"]
        if kind in LEFT_OUT:
            continue
        if kind.startswith(OF_A_CALL):
            own = calls.setdefault(_call_of(event, requests), [])
            # The CLI's sub-agents sometimes write the start after the question that follows it.
            own.insert(0 if kind == "tool.execution_start" else len(own), _entry(event))
            continue
        if kind.startswith("hook.") and in_turn:
            hooks[_entry(event)] += 1
            continue
        if kind in SETUP:
            setup.append(_entry(event))
            continue
        in_turn = kind == "assistant.message" or (in_turn and kind == "session.usage_record")
        if kind not in {"assistant.message", "session.usage_record"}:
            flush()
        # The CLI's sub-agents sometimes ask for a permission before they write the record and
        # the message that made them ask; the question is left for the calls after the message.
        shape.append(_entry(event))
    flush()
    return shape


def shape(events):
    """The main agent's sequence, and those of the sub-agents in no order."""
    agents: dict[str | None, list[Any]] = {}
    for event in events:
        agents.setdefault(event.get("agentId"), []).append(event)
    main = _agent_shape(agents.pop(None, []))
    return main, sorted(_agent_shape(own) for own in agents.values())


def assert_same_shape(ours, theirs):
    """Fails with a readable difference."""
    left, right = (
        pprint.pformat(shape(events), width=160).split("\n") for events in (ours, theirs)
    )
    difference = list(difflib.unified_diff(right, left, "the CLI", "the runner", lineterm=""))
    assert not difference, "\n".join(difference)
