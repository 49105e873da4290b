"""One session as a tree: interaction → turn → tool → sub-agent, with times."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from copilot_insights import units
from copilot_insights.reports import Column, Section
from copilot_insights.schema import MAIN
from copilot_insights.tables import Tables

_SCHEMA: Final = {
    "depth": pl.Int64, "kind": pl.String, "name": pl.String,
    "started_at": pl.Datetime("ms", "UTC"), "duration_ms": pl.Int64, "status": pl.String,
    "input_tokens": pl.Int64, "output_tokens": pl.Int64, "detail": pl.String,
    "content": pl.String,
}  # fmt: skip


def show(tables: Tables, session_id: str, tz: str, *, content: bool = False) -> Section:
    """The tree of one session of the tables. With content, what was said, read again from
    the log."""
    of = pl.col("session_id") == session_id
    session = tables.sessions.row(by_predicate=of, named=True)
    texts = _Content(Path(session["path"])) if content else None
    rows = list(_Walk(tables, session_id, texts).rows())
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    start = session["started_at"]
    shown = frame.with_columns(
        what=pl.Series([_line(row) for row in frame.iter_rows(named=True)], dtype=pl.String),
        after=(pl.col("started_at") - pl.lit(start)).dt.total_milliseconds(),
        state=pl.when(~pl.col("status").is_in(["ok", "answered"])).then("status"),
    )
    columns = (
        Column("after", "after", "ms"), Column("what", ""), Column("duration_ms", "took", "ms"),
        Column("state", "status"), Column("input_tokens", "in", "count", 2),
        Column("output_tokens", "out", "count", 2), Column("detail", "detail", "text", 3),
    )  # fmt: skip
    if content:
        columns = (*columns[:2], Column("content", "content"), *columns[2:4])
    lines = (
        ("session", session_id),
        ("log", session["path"]),
        ("started", f"{units.moment(start, tz)} {tz}"),
        ("where", " ".join(filter(None, (session["repository"], session["branch"], session["cwd"])))),
        ("CLI", session["cli_version"] or units.NOTHING),
    )
    return Section("show", "", frame, columns, shown, lines)


_GUIDE: Final = "│ "


def _line(row: dict[str, Any]) -> str:
    return _GUIDE * row["depth"] + " ".join(filter(None, (row["kind"], row["name"])))


class _Walk:
    """Goes down the tree; every call of the session comes exactly once."""

    def __init__(self, tables: Tables, session_id: str, texts: "_Content | None") -> None:
        of = pl.col("session_id") == session_id
        self._texts = texts
        self._loops = self._by(tables.interactions.filter(of), "agent_id")
        self._calls = self._by(tables.llm_calls.filter(of), "agent_id", "interaction")
        self._tools = self._by(tables.tool_calls.filter(of), "agent_id", "turn")
        self._agents = self._by(tables.subagents.filter(of), "tool_call_id")
        self._troubles = tables.incidents.filter(of & pl.col("kind").is_in(["error", "abort"]))

    @staticmethod
    def _by(frame: pl.DataFrame, *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
        groups: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for row in frame.iter_rows(named=True):
            groups[tuple(row[key] for key in keys)].append(row)
        return groups

    def rows(self) -> Iterator[tuple[Any, ...]]:
        yield from self._agent(MAIN, 0)
        for agents in list(self._agents.values()):  # whose `task` call is not in the log
            for agent in agents:
                yield from self._subagent(agent, 0)
        for trouble in self._troubles.iter_rows(named=True):
            yield self._row(0, trouble["kind"], None, trouble["at"], None, "", trouble["detail"])

    def _agent(self, agent: str, depth: int) -> Iterator[tuple[Any, ...]]:
        for loop in self._loops.pop((agent,), []):
            ms = int((loop["ended_at"] - loop["started_at"]).total_seconds() * 1000) if loop["ended_at"] and loop["started_at"] else None
            kind = {"autopilot": "nudge", "subagent": "prompt"}.get(loop["kind"], loop["kind"])
            said = self._texts and self._texts.user(agent, loop["started_at"])
            yield self._row(depth, kind, None, loop["started_at"], ms, loop["outcome"], _split(loop), said)
            for call in self._calls.pop((agent, loop["interaction"]), []):
                yield from self._call(agent, call, depth + 1)
        for key in [k for k in self._calls if k[0] == agent]:
            for call in self._calls.pop(key):
                yield from self._call(agent, call, depth)

    def _call(self, agent: str, call: dict[str, Any], depth: int) -> Iterator[tuple[Any, ...]]:
        compaction = call["evidence"] == "compaction"
        name = None if compaction else call["turn_id"]
        said = self._texts and not compaction and self._texts.assistant(agent, call["replied_at"])
        yield self._row(
            depth, "compaction" if compaction else "turn", name, call["started_at"], call["llm_ms"],
            call["status"], call["model"], said or None, call["input_tokens"], call["output_tokens"],
        )  # fmt: skip
        for tool in [] if compaction else self._tools.pop((agent, call["turn"]), []):
            said = self._texts and self._texts.tool(tool["tool_call_id"])
            yield self._row(
                depth + 1, "tool", tool["tool"], tool["started_at"] or tool["ended_at"],
                tool["duration_ms"], tool["status"], _held(tool), said,
            )  # fmt: skip
            for sub in self._agents.pop((tool["tool_call_id"],), []):
                yield from self._subagent(sub, depth + 2)

    def _subagent(self, sub: dict[str, Any], depth: int) -> Iterator[tuple[Any, ...]]:
        ms = int((sub["ended_at"] - sub["started_at"]).total_seconds() * 1000) if sub["ended_at"] else None
        self._agents.pop((sub["tool_call_id"],), None)
        yield self._row(depth, "sub-agent", sub["agent_name"], sub["started_at"], ms, sub["status"], sub["execution_mode"])
        yield from self._agent(sub["agent_id"], depth + 1)

    @staticmethod
    def _row(
        depth: int, kind: str, name: str | None, at: datetime | None, ms: int | None, status: str,
        detail: str | None = None, content: str | None = None, tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        return (depth, kind, name, at, ms, status, tokens_in, tokens_out, detail, content)


def _split(loop: dict[str, Any]) -> str:
    parts = {"model": "llm_ms", "tools": "tool_ms", "permissions": "permission_ms", "hooks": "hook_ms"}
    return ", ".join(f"{name} {units.duration(loop[part])}" for name, part in parts.items() if loop[part])


def _held(tool: dict[str, Any]) -> str | None:
    parts = {"permission": tool["permission_ms"], "hooks": tool["hook_ms"]}
    words = [f"{name} {units.duration(ms)}" for name, ms in parts.items() if ms]
    if tool["exit_code"]:
        words.insert(0, f"exit {tool['exit_code']}")
    if tool["error_code"]:
        words.insert(0, tool["error_code"])
    return ", ".join(words) or None


class _Content:
    """What was said, by agent and time or by tool call; read only when asked for."""

    def __init__(self, log: Path) -> None:
        self._said: dict[tuple[Any, ...], str] = {}
        for line in log.read_bytes().split(b"\n"):
            try:
                event = msgspec.json.decode(line)
                data = event["data"]
                agent = event.get("agentId") or data.get("parentToolCallId") or MAIN
                at = event["timestamp"]
                match event["type"]:
                    case "user.message" | "assistant.message":
                        self._said.setdefault((event["type"], agent, at), str(data["content"]))
                    case "tool.execution_start":
                        self._said[("tool", data["toolCallId"])] = _json(data.get("arguments"))
                    case "tool.execution_complete":
                        key = ("tool", data["toolCallId"])
                        result = data.get("result") or data.get("error")
                        text = result.get("content") or result.get("message") if isinstance(result, dict) else result
                        self._said[key] = f"{self._said.get(key, '')} → {text}"
            except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
                continue  # damaged: the tree shows it without words

    def _at(self, kind: str, agent: str, at: datetime | None) -> str | None:
        stamp = at and f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
        return self._said.get((kind, agent, stamp))

    def user(self, agent: str, at: datetime | None) -> str | None:
        """A prompt."""
        return self._at("user.message", agent, at)

    def assistant(self, agent: str, at: datetime | None) -> str | None:
        """A reply."""
        return self._at("assistant.message", agent, at)

    def tool(self, call: str | None) -> str | None:
        """Arguments → result."""
        return self._said.get(("tool", call))


def _json(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
