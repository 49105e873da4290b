"""JSON-RPC 2.0 with `Content-Length` framing, both ends, over any pair of asyncio streams.

A peer serves requests and makes them. A message that cannot be understood is answered with
the standard error and forgotten; only when the stream has lost its framing does a peer stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import stat
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from copilot_insights.errors import InsightsError

LOOPBACK = "127.0.0.1"
PROTOCOL_VERSION = 3
"""Of what is spoken over JSON-RPC: events and requests of the SDK, not the framing."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CANCELLED = -32800

LARGEST_MESSAGE = 64 * 1024 * 1024
LARGEST_HEADER = 8 * 1024
LARGEST_BACKLOG = 256 * 1024 * 1024
"""Bytes waiting for a peer that does not read; past it the connection is closed."""

Params: TypeAlias = dict[str, Any]
Handler: TypeAlias = Callable[[Params], Awaitable[Any]]

logger = logging.getLogger(__name__)


class RpcError(Exception):
    """An error as JSON-RPC says it: raised by handlers to be sent, and by `request`."""

    def __init__(self, code: int, message: str) -> None:
        """`code` is one of the constants of this module, or the other side's own."""
        super().__init__(message)
        self.code = code
        self.message = message


class FramingLost(Exception):  # noqa: N818  # what happened
    """Where the next message begins can no longer be told."""


class ConnectionLost(Exception):  # noqa: N818  # what happened
    """The other side is gone; no answer will come."""


