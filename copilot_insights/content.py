"""What was said in a log: prompts, replies, arguments and results. Read only when asked for."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from copilot_insights.errors import InsightsError
from copilot_insights.schema import MAIN

_DAMAGED = (msgspec.DecodeError, KeyError, TypeError, AttributeError, RecursionError)


def tell(log: Path, hear: Callable[[str, str, str, dict[str, Any]], None]) -> None:
    """Calls `hear` with type, agent, timestamp and data of each event of a log, in file order;
    goes on where an event is damaged. Raises OSError for a log that can't be read.
    """
    for line in log.read_bytes().split(b"\n"):
        with suppress(*_DAMAGED):
            event = msgspec.json.decode(line)
            data = event["data"]
            agent = event.get("agentId") or data.get("parentToolCallId") or MAIN
            hear(event["type"], agent, event["timestamp"], data)


def stamp(at: datetime | None) -> str:
    """A time as the log writes it; "" for none."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z" if at else ""


def dump(value: Any) -> str:  # noqa: ANN401 (whatever JSON can say)
    """JSON; a text as it is."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Content:
    """What was said, by agent and time or by tool call; nothing without a log."""

    def __init__(self, log: Path | None) -> None:
        self._said: dict[tuple[str, ...], str] = {}
        try:
            if log:
                tell(log, self._hear)
        except OSError as error:  # standard input, or a log that was moved meanwhile
            why = error.strerror
            raise InsightsError(
                f"cannot read {log} again for its content: {why}", "Give the path of the log."
            ) from None

    def _hear(self, kind: str, agent: str, at: str, data: dict[str, Any]) -> None:
        match kind:
            case "user.message" | "assistant.message":
                self._said.setdefault((kind, agent, at), str(data["content"]))
            case "tool.execution_start":
                self._said["tool", data["toolCallId"]] = dump(data.get("arguments"))
            case "tool.execution_complete":
                key = ("tool", data["toolCallId"])
                result = data.get("result") or data.get("error")
                text = (
                    result.get("content") or result.get("message")
                    if isinstance(result, dict)
                    else result
                )
                self._said[key] = f"{self._said.get(key, '')} → {text}"

    def user(self, agent: str, at: datetime | None) -> str | None:
        """A prompt: of the agent, at the time."""
        return self._said.get(("user.message", agent, stamp(at)))

    def assistant(self, agent: str, at: datetime | None) -> str | None:
        """A reply: of the agent, at the time."""
        return self._said.get(("assistant.message", agent, stamp(at)))

    def tool(self, call: str | None) -> str | None:
        """Arguments → result of a call."""
        return self._said.get(("tool", call or ""))
