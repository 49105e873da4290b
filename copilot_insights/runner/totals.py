"""Usage: what one call used, and what a session used in all when it ends.

The totals are summed from the `session.usage_record` lines of the whole log, so they are
cumulative after a resume, as in the CLI since 1.0.85.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from copilot_insights.runner.agent import Agent
    from copilot_insights.runner.log import Event
    from copilot_insights.runner.model import Reply

TOKENS = (
    "inputTokens",
    "outputTokens",
    "cacheReadTokens",
    "cacheWriteTokens",
    "reasoningTokens",
)


def usage_data(agent: Agent, reply: Reply, milliseconds: int, tools: int) -> dict[str, Any]:
    """The `usage` of one call.

    `duration` is in ms. Cost and credits are not known here: `aiCreditsStatus` says so,
    as the CLI does with a provider of one's own.
    """
    usage: dict[str, Any] = {
        "model": agent.model.name,
        "modelDisplayName": agent.model.name,
        "inputTokens": reply.usage.input_tokens,
        "outputTokens": reply.usage.output_tokens,
        "cacheReadTokens": reply.usage.cache_read_tokens,
        "cacheWriteTokens": 0,
        "reasoningTokens": reply.usage.reasoning_tokens,
        "cost": 0.0,
        "duration": milliseconds,
        "initiator": "sub-agent" if agent.id else agent.initiator,
        "interactionType": "conversation-subagent" if agent.id else "conversation-agent",
        "isByok": True,
        "apiCallId": reply.id,
        "apiEndpoint": "/chat/completions",
        "aiCreditsStatus": "unavailable",
        "availableToolCount": tools,
        "numToolCalls": len(reply.tool_calls),
        "toolCounts": dict(Counter(call.name for call in reply.tool_calls)),
        "finishReason": reply.finish_reason,
        "contentFilterTriggered": reply.finish_reason == "content_filter",
    }
    if reply.first_token_ms is not None:
        usage["timeToFirstTokenMs"] = reply.first_token_ms
    if agent.parent_call_id:
        usage["parentToolCallId"] = agent.parent_call_id
    return usage


def shutdown_data(events: list[Event], size: int) -> dict[str, Any]:
    """The data of `session.shutdown`, from the events before it; `size` is the log's, in bytes."""
    usages = [
        (event.get("agentId"), event["data"]["usage"])
        for event in events
        if event["type"] == "session.usage_record"
    ]
    names = {
        event["agentId"]: event["data"]
        for event in events
        if event["type"] == "subagent.started" and event.get("agentId")
    }
    agents: dict[str, Any] = {}
    for agent_id in dict.fromkeys(agent_id for agent_id, _ in usages):
        own = [usage for other, usage in usages if other == agent_id]
        started = names.get(agent_id, {})
        agents[agent_id or "main"] = {
            **{k: started[k] for k in ("agentName", "agentDisplayName") if k in started},
            "totalApiDurationMs": _duration(own),
            "totalNanoAiu": 0,
            "modelMetrics": _by_model(own),
        }
    everything = [usage for _, usage in usages]
    data: dict[str, Any] = {
        "shutdownType": "routine",
        "totalPremiumRequests": 0,
        "totalNanoAiu": 0,
        "totalApiDurationMs": _duration(everything),
        "sessionStartTime": _epoch_ms(events[0]),
        "eventsFileSizeBytes": size,
        "codeChanges": _code_changes(events),
        "modelMetrics": _by_model(everything),
    }
    if agents:
        main = [usage for agent_id, usage in usages if agent_id is None]
        data["agentMetrics"] = agents
        data["currentModel"] = (main or everything)[-1]["model"]
    return data


def _duration(usages: Iterable[dict[str, Any]]) -> int:
    return sum(int(usage.get("duration") or 0) for usage in usages)


def _by_model(usages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for usage in usages:
        entry = metrics.setdefault(
            usage.get("model", "unknown"),
            {
                "requests": {"count": 0, "cost": 0},
                "usage": dict.fromkeys(TOKENS, 0),
                "totalNanoAiu": 0,
            },
        )
        entry["requests"]["count"] += 1
        for name in TOKENS:
            entry["usage"][name] += usage.get(name) or 0
    return metrics


def _code_changes(events: Iterable[Event]) -> dict[str, Any]:
    added = removed = 0
    files: dict[str, None] = {}
    for event in events:
        edits = event["data"].get("fileEdits")
        if event["type"] != "tool.execution_complete" or not edits:
            continue
        metrics = (event["data"].get("toolTelemetry") or {}).get("metrics") or {}
        added += int(metrics.get("linesAdded") or 0)
        removed += int(metrics.get("linesRemoved") or 0)
        files |= {edit["path"]: None for edit in edits if "path" in edit}
    return {"linesAdded": added, "linesRemoved": removed, "filesModified": list(files)}


def _epoch_ms(start: Event) -> int:
    return round(datetime.fromisoformat(start["data"]["startTime"]).timestamp() * 1000)
