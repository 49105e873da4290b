"""A session: the queue of prompts around the loop, and the log that is its memory.

`send` queues a prompt and returns; one worker takes prompts one after the other, nudges in
autopilot, wakes for agents in the background, and says `session.idle` when nothing is left.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from copilot_insights.errors import InsightsError
from copilot_insights.runner import files, shell, subagents
from copilot_insights.runner.agent import Agent, Limits
from copilot_insights.runner.history import INTERRUPTED
from copilot_insights.runner.hooks import MOST_BLOCKS, Hooks
from copilot_insights.runner.log import Event, EventLog, iso
from copilot_insights.runner.loop import End, Failed, TaskComplete, interact
from copilot_insights.runner.permissions import Policy
from copilot_insights.runner.tools import Tool, ToolContext, ToolResult, make_tool
from copilot_insights.runner.totals import shutdown_data

if TYPE_CHECKING:
    from pathlib import Path

    from copilot_insights.runner.model import Model, ToolCall

Mode: TypeAlias = Literal["interactive", "plan", "autopilot"]
Handler: TypeAlias = Callable[[Event], None]
Delivery: TypeAlias = Literal["idle", "queued", "steering"]

FORMAT_VERSION = "1.0.102"
"""The CLI version whose log format is written."""

PRODUCER = "copilot-insights"
NUDGE = (
    "The task is not marked as complete: task_complete was not called. If there was only a plan "
    "so far, carry it out now. Do not call task_complete while questions are open, an error is "
    "unresolved or steps are left: decide, find another way, do the steps. Call it when the "
    "whole task is done."
)
"""What the synthetic user message of autopilot says, in our words."""

AUTOPILOT_NOTICE = (
    "<mode_changed_notice>\nAutopilot is on: nobody will answer questions. Decide for yourself, "
    "keep going until the task is done, then call task_complete with a summary.\n"
    "</mode_changed_notice>"
)
INSTRUCTIONS = (
    "You are a coding agent. Use the tools to look before you change, and to check what you "
    "changed. Answer in a few words when nothing is left to do.\n"
    "Current working directory: {cwd}"
)

logger = logging.getLogger(__name__)


def builtin_tools() -> dict[str, Tool]:
    """The tools of the CLI that the runner has, by name."""
    grep_names = {
        "ignore_case": "-i",
        "line_numbers": "-n",
        "after": "-A",
        "before": "-B",
        "around": "-C",
    }
    tools = (
        make_tool(shell.bash, "shell", "Running command"),
        make_tool(files.view, "read", "Viewing file", ("path",)),
        make_tool(
            files.create, "write", "Creating file", ("path",), preview=files.preview_create
        ),
        make_tool(files.edit, "write", "Editing file", ("path",), preview=files.preview_edit),
        make_tool(files.glob, "read", "Finding files", ("paths",)),
        make_tool(files.grep, "read", "Searching files", ("paths", "path"), grep_names),
        make_tool(subagents.task, "none"),
        make_tool(subagents.task_complete, "none", "Task complete"),
    )
    return {tool.name: tool for tool in tools}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A message that waits for its turn."""

    text: str
    id: str
    agent_mode: Mode | None = None
    delivery: Delivery = "idle"
    source: str | None = None
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """The end of an agent in the background, which wakes the main agent."""

    child: Agent
    name: str
    description: str
    result: ToolResult


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


def session_directory(home: Path, session_id: str) -> Path:
    """Where a session lives.

    Raises:
        InsightsError: the id is no plain name, and could lead anywhere.
    """
    if not session_id or not all(c.isalnum() or c in "-_." for c in session_id):
        raise InsightsError(f"{session_id!r} is no session id")
    if session_id.startswith("."):
        raise InsightsError(f"{session_id!r} is no session id")
    return home / "session-state" / session_id


