"""An agent: a conversation with its tools, and the way its events reach the session's log.

The root agent has no id; a sub-agent has its own id, model, tools and history, and writes
into the same log.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from copilot_insights.runner.history import History
from copilot_insights.runner.hooks import HookInput, HookOutput, common_input, merge_outputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from copilot_insights.runner.log import Event
    from copilot_insights.runner.model import Model, Reply
    from copilot_insights.runner.session import Session
    from copilot_insights.runner.tools import Tool

CARRIES_PARENT_CALL = frozenset(
    {
        "assistant.turn_start",
        "assistant.turn_end",
        "assistant.message",
        "tool.execution_start",
        "tool.execution_complete",
        "hook.start",
        "hook.end",
    }
)
"""What a sub-agent writes with `parentToolCallId`, the call that started it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop a loop that does not stop by itself.

    `turns` per interaction; `repeats` of the very same calls in a row; `continues` is how
    often autopilot nudges; `bash_timeout` in seconds.
    """

    turns: int = 200
    repeats: int = 20
    continues: int = 5
    bash_timeout: float = 600.0


@dataclass(slots=True)
class Agent:
    """One conversation in a session.

    `message_id` is the id of the user message that all of this goes back to, `turn_id` and
    `interaction_id` are those of the turn that is being taken. `initiator` says who caused the
    next model call: `user` for the first after a user message, else `agent`.
    """

    session: Session
    model: Model
    tools: dict[str, Tool]
    limits: Limits
    id: str | None = None
    kind: str = "main"
    parent_call_id: str | None = None
    streaming: bool = True
    history: History = field(default_factory=History)
    message_id: str = ""
    interaction_id: str = ""
    turn_id: str = ""
    initiator: str = "user"

    def emit(self, kind: str, data: dict[str, Any], *, ephemeral: bool = False) -> Event:
        """Send one event of this agent to subscribers and, unless ephemeral, to the log."""
        if self.parent_call_id and kind in CARRIES_PARENT_CALL:
            data["parentToolCallId"] = self.parent_call_id
        return self.session.emit(kind, data, agent_id=self.id, ephemeral=ephemeral)

    def take_steering(self) -> None:
        """Write the messages that were sent with mode `immediate` meanwhile."""
        if self.id is None:
            self.session.worker.take_steering()

    def offered_tools(self) -> list[Tool]:
        """The tools that the model is told of; `task_complete` only in autopilot."""
        return [
            tool
            for tool in self.tools.values()
            if tool.name != "task_complete" or self.session.mode == "autopilot"
        ]

    def call_label(self) -> dict[str, str]:
        """What names a model call."""
        return {"turnId": self.turn_id, "model": self.model.name}

    def message_data(self, message_id: str, reply: Reply) -> dict[str, Any]:
        """The data of `assistant.message`."""
        requests = []
        for call in reply.tool_calls:
            request = {
                "toolCallId": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "type": "function",
            }
            tool = self.tools.get(call.name)
            if tool and tool.title:
                request["toolTitle"] = tool.title
            requests.append(request)
        return {
            "messageId": message_id,
            "originatingMessageId": self.message_id,
            "model": self.model.name,
            "content": reply.text,
            "toolRequests": requests,
            "interactionId": self.interaction_id,
            "turnId": self.turn_id,
            "apiCallId": reply.id,
        }

    async def run_hooks(self, kind: str, extra: Mapping[str, Any]) -> HookOutput:
        """Run the hooks of a type one after the other, each recorded; their merged output."""
        outputs = []
        for hook in self.session.hooks.of(kind):
            data = {**extra, **self.hook_input()}
            invocation = self.session.new_id()
            self.emit(
                "hook.start", {"hookInvocationId": invocation, "hookType": kind, "input": data}
            )
            end: dict[str, Any] = {"hookInvocationId": invocation, "hookType": kind}
            try:
                output = await hook(data)
                json.dumps(output)  # it goes to the log
            except Exception as error:  # noqa: BLE001  # a user's hook must not end the loop
                message = str(error) or type(error).__name__
                self.emit("hook.end", end | {"success": False, "error": {"message": message}})
                continue
            if output:
                outputs.append(output)
                end["output"] = output
            self.emit("hook.end", end | {"success": True})
        return merge_outputs(kind, outputs)

    def hook_input(self) -> HookInput:
        """What every hook of this agent is told."""
        session = self.session
        data = common_input(self.id or session.id, int(time.time() * 1000), session.cwd)
        if self.id:
            data |= {"agentId": self.id, "agentType": self.kind, "parentAgentId": session.id}
        return data
