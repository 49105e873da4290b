"""A small asyncio client with the official SDK's names, for our server and for the real CLI.

    async with CopilotClient(["copilot-insights", "serve", "--script", "demo"]) as client:
        session = await client.create_session(on_permission_request=approve_all)
        session.on(lambda event: print(event["type"]))
        reply = await session.send_and_wait("What is here?")

Events are the dictionaries of the log. Tools, hooks and permissions are callables, sync or
async; one that raises is answered as the protocol says, never silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from copilot_insights.errors import InsightsError
from copilot_insights.runner import foreign
from copilot_insights.runner.rpc import (
    LARGEST_HEADER,
    LOOPBACK,
    PROTOCOL_VERSION,
    ConnectionLost,
    Params,
    Peer,
    RpcError,
)
from copilot_insights.runner.waiting import Answer

if TYPE_CHECKING:
    from pathlib import Path

    from copilot_insights.runner.hooks import Hook
    from copilot_insights.runner.log import Event
    from copilot_insights.runner.permissions import Decision

PermissionHandler: TypeAlias = "Callable[[dict[str, Any]], Decision | Awaitable[Decision]]"
"""The `permissionRequest` in, `{kind: approve-once | reject | …}` out."""

ToolHandler: TypeAlias = Callable[[dict[str, Any]], Any]
"""The arguments in, a text out (or an awaitable of one); raising makes the call fail."""

EventHandler: TypeAlias = Callable[[dict[str, Any]], None]

SDK_ARGUMENTS = ("--headless", "--no-auto-update", "--log-level", "warning", "--stdio")
"""With which the official SDK starts the CLI."""

GRACE_SECONDS = 10.0
HANDSHAKE_SECONDS = 60.0

logger = logging.getLogger(__name__)


def approve_all(_: dict[str, Any]) -> Decision:
    """A permission handler that says yes."""
    return {"kind": "approve-once"}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that runs in the client; `parameters` is a JSON schema."""

    name: str
    description: str
    handler: ToolHandler
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


