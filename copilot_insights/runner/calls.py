"""The tool calls of one reply: hooks, permission, the run itself, and its record.

    execution_start … → [preToolUse] → [permission] → run → [postToolUse] → execution_complete

The starts of all calls come first, in the order of the reply; then the calls go side by side
and complete in the order in which they finish.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from copilot_insights.runner import foreign
from copilot_insights.runner.hooks import paragraphs
from copilot_insights.runner.permissions import (
    Decision,
    completion,
    describe,
    prompt_data,
    refusal,
    request_data,
)
from copilot_insights.runner.tools import Tool, ToolContext, ToolResult, failure, run_tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from copilot_insights.runner.agent import Agent
    from copilot_insights.runner.model import ToolCall


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the preToolUse hooks said of a call; `denied` is the message if they refused.

    `context` is what they add for the model. In the CLI that is a message of its own, which no
    log shows; here it stands in the result, for the log is all that a resumed session knows.
    """

    arguments: dict[str, Any] | str
    context: str = ""
    denied: str | None = None
    allowed: bool = False


async def run_calls(agent: Agent, calls: Sequence[ToolCall]) -> list[ToolResult]:
    """Run the calls of a reply side by side; each leaves its completion in the log."""
    for call in calls:
        agent.emit("tool.execution_start", _start_data(agent, call))
    verdicts = await _ask_hooks(agent, calls)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_run_call(agent, call, verdict))
            for call, verdict in zip(calls, verdicts, strict=True)
        ]
    return [task.result() for task in tasks]


async def _run_call(agent: Agent, call: ToolCall, verdict: Verdict) -> ToolResult:
    if verdict.denied:
        result = ToolResult(verdict.denied, "denied")
    else:
        result = await _permit_and_run(agent, call, verdict)
        if result.code != "denied":
            result = await _after(agent, call, verdict, result)
    result = _with_context(result, verdict.context)
    agent.emit("tool.execution_complete", _complete_data(agent, call, result))
    return result


async def _permit_and_run(agent: Agent, call: ToolCall, verdict: Verdict) -> ToolResult:
    tool = agent.tools.get(call.name)
    context = agent.session.tool_context(agent, call)
    if tool and isinstance(verdict.arguments, dict):
        try:
            denied = await _permit(agent, tool, context, verdict)
            if tool.external and not denied:
                return await _run_external(agent, call, verdict.arguments)
        except Exception as error:  # noqa: BLE001  # of what it would write, or of a client
            return failure(error)
        if denied:
            return ToolResult(denied, "denied")
    return await run_tool(tool, context, verdict.arguments)


async def _permit(agent: Agent, tool: Tool, context: ToolContext, verdict: Verdict) -> str | None:
    """The message of a refusal, None if the call may run.

    Raises:
        Exception: it would be asked about, but cannot be done.
    """
    policy, cwd = agent.session.policy, agent.session.cwd
    arguments = verdict.arguments if isinstance(verdict.arguments, dict) else {}
    wanted = describe(tool, context, arguments)
    if message := policy.denied_by(tool, wanted):
        return message
    if policy.passes(tool, wanted, cwd, hook_allowed=verdict.allowed):
        return None
    outside = policy.outside(wanted, cwd)
    # A preview outside the directory would tell the model what is in a file it may not read.
    preview = tool.preview(context, arguments) if tool.preview and not outside else None
    request = request_data(tool, wanted, context, arguments, preview)
    prompt = prompt_data(request)
    if outside:
        prompt = {
            "kind": "path",
            "accessKind": "read" if tool.access == "read" else "write",
            "paths": [str(path) for path in outside],
            "toolCallId": context.call.id,
        }
    decision, result = await _ask(agent, context.call, request, prompt)
    if decision and decision.get("kind") == "approve-for-session":
        policy.remember(tool, wanted)
    return refusal(result)


async def _ask(
    agent: Agent, call: ToolCall, request: Mapping[str, Any], prompt: Mapping[str, Any]
) -> tuple[Decision | None, dict[str, Any]]:
    """Record a request, wait for whoever decides, record the outcome."""
    session = agent.session
    request_id = session.new_id()
    data = {
        "requestId": request_id,
        "permissionRequest": request,
        "promptRequest": prompt,
        "agentMode": session.mode,
        "permissionMode": "manual",
        "ownerSessionId": session.id,
    }
    agent.emit("permission.requested", data)
    decision = None
    try:
        if session.policy.ask:
            decision = await foreign.call(session.policy.ask, data)
    except Exception:
        logger.exception("Whoever decides on permissions failed")
    if not isinstance(decision, dict):
        decision = None
    outcome = completion(decision)
    agent.emit("permission.completed", {"requestId": request_id, "toolCallId": call.id, **outcome})
    return decision, outcome["result"]


