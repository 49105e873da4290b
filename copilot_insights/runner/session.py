"""A session: a log, the agents that write into it, and what they share.

`send` queues a prompt and returns at once; `worker` does the work; the log is the memory: a
session that is resumed is its log read again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from copilot_insights.errors import InsightsError
from copilot_insights.runner import subagents
from copilot_insights.runner.agent import Agent, Limits
from copilot_insights.runner.history import INTERRUPTED
from copilot_insights.runner.hooks import Hooks
from copilot_insights.runner.interactions import INSTRUCTIONS, Prompt
from copilot_insights.runner.log import Event, EventLog, Mode, iso
from copilot_insights.runner.permissions import Policy
from copilot_insights.runner.toolbox import builtin_tools
from copilot_insights.runner.tools import Tool, ToolContext, ToolResult
from copilot_insights.runner.totals import shutdown_data
from copilot_insights.runner.worker import Worker
from copilot_insights.runner.workspace import session_directory, work_context, write_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from copilot_insights.runner.model import Model, ToolCall

    Handler: TypeAlias = Callable[[Event], None]

FORMAT_VERSION = "1.0.102"
"""The CLI version whose log format is written."""

PRODUCER = "copilot-insights"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Settings:
    """What a session is opened with. `home` holds `session-state/ID/events.jsonl`."""

    home: Path
    cwd: Path
    model: Model
    mode: Mode = "interactive"
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)
    hooks: Hooks = field(default_factory=Hooks)
    tools: Sequence[Tool] = ()
    hidden_tools: frozenset[str] = frozenset()
    instructions: str = INSTRUCTIONS
    streaming: bool = True
    client_name: str = PRODUCER
    name: str | None = None


class Session:
    """One session. Made by `Session.create` or `Session.resume`, ended by `shutdown`."""

    def __init__(self, settings: Settings, session_id: str) -> None:
        """Open the log; the first event is written by `create` or `resume`."""
        self.settings = settings
        self.id = session_id
        self.cwd = settings.cwd.resolve()
        self.mode: Mode = "interactive"
        self.told_mode: Mode = "interactive"
        self.hooks = settings.hooks
        self.directory = session_directory(settings.home, session_id)
        # A session's own: it may read what was spilled, and remembers approvals.
        self.policy = replace(
            settings.policy,
            allow=list(settings.policy.allow),
            directories=(*settings.policy.directories, (self.directory / "files").resolve()),
        )
        offered = {**builtin_tools(), **{tool.name: tool for tool in settings.tools}}
        self.tools = {k: v for k, v in offered.items() if k not in settings.hidden_tools}
        self.root = Agent(
            self, settings.model, self.tools, settings.limits, streaming=settings.streaming
        )
        self.agents: dict[str | None, Agent] = {None: self.root}
        self.worker = Worker(self)
        self.log = EventLog(self.directory / "events.jsonl")  # holds a lock: nothing fails after it
        self._old_events = len(self.log.events)
        self._handlers: list[Handler] = []
        self._expected: dict[str, asyncio.Future[Any]] = {}
        self._closed = False
        self.attended = True
        self.unwritten = False

    @classmethod
    def create(cls, settings: Settings, session_id: str | None = None) -> Self:
        """A new session.

        Raises:
            InsightsError: there is one of that id already.
        """
        session = cls(settings, str(uuid.uuid4()) if session_id is None else session_id)
        with session.log.freed_on_error():
            session._begin()
        return session

    def _begin(self) -> None:
        if self.log.events:
            raise InsightsError(f"There is a session {self.id} already", hint="Resume it instead.")
        self.emit(
            "session.start",
            {
                "sessionId": self.id,
                "version": 1,
                "producer": PRODUCER,
                "copilotVersion": FORMAT_VERSION,
                "startTime": iso(datetime.now(UTC)),
                "selectedModel": self.settings.model.name,
                "contextTier": None,
                "context": work_context(self.cwd),
                "alreadyInUse": False,
                "remoteSteerable": False,
            },
        )
        self.set_mode(self.settings.mode)

    @classmethod
    def resume(cls, settings: Settings, session_id: str, *, record: bool = True) -> Self:
        """An old session, from its log.

        Calls that a killed process left without a result are answered as interrupted. With
        `record` false no `session.resume` is written.

        Raises:
            InsightsError: there is no such session, or it is in use.
        """
        log = session_directory(settings.home, session_id) / "events.jsonl"
        if not log.exists() or log.stat().st_size == 0:
            raise InsightsError(
                f"Session not found: {session_id}",
                hint="`session-state` of the home directory holds those that there are.",
            )
        session = cls(settings, session_id)
        with session.log.freed_on_error():
            session._go_on(record=record)
        return session

    def _go_on(self, *, record: bool) -> None:
        count, size = len(self.log.events), self.log.size
        open_calls = self._replay()
        if record:
            self.emit(
                "session.resume",
                {
                    "resumeTime": iso(datetime.now(UTC)),
                    "eventCount": count,
                    "eventsFileSizeBytes": size,
                    "selectedModel": self.settings.model.name,
                    "contextTier": None,
                    "sessionLimits": None,
                    "context": work_context(self.cwd),
                    "alreadyInUse": False,
                    "remoteSteerable": False,
                    "sessionWasActive": False,
                },
            )
        for agent_id, call_id in open_calls:
            error = {"message": INTERRUPTED, "code": "interrupted"}
            data = {"toolCallId": call_id, "success": False, "error": error}
            self.emit("tool.execution_complete", data, agent_id=agent_id)
        self.worker.session_source = "resume"
        if self.settings.mode != "interactive":
            self.set_mode(self.settings.mode)

    def _replay(self) -> list[tuple[str | None, str]]:
        """Fold the log into the history; the calls that nothing answered, with their agent."""
        started: dict[str, str | None] = {}
        for event in self.log.events:
            kind, data, agent_id = event["type"], event["data"], event.get("agentId")
            if agent_id is None:
                self.root.history.add(event)
            if kind == "tool.execution_start":
                started[data["toolCallId"]] = agent_id
            elif kind == "tool.execution_complete":
                started.pop(data["toolCallId"], None)
            elif kind == "abort":
                started.clear()  # their results were dropped on purpose
            elif kind == "session.mode_changed":
                self.mode = data.get("newMode") or self.mode
            elif kind == "session.mode_notice_delivered":
                self.told_mode = data.get("mode") or self.told_mode
        return [(agent_id, call_id) for call_id, agent_id in started.items()]

    # Events

    def new_id(self) -> str:
        """An id for anything."""
        return str(uuid.uuid4())

    def emit(
        self,
        kind: str,
        data: dict[str, Any],
        *,
        agent_id: str | None = None,
        ephemeral: bool = False,
    ) -> Event:
        """Make an event, keep and write it unless it is ephemeral, tell every subscriber."""
        event = self.log.make(kind, data, agent_id, ephemeral=ephemeral)
        if not ephemeral:
            self._persist(event)
            if agent := self.agents.get(agent_id):
                agent.history.add(event)
        for handler in list(self._handlers):
            try:
                handler(event)
            except KeyboardInterrupt:
                raise
            except BaseException:
                logger.exception("A subscriber failed on %s", kind)
        return event

    def _persist(self, event: Event) -> None:
        told = self.unwritten
        try:
            self.log.append(event)
            self.unwritten = False
        except OSError as error:
            self.unwritten = True
            message = f"The log could not be written: {error.strerror or error}"
            data = {"errorType": "persistence", "message": message}
            if not told:  # once, not with every event until there is room again
                self.emit("session.error", data, ephemeral=True)
        if event["type"] == "user.message":
            write_workspace(self.directory, self.log.events[0], event, self.settings)

    def on(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event from now on; returns what ends that."""
        self._handlers.append(handler)

        def unsubscribe() -> None:
            if handler in self._handlers:
                self._handlers.remove(handler)

        return unsubscribe

    def get_events(self) -> list[Event]:
        """All persisted events, the session's earlier processes included."""
        return list(self.log.events)

    def fresh_events(self) -> list[Event]:
        """The persisted events of this process."""
        return self.log.events[self._old_events :]

    # Prompts

    def send(
        self,
        prompt: str,
        *,
        immediate: bool = False,
        agent_mode: Mode | None = None,
    ) -> str:
        """Queue a prompt and return its message id at once.

        Args:
            prompt: the text.
            immediate: join the interaction that is running, before its next model call, rather
                than wait for it to end.
            agent_mode: shown with the message; the session's own mode decides on nudges.
        """
        if self._closed:
            raise InsightsError(f"The session {self.id} is closed")
        message = Prompt(prompt, self.new_id(), agent_mode)
        self.worker.put(message, immediate=immediate)
        return message.id

    async def send_and_wait(
        self,
        prompt: str,
        timeout: float | None = None,  # noqa: ASYNC109  # the SDK's name for it
    ) -> str:
        """Send a prompt and wait for `session.idle`; the main agent's last words to it.

        Args:
            prompt: the text.
            timeout: in seconds; past it the waiting ends, not the work.

        Raises:
            TimeoutError: not idle in time.
            InsightsError: this prompt ended in an error, or was aborted.
        """
        idle: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        said = ""
        failure: str | None = None

        def watch(event: Event) -> None:
            nonlocal said, failure
            if event.get("agentId"):
                return
            mine = event["data"].get("originatingMessageId") == message_id
            if mine and event["type"] == "assistant.message":
                said = event["data"]["content"] or said
            elif mine and event["type"] == "session.error":
                failure = event["data"]["message"]
            elif event["type"] == "session.idle" and not idle.done():
                idle.set_result(event)

        message_id = self.send(prompt)  # its events come when this waits, and not before
        stop = self.on(watch)
        try:
            event = await asyncio.wait_for(idle, timeout)
        finally:
            stop()
        if event["data"].get("aborted"):
            raise InsightsError("The session was aborted before it answered")
        if failure is not None:
            raise InsightsError(failure)
        return said

    def set_mode(self, mode: Mode) -> None:
        """Change the mode; recorded if it is another one."""
        if mode != self.mode:
            previous, self.mode = self.mode, mode
            self.emit("session.mode_changed", {"previousMode": previous, "newMode": mode})

    async def abort(self, reason: str = "user_initiated") -> None:
        """Stop what is running, drop what is queued. The session can be used on."""
        await self.worker.abort(reason)

    async def shutdown(self, reason: str | None = None) -> None:
        """End the session: stop what runs, write `session.shutdown`, let go of the log.

        `reason` is told to the sessionEnd hooks; by default how the last prompt ended.
        """
        if self._closed:
            return
        self._closed = True
        await self.abort()
        if any(event["type"] == "user.message" for event in self.fresh_events()):
            await self.root.run_hooks("sessionEnd", {"reason": reason or self.worker.last_end})
        self.emit("session.shutdown", shutdown_data(self.log.events, self.log.size))
        self.log.close()
        await self.root.model.close()

    # What agents and clients need

    def tool_context(self, agent: Agent, call: ToolCall) -> ToolContext:
        """The surroundings of one tool call."""

        async def run_task(call: ToolCall, arguments: Mapping[str, Any]) -> ToolResult:
            return await subagents.run_task(agent, call, arguments)

        return ToolContext(
            self.cwd, call, self.directory / "files", run_task, agent.limits.bash_timeout
        )

    async def expect(self, request_id: str) -> Any:  # noqa: ANN401  # a client's JSON
        """Wait for a client's answer to a request that was sent as an event.

        None if there is no client (any more).
        """
        if not self.attended:
            return None
        future = asyncio.get_running_loop().create_future()
        self._expected[request_id] = future
        try:
            return await future
        finally:
            del self._expected[request_id]

    def answer(self, request_id: str, value: object) -> bool:
        """Hand in a client's answer; false if nobody waits for it (any more)."""
        future = self._expected.get(request_id)
        if future is None or future.done():
            return False
        future.set_result(value)
        return True

    def give_up_waiting(self) -> None:
        """There is no client left: answer what was and will be asked with nothing."""
        self.attended = False
        for future in self._expected.values():
            if not future.done():
                future.set_result(None)
