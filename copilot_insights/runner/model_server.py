"""Scripts served as an OpenAI-compatible model on loopback, for any client.

`http://127.0.0.1:PORT/v1`, or `/run/LABEL/v1` to name a run in the log. Every call to
chat/completions is one line of the log: `{label, t, script, step, stream, id, model, tools,
compaction, error}`, the independent count of how many model calls a run made.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, TYPE_CHECKING, Any

from copilot_insights.errors import InsightsError, cannot_listen
from copilot_insights.runner.model import Message, ModelError, Reply
from copilot_insights.runner.scripts import (
    Cue,
    Failures,
    ScriptedError,
    Scripts,
    Step,
    cue_at,
    deltas,
    find_cue,
    make_reply,
    message_text,
)

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_REQUEST = 64 * 1024 * 1024
SUMMARY = Step("<overview>What was said so far, in short.</overview>")


class ScriptServer(ThreadingHTTPServer):
    """Plays scripts; keeps the one thing that a history cannot tell.

    When a client has compacted its history, assistant messages are gone from it and no longer
    count the steps; from a label's first compaction on, the calls made under it are counted.
    """

    daemon_threads = True

    def __init__(self, scripts: Scripts, port: int, log: Path | None) -> None:
        """Listen on 127.0.0.1; port 0 takes a free one.

        Raises:
            InsightsError: the port is taken, or the log can't be written.
        """
        self.scripts = scripts
        self._lock = threading.Lock()
        try:
            self._log: IO[str] | None = log.open("a", encoding="utf-8") if log else None
        except OSError as error:
            raise InsightsError(f"cannot write {log}: {error.strerror}") from None
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise cannot_listen(f"127.0.0.1:{port}", error) from None
        self._failures = Failures()
        self._served: Counter[str] = Counter()
        self._compacted: set[str] = set()

    def write(self, line: dict[str, Any]) -> None:
        """Add one call to the log."""
        with self._lock:
            if self._log:
                self._log.write(json.dumps(line) + "\n")
                self._log.flush()

    def cue(self, label: str, messages: list[Message], *, compaction: bool) -> Cue:
        """Where the scripts stand for a request.

        Raises:
            ModelError: the history asks for an error, or for a script that is not there.
        """
        cue = find_cue(self.scripts, messages)
        with self._lock:
            if compaction:
                self._compacted.add(label)
                return Cue(cue.script, cue.step, SUMMARY)
            if label in self._compacted:
                cue = cue_at(self.scripts, cue.script, self._served[label])
            elif cue.step == 0:
                self._served[label] = 0
            self._served[label] += 1
        return cue

    def fails(self, label: str, cue: Cue) -> ScriptedError | None:
        """The error of a step, as long as it is to be given."""
        with self._lock:
            return self._failures.next(cue, label)

    def server_close(self) -> None:
        """Close the log too."""
        super().server_close()
        if self._log:
            self._log.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base's name
        """Say nothing; the calls are in the log."""

    def do_GET(self) -> None:
        """List one model: any name is served."""
        model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "scripts"}
        self._send(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        """Answer a chat completion."""
        request = self._read_request()
        if request is None:
            return
        found = re.match(r"/run/([^/]+)/", self.path)
        label = found[1] if found else ""
        messages = request["messages"]
        stream = bool(request.get("stream"))
        compaction = is_compaction(messages)
        line = {
            "label": label,
            "t": time.time(),
            "stream": stream,
            "model": request.get("model"),
            "tools": len(request.get("tools") or ()),
            "compaction": compaction,
        }
        try:
            cue = self.server.cue(label, messages, compaction=compaction)
        except ModelError as error:
            self.server.write({**line, "error": True})
            self._send_error(error.status or 400, error.message.split(" ", 1)[-1])
            return
        failure = self.server.fails(label, cue)
        reply = make_reply(cue, messages)
        line |= {"script": cue.script, "step": cue.step, "id": reply.id, "error": bool(failure)}
        self.server.write(line)
        time.sleep(cue.reply.delay)
        if failure:
            self._send_error(failure.status, failure.message, failure.type)
        elif stream:
            usage = (request.get("stream_options") or {}).get("include_usage")
            self._stream(reply, request.get("model"), usage=bool(usage))
        else:
            self._send(200, completion(reply, request.get("model")))

    def _read_request(self) -> dict[str, Any] | None:
        """The request's body, if there is one that makes sense; else it has been refused."""
        if not self.path.partition("?")[0].endswith("/chat/completions"):
            self._send_error(404, f"Only chat/completions is served, not {self.path}")
            return None
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > LARGEST_REQUEST:
            self.close_connection = True
            self._send_error(400, "A request needs a Content-Length of a sensible size")
            return None
        try:
            request = json.loads(self.rfile.read(int(length)))
        except ValueError:
            request = None
        messages = request.get("messages") if isinstance(request, dict) else None
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            self._send_error(400, "The body is no chat completion request")
            return None
        return request  # type: ignore[no-any-return]  # JSON, looked at above

    def _send(self, status: int, payload: dict[str, Any]) -> None:
        body = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_error(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        self._send(status, {"error": {"message": message, "type": kind}})

    def _stream(self, reply: Reply, model: object, *, usage: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for chunk in chunks(reply, model, usage=usage):
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


def is_compaction(messages: list[Message]) -> bool:
    """Whether a client asks for a summary of the conversation so far.

    The CLI appends a user message that asks to summarise; it carries no script marker.
    """
    if not any(message.get("role") == "assistant" for message in messages):
        return False
    last = messages[-1]
    text = message_text(last)
    return (
        last.get("role") == "user"
        and "[[script:" not in text
        and re.search("summar", text, re.IGNORECASE) is not None
    )


def tool_calls(reply: Reply) -> list[dict[str, Any]]:
    """The tool calls of a reply as the API writes them."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in reply.tool_calls
    ]


def usage_data(reply: Reply) -> dict[str, Any]:
    """The usage of a reply as the API writes it."""
    usage = reply.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def completion(reply: Reply, model: object) -> dict[str, Any]:
    """A whole reply, not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = tool_calls(reply)
    return {
        "id": reply.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason}],
        "usage": usage_data(reply),
    }


def chunks(reply: Reply, model: object, *, usage: bool) -> list[dict[str, Any]]:
    """A streamed reply: role, words, tool calls, reason, usage if it was asked for."""
    head = {
        "id": reply.id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    parts = [chunk({"role": "assistant", "content": ""})]
    parts += [chunk({"content": delta.text}) for delta in deltas(reply) if delta.text]
    parts += [
        chunk({"tool_calls": [{"index": index, **call}]})
        for index, call in enumerate(tool_calls(reply))
    ]
    parts.append(chunk({}, reply.finish_reason))
    if usage:
        parts.append({**head, "choices": [], "usage": usage_data(reply)})
    return parts


def serve_scripts(scripts: Scripts, port: int, log: Path | None) -> None:
    """Serve until interrupted; says on stdout where."""
    with ScriptServer(scripts, port, log) as server:
        sys.stdout.write(f"Model listening on http://127.0.0.1:{server.server_port}/v1\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
