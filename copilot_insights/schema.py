"""All knowledge of the log: event types, the fields read of each, and table columns.

`FIELDS` says for each event type which columns of the events frame come from which paths
of its payload; the decoder's structs are built from it. Content (prompts, replies,
arguments, results) is skipped by the decoder or measured, never kept. Every field is
optional: a log may be damaged, and null means that it does not say. Facts: the event
schema of CLI 1.0.102 and logs of 1.0.12 to 1.0.102; where they disagree, the logs.
"""

from collections.abc import Callable, Collection
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, NamedTuple, cast

import msgspec
import polars as pl
from msgspec import Meta, Raw, Struct

from copilot_insights import values
from copilot_insights.values import Amount, Count

MAIN: Final = "main"
"""The agent id of the root agent, whose events carry none."""

# --- columns of the events frame ---------------------------------------------------------

S, I, F, B = pl.String, pl.Int64, pl.Float64, pl.Boolean  # noqa: E741 (in tables of types)
AT: Final = pl.Datetime("ms", "UTC")

_TOKENS: Final[dict[str, Any]] = {
    "input_tokens": I, "cache_read_tokens": I, "cache_write_tokens": I, "output_tokens": I,
    "reasoning_tokens": I,
}  # fmt: skip
TOKENS: Final = tuple(_TOKENS)
"""Token columns. Cache tokens are part of input, reasoning tokens part of output."""

AMOUNTS: Final = (*TOKENS, "nano_aiu", "premium_requests")
"""What a usage statement says. 1e9 nano_aiu are one AI credit."""

STATEMENT: Final = pl.Struct(
    {"agent_id": S, "model": S, "requests": I, **_TOKENS, "nano_aiu": F, "premium_requests": F}
)
"""One model's share of a total, or (`agent_id`) one agent's of that."""

EVENT_COLUMNS: Final[dict[str, Any]] = {
    "turn_id": S, "interaction_id": S, "tool_call_id": S, "parent_tool_call_id": S,
    "api_call_id": S, "request_id": S, "tool": S, "mcp_server": S, "agent_name": S,
    "execution_mode": S, "kind": S, "outcome": S, "error_code": S, "status_code": I, "model": S,
    "cwd": S, "repository": S, "branch": S, "producer": S, "cli_version": S, "delivery": S,
    "source": S, "nudge": B, "success": B, "cancelled": B, "tool_requests": I,
    "argument_bytes": I, "arguments_hash": S, "result_bytes": I, "exit_code": I,
    "tool_call_ids": pl.List(S), **_TOKENS, "nano_aiu": F, "premium_requests": F,
    "duration_ms": I, "ttft_ms": I, "initiator": S, "finish_reason": S, "lines_added": I,
    "lines_removed": I, "files_modified": I, "statements": pl.List(STATEMENT),
}  # fmt: skip
"""What the events frame keeps of payloads."""

# --- payload fields -----------------------------------------------------------------------

_ExitCode = Annotated[int, Meta(ge=-(2**32), le=2**32)]
_DECODED: Final[dict[Any, Any]] = {S: str, I: Count, F: Amount, B: bool}


class From(NamedTuple):
    """A column that is computed: `function` of the values at `paths`, decoded as `types`."""

    paths: tuple[str, ...]
    types: tuple[Any, ...]
    function: Callable[..., Any]


_Columns = dict[str, str | From]
"""Column of the events frame → path in the payload, or how it is computed."""


