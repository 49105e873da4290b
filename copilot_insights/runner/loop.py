"""The agent loop: read this first.

One user message starts one interaction. The model is asked with the whole history; while its
reply asks for tools, they run side by side, their results join the history, and the model is
asked again. A reply that asks for no tool ends the interaction. One model call is one turn.

    user.message → { turn_start → model → assistant.message → tools → turn_end }* → idle

Whatever else can end it is an exception that carries the event to write: there are no flags.
Around the loop stand `worker` (queue, autopilot, idle) and `session` (log, resume); `calls` is
how a tool call is allowed, run and recorded.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from copilot_insights.errors import InsightsError
from copilot_insights.runner import foreign
from copilot_insights.runner.calls import run_calls
from copilot_insights.runner.model import Delta, ModelError, Reply
from copilot_insights.runner.totals import usage_data

if TYPE_CHECKING:
    from copilot_insights.runner.agent import Agent
    from copilot_insights.runner.tools import ToolResult

logger = logging.getLogger(__name__)


class End(Exception):  # noqa: N818  # an ending, not always an error
    """The loop ends here, and the log says so with this event."""

    def __init__(self, kind: str, data: dict[str, Any]) -> None:
        """Type and data of the event."""
        super().__init__(kind)
        self.kind = kind
        self.data = data


class TaskComplete(End):
    """The model said that the task is done."""

    def __init__(self, summary: str) -> None:
        """`summary` is the model's own."""
        super().__init__("session.task_complete", {"summary": summary, "success": True})


class Failed(End):
    """The model could not be asked, or a limit was reached."""

    def __init__(self, kind: str, message: str, status: int | None, message_id: str) -> None:
        """`kind` is the errorType, `status` an HTTP status, `message_id` the user's message."""
        data: dict[str, Any] = {"errorType": kind, "message": message}
        if status is not None:
            data["statusCode"] = status
        super().__init__("session.error", data | {"originatingMessageId": message_id})
        self.message = message


def unexpected(error: Exception, message_id: str) -> Failed:
    """The ending for an error that nobody foresaw."""
    if isinstance(error, InsightsError):
        return Failed("query", str(error), None, message_id)
    logger.error("The loop failed", exc_info=error)
    return Failed("query", f"{type(error).__name__}: {error}", None, message_id)


async def interact(agent: Agent) -> Reply:
    """Ask the model, run what it asks for, until it asks for nothing; the last reply.

    The user's message is in the history already.

    Raises:
        TaskComplete: the model called `task_complete`; nothing more is asked of it.
        Failed: a model call failed for good, or the model went on for too long.
    """
    repeats = 0
    last_calls: list[object] = []
    for turn in range(agent.limits.turns):
        reply = await take_turn(agent, turn)
        if not reply.tool_calls:
            return reply
        calls: list[object] = [(call.name, call.arguments) for call in reply.tool_calls]
        repeats = repeats + 1 if calls == last_calls else 0
        last_calls = calls
        if repeats >= agent.limits.repeats:
            names = ", ".join(call.name for call in reply.tool_calls)
            raise limit(agent, f"the same call of {names} came {repeats + 1} times in a row")
    raise limit(agent, f"{agent.limits.turns} turns were taken")


async def take_turn(agent: Agent, turn: int) -> Reply:
    """One model call and the tools that it asks for, between turn_start and turn_end."""
    agent.turn_id = str(turn)
    agent.emit(
        "assistant.turn_start",
        {"turnId": agent.turn_id, "interactionId": agent.interaction_id},
    )
    try:
        agent.take_steering()
        reply = await ask(agent)
        results = await run_calls(agent, reply.tool_calls)
        end_if_complete(agent, reply, results)
    except ModelError as error:
        described = {"name": "ModelError", "message": error.message}
        await agent.run_hooks(
            "errorOccurred", {"error": described, "errorContext": "model_call", "recoverable": True}
        )
        raise Failed(error.kind, error.message, error.status, agent.message_id) from error
    finally:
        agent.emit("assistant.turn_end", {"turnId": agent.turn_id})
    return reply


def end_if_complete(agent: Agent, reply: Reply, results: list[ToolResult]) -> None:
    """End the loop if one of the calls was a `task_complete` that went well."""
    for call, result in zip(reply.tool_calls, results, strict=True):
        if call.name == "task_complete" and result.success:
            end = TaskComplete(result.text)
            agent.emit(end.kind, end.data)
            raise end


async def ask(agent: Agent) -> Reply:
    """One model call with the whole history: deltas go by, usage and message are written."""
    message_id = str(uuid.uuid4())
    streamed = False

    def on_delta(delta: Delta) -> None:
        nonlocal streamed
        if not streamed:
            agent.emit("assistant.message_start", {"messageId": message_id}, ephemeral=True)
            streamed = True
        agent.emit(*delta_event(delta, message_id), ephemeral=True)

    started = time.monotonic()
    agent.emit("model.call_start", agent.call_label(), ephemeral=True)
    tools = agent.offered_tools()
    reply: Reply = await foreign.call(
        agent.model.reply,
        agent.history.messages(),
        [tool.definition() for tool in tools],
        on_delta if agent.streaming else lambda _: None,
    )
    milliseconds = round((time.monotonic() - started) * 1000)
    usage = usage_data(agent, reply, milliseconds, len(tools))
    agent.initiator = "agent"
    agent.emit("assistant.usage", usage, ephemeral=True)
    agent.emit("session.usage_record", {"usage": usage})
    agent.emit("assistant.message", agent.message_data(message_id, reply))
    return reply


def delta_event(delta: Delta, message_id: str) -> tuple[str, dict[str, Any]]:
    """Type and data of the ephemeral event for a part of a reply."""
    if not delta.tool_call_id:
        data = {"messageId": message_id, "deltaContent": delta.text}
        return "assistant.message_delta", data
    return "assistant.tool_call_delta", {
        "toolCallId": delta.tool_call_id,
        "toolName": delta.tool_name,
        "toolType": "function",
        "inputDelta": delta.arguments,
    }


def limit(agent: Agent, what: str) -> Failed:
    """The end of a model that would go on for ever."""
    return Failed("limit", f"Stopped: {what}.", None, agent.message_id)
