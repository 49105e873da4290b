"""One client of the server: the methods that it may call, by their wire names.

What the official SDKs call is here; each method is one function of `Connection`. Every
connection that created, resumed or joined a session gets its events.
"""

from __future__ import annotations

import asyncio
import hmac
import shutil
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args

from copilot_insights.errors import InsightsError
from copilot_insights.runner.log import Mode, iso
from copilot_insights.runner.opening import (
    client_tool,
    model_from,
    settings_from,
)
from copilot_insights.runner.rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    PROTOCOL_VERSION,
    ConnectionLost,
    Handler,
    Params,
    Peer,
    RpcError,
)
from copilot_insights.runner.session import FORMAT_VERSION, Session
from copilot_insights.runner.workspace import (
    describe_session,
    list_sessions,
    session_directory,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from copilot_insights.runner.hooks import Hook, HookInput, HookOutput
    from copilot_insights.runner.log import Event
    from copilot_insights.runner.permissions import Decision
    from copilot_insights.runner.server import Server
    from copilot_insights.runner.session import Settings


MODES = get_args(Mode)


class Connection:
    """One client: the methods that it may call, and the sessions that it follows."""

    def __init__(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Nothing is served before `peer.run()`."""
        self.server = server
        self.admitted = not server.token
        self.following: dict[str, Any] = {}
        methods = {name: self._guard(method) for name, method in self.methods().items()}
        self.peer = Peer(reader, writer, methods)
        self.peer.integer_ids = True

    def methods(self) -> dict[str, Handler]:
        """Wire name → method. Whatever is not here answers -32601."""
        return {
            "connect": self.connect,
            "ping": self.ping,
            "status.get": self.get_status,
            "auth.getStatus": self.get_auth_status,
            "models.list": self.list_models,
            "session.create": self.create,
            "session.resume": self.resume,
            "session.send": self.send,
            "session.abort": self.abort,
            "session.getMessages": self.get_messages,
            "session.detach": self.detach,
            "session.destroy": self.detach,
            "session.delete": self.delete,
            "session.list": self.session_list,
            "session.getMetadata": self.get_metadata,
            "session.getLastId": self.get_last_id,
            "session.getForeground": self.get_foreground,
            "session.setForeground": self.set_foreground,
            "session.mode.get": self.get_mode,
            "session.mode.set": self.set_mode,
            "session.tools.set": self.set_tools,
            "session.tools.handlePendingToolCall": self.answer_tool_call,
            "session.permissions.handlePendingPermissionRequest": self.answer_permission,
            "runtime.shutdown": self.shutdown,
        }

    def _guard(self, method: Handler) -> Handler:
        """Admit first; turn what users are told into the errors that the CLI sends."""

        async def guarded(params: Params) -> Any:  # noqa: ANN401  # JSON
            if not self.admitted and method != self.connect:
                raise RpcError(INTERNAL_ERROR, "Connect with the connection token first")
            try:
                return await method(params)
            except InsightsError as error:
                raise RpcError(INTERNAL_ERROR, f"Request failed with message: {error}") from error

        return guarded

    # The connection

    async def connect(self, params: Params) -> Params:
        """Shake hands."""
        token = params.get("token")
        given = token if isinstance(token, str) else ""
        if not self.admitted and not hmac.compare_digest(
            given.encode(), self.server.token.encode()
        ):
            raise RpcError(INTERNAL_ERROR, "The connection token is wrong")
        self.admitted = True
        return {
            "ok": True,
            "protocolVersion": PROTOCOL_VERSION,
            "version": FORMAT_VERSION,
            "taskKinds": ["agent"],
        }

    async def ping(self, params: Params) -> Params:
        """Answer."""
        message = params.get("message")
        return {
            "message": f"pong: {message}" if message else "pong",
            "timestamp": iso(datetime.now(UTC)),
            "protocolVersion": PROTOCOL_VERSION,
        }

    async def get_status(self, _: Params) -> Params:
        """Say which CLI's ways are followed."""
        return {"version": FORMAT_VERSION, "protocolVersion": PROTOCOL_VERSION}

    async def get_auth_status(self, _: Params) -> Params:
        """There is no account."""
        return {"isAuthenticated": False, "statusMessage": "No account is needed"}

    async def list_models(self, _: Params) -> Params:
        """The model that a session gets if it names none."""
        name = model_from({}, self.server.defaults).name
        capabilities = {"supports": {"vision": False, "reasoningEffort": False}, "limits": {}}
        return {"models": [{"id": name, "name": name, "capabilities": capabilities}]}

    async def shutdown(self, _: Params) -> None:
        """End every session, answer, then stop."""
        await self.server.shutdown()

    # Sessions

    async def create(self, params: Params) -> Params:
        """Open a new session."""
        session_id = params.get("sessionId", str(uuid.uuid4()))
        if not isinstance(session_id, str):
            raise RpcError(INVALID_PARAMS, "sessionId is a text")
        if session_id in self.server.sessions:
            raise InsightsError(f"There is a session {session_id} already")
        session = Session.create(self._settings(params, session_id), session_id)
        self.server.announce("created", session.id, session)
        return self._opened(session, session.fresh_events())

    async def resume(self, params: Params) -> Params:
        """Open an old session, or join one that is open."""
        session_id = self._text(params, "sessionId")
        session = self.server.sessions.get(session_id)
        if session is None:
            settings = self._settings(params, session_id)
            record = not params.get("disableResume")
            session = Session.resume(settings, session_id, record=record)
            return self._opened(session, session.fresh_events())
        return self._opened(session, [])

    def _opened(self, session: Session, events: Sequence[Event]) -> Params:
        """Follow a session, and say what it is; `events` are sent after that response."""
        self.server.sessions[session.id] = session
        session.attended = True
        if session.id not in self.following:
            self.following[session.id] = session.on(lambda e: self._forward(session.id, e))
        loop = asyncio.get_running_loop()
        for event in events:
            loop.call_soon(self._forward, session.id, event)
        return {
            "sessionId": session.id,
            "startTime": session.log.events[0]["data"].get("startTime"),
            "isRemote": False,
            "mode": session.mode,
            "workspacePath": str(session.directory),
            "capabilities": {"ui": {"elicitation": False}},
            "modelState": {"modelId": session.settings.model.name},
        }

    async def send(self, params: Params) -> Params:
        """Queue a prompt."""
        session = self._session(params)
        mode, agent_mode = params.get("mode") or "enqueue", params.get("agentMode")
        if mode not in ("enqueue", "immediate") or agent_mode not in (None, *MODES):
            raise RpcError(INVALID_PARAMS, "There is no such mode")
        immediate = mode == "immediate"
        prompt = self._text(params, "prompt")
        return {"messageId": session.send(prompt, immediate=immediate, agent_mode=agent_mode)}

    async def abort(self, params: Params) -> Params:
        """Stop what a session is doing."""
        await self._session(params).abort(str(params.get("reason") or "user_initiated"))
        return {"success": True}

    async def get_messages(self, params: Params) -> Params:
        """All persisted events of a session."""
        return {"events": self._session(params).get_events()}

    async def detach(self, params: Params) -> Params:
        """Leave a session; the last to leave closes it."""
        session = self.server.sessions.get(self._text(params, "sessionId"))
        if session is None:
            return {"success": True}
        if self.server.connections_of(session.id) == [self]:
            await self.server.close_session(session, "user_exit")
        self.forget(session.id)
        return {"success": True}

    async def delete(self, params: Params) -> Params:
        """Close a session and remove it from disk."""
        session_id = self._text(params, "sessionId")
        directory = session_directory(self.server.defaults.home, session_id)
        if session := self.server.sessions.get(session_id):
            await self.server.close_session(session, "user_exit")
        elif not directory.is_dir():
            return {"success": False, "error": f"Session not found: {session_id}"}
        shutil.rmtree(directory, ignore_errors=True)
        self.server.announce("deleted", session_id)
        return {"success": True}

    async def session_list(self, params: Params) -> Params:
        """The sessions on disk, the newest first."""
        wanted = params.get("filter") or {}
        listed = list_sessions(self.server.defaults.home)
        for key, value in wanted.items():
            listed = [entry for entry in listed if entry["context"].get(key) == value]
        return {"sessions": listed}

    async def get_metadata(self, params: Params) -> Params:
        """One session of the list."""
        directory = session_directory(self.server.defaults.home, self._text(params, "sessionId"))
        return {"session": describe_session(directory)}

    async def get_last_id(self, _: Params) -> Params:
        """The session that was written last."""
        listed = list_sessions(self.server.defaults.home)
        return {"sessionId": listed[0]["sessionId"]} if listed else {}

    async def get_foreground(self, _: Params) -> Params:
        """The session that was called foreground."""
        return {"sessionId": self.server.foreground}

    async def set_foreground(self, params: Params) -> Params:
        """Call a session foreground; there is no screen that would show it."""
        session = self._session(params)
        self.server.foreground = session.id
        self.server.announce("foreground", session.id)
        return {"success": True}

    async def get_mode(self, params: Params) -> str:
        """Interactive, plan or autopilot."""
        return self._session(params).mode

    async def set_mode(self, params: Params) -> Params:
        """Change a session's mode."""
        session = self._session(params)
        mode: Any = params.get("mode")
        if mode not in MODES:
            raise RpcError(INVALID_PARAMS, "There is no such mode")
        session.set_mode(mode)
        return {"status": "unchanged", "modelChanged": False, "modeApplied": True}

    async def set_tools(self, params: Params) -> Params:
        """Replace the tools that the client runs."""
        session = self._session(params)
        kept = {name: tool for name, tool in session.tools.items() if not tool.external}
        own = [client_tool(entry) for entry in params.get("tools") or ()]
        session.tools.clear()
        session.tools.update(kept | {tool.name: tool for tool in own})
        return {"success": True}

    async def answer_tool_call(self, params: Params) -> Params:
        """Take the result of an external tool."""
        session = self._session(params)
        return {"success": session.answer(self._text(params, "requestId"), params)}

    async def answer_permission(self, params: Params) -> Params:
        """Take a decision about a permission."""
        session = self._session(params)
        decision = params.get("result")
        if not isinstance(decision, dict):
            raise RpcError(INVALID_PARAMS, "result is an object with a kind")
        return {"success": session.answer(self._text(params, "requestId"), decision)}

    # Helpers

    def _session(self, params: Params) -> Session:
        session_id = self._text(params, "sessionId")
        session = self.server.sessions.get(session_id)
        if session is None:
            raise InsightsError(f"Session not found: {session_id}")
        return session

    @staticmethod
    def _text(params: Params, key: str) -> str:
        value = params.get(key)
        if not isinstance(value, str):
            raise RpcError(INVALID_PARAMS, f"{key} is needed, as a text")
        return value

    def _forward(self, session_id: str, event: Event) -> None:
        self.peer.notify("session.event", {"sessionId": session_id, "event": event})

    def _settings(self, params: Params, session_id: str) -> Settings:
        """What the client asks for; its hooks and permissions are asked over the wire."""

        def hook_of(kind: str) -> Hook:
            async def hook(data: HookInput) -> HookOutput | None:
                return await self._invoke_hook(session_id, kind, data)

            return hook

        async def ask(data: Params) -> Decision | None:
            answer: Decision | None = await self.server.sessions[session_id].expect(
                data["requestId"]
            )
            return answer

        settings = settings_from(params, self.server.defaults, hook_of)
        if settings.policy.ask_reads:
            settings.policy.ask = ask
        return settings

    async def _invoke_hook(self, session_id: str, kind: str, data: HookInput) -> HookOutput | None:
        params = {"sessionId": session_id, "hookType": kind, "input": data}
        try:
            answer = await self.peer.request("hooks.invoke", params)
        except ConnectionLost as error:
            raise RuntimeError("the client is gone") from error
        except RpcError as error:
            raise RuntimeError(error.message) from error
        output: HookOutput | None = answer.get("output") if isinstance(answer, dict) else None
        return output

    def forget(self, session_id: str) -> None:
        """Follow a session no longer."""
        if unsubscribe := self.following.pop(session_id, None):
            unsubscribe()

    async def leave_all(self) -> None:
        """The client is gone: let its sessions end, unless another client follows them."""
        for session_id in list(self.following):
            self.forget(session_id)
            session = self.server.sessions.get(session_id)
            if session and not self.server.connections_of(session_id):
                session.give_up_waiting()
                if not self.server.one_client:
                    await session.worker.finish()
                if not self.server.connections_of(session_id):
                    await self.server.close_session(session, "user_exit")
