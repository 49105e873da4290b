"""The conversation of one agent, folded from its events.

The same fold builds the history of a running session, event by event, and that of a resumed
one, from its log: what the model sees depends on nothing but the events.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from copilot_insights.runner.log import Event
    from copilot_insights.runner.model import Message

INTERRUPTED = "The execution of this tool, or a previous tool was interrupted."


class History:
    """The Chat Completions messages that an agent's events amount to."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._messages: list[Message] = []
        self._unanswered: dict[str, None] = {}
        self.system: str | None = None

    def add(self, event: Event) -> None:
        """Take one event of the agent in; most types say nothing to the model."""
        data = event["data"]
        match event["type"]:
            case "system.message":
                self.system = data.get("content") or ""
            case "user.message" | "system.notification":
                text = data.get("transformedContent") or data.get("content") or ""
                self._say({"role": "user", "content": text})
            case "assistant.message":
                self._add_reply(data.get("content") or "", data.get("toolRequests") or [])
            case "tool.execution_complete" if data.get("toolCallId") in self._unanswered:
                result, error = data.get("result"), data.get("error")
                text = result.get("content") if isinstance(result, dict) else result
                if not data.get("success"):
                    text = error.get("message") if isinstance(error, dict) else error
                self._answer(data["toolCallId"], str(text or ""))

    def messages(self) -> list[Message]:
        """The whole history, each tool call answered, the system prompt first."""
        self._answer_orphans()
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self._messages]

    def _say(self, message: Message) -> None:
        self._answer_orphans()
        self._messages.append(message)

    def _add_reply(self, text: str, requests: list[Event]) -> None:
        message: Message = {"role": "assistant", "content": text}
        calls = [
            {
                "id": request["toolCallId"],
                "type": "function",
                "function": {
                    "name": request["name"],
                    "arguments": _as_text(request.get("arguments")),
                },
            }
            for request in requests
        ]
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        self._say(message)
        self._unanswered = dict.fromkeys(request["toolCallId"] for request in requests)

    def _answer(self, call_id: str, text: str) -> None:
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        del self._unanswered[call_id]

    def _answer_orphans(self) -> None:
        # An aborted call has no result in the log, but providers want one for each call.
        for call_id in list(self._unanswered):
            self._answer(call_id, INTERRUPTED)


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})