_RAW_ARGUMENTS: Final = (("arguments",), (Raw,))
_TURN: Final[_Columns] = {
    "turn_id": "turnId", "interaction_id": "interactionId", "model": "model",
    "parent_tool_call_id": "parentToolCallId",
}  # fmt: skip
_CONTEXT: Final[_Columns] = {
    "cwd": From(("context.cwd", "context.gitRoot"), (str, str), values.first),
    "repository": "context.repository", "branch": "context.branch", "producer": "producer",
    "cli_version": "copilotVersion", "model": "selectedModel",
}  # fmt: skip
_TOTAL: Final[_Columns] = {
    "outcome": "shutdownType",
    "statements": From(
        ("modelMetrics", "providerModelMetrics", "agentMetrics",
         "accountingSnapshot.aiCreditsStatus"),
        (dict[str, values.ModelMetrics], list[values.ProviderMetrics],
         dict[str, values.AgentMetrics], str),
        values.statements,
    ),
    "premium_requests": "totalPremiumRequests",
    "nano_aiu": From(
        ("totalNanoAiu", "accountingSnapshot.aiCreditsStatus"), (Amount, str), values.known
    ),
    "lines_added": "codeChanges.linesAdded", "lines_removed": "codeChanges.linesRemoved",
    "files_modified": From(("codeChanges.filesModified",), (list[Raw],), values.length),
}  # fmt: skip
_USAGE: Final[_Columns] = {
    "model": "model", "api_call_id": "apiCallId", "input_tokens": "inputTokens",
    "output_tokens": "outputTokens", "cache_read_tokens": "cacheReadTokens",
    "cache_write_tokens": "cacheWriteTokens", "reasoning_tokens": "reasoningTokens",
    "premium_requests": From(("cost", "initiator"), (Amount, str), values.cost),
    "nano_aiu": From(
        ("copilotUsage.totalNanoAiu", "aiCreditsStatus"), (Amount, str), values.known
    ),
    "duration_ms": From(("duration",), (Amount,), values.whole),
    "ttft_ms": From(("timeToFirstTokenMs", "ttftMs"), (Amount, Amount), values.whole),
    "initiator": "initiator", "finish_reason": "finishReason",
}  # fmt: skip
_SUBAGENT: Final[_Columns] = {
    "tool_call_id": "toolCallId", "agent_name": "agentName", "model": "model",
    "execution_mode": "executionMode", "cancelled": "cancelled",
}  # fmt: skip
_HOOK: Final[_Columns] = {
    "request_id": "hookInvocationId", "kind": "hookType", "success": "success",
    "parent_tool_call_id": "parentToolCallId",
}  # fmt: skip
_USED: Final = "compactionTokensUsed"

FIELDS: Final[dict[str, _Columns]] = {
    "session.start": _CONTEXT,
    "session.resume": _CONTEXT,
    "session.context_changed": {
        "cwd": From(("cwd", "gitRoot"), (str, str), values.first),
        "repository": "repository", "branch": "branch",
    },
    "session.model_change": {"model": "newModel"},
    "session.shutdown": _TOTAL,
    "session.usage_checkpoint": _TOTAL,
    "session.usage_record": {
        column: f"usage.{of}" if isinstance(of, str) else of._replace(
            paths=tuple(f"usage.{path}" for path in of.paths))
        for column, of in _USAGE.items()
    },
    "assistant.usage": _USAGE,
    "user.message": {
        "interaction_id": "interactionId", "source": "source", "delivery": "delivery",
        "parent_tool_call_id": "parentToolCallId",
        "nudge": From(("isAutopilotContinuation", "source", "agentMode", "content"),
                      (bool, str, str, Raw), values.nudge),
    },
    "assistant.turn_start": _TURN,
    "assistant.turn_end": _TURN,
    "assistant.turn_retry": _TURN,
    "assistant.message": {
        **_TURN, "api_call_id": "apiCallId", "output_tokens": "outputTokens",
        "tool_requests": From(("toolRequests",), (list[Raw],), lambda r: len(r or ())),
    },
    "tool.execution_start": {
        "tool_call_id": "toolCallId", "tool": "toolName", "mcp_server": "mcpServerName",
        "parent_tool_call_id": "parentToolCallId",
        "argument_bytes": From(*_RAW_ARGUMENTS, values.size),
        "arguments_hash": From(*_RAW_ARGUMENTS, values.hash_arguments),
    },
    "tool.execution_complete": {
        "tool_call_id": "toolCallId", "parent_tool_call_id": "parentToolCallId",
        "success": "success", "error_code": "error.code", "model": "model",
        "exit_code": From(("shellExecution.exitCode", "result"), (_ExitCode, Raw),
                          values.exit_code),
        "result_bytes": From(("result",), (Raw,), values.size),
    },
    "permission.requested": {
        "request_id": "requestId", "kind": "permissionRequest.kind",
        "tool_call_id": "permissionRequest.toolCallId",
    },
    "permission.completed": {
        "request_id": "requestId", "tool_call_id": "toolCallId", "outcome": "result.kind",
    },
    "hook.start": {
        **_HOOK, "tool": "input.toolName",
        "arguments_hash": From(("input.toolArgs",), (Raw,), values.hash_arguments),
        "tool_call_ids": From(("input.toolCalls",), (list[values.HookToolCall],),
                              lambda calls: [c.id for c in calls if c.id] if calls else None),
    },
    "hook.end": _HOOK,
    "subagent.started": _SUBAGENT,
    "subagent.completed": _SUBAGENT,
    "subagent.failed": _SUBAGENT,
    "session.compaction_start": {"model": "model"},
    "session.compaction_complete": {
        "model": From(("model", f"{_USED}.model"), (str, str), values.first), "success": "success",
        # the short keys are those of 1.0.12 to 1.0.2x
        "input_tokens": From((f"{_USED}.inputTokens", f"{_USED}.input"), (Count, Count),
                             values.first),
        "output_tokens": From((f"{_USED}.outputTokens", f"{_USED}.output"), (Count, Count),
                              values.first),
        "cache_read_tokens": From((f"{_USED}.cacheReadTokens", f"{_USED}.cachedInput"),
                                  (Count, Count), values.first),
        "cache_write_tokens": f"{_USED}.cacheWriteTokens",
        "duration_ms": From((f"{_USED}.duration",), (Amount,), values.whole),
    },
    "session.error": {"error_code": "errorType", "status_code": "statusCode"},
    "model.call_failure": {"error_code": "errorType", "status_code": "statusCode"},
    "session.truncation": {"input_tokens": "tokensRemovedDuringTruncation"},
    "session.task_complete": {"success": "success"},
    "abort": {"outcome": "reason"},
    "result": {"premium_requests": "premiumRequests"},
}  # fmt: skip
"""Event type → column of the events frame → path in `data`, or how it is computed."""

