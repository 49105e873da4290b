"""What was said, as span attributes in the shape of the conventions; read from the logs again,
and only when it is asked for.

A `chat` span has the messages that are new since the agent's last call: those before stand on
the spans before. https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

import os
from collections import defaultdict
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from copilot_insights.content import dump, stamp, tell

Message = dict[str, Any]


def asked() -> bool:
    """Whether the standard variable asks for content."""
    name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    return os.environ.get(name, "").lower() == "true"


class Said:
    """What was said in one log. Nothing is found in one that can't be read."""

    def __init__(self, log: Path) -> None:
        self._calls: dict[tuple[str, str], tuple[list[Message], Message]] = {}
        self._tools: dict[str, dict[str, str]] = defaultdict(dict)
        self._system: dict[str, str] = {}
        self._new: defaultdict[str, list[Message]] = defaultdict(list)
        with suppress(OSError):
            tell(log, self._hear)

    def _hear(self, kind: str, agent: str, at: str, data: dict[str, Any]) -> None:
        match kind:
            case "system.message":
                self._system[agent] = dump([{"type": "text", "content": data["content"]}])
            case "user.message":
                self._new[agent].append(_message("user", data["content"]))
            case "assistant.message":
                calls = [
                    {"type": "tool_call", "id": call["toolCallId"], "name": call["name"],
                     "arguments": call.get("arguments")}
                    for call in data.get("toolRequests") or ()
                ]  # fmt: skip
                reply = _message("assistant", data.get("content"))
                reply["parts"] += calls
                reply["finish_reason"] = "tool_call" if calls else "stop"
                self._calls[agent, at] = self._new.pop(agent, []), reply
                self._new[agent].append({k: v for k, v in reply.items() if k != "finish_reason"})
            case "tool.execution_start":
                self._tools[data["toolCallId"]]["arguments"] = dump(data.get("arguments"))
            case "tool.execution_complete":
                result = data.get("result") or data.get("error")
                self._tools[data["toolCallId"]]["result"] = dump(result)
                answer = {"type": "tool_call_response", "id": data["toolCallId"],
                          "response": result}  # fmt: skip
                self._new[agent].append({"role": "tool", "parts": [answer]})

    def chat(self, agent_id: str, replied_at: datetime | None) -> dict[str, Any]:
        """Messages in and out of the call that was answered then, and the instructions."""
        found = self._calls.get((agent_id, stamp(replied_at)))
        if found is None:
            return {}
        said = {
            "gen_ai.input.messages": dump(found[0]),
            "gen_ai.output.messages": dump([found[1]]),
        }
        if agent_id in self._system:
            said["gen_ai.system_instructions"] = self._system[agent_id]
        return said

    def tool(self, tool_call_id: str | None) -> dict[str, Any]:
        """Arguments and result of a tool call."""
        found = self._tools.get(tool_call_id or "", {})
        return {f"gen_ai.tool.call.{name}": text for name, text in found.items()}


def _message(role: str, text: str | None) -> Message:
    return {"role": role, "parts": [{"type": "text", "content": text}] if text else []}
