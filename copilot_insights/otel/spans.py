"""Tables → spans, as CLI 1.0.102 would have sent them: one trace per user message or nudge,
`invoke_agent` → `chat MODEL`, `execute_tool TOOL` → `permission`, and a sub-agent's
`invoke_agent` under the `execute_tool task` that started it.

Times are the log's, ids a hash of the row's key: made twice, a span is the same. What the log
does not say is left out; a test lists every difference from the CLI's own.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import blake2b
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from copilot_insights.rows import COURSE, Row, Rows, by_session
from copilot_insights.schema import MAIN
from copilot_insights.tables import Tables

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
OPEN: Final = "copilot_insights.open"
"""Attribute of a span whose end the log does not have; it ends at its agent's last event."""

Attributes = dict[str, Any]
_Told = tuple[int | None, str, datetime | None, Attributes]
"""An event: its interaction, name, time and attributes."""


class Made(NamedTuple):
    """A span of a session. `final`: no later line of the log can change it. `ended`: it has
    its end, which what is written at once behind it (a hook, say) may still put off.
    """

    session_id: str
    span: ReadableSpan
    final: bool
    ended: bool


class Content(Protocol):
    """What was said in a session, as attributes."""

    def chat(self, agent_id: str, replied_at: datetime | None) -> Attributes:
        """Messages in and out of the agent's call that was answered then."""

    def tool(self, tool_call_id: str | None) -> Attributes:
        """Arguments and result."""


def spans(tables: Tables, content: Callable[[str], Content] | None = None) -> Iterator[Made]:
    """Every span of the tables, session by session, parents before their children.

    `content` gives what was said in a session, by its id, where that is to be sent; see
    `otel.content`.
    """
    for session, rows in by_session(tables, COURSE):
        said = content(session["session_id"]) if content else None
        yield from session_spans(session, rows, said)


def session_spans(session: Row, rows: Rows, content: Content | None = None) -> Iterator[Made]:
    """The spans of one session, of its row of `sessions` and its rows of `COURSE`."""
    return _Session(session, rows, content).spans()


@cache
def resource(cli_version: str | None) -> Resource:
    """The CLI's resource; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before it."""
    own = {"service.name": "github-copilot", "service.version": cli_version or "unknown"}
    return Resource({**own, **OTELResourceDetector().detect().attributes}, SCHEMA_URL)


@cache
def scope(cli_version: str | None) -> InstrumentationScope:
    """The CLI's instrumentation scope."""
    return InstrumentationScope("github.copilot", cli_version or "")


def nanoseconds(at: datetime) -> int:
    """Of a UTC time with milliseconds, since 1970; exact."""
    return round(at.timestamp() * 1000) * 1_000_000


def _instant(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds // 1_000_000 / 1000, UTC)


def _hash(size: int, *key: object) -> int:
    text = "\0".join(map(str, key)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=size).digest(), "big") or 1


def _known(attributes: Attributes) -> Attributes:
    """Without what is null."""
    return {name: value for name, value in attributes.items() if value is not None}


_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_STOP: Final = {"ok": "stop", "error": "error"}


def tool_error(row: Row) -> str:
    """The `error.type` of a tool call that failed: its code, where that says anything."""
    code = row["error_code"]
    return str(code) if code and code != "failure" else _FAULTS.get(row["status"], "ToolError")


_FAULTS: Final = {"denied": "denied", "interrupted": "interrupted"}