class Session:
    """One session. Made by `Session.create` or `Session.resume`, closed by `shutdown`."""

    def __init__(self, settings: Settings, session_id: str) -> None:
        """Open the log; the first event is written by `create` or `resume`."""
        self.settings = settings
        self.id = session_id
        self.cwd = settings.cwd.resolve()
        self.mode: Mode = "interactive"
        self.policy = settings.policy
        self.hooks = settings.hooks
        self.directory = session_directory(settings.home, session_id)
        self.log = EventLog(self.directory / "events.jsonl")
        offered = {**builtin_tools(), **{tool.name: tool for tool in settings.tools}}
        self.tools = {k: v for k, v in offered.items() if k not in settings.hidden_tools}
        self.root = Agent(
            self, settings.model, self.tools, settings.limits, streaming=settings.streaming
        )
        self.agents: dict[str | None, Agent] = {None: self.root}
        self._handlers: list[Handler] = []
        self._queue: deque[Prompt | Notice] = deque()
        self._steering: deque[Prompt] = deque()
        self._expected: dict[str, asyncio.Future[Any]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._aborted = False
        self._told_mode: Mode = "interactive"
        self._session_source: str | None = "new"
        self._last_outcome = "complete"
        self._closed = False
        self._old_events = len(self.log.events)

    @classmethod
    def create(cls, settings: Settings, session_id: str | None = None) -> Session:
        """A new session.

        Raises:
            InsightsError: there is one of that id already.
        """
        session = cls(settings, str(uuid.uuid4()) if session_id is None else session_id)
        if session.log.events:
            session.log.close()
            raise InsightsError(
                f"There is a session {session_id} already", hint="Resume it instead."
            )
        session.emit(
            "session.start",
            {
                "sessionId": session.id,
                "version": 1,
                "producer": PRODUCER,
                "copilotVersion": FORMAT_VERSION,
                "startTime": iso(datetime.now(UTC)),
                "selectedModel": settings.model.name,
                "contextTier": None,
                "context": work_context(session.cwd),
                "alreadyInUse": False,
                "remoteSteerable": False,
            },
        )
        session.set_mode(settings.mode)
        return session

    @classmethod
    def resume(cls, settings: Settings, session_id: str, *, record: bool = True) -> Session:
        """An old session, from its log.

        Calls that a killed process left without a result are answered as interrupted. With
        `record` false no `session.resume` is written.

        Raises:
            InsightsError: there is no such session, or it is in use.
        """
        log = session_directory(settings.home, session_id) / "events.jsonl"
        if not log.exists() or log.stat().st_size == 0:
            raise InsightsError(
                f"Session not found: {session_id}", hint=f"There is none in {settings.home}."
            )
        session = cls(settings, session_id)
        count, size = len(session.log.events), session.log.size
        open_calls = session._replay()
        if record:
            session.emit(
                "session.resume",
                {
                    "resumeTime": iso(datetime.now(UTC)),
                    "eventCount": count,
                    "eventsFileSizeBytes": size,
                    "selectedModel": settings.model.name,
                    "contextTier": None,
                    "sessionLimits": None,
                    "context": work_context(session.cwd),
                    "alreadyInUse": False,
                    "remoteSteerable": False,
                    "sessionWasActive": False,
                },
            )
        for agent_id, call_id in open_calls:
            error = {"message": INTERRUPTED, "code": "interrupted"}
            data = {"toolCallId": call_id, "success": False, "error": error}
            session.emit("tool.execution_complete", data, agent_id=agent_id)
        session._session_source = "resume"
        if settings.mode != "interactive":
            session.set_mode(settings.mode)
        return session

    def _replay(self) -> list[tuple[str | None, str]]:
        """Fold the log into the histories; the calls that nothing answered, with their agent."""
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
                self.mode = data.get("newMode", self.mode)
            elif kind == "session.mode_notice_delivered":
                self._told_mode = data.get("mode", self._told_mode)
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
            except Exception:
                logger.exception("A subscriber failed on %s", kind)
        return event

    def _persist(self, event: Event) -> None:
        try:
            self.log.append(event)
        except OSError as error:
            message = f"The log could not be written: {error.strerror or error}"
            self.emit(
                "session.error", {"errorType": "persistence", "message": message}, ephemeral=True
            )
        if event["type"] == "user.message":
            self._write_workspace(event)

    def on(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event from now on; returns what ends that."""
        self._handlers.append(handler)

        def unsubscribe() -> None:
            if handler in self._handlers:
                self._handlers.remove(handler)

        return unsubscribe

    def fresh_events(self) -> list[Event]:
        """The persisted events of this process."""
        return self.log.events[self._old_events :]

    def get_events(self) -> list[Event]:
        """All persisted events, the session's earlier processes included."""
        return list(self.log.events)

    # Prompts

    def send(
        self,
        prompt: str,
        *,
        mode: Literal["enqueue", "immediate"] = "enqueue",
        agent_mode: Mode | None = None,
    ) -> str:
        """Queue a prompt and return its message id at once.

        Args:
            prompt: the text.
            mode: `enqueue` waits for the interactions before it; `immediate` joins the running
                one before its next model call.
            agent_mode: shown with the message; the session's own mode decides on nudges.
        """
        if self._closed:
            raise InsightsError(f"The session {self.id} is closed")
        busy = self.busy
        message = Prompt(prompt, self.new_id(), agent_mode, "queued" if busy else "idle")
        if mode == "immediate" and busy:
            self._steering.append(message)
        else:
            self._queue.append(message)
        self.emit("pending_messages.modified", {}, ephemeral=True)
        self._start_worker()
        return message.id

    @property
    def busy(self) -> bool:
        """Whether a prompt is being worked on."""
        return self._worker is not None and not self._worker.done()

    async def send_and_wait(self, prompt: str, timeout: float | None = None) -> str:
        """Send a prompt and wait for `session.idle`; the last words of the main agent.

        Args:
            prompt: the text.
            timeout: in seconds; past it the waiting ends, not the work.

        Raises:
            TimeoutError: not idle in time.
            InsightsError: the session ended in an error, or was aborted.
        """
        idle: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        said = ""
        failure: str | None = None

        def watch(event: Event) -> None:
            nonlocal said, failure
            if event.get("agentId"):
                return
            if event["type"] == "assistant.message":
                said = event["data"]["content"] or said
            elif event["type"] == "session.error" and not event.get("ephemeral"):
                failure = event["data"]["message"]
            elif event["type"] == "session.idle" and not idle.done():
                idle.set_result(event)

        stop = self.on(watch)
        try:
            self.send(prompt)
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

    def take_steering(self) -> None:
        """Write the messages sent with mode `immediate`: the next model call sees them."""
        while self._steering:
            prompt = self._steering.popleft()
            self.emit("pending_messages.modified", {}, ephemeral=True)
            self.emit(
                "user.message", self._message_data(self.root, prompt, prompt.text, "steering")
            )

    async def finish(self) -> None:
        """Wait until nothing is left to do."""
        while self.busy and self._worker:
            await asyncio.wait({self._worker})

    def give_up_waiting(self) -> None:
        """Answer what clients were asked with nothing: there is no client left."""
        for future in self._expected.values():
            if not future.done():
                future.set_result(None)

    async def abort(self, reason: str = "user_initiated") -> None:
        """Stop what is running, drop what is queued. The session can be used on."""
        if not self.busy or self._worker is None:
            return
        self._aborted = True
        self.emit("abort", {"reason": reason})
        self._queue.clear()
        self._steering.clear()
        self.emit("pending_messages.modified", {}, ephemeral=True)
        tasks = [*self._background, self._worker]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def shutdown(self, reason: str | None = None) -> None:
        """End the session: stop what runs, write `session.shutdown`, let go of the log."""
        if self._closed:
            return
        self._closed = True
        await self.abort()
        if any(event["type"] == "user.message" for event in self.log.events):
            extra: dict[str, Any] = {"reason": reason or self._last_outcome}
            await self.root.run_hooks("sessionEnd", extra)
        self.emit("session.shutdown", shutdown_data(self.log.events, self.log.size))
        self.log.close()

    # The worker

    def _start_worker(self) -> None:
        self._news.set()
        if not self.busy:
            self._aborted = False
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """Take prompts until none is left and nothing runs in the background, then idle."""
        idle: dict[str, Any] = {}
        try:
            while True:
                while self._queue or self._steering:
                    queue = self._queue or self._steering
                    item = queue.popleft()
                    self.emit("pending_messages.modified", {}, ephemeral=True)
                    if isinstance(item, Notice):
                        await self._drive_notice(item)
                    else:
                        await self._drive(item)
                if not self._background:
                    break
                self.emit("assistant.idle", {}, ephemeral=True)
                self._news.clear()
                if not self._queue:
                    await self._news.wait()
        except asyncio.CancelledError:
            idle = {"aborted": True}
            self._last_outcome = "abort"
        self.emit("assistant.idle", dict(idle), ephemeral=True)
        self.emit("session.idle", {**idle, "mode": self.mode}, ephemeral=True)

    async def _drive(self, prompt: Prompt) -> None:
        """One prompt: its interaction and, in autopilot, the nudges after it."""
        root = self.root
        text = await self._welcome(prompt)
        if text is None:
            return
        outcome = await self._interact_with(prompt, text)
        nudges = 0
        while self.mode == "autopilot":
            if outcome != "answered" or nudges == root.limits.continues or self._queue:
                reason = "cap_reached" if outcome == "answered" else outcome
                data = {"reason": reason, "requestId": prompt.id}
                self.emit("session.autopilot_stopped", data, ephemeral=True)
                return
            nudges += 1
            self.emit("assistant.idle", {}, ephemeral=True)
            nudge = Prompt("", self.new_id(), "autopilot", source="autopilot")
            outcome = await self._interact_with(nudge, NUDGE, originating=prompt.id)

    async def _drive_notice(self, notice: Notice) -> None:
        """Tell the main agent that one in the background is done, and let it go on."""
        child = notice.child
        about = {"agentId": child.id, "agentType": child.kind, "displayName": notice.name}
        self.emit(
            "system.notification",
            {
                "content": f'<system_notification>\nAgent "{notice.name}" ({child.kind}) is done.\n'
                "</system_notification>",
                "kind": {"type": "agent_idle", **about, "description": notice.description},
            },
        )
        # The CLI reads the result on the model's behalf: a message that no model call stands
        # behind, then a call that nobody asked for.
        call_id, arguments = self.new_id(), {"agent_id": child.id, "since_turn": 0}
        request = {"toolCallId": call_id, "name": "read_agent", "arguments": arguments}
        self.emit(
            "assistant.message",
            {"messageId": self.new_id(), "content": "", "toolRequests": [request]},
        )
        start = {"toolCallId": call_id, "toolName": "read_agent", "arguments": arguments}
        self.emit("tool.execution_start", start)
        result = {"content": notice.result.text}
        self.emit(
            "tool.execution_complete", {"toolCallId": call_id, "success": True, "result": result}
        )
        self.root.interaction_id = self.new_id()
        await self._run_loop(0)

    async def _welcome(self, prompt: Prompt) -> str | None:
        """Run the hooks before a prompt; its text for the model, None if one blocks it."""
        root, extra = self.root, ""
        if self._session_source:
            source, self._session_source = self._session_source, None
            started = {"source": source, "initialPrompt": prompt.text}
            output = await root.run_hooks("sessionStart", started)
            extra = str(output.get("additionalContext") or "")
        output = await root.run_hooks("userPromptSubmitted", {"prompt": prompt.text})
        if output.get("decision") == "block":
            reason = str(output.get("reason") or "Blocked by a userPromptSubmitted hook")
            data = {"warningType": "policy_blocked", "message": reason}
            self.emit("session.warning", data | {"originatingMessageId": prompt.id}, ephemeral=True)
            return None
        text = str(output.get("modifiedPrompt") or prompt.text)
        added = [text, str(output.get("additionalContext") or ""), extra]
        return "\n\n".join(part for part in added if part)

    async def _interact_with(
        self, prompt: Prompt, text: str, originating: str | None = None
    ) -> str:
        """Write the user's message and run the loop: answered, task_complete or error."""
        await self.open_interaction(
            self.root,
            prompt.text,
            prompt.id,
            text=text,
            delivery=prompt.delivery,
            source=prompt.source,
            agent_mode=prompt.agent_mode,
        )
        self.root.message_id = originating or prompt.id
        return await self._run_loop(prompt.blocks)

    async def _run_loop(self, blocks: int) -> str:
        """Run the loop and write how it ended, unless it just answered."""
        try:
            await interact(self.root)
        except TaskComplete:
            self._last_outcome = "complete"
            return "task_complete"
        except End as end:
            self.emit(end.kind, end.data)
        except Exception as error:
            logger.exception("The loop failed")
            failure = Failed(
                "query", f"{type(error).__name__}: {error}", None, self.root.message_id
            )
            self.emit(failure.kind, failure.data)
        else:
            self._last_outcome = "complete"
            await self._ask_to_stop(blocks)
            return "answered"
        self._last_outcome = "error"
        return "error"

    async def _ask_to_stop(self, blocks: int) -> None:
        """Let an agentStop hook send the agent back to work, with its reason as the prompt."""
        output = await self.root.run_hooks(
            "agentStop",
            {
                "transcriptPath": str(self.log.path),
                "stopReason": "end_turn",
                "stop_hook_active": blocks > 0,
            },
        )
        if output.get("decision") == "block" and blocks < MOST_BLOCKS:
            reason = str(output.get("reason") or "Go on.")
            again = Prompt(reason, self.new_id(), delivery="queued", blocks=blocks + 1)
            self._queue.appendleft(again)

    async def open_interaction(
        self,
        agent: Agent,
        content: str,
        message_id: str,
        *,
        text: str | None = None,
        delivery: Delivery = "idle",
        source: str | None = None,
        agent_mode: Mode | None = None,
    ) -> None:
        """Write the user message of an interaction, and the system prompt where it is new.

        `text` is what the model reads, `content` what the user wrote.
        """
        agent.interaction_id = self.new_id()
        agent.message_id = message_id
        agent.turn_id, agent.initiator = "0", "user"
        prompt = Prompt(content, message_id, agent_mode, delivery, source)
        text = content if text is None else text
        if agent.id:
            text = str(
                (await agent.run_hooks("userPromptSubmitted", {"prompt": content})).get(
                    "modifiedPrompt"
                )
                or text
            )
        mode = agent_mode or self.mode
        notice = agent.id is None and mode == "autopilot" and self._told_mode != mode
        if notice:
            text = f"{AUTOPILOT_NOTICE}\n\n{text}"
        dated = f"<current_datetime>{iso(datetime.now(UTC))}</current_datetime>\n\n{text}"
        output = await agent.run_hooks(
            "userPromptTransformed", {"prompt": text, "transformedPrompt": dated}
        )
        dated = str(output.get("modifiedTransformedPrompt") or dated)
        agent.emit("user.message", self._message_data(agent, prompt, dated, delivery))
        if notice:
            self._told_mode = mode
            agent.emit("session.mode_notice_delivered", {"mode": mode})
        instructions = self.settings.instructions.replace("{cwd}", str(self.cwd))
        if agent.history.system != instructions:
            agent.emit(
                "system.message",
                {
                    "role": "system",
                    "content": instructions,
                    "interactionId": agent.interaction_id,
                },
            )

    def _message_data(
        self, agent: Agent, prompt: Prompt, text: str, delivery: Delivery
    ) -> dict[str, Any]:
        data: dict[str, Any] = {"content": prompt.text, "transformedContent": text}
        if prompt.source:
            data["source"] = prompt.source
        data["messageId"] = prompt.id
        mode = prompt.agent_mode or self.mode
        if agent.id is None and mode != "interactive":
            data["agentMode"] = mode
        if prompt.source == "autopilot":
            data["isAutopilotContinuation"] = True
        return data | {
            "delivery": delivery,
            "interactionId": agent.interaction_id,
            "turnId": agent.turn_id,
        }

    # What agents and clients need

    def tool_context(self, agent: Agent, call: ToolCall) -> ToolContext:
        """The surroundings of one tool call."""

        async def run_task(call: ToolCall, arguments: Any) -> ToolResult:
            return await subagents.run_task(agent, call, arguments)

        return ToolContext(
            self.cwd, call, self.directory / "files", run_task, agent.limits.bash_timeout
        )

    def start_background(self, task: asyncio.Task[None]) -> None:
        """Keep an agent in the background; the session is not idle before it is done."""
        self._background.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            self._background.discard(finished)
            self._news.set()

        task.add_done_callback(done)

    def wake(self, child: Agent, arguments: Any, result: ToolResult) -> None:
        """Queue the news that an agent in the background is done."""
        self._queue.append(Notice(child, arguments["name"], arguments["description"], result))

    async def expect(self, request_id: str) -> Any:  # a client's JSON
        """Wait for a client's answer to a request that was sent as an event."""
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

    def _write_workspace(self, first: Event) -> None:
        """Write `workspace.yaml`, what the CLI lists a session by. JSON is YAML."""
        path = self.directory / "workspace.yaml"
        if path.exists():
            return
        context = work_context(self.cwd)
        start = self.log.events[0]["data"]
        lines = {
            "id": self.id,
            "cwd": context["cwd"],
            **({"git_root": context["gitRoot"]} if "gitRoot" in context else {}),
            **({"branch": context["branch"]} if "branch" in context else {}),
            "client_name": self.settings.client_name,
            "name": self.settings.name or first["data"]["content"][:80],
            "user_named": self.settings.name is not None,
            "created_at": start.get("startTime"),
            "updated_at": first["timestamp"],
        }
        text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
        try:
            path.write_text(text, encoding="utf-8")
        except OSError:
            logger.warning("%s could not be written", path)


def work_context(cwd: Path) -> dict[str, str]:
    """`{cwd, gitRoot?, branch?}` of a directory, without running git."""
    context = {"cwd": str(cwd)}
    for place in (cwd, *cwd.parents):
        head = place / ".git" / "HEAD"
        if head.is_file():
            context["gitRoot"] = str(place)
            reference = head.read_text(encoding="utf-8", errors="replace").strip()
            if reference.startswith("ref: refs/heads/"):
                context["branch"] = reference.removeprefix("ref: refs/heads/")
            break
    return context