async def read_body(reader: asyncio.StreamReader) -> bytes | None:
    """The bytes of the next message; None at the end of the stream.

    Raises:
        RpcError: a whole header without a usable length; the next message can be read.
        FramingLost: anything else that is no frame.
    """
    try:
        header = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise FramingLost("The stream ended within a header") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise FramingLost(f"A header of more than {LARGEST_HEADER} bytes") from error
    length = None
    for line in header.decode("ascii", errors="replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            length = value.strip()
    if length is None or not (length.isascii() and length.isdecimal()):
        raise RpcError(PARSE_ERROR, "A message needs a Content-Length header")
    if len(length) > 12 or int(length) > LARGEST_MESSAGE:
        raise FramingLost(f"A message of more than {LARGEST_MESSAGE} bytes")
    try:
        return await reader.readexactly(int(length))
    except asyncio.IncompleteReadError as error:
        raise FramingLost("The stream ended within a message") from error


def parse(body: bytes) -> dict[str, Any]:
    """A message.

    Raises:
        RpcError: no JSON, or no JSON-RPC message.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, "Parse error: the message is no JSON") from error
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "Invalid request: a message is an object")
    return message


class Peer:
    """One end of a connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        methods: Mapping[str, Handler],
    ) -> None:
        """`methods` are what the other side may call; notifications go to them too."""
        self._reader = reader
        self._writer = writer
        self._methods = methods
        self._answers: dict[str | int, asyncio.Future[Any]] = {}
        self._serving: dict[str | int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_id = 0
        self.closed = False
        self.integer_ids = False

    async def run(self) -> None:
        """Read and serve until the stream ends, is closed or has lost its framing."""
        try:
            while not self.closed:
                try:
                    body = await read_body(self._reader)
                    if body is None:
                        return
                    self._take(parse(body))
                except RpcError as error:
                    self._send_error(None, error)
        except FramingLost as error:
            self._send_error(None, RpcError(PARSE_ERROR, str(error)))
        except ConnectionError:
            pass
        finally:
            await self.close()

    async def request(self, method: str, params: Params) -> Any:  # noqa: ANN401  # JSON
        """Call the other side.

        Raises:
            RpcError: it answered with an error.
            ConnectionLost: it is gone.
        """
        if self.closed:
            raise ConnectionLost(method)
        # Only integer ids can be cancelled in the SDK, and only the server's are integers.
        self._next_id += 1
        request_id: str | int = self._next_id if self.integer_ids else str(uuid.uuid4())
        future = asyncio.get_running_loop().create_future()
        self._answers[request_id] = future
        self._send({"id": request_id, "method": method, "params": params})
        try:
            return await future
        finally:
            del self._answers[request_id]

    def notify(self, method: str, params: Params) -> None:
        """Tell the other side; nothing comes back. Nothing happens if it is gone."""
        self._send({"method": method, "params": params})

    async def close(self) -> None:
        """Stop serving, fail what waits for an answer, close the stream. Safe to repeat."""
        self.closed = True
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ConnectionLost("The connection was closed"))
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            await self._writer.wait_closed()

    def _take(self, message: dict[str, Any]) -> None:
        method, message_id = message.get("method"), message.get("id")
        if message_id is not None and not isinstance(message_id, str | int):
            raise RpcError(INVALID_REQUEST, "Invalid request: an id is a string or a number")
        if method is None:
            self._take_answer(message_id, message)
            return
        params = message.get("params", {})
        if not isinstance(method, str) or not isinstance(params, dict):
            error = RpcError(INVALID_REQUEST, "Invalid request: a method with params is needed")
            self._send_error(message_id, error)
        elif method == "$/cancelRequest":
            cancelled = params.get("id")
            if isinstance(cancelled, str | int) and cancelled in self._serving:
                self._serving[cancelled].cancel()
        else:
            task = asyncio.create_task(self._serve(message_id, method, params))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if message_id is not None:
                self._serving[message_id] = task

    def _take_answer(self, message_id: str | int | None, message: dict[str, Any]) -> None:
        future = self._answers.get(message_id) if message_id is not None else None
        if future is None or future.done():
            if "result" not in message and "error" not in message:
                raise RpcError(INVALID_REQUEST, "Invalid request: neither request nor answer")
            return
        error = message.get("error")
        if isinstance(error, dict):
            code = error.get("code")
            code = code if isinstance(code, int) else INTERNAL_ERROR
            future.set_exception(RpcError(code, str(error.get("message"))))
        else:
            future.set_result(message.get("result"))

    async def _serve(self, message_id: str | int | None, method: str, params: Params) -> None:
        try:
            handler = self._methods.get(method, _unhandled(method))
            result = await handler(params)
            if message_id is not None:
                self._send({"id": message_id, "result": result})
        except RpcError as error:
            self._send_error(message_id, error)
        except asyncio.CancelledError:
            self._send_error(message_id, RpcError(CANCELLED, "The request was cancelled"))
        except Exception as error:
            logger.exception("%s failed", method)
            message = f"Request {method} failed with message: {type(error).__name__}"
            self._send_error(message_id, RpcError(INTERNAL_ERROR, message))
        finally:
            if message_id is not None:
                self._serving.pop(message_id, None)

    def _send_error(self, message_id: str | int | None, error: RpcError) -> None:
        logger.debug("answered with an error: %s", error.message)
        self._send({"id": message_id, "error": {"code": error.code, "message": error.message}})

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer.is_closing():
            return
        body = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode()
        self._writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        if self._writer.transport.get_write_buffer_size() > LARGEST_BACKLOG:
            logger.warning("a peer does not read what it is sent; its connection is closed")
            self._writer.transport.abort()


def _unhandled(method: str) -> Handler:
    async def refuse(_: Params) -> None:
        raise RpcError(METHOD_NOT_FOUND, f"Unhandled method {method}")

    return refuse


async def stdio_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """This process's stdin and stdout as streams; None if nobody can speak on them.

    Raises:
        InsightsError: stdout is a file.
    """
    if sys.stdin is None:
        return None
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or sys.stdin.isatty()):
        return None  # /dev/null or a file, for which asyncio cannot wait
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LARGEST_HEADER)
    try:
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), sys.stdout
        )
    except ValueError as error:
        raise InsightsError("stdout is a file; a client speaks through pipes") from error
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