async def _run_external(agent: Agent, call: ToolCall, arguments: Mapping[str, Any]) -> ToolResult:
    """Have a client run one of its own tools."""
    session = agent.session
    request_id = session.new_id()
    agent.emit(
        "external_tool.requested",
        {
            "requestId": request_id,
            "sessionId": session.id,
            "toolCallId": call.id,
            "toolName": call.name,
            "arguments": arguments,
            "workingDirectory": str(session.cwd),
        },
    )
    given = await session.expect(request_id) or {}
    agent.emit("external_tool.completed", {"requestId": request_id})
    result = given.get("result")
    if given.get("error") is not None or result is None:
        return ToolResult("Tool execution failed", "failure")
    if isinstance(result, str):
        return ToolResult(result)
    failed = result.get("resultType", "success") != "success"
    text = str(result.get("textResultForLlm", ""))
    return ToolResult(text or str(result.get("error", "")), "failure" if failed else None)


async def _ask_hooks(agent: Agent, calls: Sequence[ToolCall]) -> list[Verdict]:
    """Ask the preToolUse hooks about each call; one record for all calls of a reply."""
    verdicts = [Verdict(call.arguments) for call in calls]
    session = agent.session
    for hook in session.hooks.of("preToolUse") if calls else ():
        invocation = {"hookInvocationId": session.new_id(), "hookType": "preToolUse"}
        listed = [
            {"id": c.id, "name": c.name, "args": v.arguments}
            for c, v in zip(calls, verdicts, strict=True)
        ]
        data = {"sessionId": session.id, "cwd": str(session.cwd), "toolCalls": listed}
        agent.emit("hook.start", {**invocation, "input": data})
        error = ""
        for index, call in enumerate(calls):
            if verdicts[index].denied:
                continue
            asked = {"toolName": call.name, "toolArgs": verdicts[index].arguments}
            try:
                output = await hook({**agent.hook_input(), **asked})
                json.dumps(output)
                verdicts[index] = await _judge(agent, call, verdicts[index], output)
            except Exception as failure:  # noqa: BLE001  # a user's hook must not end the loop
                error = str(failure) or type(failure).__name__
        denials = {c.id: v.denied for c, v in zip(calls, verdicts, strict=True) if v.denied}
        end: dict[str, Any] = {**invocation, "success": not error}
        if denials:
            end["output"] = denials
        if error:
            end["error"] = {"message": error}
        agent.emit("hook.end", end)
    return verdicts


async def _judge(
    agent: Agent, call: ToolCall, verdict: Verdict, output: Mapping[str, Any]
) -> Verdict:
    modified = output.get("modifiedArgs")
    verdict = replace(
        verdict,
        arguments=verdict.arguments if modified is None else modified,
        context=paragraphs(verdict.context, output.get("additionalContext")),
    )
    reason = output.get("permissionDecisionReason") or "no reason given"
    decision = output.get("permissionDecision")
    if decision == "allow":
        return replace(verdict, allowed=True)
    if decision == "deny":
        return replace(verdict, denied=f"Denied by preToolUse hook: {reason}")
    if decision != "ask":
        return verdict
    request = {
        "kind": "hook",
        "toolCallId": call.id,
        "toolName": call.name,
        "toolArgs": verdict.arguments,
        "hookMessage": reason,
    }
    _, result = await _ask(agent, call, request, request)
    if refused := refusal(result):
        return replace(verdict, denied=f"Denied by preToolUse hook ({refused}): {reason}")
    return replace(verdict, allowed=True)


async def _after(agent: Agent, call: ToolCall, verdict: Verdict, result: ToolResult) -> ToolResult:
    """Let the postToolUse hooks see, and add to, a result."""
    asked = {"toolName": call.name, "toolArgs": verdict.arguments}
    if not result.success:
        output = await agent.run_hooks("postToolUseFailure", {**asked, "error": result.text})
    else:
        shown = {"resultType": "success", "textResultForLlm": result.text}
        output = await agent.run_hooks("postToolUse", {**asked, "toolResult": shown})
        modified = output.get("modifiedResult")
        if isinstance(modified, dict):
            modified = modified.get("textResultForLlm")
        if isinstance(modified, str):
            result = replace(result, text=modified)
    return _with_context(result, output.get("additionalContext"))


def _with_context(result: ToolResult, context: str | None) -> ToolResult:
    """A result with what a hook adds for the model."""
    return replace(result, text=f"{result.text}\n\n(A hook adds: {context})") if context else result


def _start_data(agent: Agent, call: ToolCall) -> dict[str, Any]:
    data: dict[str, Any] = {
        "toolCallId": call.id,
        "toolName": call.name,
        "arguments": call.arguments,
        "turnId": agent.turn_id,
        "model": agent.model.name,
    }
    tool = agent.tools.get(call.name)
    if tool and tool.title:
        data["toolTitle"] = tool.title
    return data


def _complete_data(agent: Agent, call: ToolCall, result: ToolResult) -> dict[str, Any]:
    data: dict[str, Any] = {
        "toolCallId": call.id,
        "model": agent.model.name,
        "interactionId": agent.interaction_id,
        "turnId": agent.turn_id,
        **result.log,
        "success": result.success,
    }
    if result.success:
        data["result"] = {"content": result.text}
        if result.detail:
            data["result"]["detailedContent"] = result.detail
    else:
        data["error"] = {"message": result.text, "code": result.code}
    if result.telemetry:
        data["toolTelemetry"] = result.telemetry
    return data