class _Session:
    """The spans of one session."""

    def __init__(
        self,
        session: Row,
        rows: Rows,
        content: Content | None,
    ) -> None:
        self._session, self._rows, self._content = session, rows, content
        self._id: str = session["session_id"]
        self._version: str | None = session["cli_version"]
        self._over = session["ending"] != "none"
        self._loops = {
            row["interaction"]: row for row in rows["interactions"] if row["kind"] != "steering"
        }
        self._last = {row["agent_id"]: n for n, row in self._loops.items()}
        self._agents = {row["agent_id"]: row for row in rows["subagents"]}
        self._tools = dict(zip(self._tool_keys(), rows["tool_calls"], strict=True))
        self._of_call = {key[0]: (key, row) for key, row in self._tools.items()}
        self._calls: defaultdict[int, list[Row]] = defaultdict(list)
        for call in rows["llm_calls"]:
            self._calls[call["interaction"]].append(call)
        self._packed: defaultdict[str, list[datetime]] = defaultdict(list)
        for call in rows["llm_calls"]:
            if call["evidence"] == "compaction" and call["status"] == "ok" and call["ended_at"]:
                self._packed[call["agent_id"]].append(call["ended_at"])
        self._begins: defaultdict[str, list[tuple[datetime, int]]] = defaultdict(list)
        for number, row in self._loops.items():
            if row["started_at"]:
                self._begins[row["agent_id"]].append((row["started_at"], number))
        self._traces: dict[int | None, int] = {}
        self._contexts: dict[tuple[object, ...], SpanContext] = {}

    def _tool_keys(self) -> Iterator[tuple[str, int]]:
        """An id can come twice."""
        seen: defaultdict[str, Iterator[int]] = defaultdict(count)
        for row in self._rows["tool_calls"]:
            yield row["tool_call_id"], next(seen[row["tool_call_id"]])

    # --- ids and places -------------------------------------------------------------------

    def _context(self, loop: int | None, *key: object) -> SpanContext:
        found = self._contexts.get(key)
        if found is None:
            found = SpanContext(
                self._trace(loop), _hash(8, self._id, *key), is_remote=False, trace_flags=_SAMPLED
            )
            self._contexts[key] = found
        return found

    def _trace(self, loop: int | None) -> int:
        """Of the interaction of the root agent that a loop is part of."""
        if loop not in self._traces:
            root, seen = loop, set[int | None]()
            while root not in seen and (task := self._task(root)):
                seen.add(root)
                root = task[1]["interaction"]
            self._traces[loop] = _hash(16, self._id, root)
        return self._traces[loop]

    def _task(self, loop: int | None) -> tuple[tuple[str, int], Row] | None:
        """The tool call that started the sub-agent whose loop it is."""
        row = self._loops.get(-1 if loop is None else loop)
        if row is None or row["agent_id"] == MAIN:
            return None
        agent = self._agents.get(row["agent_id"])
        return self._of_call.get(agent["tool_call_id"] if agent else row["agent_id"])

    def _loop_at(self, agent: str, at: datetime | None) -> int | None:
        """The interaction of an agent at a time; before the first, that."""
        begins = self._begins.get(agent)
        if not begins or at is None:
            return None
        return begins[max(0, bisect_right(begins, (at, 2**62)) - 1)][1]

    def _superseded(self, loop: int | None, agent: str) -> bool:
        """Whether what is open in this loop can't be closed any more."""
        return self._over or (loop is not None and loop < self._last.get(agent, loop))

    # --- spans ----------------------------------------------------------------------------

    def spans(self) -> Iterator[Made]:
        """All of them, parents first."""
        events = self._events()
        for number, row in self._loops.items():
            yield from self._invoke_agent(number, row, events.get(number, []))
        for call in self._rows["llm_calls"]:
            if call["evidence"] != "compaction":
                yield from self._chat(call)
        for key, tool in self._tools.items():
            yield from self._execute_tool(key, tool)
        seen: defaultdict[str, Iterator[int]] = defaultdict(count)
        for row in self._rows["permissions"]:
            yield from self._permission(row, next(seen[row["request_id"]]))

    def _span(  # noqa: PLR0913
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[datetime | None, datetime | None, datetime | None],
        attributes: Attributes,
        *,
        final: bool = True,
        kind: SpanKind = SpanKind.INTERNAL,
        failed: str = "",
        events: tuple[Event, ...] = (),
    ) -> Iterator[Made]:
        """`times` are its start, its end, and what stands for the end where it is open."""
        start, end, last = times
        if start is None and end is None:
            return
        begin = nanoseconds(start or end)  # type: ignore[arg-type]
        stop = max(begin, nanoseconds(end or last or start))  # type: ignore[arg-type]
        if end is None:
            attributes[OPEN] = True
        span = ReadableSpan(
            name, context, parent, resource(self._version),
            attributes={"gen_ai.conversation.id": self._id, **attributes},
            events=events, kind=kind, instrumentation_scope=scope(self._version),
            status=Status(StatusCode.ERROR, failed) if failed else Status(StatusCode.UNSET),
            start_time=begin, end_time=stop,
        )  # fmt: skip
        yield Made(self._id, span, final, end is not None)

    def _invoke_agent(self, number: int, row: Row, events: list[Event]) -> Iterator[Made]:
        agent = self._agents.get(row["agent_id"]) if row["agent_id"] != MAIN else None
        calls = [c for c in self._calls[number] if c["evidence"] != "compaction"]
        task = self._task(number)
        errors = [e for e in events if e.name == _EXCEPTION]
        kind = errors[-1].attributes.get("github.copilot.error_type") if errors else None  # type: ignore[union-attr]
        failed = row["outcome"] == "error" or (agent is not None and agent["status"] == "failed")
        name = agent["agent_name"] if agent else None
        attributes = _known(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": "github",
                "gen_ai.agent.name": name,
                "gen_ai.response.finish_reasons": [_reason(calls[-1])] if calls else None,
                "gen_ai.usage.input_tokens": _sum(calls, "input_tokens"),
                "gen_ai.usage.output_tokens": _sum(calls, "output_tokens"),
                "github.copilot.agent.type": "builtin" if agent is None else None,
                "github.copilot.turn_count": row["turns"] if agent is None else None,
                "github.copilot.cost": _sum(calls, "premium_requests") if agent else None,
                "github.copilot.nano_aiu": _sum(calls, "nano_aiu"),
                "github.copilot.git.repository": self._session["repository"],
                "github.copilot.git.branch": self._session["branch"],
                "error.type": (kind or "error") if failed else None,
            }
        )
        # what ran before the message (hooks at the session's start) is part of the trace
        start = row["started_at"]
        if events and start and events[0].timestamp < nanoseconds(start):
            start = _instant(events[0].timestamp)
        done = row["outcome"] != "open"
        end = row["ended_at"] if done else None
        if done and agent and agent["ended_at"] and number == self._last[row["agent_id"]]:
            end = max(end, agent["ended_at"]) if end else agent["ended_at"]
        return self._span(
            f"invoke_agent {name}" if name else "invoke_agent",
            self._context(number, "invoke_agent", number),
            self._context(number, "execute_tool", *task[0]) if task else None,
            (start, end, row["ended_at"]),
            attributes,
            final=self._superseded(number, row["agent_id"])
            or (done and agent is not None and agent["ended_at"] is not None),
            failed="Session error" if failed else "",
            events=tuple(events),
        )

    def _chat(self, call: Row) -> Iterator[Made]:
        loop, replied = call["interaction"], call["replied_at"]
        start, end = call["started_at"], replied or call["ended_at"]
        if replied and call["llm_ms_source"] in {"usage_record", "store"}:
            # a turn can wait, for a compaction say, before its call is sent
            sent = replied - timedelta(milliseconds=call["llm_ms"])
            start = max(start, sent) if start else sent
        failed = call["status"] in {"error", "aborted"}
        model, child = call["model"], call["agent_id"] != MAIN
        ttft = call["ttft_ms"]
        attributes = _known(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "github",
                "gen_ai.request.model": model,
                "gen_ai.response.model": model if call["status"] == "ok" else None,
                "gen_ai.response.id": call["api_call_id"],
                "gen_ai.response.finish_reasons": [_reason(call)] if _reason(call) else None,
                "gen_ai.response.time_to_first_chunk": ttft / 1000 if ttft is not None else None,
                "gen_ai.conversation.compacted": self._is_packed(call) or None,
                "gen_ai.usage.input_tokens": call["input_tokens"],
                "gen_ai.usage.output_tokens": call["output_tokens"],
                "gen_ai.usage.cache_read.input_tokens": call["cache_read_tokens"],
                "gen_ai.usage.cache_creation.input_tokens": call["cache_write_tokens"] or None,
                "gen_ai.usage.reasoning.output_tokens": call["reasoning_tokens"],
                "github.copilot.cost": call["premium_requests"],
                "github.copilot.nano_aiu": call["nano_aiu"],
                "github.copilot.server_duration": float(call["llm_ms"])
                if call["llm_ms_source"] == "usage_record" and call["llm_ms"] is not None
                else None,
                "github.copilot.initiator": call["initiator"],
                "github.copilot.turn_id": None if child else call["turn_id"],
                "github.copilot.interaction_id": None if child else call["interaction_id"],
                "error.type": "ModelCallError" if failed else None,
            }
        )
        if self._content:
            attributes |= self._content.chat(call["agent_id"], replied)
        events = (_event(_EXCEPTION, end, {"exception.type": "ModelCallError"}),) if failed else ()
        return self._span(
            f"chat {model}" if model else "chat",
            self._context(loop, "chat", call["turn"]),
            self._parent(loop),
            (start, end, self._loops.get(loop, {}).get("ended_at")),
            attributes,
            # a reply's usage and its errors may come behind it, but before the turn's end
            final=call["ended_at"] is not None or self._superseded(loop, call["agent_id"]),
            kind=SpanKind.CLIENT,
            failed="Model call failed" if failed else "",
            events=tuple(e for e in events if e),
        )

    def _is_packed(self, call: Row) -> bool:
        at = call["replied_at"] or call["started_at"]
        return at is not None and any(t <= at for t in self._packed[call["agent_id"]])

    def _execute_tool(self, key: tuple[str, int], row: Row) -> Iterator[Made]:
        loop, status, tool = row["interaction"], row["status"], row["tool"]
        agent = self._agents.get(row["agent_id"])
        shell = tool if row["category"] == "shell" and row["exit_code"] is not None else None
        cause = tool_error(row) if status in {"failed", "denied", "interrupted"} else None
        attributes = _known(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.provider.name": "github",
                "gen_ai.tool.name": tool,
                "gen_ai.tool.call.id": row["tool_call_id"],
                "gen_ai.tool.type": "function",
                "gen_ai.agent.name": agent["agent_name"] if agent else None,
                "process.executable.name": shell,
                "process.exit.code": row["exit_code"],
                "error.type": cause,
            }
        )
        if self._content:
            attributes |= self._content.tool(row["tool_call_id"])
        fault = {"exception.type": "ToolError", "exception.message": "Tool failed"}
        if row["error_code"]:
            fault["github.copilot.error_code"] = row["error_code"]
        event = _event(_EXCEPTION, row["ended_at"], fault) if cause else None
        name = f"execute_tool {tool}" if tool else "execute_tool"
        return self._span(
            f"{name} {shell}" if shell else name,
            self._context(loop, "execute_tool", *key),
            self._parent(loop),
            (row["started_at"], row["ended_at"], self._loops.get(loop, {}).get("ended_at")),
            attributes,
            final=row["ended_at"] is not None or self._superseded(loop, row["agent_id"]),
            failed="Tool failed" if cause else "",
            events=(event,) if event else (),
        )

    def _permission(self, row: Row, number: int) -> Iterator[Made]:
        key, tool = self._of_call.get(row["tool_call_id"], ((), None))
        at = row["started_at"] or row["ended_at"]
        loop = tool["interaction"] if tool else self._loop_at(row["agent_id"], at)
        parent = self._context(loop, "execute_tool", *key) if tool else self._parent(loop)
        attributes = _known(
            {
                "github.copilot.permission.kind": row["kind"],
                "github.copilot.permission.result": row["outcome"],
            }
        )
        last = self._loops.get(-1 if loop is None else loop, {}).get("ended_at")
        return self._span(
            "permission",
            self._context(loop, "permission", row["request_id"], number),
            parent,
            (row["started_at"], row["ended_at"], last),
            attributes,
            final=row["ended_at"] is not None or self._superseded(loop, row["agent_id"]),
        )

    def _parent(self, loop: int | None) -> SpanContext | None:
        if loop not in self._loops or not self._loops[loop]["started_at"]:
            return None
        return self._context(loop, "invoke_agent", loop)

    # --- events ---------------------------------------------------------------------------

    def _events(self) -> dict[int, list[Event]]:
        """What happened in each interaction beside calls and tools, in order of time."""
        found: defaultdict[int, list[Event]] = defaultdict(list)
        for told in (self._messages(), self._compactions(), self._hooks(), self._incidents()):
            for loop, name, at, attributes in told:
                event = _event(name, at, attributes)
                if event and loop is not None and loop in self._loops:
                    found[loop].append(event)
        for events in found.values():
            events.sort(key=lambda event: event.timestamp)
        return found

    def _messages(self) -> Iterator[_Told]:
        name = "github.copilot.user.message"
        for row in self._rows["interactions"]:
            if row["agent_id"] == MAIN:
                steers = row["kind"] == "steering"
                loop = self._loop_at(MAIN, row["started_at"]) if steers else row["interaction"]
                said = {"source": row["kind"], "interaction_id": row["interaction_id"]}
                attributes = {f"{name}.{key}": value for key, value in said.items() if value}
                yield loop, name, row["started_at"], attributes

    def _compactions(self) -> Iterator[_Told]:
        name = "github.copilot.session.compaction"
        for call in self._rows["llm_calls"]:
            if call["evidence"] == "compaction":
                done = {"github.copilot.success": call["status"] == "ok"}
                yield call["interaction"], f"{name}_start", call["started_at"], {}
                yield call["interaction"], f"{name}_complete", call["ended_at"], done

    def _hooks(self) -> Iterator[_Told]:
        name = "github.copilot.hook"
        for row in self._rows["hooks"]:
            _, tool = self._of_call.get(row["tool_call_id"], (None, None))
            at = row["started_at"] or row["ended_at"]
            loop = tool["interaction"] if tool else self._loop_at(row["agent_id"], at)
            said = {"type": row["kind"], "invocation_id": row["hook_invocation_id"]}
            attributes = {f"{name}.{key}": value for key, value in said.items() if value}
            yield loop, f"{name}.start", row["started_at"], attributes
            if row["duration_ms"] is not None:
                attributes[f"{name}.duration"] = row["duration_ms"] / 1000
            yield loop, f"{name}.end", row["ended_at"], attributes

    def _incidents(self) -> Iterator[_Told]:
        for row in self._rows["incidents"]:
            loop, detail = self._loop_at(MAIN, row["at"]), row["detail"] or ""
            if row["kind"] == "error":
                kind, _, code = detail.partition(" ")
                fault = {"exception.type": "SessionTurnError", "github.copilot.error_type": kind}
                status = {"github.copilot.error_status_code": int(code)} if _HTTP(code) else {}
                yield loop, _EXCEPTION, row["at"], {**fault, **status}
            elif row["kind"] == "abort":
                yield loop, "github.copilot.abort", row["at"], {"github.copilot.reason": detail}
            elif row["kind"] == "truncation":
                yield loop, "github.copilot.session.truncation", row["at"], {}


_HTTP: Final = re.compile("[1-5][0-9]{2}").fullmatch
_EXCEPTION: Final = "gen_ai.client.operation.exception"


def _event(name: str, at: datetime | None, attributes: Attributes) -> Event | None:
    return Event(name, dict(attributes), nanoseconds(at)) if at else None


def _reason(call: Row) -> str | None:
    """Why the reply ended; old logs only say whether it asked for tools."""
    if call["finish_reason"]:
        return str(call["finish_reason"])
    if call["status"] == "ok" and call["tool_requests"]:
        return "tool_calls"
    return _STOP.get(call["status"])


def _sum(calls: list[Row], name: str) -> Any:  # noqa: ANN401
    known = [call[name] for call in calls if call[name] is not None]
    return sum(known) if known else None
