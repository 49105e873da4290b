"""The JSON-RPC server that the official SDKs drive: protocol version 3, on stdio or loopback.

Sessions belong to the server and can be shared by connections. When the last client of a
session goes, the session finishes what it is doing and is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from copilot_insights.errors import cannot_listen
from copilot_insights.runner.connection import Connection
from copilot_insights.runner.log import iso
from copilot_insights.runner.rpc import (
    LARGEST_HEADER,
    LOOPBACK,
    Params,
    stdio_streams,
)

if TYPE_CHECKING:
    from copilot_insights.runner.opening import Defaults
    from copilot_insights.runner.session import Session


GOODBYE_SECONDS = 5.0


class Server:
    """The sessions that are open, and who is connected."""

    def __init__(self, defaults: Defaults, token: str = "", *, one_client: bool = False) -> None:
        """`token`, if any, must come with `connect` before anything else is served.

        With `one_client` what runs is aborted when the client goes, for nobody can come back.
        """
        self.defaults = defaults
        self.token = token
        self.one_client = one_client
        self.sessions: dict[str, Session] = {}
        self.connections: set[Connection] = set()
        self.foreground: str | None = None
        self.stopping = asyncio.Event()
        self.alone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        connection = Connection(self, reader, writer)
        self.connections.add(connection)
        self.alone.clear()
        try:
            await connection.peer.run()
        finally:
            self.connections.discard(connection)
            if not self.connections:
                self.alone.set()
            await connection.leave_all()

    def announce(self, kind: str, session_id: str, session: Session | None = None) -> None:
        """Tell every connection that a session came, changed or went."""
        params: Params = {"type": f"session.{kind}", "sessionId": session_id}
        if session:
            start = session.log.events[0]["data"]["startTime"]
            params["metadata"] = {"startTime": start, "modifiedTime": iso(datetime.now(UTC))}
        for connection in self.connections:
            connection.peer.notify("session.lifecycle", params)

    def connections_of(self, session_id: str) -> list[Connection]:
        """Who follows a session."""
        return [c for c in self.connections if session_id in c.following]

    async def close_session(self, session: Session, reason: str | None = None) -> None:
        """End a session. Its followers hear of it; then it is forgotten, not deleted."""
        await session.shutdown(reason)
        self.sessions.pop(session.id, None)
        for connection in self.connections_of(session.id):
            connection.forget(session.id)

    async def shutdown(self) -> None:
        """End every session and stop serving."""
        for session in list(self.sessions.values()):
            await self.close_session(session, "user_exit")
        self.stopping.set()


async def serve_stdio(server: Server) -> None:
    """Serve one client on stdin and stdout, to its end or to `runtime.shutdown`."""
    streams = await stdio_streams()
    if streams is None:
        return
    serving = asyncio.create_task(server.serve(*streams))
    stopping = asyncio.create_task(server.stopping.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    # After runtime.shutdown the client closes stdin; it has its answer by then.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(serving, GOODBYE_SECONDS)
    await server.shutdown()


async def serve_tcp(server: Server, port: int) -> None:
    """Serve clients on loopback until `runtime.shutdown`; says on stdout where."""
    try:
        listener = await asyncio.start_server(server.serve, LOOPBACK, port, limit=LARGEST_HEADER)
    except OSError as error:
        raise cannot_listen(f"{LOOPBACK}:{port}", error) from None
    async with listener:
        sys.stdout.write(f"Server listening on port {listener.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.stopping.wait()
        # A client that asked for the end closes its side; the others are sent away.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.alone.wait(), GOODBYE_SECONDS)
        for connection in list(server.connections):
            await connection.peer.close()