class CopilotClient:
    """A connection to a server: a process of its own, or a port on this machine.

    Args:
        command: the program to start, without the arguments that the SDK adds.
        port: a server that is running; excludes `command`.
        cwd: where the program starts.
        env: its whole environment.
        token: the connection token of the server at `port`.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        port: int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> None:
        """Nothing is started before `start`, or `async with`."""
        if bool(command) == (port is not None):
            raise InsightsError("A client needs either a command or a port")
        self._command = tuple(command)
        self._port = port
        self._cwd = cwd
        self._env = env
        self._token = token
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._peer: Peer | None = None
        self.sessions: dict[str, CopilotSession] = {}

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """Connect and shake hands.

        Raises:
            InsightsError: there is no such program or port, the server speaks another protocol
                version, or it ended.
        """
        where = self._command[0] if self._port is None else f"{LOOPBACK}:{self._port}"
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._connect()
        except TimeoutError as error:
            if self._peer:
                await self._peer.close()  # nor would it answer a goodbye
            await self.stop()
            raise InsightsError(
                f"The server at {where} did not answer the request connect "
                f"within {HANDSHAKE_SECONDS:g} seconds",
                hint="Is it one that speaks the protocol of the Copilot SDK?",
            ) from error
        except OSError as error:
            await self.stop()
            raise InsightsError(
                f"Cannot reach a server at {where}: {error.strerror or error}",
                hint="Name a program that serves on its pipes, or the port of one that runs.",
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def _connect(self) -> None:
        if self._port is not None:
            streams = await asyncio.open_connection(LOOPBACK, self._port, limit=LARGEST_HEADER)
            reader, writer = streams
        else:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                *SDK_ARGUMENTS,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=self._cwd,
                env=self._env,
                limit=LARGEST_HEADER,
            )
            if process.stdout is None or process.stdin is None:
                raise InsightsError("The server has no pipes")
            reader, writer = process.stdout, process.stdin
        self._peer = Peer(
            reader, writer, {"session.event": self._take_event, "hooks.invoke": self._invoke_hook}
        )
        self._reading = asyncio.create_task(self._read())
        params = {"supportedTaskKinds": ["agent"]} | ({"token": self._token} if self._token else {})
        version = (await self.request("connect", params)).get("protocolVersion")
        if version != PROTOCOL_VERSION:
            raise InsightsError(f"The server speaks protocol version {version}, not 3")

    async def stop(self) -> None:
        """Leave every session, end a server of one's own, disconnect."""
        if self._peer is None:
            return
        with contextlib.suppress(InsightsError, TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):  # a server need not answer
                for session in list(self.sessions.values()):
                    await session.disconnect()
                if self._process:
                    await self.request("runtime.shutdown", {})
        await self._peer.close()
        if self._process:
            try:
                await asyncio.wait_for(self._process.wait(), GRACE_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reading:
            await self._reading

    async def request(self, method: str, params: Params) -> Any:  # noqa: ANN401  # JSON
        """Call any method.

        Raises:
            InsightsError: what the server said, or that it is gone.
        """
        if self._peer is None:
            raise InsightsError("The client is not started")
        try:
            return await self._peer.request(method, params)
        except RpcError as error:
            raise InsightsError(f"{method}: {error.message}") from error
        except ConnectionLost as error:
            raise InsightsError(f"{method}: the server is gone") from error

    async def create_session(self, **options: Any) -> CopilotSession:  # noqa: ANN401
        """Open a new session; the options are those of `session_config`."""
        session = CopilotSession(self, str(uuid.uuid4()), options)
        # Registered first: the server may call back before it answers.
        self.sessions[session.session_id] = session
        await self._open("session.create", session, options)
        return session

    async def resume_session(self, session_id: str, **options: Any) -> CopilotSession:  # noqa: ANN401
        """Open an old session; the options are those of `session_config`."""
        session = CopilotSession(self, session_id, options)
        self.sessions[session_id] = session
        await self._open("session.resume", session, options)
        return session

    async def _open(self, method: str, session: CopilotSession, options: Mapping[str, Any]) -> None:
        try:
            config = session_config(options) | {"sessionId": session.session_id}
            opened = await self.request(method, config)
        except InsightsError:
            self.sessions.pop(session.session_id, None)
            raise
        session.workspace_path = opened.get("workspacePath")

    async def list_sessions(self) -> list[dict[str, Any]]:
        """The sessions on the server's disk, the newest first."""
        sessions: list[dict[str, Any]] = (await self.request("session.list", {}))["sessions"]
        return sessions

    async def delete_session(self, session_id: str) -> None:
        """Remove a session from the server's disk."""
        answer = await self.request("session.delete", {"sessionId": session_id})
        self.sessions.pop(session_id, None)
        if not answer.get("success"):
            raise InsightsError(str(answer.get("error") or "The session was not deleted"))

    async def ping(self, message: str = "") -> dict[str, Any]:
        """Ask the server for a sign of life."""
        answer: dict[str, Any] = await self.request("ping", {"message": message})
        return answer

    async def _read(self) -> None:
        if self._peer:
            await self._peer.run()
        for session in self.sessions.values():
            session.lost()

    async def _take_event(self, params: Params) -> None:
        if session := self.sessions.get(params["sessionId"]):
            session.take(params["event"])

    async def _invoke_hook(self, params: Params) -> Params:
        session = self.sessions.get(params["sessionId"])
        hook = session.hooks.get(params["hookType"]) if session else None
        output = await foreign.call(hook, params["input"]) if hook else None
        return {"output": output} if output else {}


def session_config(options: Mapping[str, Any]) -> Params:
    """The parameters of `session.create` for a client's options.

    Options: `model`, `provider` (`{type, baseUrl, apiKey}`), `working_directory`, `streaming`,
    `tools` (of `ClientTool`), `on_permission_request`, `hooks` (type → callable), `autopilot`
    (`{maxContinues}`), and `config`, what else the protocol knows, in its own words.
    """
    config: Params = {
        "requestPermission": options.get("on_permission_request") is not None,
        "streaming": bool(options.get("streaming", True)),
        **options.get("config", {}),
    }
    names = {"model": "model", "provider": "provider", "autopilot": "autopilot"}
    for option, name in names.items():
        if options.get(option) is not None:
            config[name] = options[option]
    if options.get("working_directory"):
        config["workingDirectory"] = str(options["working_directory"])
    if options.get("hooks"):
        config["hooks"] = True
    if options.get("tools"):
        config["tools"] = [
            {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
            for t in options["tools"]
        ]
    return config


class CopilotSession:
    """A session as a client sees it."""

    def __init__(self, client: CopilotClient, session_id: str, options: Mapping[str, Any]) -> None:
        """Made by the client."""
        self.session_id = session_id
        self.workspace_path: str | None = None
        self.hooks: Mapping[str, Hook] = options.get("hooks") or {}
        self._client = client
        self._permit: PermissionHandler | None = options.get("on_permission_request")
        self._tools = {tool.name: tool for tool in options.get("tools") or ()}
        self._handlers: list[EventHandler] = []
        self._waiting: set[asyncio.Future[Event | None]] = set()
        self._answering: set[asyncio.Task[None]] = set()

    def on(self, handler: EventHandler) -> Callable[[], None]:
        """Call `handler` with every event; returns what ends that."""
        self._handlers.append(handler)

        def unsubscribe() -> None:
            if handler in self._handlers:
                self._handlers.remove(handler)

        return unsubscribe

    async def send(
        self, prompt: str, *, mode: str | None = None, agent_mode: str | None = None
    ) -> str:
        """Queue a prompt; its message id."""
        params = {"sessionId": self.session_id, "prompt": prompt}
        params |= {"mode": mode} if mode else {}
        params |= {"agentMode": agent_mode} if agent_mode else {}
        message_id: str = (await self._client.request("session.send", params))["messageId"]
        return message_id

    async def send_and_wait(self, prompt: str, timeout: float = 60.0) -> Event | None:  # noqa: ASYNC109
        """Send a prompt and wait until the session is done with it.

        Args:
            prompt: the text.
            timeout: in seconds; past it the waiting ends, not the work.

        Returns:
            The last `assistant.message` of the main agent that belongs to the prompt.

        Raises:
            TimeoutError: not done in time.
            InsightsError: an error, an abort, or the server is gone.
        """
        done: asyncio.Future[Event | None] = asyncio.get_running_loop().create_future()
        answer = Answer(done)
        stop = self.on(answer.take)
        self._waiting.add(done)
        try:
            answer.begin(await self.send(prompt))
            return await asyncio.wait_for(done, timeout)
        finally:
            stop()
            self._waiting.discard(done)

    async def set_mode(self, mode: str) -> None:
        """Interactive, plan or autopilot."""
        await self._client.request("session.mode.set", {"sessionId": self.session_id, "mode": mode})

    async def get_events(self) -> list[Event]:
        """All persisted events."""
        answer = await self._client.request("session.getMessages", {"sessionId": self.session_id})
        events: list[Event] = answer["events"]
        return events

    async def abort(self) -> None:
        """Stop what is running."""
        await self._client.request("session.abort", {"sessionId": self.session_id})

    async def disconnect(self) -> None:
        """Leave the session; it stays on disk."""
        await self._client.request("session.detach", {"sessionId": self.session_id})
        self._client.sessions.pop(self.session_id, None)
        self.lost()

    def lost(self) -> None:
        """Nothing more will come."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(InsightsError("The session closed before it answered"))

    def take(self, event: Event) -> None:
        """Answer what an event asks, and pass it on."""
        if event["type"] == "permission.requested" and self._permit:
            self._answer(self._answer_permission(self._permit, event["data"]))
        if event["type"] == "external_tool.requested":
            tool = self._tools.get(event["data"]["toolName"])
            if tool:
                self._answer(self._answer_tool_call(tool, event["data"]))
        for handler in list(self._handlers):
            try:
                handler(event)
            except KeyboardInterrupt:
                raise
            except BaseException:
                logger.exception("A subscriber failed on %s", event["type"])

    def _answer(self, answering: Any) -> None:  # noqa: ANN401  # a coroutine
        task = asyncio.create_task(answering)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_permission(self, permit: PermissionHandler, data: dict[str, Any]) -> None:
        decision: Any = None
        try:
            decision = await foreign.call(permit, data["permissionRequest"])
            json.dumps(decision)
        except Exception:
            logger.exception("The permission handler failed")
            decision = None
        if not isinstance(decision, dict):
            decision = {"kind": "user-not-available"}
        await self._reply(
            "session.permissions.handlePendingPermissionRequest", data, {"result": decision}
        )

    async def _answer_tool_call(self, tool: ClientTool, data: dict[str, Any]) -> None:
        try:
            value = await foreign.call(tool.handler, data.get("arguments") or {})
            outcome = {"result": value if isinstance(value, str | dict) else str(value)}
            json.dumps(outcome)
        except Exception as error:  # noqa: BLE001  # it is the model that should see it
            outcome = {"error": str(error) or type(error).__name__}
        await self._reply("session.tools.handlePendingToolCall", data, outcome)

    async def _reply(self, method: str, data: dict[str, Any], outcome: dict[str, Any]) -> None:
        params = {"sessionId": self.session_id, "requestId": data["requestId"], **outcome}
        try:
            await self._client.request(method, params)
        except InsightsError as error:
            logger.debug("an answer came too late: %s", error)
