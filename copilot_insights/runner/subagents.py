"""The `task` tool: a sub-agent with its own conversation, in the same session and log.

A synchronous one runs inside its call, and its last words are the call's result. One in the
background lets its call complete at once; when it is done, the main agent is woken with a
notification and reads the result, as in the CLI.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from copilot_insights.runner.agent import Agent
from copilot_insights.runner.hooks import MOST_BLOCKS, paragraphs
from copilot_insights.runner.interactions import (
    GO_ON,
    Prompt,
    open_interaction,
    send_back,
    welcome,
)
from copilot_insights.runner.loop import Failed, TaskComplete, interact, unexpected
from copilot_insights.runner.tools import ToolContext, ToolFailed, ToolResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from copilot_insights.runner.model import ToolCall

KINDS = {
    "explore": ("grep", "glob", "view", "bash"),
    "task": ("bash", "view", "create", "edit", "grep", "glob"),
    "general-purpose": ("bash", "view", "create", "edit", "grep", "glob"),
}
"""Kind of sub-agent → the tools that it has. None of them can start another."""


async def task(  # the CLI's arguments
    context: ToolContext,
    *,
    name: Annotated[str, Meta(description="What to call the agent")],
    prompt: Annotated[str, Meta(description="All that it needs to know; it sees nothing else")],
    agent_type: Literal["explore", "task", "general-purpose"],
    description: Annotated[str, Meta(description="What it is for, in a few words")],
    mode: Annotated[
        Literal["sync", "background"],
        Meta(description="background: go on at once, the result is announced later"),
    ] = "sync",
) -> ToolResult:
    """Have another agent do a piece of work and report."""
    return await context.run_task(
        context.call,
        {
            "name": name,
            "prompt": prompt,
            "agent_type": agent_type,
            "description": description,
            "mode": mode,
        },
    )


async def run_task(parent: Agent, call: ToolCall, arguments: Mapping[str, Any]) -> ToolResult:
    """Run a sub-agent, or start it in the background."""
    session = parent.session
    kind = arguments["agent_type"]
    child = Agent(
        session=session,
        model=parent.model,
        tools={name: session.tools[name] for name in KINDS[kind] if name in session.tools},
        limits=parent.limits,
        id=session.new_id(),
        kind=kind,
        parent_call_id=call.id,
        streaming=parent.streaming,
    )
    background = arguments["mode"] == "background"
    session.agents[child.id] = child
    child.emit(
        "subagent.started",
        {
            "toolCallId": call.id,
            "agentName": kind,
            "agentDisplayName": arguments["name"],
            "agentDescription": arguments["description"],
            "model": child.model.name,
            "resumable": False,
            "agentType": kind,
            "executionMode": arguments["mode"],
        },
    )
    if not background:
        return await _work(child, call, arguments)

    origin = parent.message_id

    async def work_and_wake() -> None:
        try:
            result = await _work(child, call, arguments)
        except ToolFailed as error:
            result = ToolResult(str(error), error.code)
        session.worker.wake(child, origin, arguments, result)

    session.worker.start_background(asyncio.create_task(work_and_wake()))
    return ToolResult(
        f"Agent started in background with agent_id: {child.id}. Its result will be announced; "
        "until then go on with something else, or end your reply."
    )


async def _work(child: Agent, call: ToolCall, arguments: Mapping[str, Any]) -> ToolResult:
    """Run a sub-agent to its end; its last words."""
    session = child.session
    started = time.monotonic()
    first = len(session.log.events)
    ended = {
        "toolCallId": call.id,
        "agentName": child.kind,
        "agentDisplayName": arguments["name"],
        "model": child.model.name,
    }
    child.emit("subagent.configured", {"model": child.model.name, "multiTurn": False})
    child.emit(
        "subagent.selected",
        {"agentName": child.kind, "agentDisplayName": child.kind, "tools": list(child.tools)},
    )
    child.emit("session.model_change", {"source": "agent", "newModel": child.model.name})
    about = {"agentName": child.kind, "transcriptPath": str(session.log.path)}
    whole = {**about, "agentId": child.id, "agentType": child.kind}
    kind, outcome = "subagent.failed", dict[str, Any]()
    try:
        context = (await session.root.run_hooks("subagentStart", whole)).get("additionalContext")
        prompt = Prompt(arguments["prompt"], session.new_id(), source=f"agent-{session.id}")
        text = await welcome(child, prompt, None) or prompt.text
        await open_interaction(child, prompt, paragraphs(context, text))
        for blocks in range(MOST_BLOCKS + 1):
            try:
                text = (await interact(child)).text
            except TaskComplete as end:
                text = end.data["summary"]
            stop = {"stopReason": "end_turn", "stop_hook_active": blocks > 0}
            # in the CLI too an agentStop hook cannot send a sub-agent back
            await child.run_hooks("agentStop", {**about, **stop})
            answer = await session.root.run_hooks(
                "subagentStop", {**whole, **stop, "response": text}
            )
            text = answer.get("modifiedResponse") or text
            if answer.get("decision") != "block" or blocks == MOST_BLOCKS:
                break
            send_back(child, answer.get("reason") or GO_ON)
        kind, outcome = "subagent.completed", {}
        return ToolResult(text)
    except Failed as end:
        child.emit(end.kind, end.data)
        kind, outcome = "subagent.failed", {"error": end.message}
        raise ToolFailed(f"The agent failed: {end.message}") from end
    except asyncio.CancelledError:
        kind, outcome = "subagent.completed", {"cancelled": True}
        raise
    except Exception as error:
        message = unexpected(error, child.message_id).message
        kind, outcome = "subagent.failed", {"error": message}
        raise ToolFailed(f"The agent failed: {message}") from error
    finally:
        child.emit(kind, ended | _work_done(child, session.log.events[first:], started) | outcome)


def _work_done(child: Agent, events: list[dict[str, Any]], started: float) -> dict[str, Any]:
    own = [event for event in events if event.get("agentId") == child.id]
    usages = [e["data"]["usage"] for e in own if e["type"] == "session.usage_record"]
    return {
        "totalToolCalls": sum(event["type"] == "tool.execution_start" for event in own),
        "totalTokens": sum(u["inputTokens"] + u["outputTokens"] for u in usages),
        "durationMs": round((time.monotonic() - started) * 1000),
    }


async def task_complete(
    context: ToolContext,  # noqa: ARG001  # every tool has one
    *,
    summary: Annotated[str, Meta(description="What was done")],
) -> ToolResult:
    """Say that the whole task is done."""
    return ToolResult(summary, detail=f"✓ Task completed: {summary}")
