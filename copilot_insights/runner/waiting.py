"""When a prompt is done, told from a session's events alone, as the official SDK does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from copilot_insights.errors import InsightsError

if TYPE_CHECKING:
    import asyncio

    from copilot_insights.runner.log import Event


class Answer:
    """Finds the end of one prompt among a session's events.

    What comes before the prompt's id is known is looked at once it is.
    """

    def __init__(self, done: asyncio.Future[Event | None]) -> None:
        """`done` gets the last message, or the error."""
        self._done = done
        self._message_id: str | None = None
        self._early: list[Event] = []
        self._started = False
        self._attributed = False
        self._last: Event | None = None

    def begin(self, message_id: str) -> None:
        """The prompt's id is known: look at what came before."""
        self._message_id = message_id
        for event in self._early:
            self.take(event)

    def take(self, event: Event) -> None:
        """Look at one event of the session."""
        if self._message_id is None:
            self._early.append(event)
        elif not event.get("agentId") and not self._done.done():
            self._look(event["type"], event["data"], event)

    def _look(self, kind: str, data: dict[str, Any], event: Event) -> None:
        mine = data.get("originatingMessageId") == self._message_id
        blocked = kind == "session.warning" and data.get("warningType") == "policy_blocked"
        if (blocked and mine) or (
            kind == "user.message" and data.get("messageId") == self._message_id
        ):
            self._started = True
        elif kind == "assistant.message":
            # a server of old says of no message whose it is
            self._attributed = self._attributed or "originatingMessageId" in data
            if mine or (self._started and not self._attributed):
                self._last = event
            self._started = self._started or mine
        elif kind == "session.idle" and self._started and data.get("mode") != "autopilot":
            self._end("aborted" if data.get("aborted") else "done")
        elif kind == "session.autopilot_stopped" and data.get("requestId") == self._message_id:
            self._end(data.get("reason", "done"))
        elif kind == "session.error" and (mine or "originatingMessageId" not in data):
            self._done.set_exception(InsightsError(str(data.get("message"))))

    def _end(self, reason: str) -> None:
        if reason == "aborted":
            self._done.set_exception(InsightsError("The session was aborted before it answered"))
        elif reason == "error":
            self._done.set_exception(InsightsError("The autopilot run failed"))
        else:
            self._done.set_result(self._last)
