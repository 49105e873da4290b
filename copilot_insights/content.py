"""What was said in a log: prompts, replies, arguments and results. Read only when asked for."""

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from copilot_insights.schema import MAIN


class Content:
    """What was said, by agent and time or by tool call; nothing without a log."""

    def __init__(self, log: Path | None) -> None:
        self._said: dict[tuple[Any, ...], str] = {}
        for line in log.read_bytes().split(b"\n") if log else ():
            try:
                event = msgspec.json.decode(line)
                data = event["data"]
                agent = event.get("agentId") or data.get("parentToolCallId") or MAIN
                at = event["timestamp"]
                match event["type"]:
                    case "user.message" | "assistant.message":
                        self._said.setdefault((event["type"], agent, at), str(data["content"]))
                    case "tool.execution_start":
                        self._said[("tool", data["toolCallId"])] = _json(data.get("arguments"))
                    case "tool.execution_complete":
                        key = ("tool", data["toolCallId"])
                        result = data.get("result") or data.get("error")
                        text = (
                            result.get("content") or result.get("message")
                            if isinstance(result, dict)
                            else result
                        )
                        self._said[key] = f"{self._said.get(key, '')} → {text}"
            except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
                continue  # damaged: the tree shows it without words

    def _at(self, kind: str, agent: str, at: datetime | None) -> str | None:
        stamp = at and f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
        return self._said.get((kind, agent, stamp))

    def user(self, agent: str, at: datetime | None) -> str | None:
        """A prompt: of the agent, at the time."""
        return self._at("user.message", agent, at)

    def assistant(self, agent: str, at: datetime | None) -> str | None:
        """A reply: of the agent, at the time."""
        return self._at("assistant.message", agent, at)

    def tool(self, call: str | None) -> str | None:
        """Arguments → result of a call."""
        return self._said.get(("tool", call))


def _json(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