RENAMED: Final = {f"custom_agent.{e}": f"subagent.{e}" for e in ("started", "completed", "failed")}
"""Event types of CLI 0.0.3xx → the name they have now."""

COUNTED: Final = (
    "assistant.idle", "assistant.intent", "assistant.message_delta", "assistant.message_start",
    "assistant.reasoning", "assistant.reasoning_delta", "assistant.streaming_delta",
    "assistant.tool_call_delta", "external_tool.completed", "external_tool.requested",
    "model.call_final_result", "model.call_finished", "model.call_start",
    "pending_messages.modified", "session.auto_mode_resolved",
    "session.autopilot_objective_changed", "session.autopilot_stopped",
    "session.background_tasks_changed", "session.binary_asset", "session.canvas.recorded",
    "session.completion_receipt", "session.context_cleared", "session.handoff", "session.idle",
    "session.import_legacy", "session.info", "session.mcp_server_status_changed",
    "session.mcp_servers_loaded", "session.mode_changed", "session.mode_notice_delivered",
    "session.permissions_changed", "session.plan_changed", "session.remote_steerable_changed",
    "session.schedule_cancelled", "session.schedule_created", "session.session_limits_changed",
    "session.skills_loaded", "session.title_changed", "session.tools_updated",
    "session.usage_info", "session.warning", "session.workspace_file_changed",
    "skill.context_delivered", "skill.invoked", "subagent.configured", "subagent.deselected",
    "subagent.selected", "system.message", "system.notification",
    "tool.execution_partial_result", "tool.execution_progress", "tool.shell_output",
    "tool.user_requested", "tool_search.activated",
)  # fmt: skip
"""Types of which nothing but the envelope is read. Known so that a whole file decodes in
one call; a type that stands nowhere here only makes its file slower to read."""

# --- the decoder's structs -----------------------------------------------------------------


class Event(Struct, gc=False, rename="camel"):
    """The envelope. `timestamp` is ISO 8601 UTC with milliseconds; agent_id: see MAIN.
    Ephemeral events are never stored; a stream has them.
    """

    id: str | None = None
    timestamp: str | None = None
    parent_id: str | None = None
    agent_id: str | None = None
    ephemeral: bool | None = None


class Other(Event, gc=False, rename="camel"):
    """An event of a type that is not known here; kept and counted."""

    type: str = ""


class StreamUsage(Struct, frozen=True, gc=False, rename="camel"):
    """What the last line of a stream says."""

    premium_requests: Amount | None = None


class StreamResult(Event, gc=False, rename="camel", tag="result", tag_field="type"):
    """The last line of `copilot -p … --output-format json`; no event of the session, and
    its payload stands where other events have their envelope.
    """

    session_id: str | None = None
    data: StreamUsage = msgspec.field(default=StreamUsage(), name="usage")


def _part(name: str, fields: dict[str, Any]) -> type[Struct]:
    """A struct of the paths in `fields`; a dotted path makes a struct within."""
    heads: dict[str, Any] = {}
    for path, kind in fields.items():
        head, _, rest = path.partition(".")
        if rest:
            heads.setdefault(head, {})[rest] = kind
        else:
            heads[head] = kind
    members: list[tuple[str, Any, Any]] = []
    for head, kind in heads.items():
        if isinstance(kind, dict):
            inner = _part(f"{name}_{head}", kind)
            members.append((head, inner, inner()))
        else:
            members.append((head, kind, Raw()) if kind is Raw else (head, kind | None, None))
    return msgspec.defstruct(name, members, frozen=True, gc=False)


