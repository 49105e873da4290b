"""The worker of a session: takes prompts one after the other until nothing is left.

After each prompt it nudges in autopilot; when only agents in the background are left it waits
for them and tells the main agent; at the end it says `session.idle`, also after an error or an
abort.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from copilot_insights.runner.hooks import MOST_BLOCKS
from copilot_insights.runner.interactions import (
    GO_ON,
    NUDGE,
    Prompt,
    message_data,
    open_interaction,
    welcome,
)
from copilot_insights.runner.loop import End, TaskComplete, interact, unexpected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from copilot_insights.runner.agent import Agent
    from copilot_insights.runner.session import Session
    from copilot_insights.runner.tools import ToolResult

Outcome: TypeAlias = Literal["answered", "task_complete", "error"]


@dataclass(frozen=True, slots=True)
class Notice:
    """The end of an agent in the background, which wakes the main agent."""

    child: Agent
    origin: str
    name: str
    description: str
    result: ToolResult


class Worker:
    """Works through the prompts of one session, in a task that lives while there is work."""

    def __init__(self, session: Session) -> None:
        """Nothing is done before `put`."""
        self.session = session
        self.root = session.root
        self.last_end: Literal["complete", "error", "abort"] = "complete"
        self.session_source: str | None = "new"
        self._queue: deque[Prompt | Notice] = deque()
        self._steering: deque[Prompt] = deque()
        self._background: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether there is work."""
        return self._task is not None

    def put(self, prompt: Prompt, *, immediate: bool) -> None:
        """Queue a prompt; an immediate one joins the interaction that is running."""
        if immediate and self.busy:
            self._steering.append(replace(prompt, delivery="steering"))
        else:
            self._queue.append(replace(prompt, delivery="queued") if self.busy else prompt)
        self._pending_changed()
        self._news.set()
        if not self.busy:
            self._begin()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._work())
        self._task.add_done_callback(self._end)

    def take_steering(self) -> None:
        """Write the immediate prompts: the next model call sees them."""
        while self._steering:
            prompt = self._steering.popleft()
            self._pending_changed()
            self.root.emit("user.message", message_data(self.root, prompt, prompt.text))

    def start_background(self, task: asyncio.Task[None]) -> None:
        """Keep an agent in the background; the session is not idle before it is done."""
        self._background.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            self._background.discard(finished)
            self._news.set()

        task.add_done_callback(done)

    def wake(
        self, child: Agent, origin: str, arguments: Mapping[str, Any], result: ToolResult
    ) -> None:
        """Queue the news that an agent in the background is done; `origin` is whose it was."""
        name, description = arguments["name"], arguments["description"]
        self._queue.append(Notice(child, origin, name, description, result))

    async def finish(self) -> None:
        """Wait until there is no work left."""
        while self._task:
            await asyncio.wait({self._task})

    async def abort(self, reason: str) -> None:
        """Stop what is running and drop what is queued; returns when all has stopped."""
        task = self._task
        if task is None:
            return
        self._queue.clear()
        self._steering.clear()
        self.session.emit("abort", {"reason": reason})  # what comes from now on is kept
        self._pending_changed()
        task.cancel()
        await asyncio.wait({task})

    def _pending_changed(self) -> None:
        self.session.emit("pending_messages.modified", {}, ephemeral=True)

    async def _work(self) -> None:
        try:
            while True:
                while self._waiting:
                    item = (self._queue or self._steering).popleft()
                    self._pending_changed()
                    try:
                        await (
                            self._report(item) if isinstance(item, Notice) else self._serve(item)
                        )
                    except Exception as error:  # noqa: BLE001  # whoever waits is told
                        self._end_with(unexpected(error, self.root.message_id))
                if not self._background:
                    break
                self.session.emit("assistant.idle", {}, ephemeral=True)
                self._news.clear()
                await self._news.wait()
        finally:
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Say that the work is over, whatever ended it, and begin anew if more has come.

        A callback: a task that is cancelled at once never runs, and could say nothing itself.
        """
        aborted = {"aborted": True} if task.cancelled() else {}
        if aborted:
            self.last_end = "abort"
        elif isinstance(error := task.exception(), Exception):
            self._end_with(unexpected(error, self.root.message_id))
        self.session.emit("assistant.idle", dict(aborted), ephemeral=True)
        self._task = None
        if aborted or not self._waiting:
            idle = {**aborted, "mode": self.session.mode}
            self.session.emit("session.idle", idle, ephemeral=True)
        if self._waiting and not self.busy:
            self._begin()

    @property
    def _waiting(self) -> bool:
        return bool(self._queue or self._steering)

    async def _serve(self, prompt: Prompt) -> None:
        """One prompt: its interaction and, in autopilot, the nudges after it."""
        source, self.session_source = self.session_source, None
        self.root.message_id = prompt.answered  # also of an error before the interaction begins
        text = await welcome(self.root, prompt, source)
        if text is None:
            return
        await open_interaction(self.root, prompt, text)
        outcome = await self._run(prompt.blocks)
        nudges = 0
        while self.session.mode == "autopilot":
            if outcome != "answered" or nudges == self.root.limits.continues or self._queue:
                reason = "cap_reached" if outcome == "answered" else outcome
                data = {"reason": reason, "requestId": prompt.id}
                self.session.emit("session.autopilot_stopped", data, ephemeral=True)
                return
            nudges += 1
            self.session.emit("assistant.idle", {}, ephemeral=True)
            nudge = Prompt(
                "",
                self.session.new_id(),
                "autopilot",
                source="autopilot",
                origin=prompt.answered,
            )
            await open_interaction(self.root, nudge, NUDGE)
            outcome = await self._run(prompt.blocks)

    async def _report(self, notice: Notice) -> None:
        """Tell the main agent that one in the background is done, and let it go on."""
        root, child = self.root, notice.child
        root.message_id = notice.origin
        about = {"agentId": child.id, "agentType": child.kind, "displayName": notice.name}
        text = f'Agent "{notice.name}" ({child.kind}) is done.'
        root.emit(
            "system.notification",
            {
                "content": f"<system_notification>\n{text}\n</system_notification>",
                "kind": {"type": "agent_idle", **about, "description": notice.description},
            },
        )
        # The CLI reads the result on the model's behalf: a message that no model call stands
        # behind, then a call that nobody asked for.
        call_id, arguments = self.session.new_id(), {"agent_id": child.id, "since_turn": 0}
        request = {"toolCallId": call_id, "name": "read_agent", "arguments": arguments}
        root.emit(
            "assistant.message",
            {"messageId": self.session.new_id(), "content": "", "toolRequests": [request]},
        )
        start = {"toolCallId": call_id, "toolName": "read_agent", "arguments": arguments}
        root.emit("tool.execution_start", start)
        result = {"content": notice.result.text}  # reading went well, whatever is read
        root.emit(
            "tool.execution_complete", {"toolCallId": call_id, "success": True, "result": result}
        )
        root.interaction_id = self.session.new_id()
        await self._run(0)

    async def _run(self, blocks: int) -> Outcome:
        """Run the loop, and write how it ended unless it just answered."""
        try:
            await interact(self.root)
        except TaskComplete:
            self.last_end = "complete"
            return "task_complete"
        except End as end:
            failure = end
        except Exception as error:  # noqa: BLE001  # it is written into the log
            failure = unexpected(error, self.root.message_id)
        else:
            self.last_end = "complete"
            await self._ask_to_stop(blocks)
            return "answered"
        self._end_with(failure)
        return "error"

    def _end_with(self, failure: End) -> None:
        self.session.emit(failure.kind, failure.data)
        self.last_end = "error"

    async def _ask_to_stop(self, blocks: int) -> None:
        """Let an agentStop hook send the agent back to work, with its reason as the prompt."""
        output = await self.root.run_hooks(
            "agentStop",
            {
                "transcriptPath": str(self.session.log.path),
                "stopReason": "end_turn",
                "stop_hook_active": blocks > 0,
            },
        )
        if output.get("decision") == "block" and blocks < MOST_BLOCKS:
            reason = output.get("reason") or GO_ON
            again = Prompt(
                reason,
                self.session.new_id(),
                delivery="queued",
                blocks=blocks + 1,
                origin=self.root.message_id,
            )
            self._queue.appendleft(again)