def _event(tag: str, columns: dict[str, str | From], extra: dict[str, Any]) -> type[Event]:
    paths: dict[str, Any] = dict(extra)
    for column, of in columns.items():
        if isinstance(of, str):
            paths[of] = _DECODED[EVENT_COLUMNS[column]]
        else:
            paths.update(zip(of.paths, of.types, strict=True))
    name = tag.replace(".", "_")
    data = _part(f"{name}_data", paths)
    members = [("data", data, data())] if paths else []
    struct = msgspec.defstruct(
        name, members, bases=(Event,), tag=tag, tag_field="type", gc=False, rename="camel"
    )
    return cast("type[Event]", struct)


_STATED: Final = {"sessionId": str, "startTime": str}

EVENTS: Final[dict[str, type[Event]]] = {
    **{tag: _event(tag, columns, _STATED if tag == "session.start" else {})
       for tag, columns in FIELDS.items()},
    **{tag: _event(tag, FIELDS[name], {}) for tag, name in RENAMED.items()},
    **{tag: _event(tag, {}, {}) for tag in COUNTED},
    "result": StreamResult,
}  # fmt: skip
"""Event type → the struct that its line is decoded to."""

ANY_EVENT: Final = reduce(or_, EVENTS.values())

# --- tools ---------------------------------------------------------------------------------

CATEGORY: Final = {
    **{f"{verb}{shell}": "shell" for shell in ("bash", "powershell")
       for verb in ("", "read_", "write_", "stop_", "list_")},
    **dict.fromkeys(("view", "glob", "grep", "rg", "lsp", "show_file"), "read"),
    **dict.fromkeys(("edit", "create", "str_replace_editor", "apply_patch"), "edit"),
    **dict.fromkeys(("task", "read_agent", "write_agent", "list_agents", "stop_agent"), "agent"),
    **dict.fromkeys(("web_fetch", "web_search", "fetch_copilot_cli_documentation"), "web"),
    **dict.fromkeys(("ask_user", "exit_plan_mode"), "user"),
    **dict.fromkeys(("task_complete", "report_intent", "update_todo", "sql", "store_memory",
                     "skill", "tool_search"), "control"),
}  # fmt: skip
"""Tool → category; a tool of an MCP server is `mcp`, any other `other`. The tools of the
category `user` wait for a person: their time is waiting, not work."""

# --- tables --------------------------------------------------------------------------------

_PARTS: Final[dict[str, Any]] = {
    "llm_ms": I, "tool_ms": I, "permission_ms": I, "hook_ms": I, "other_ms": I,
}  # fmt: skip
PARTS: Final = tuple(_PARTS)
"""The parts of an interaction's wall time; they add up to it exactly."""

TABLES: Final[dict[str, dict[str, Any]]] = {
    "sessions": {
        "session_id": S, "path": S, "layout": S, "producer": S, "cli_version": S, "model": S,
        "cwd": S, "repository": S, "branch": S, "started_at": AT, "ended_at": AT, "ending": S,
        "processes": I, "interactions": I, "nudges": I, "turns_started": I, "turns_completed": I,
        "llm_calls": I, "failed_llm_calls": I, "tool_calls": I, "failed_tool_calls": I,
        "subagents": I, "compactions": I, "errors": I, "aborts": I, "task_complete": B,
        **_TOKENS, "compaction_input_tokens": I, "compaction_output_tokens": I,
        "usage_source": S, "premium_requests": F, "ai_credits": F, "wall_ms": I, "llm_ms": I,
        "tool_ms": I, "permission_ms": I, "hook_ms": I, "user_ms": I, "other_ms": I,
        "lines_added": I, "lines_removed": I, "files_modified": I, "events": I,
        "rejected_lines": I, "duplicate_events": I, "bytes": I,
    },
    "interactions": {
        "session_id": S, "agent_id": S, "interaction": I, "interaction_id": S, "kind": S,
        "started_at": AT, "ended_at": AT, "turns": I, "tool_calls": I, **_PARTS, "outcome": S,
    },
    "llm_calls": {
        "session_id": S, "agent_id": S, "interaction": I, "turn": I, "evidence": S,
        "turn_id": S, "interaction_id": S, "api_call_id": S, "model": S, "started_at": AT,
        "replied_at": AT, "ended_at": AT, "status": S, "llm_ms": I, "llm_ms_source": S,
        "ttft_ms": I, **_TOKENS, "nano_aiu": F, "premium_requests": F, "usage_source": S,
        "tool_requests": I, "finish_reason": S, "initiator": S,
    },
    "tool_calls": {
        "session_id": S, "tool_call_id": S, "agent_id": S, "interaction": I, "turn": I,
        "tool": S, "category": S, "mcp_server": S, "started_at": AT, "ended_at": AT,
        "duration_ms": I, "permission_ms": I, "hook_ms": I, "run_ms": I, "status": S,
        "exit_code": I, "error_code": S, "argument_bytes": I, "result_bytes": I,
        "arguments_hash": S,
    },
    "usage": {
        "session_id": S, "seq": I, "agent_id": S, "model": S, "source": S, "requests": I,
        **_TOKENS, "nano_aiu": F, "premium_requests": F, "at": AT,
    },
    "bookings": {
        "session_id": S, "agent_id": S, "model": S, "at": AT, "source": S, "estimated": B,
        **_TOKENS, "nano_aiu": F, "premium_requests": F,
    },
    "subagents": {
        "session_id": S, "agent_id": S, "tool_call_id": S, "agent_name": S, "model": S,
        "execution_mode": S, "started_at": AT, "ended_at": AT, "turns": I, "tool_calls": I,
        **_TOKENS, "status": S,
    },
    "permissions": {
        "session_id": S, "request_id": S, "tool_call_id": S, "agent_id": S, "kind": S,
        "started_at": AT, "ended_at": AT, "wait_ms": I, "outcome": S,
    },
    "hooks": {
        "session_id": S, "hook_invocation_id": S, "tool_call_id": S, "agent_id": S, "kind": S,
        "started_at": AT, "ended_at": AT, "duration_ms": I, "outcome": S,
    },
    "incidents": {"session_id": S, "seq": I, "at": AT, "kind": S, "detail": S},
    "events": {
        "session_id": S, "seq": I, "line": I, "event_id": S, "parent_id": S, "type": S,
        "at": AT, "agent_id": S, **EVENT_COLUMNS,
    },
}  # fmt: skip
"""Table → column → type; the grain and key stand first. `_ms` are milliseconds."""


_SOURCES: Final = ("usage_record", "store", "message", "compaction")
VALUES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "sessions": {"layout": ("directory", "flat", "stdout"), "ending": ("routine", "error", "none")},
    "interactions": {
        "kind": ("user", "autopilot", "steering", "subagent", "other"),
        "outcome": ("answered", "task_complete", "error", "aborted", "open"),
    },
    "llm_calls": {
        "evidence": ("turn", "message", "error", "compaction"),
        "status": ("ok", "error", "aborted", "open"),
        "llm_ms_source": (*_SOURCES, "turn"), "usage_source": _SOURCES,
    },
    "tool_calls": {
        "category": (*dict.fromkeys(CATEGORY.values()), "mcp", "other"),
        "status": ("ok", "failed", "denied", "interrupted", "open"),
    },
    "usage": {"source": (*_SOURCES, "shutdown", "checkpoint")},
    "bookings": {"source": (*_SOURCES[:3], "shutdown", "checkpoint")},
    "subagents": {"status": ("ok", "failed", "cancelled", "open")},
    "hooks": {"outcome": ("ok", "failed", "open")},
    "incidents": {"kind": (
        "error", "abort", "compaction", "truncation", "retry", "open_turn", "open_tool",
        "repeated_call", "unpaired_end", "rejected_line", "bad_field", "lost_lines", "out_of_order",
        "clock_back", "count_mismatch", "unknown_type", "tokens_unknown")},
}  # fmt: skip
"""Table → column → the words that can stand in it, besides null; other words are the log's own.
`evidence` is what tells of a call: its turn, of a sub-agent without turns its message or error,
or a compaction. `sessions.usage_source` is some of `usage.source`, put together with `+`.
"""

FAILED: Final = ("failed", "denied")
"""The statuses of tool calls that count as failed."""


def conform(table: str, frame: pl.LazyFrame, wanted: Collection[str]) -> pl.LazyFrame:
    """The wanted columns in the table's order and types; one that is not there is null."""
    have = frame.collect_schema()
    return frame.select(
        pl.col(name)
        if have.get(name) == dtype
        else (pl.col(name) if name in have else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in TABLES[table].items()
        if name in wanted
    )
