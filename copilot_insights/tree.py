"""One session as a tree: interaction → turn → tool → sub-agent, with times."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from copilot_insights import metrics, units
from copilot_insights.content import Content
from copilot_insights.reports import PART_NAMES, Column, Section
from copilot_insights.rows import unrolled
from copilot_insights.schema import MAIN
from copilot_insights.tables import Tables


class Row(NamedTuple):
    """A line of the tree; `depth` 0 is an interaction of the root agent."""

    depth: int
    kind: str
    name: str | None
    started_at: datetime | None
    duration_ms: int | None
    status: str
    detail: str | None = None
    content: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


_AT: Final = pl.Datetime("ms", "UTC")
_SCHEMA: Final[dict[str, Any]] = {
    "depth": pl.Int64,
    "kind": pl.String,
    "name": pl.String,
    "started_at": _AT,
    "duration_ms": pl.Int64,
    "status": pl.String,
    "detail": pl.String,
    "content": pl.String,
    "input_tokens": pl.Int64,
    "output_tokens": pl.Int64,
}


def show(tables: Tables, session_id: str, tz: str, *, content: bool = False) -> Section:
    """The tree of one session of the tables. With content, what was said, read again from
    the log.
    """
    of = pl.col("session_id") == session_id
    session = metrics.sessions(tables).row(by_predicate=of, named=True)
    texts = Content(Path(session["path"]) if content else None)
    rows: list[Row] = list(unrolled(_Walk(tables, session_id, texts).steps()))
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    start = session["started_at"]
    shown = frame.with_columns(
        what=pl.Series([_line(row) for row in rows], dtype=pl.String),
        after=(pl.col("started_at") - pl.lit(start, _AT)).dt.total_milliseconds(),
        state=pl.when(~pl.col("status").is_in(["ok", "answered"])).then("status"),
    )
    columns = [
        Column("after", "after", "ms"),
        Column("what", ""),
        Column("duration_ms", "took", "ms"),
        Column("state", "status", "text", 1),
        Column("input_tokens", "in", "some", 2),
        Column("output_tokens", "out", "some", 2),
        Column("detail", "", "text", 3),
    ]
    if content:
        columns[4:] = [Column("content", "content")]
    note = "Counted is the part that was chosen." if session["part"] else ""
    return Section("show", "", frame, tuple(columns), shown, heading(session, tz), note)


def heading(session: dict[str, Any], tz: str) -> tuple[tuple[str, str], ...]:
    """What stands above a session's picture, of its row of `sessions`."""
    place = filter(None, (session["repository"], session["branch"], session["cwd"]))
    return (
        ("session", session["session_id"]),
        ("log", session["path"]),
        ("started", f"{units.moment(session['started_at'], tz)} {tz}"),
        ("where", " ".join(place)),
        ("CLI", session["cli_version"] or units.NOTHING),
        ("calls", _totals(session)),
    )


def _totals(session: dict[str, Any]) -> str:
    active = session.get("active_ms")
    if "active_ms" not in session and session["wall_ms"] is not None:
        active = session["wall_ms"] - session["user_ms"]
    words = (
        f"{units.plural(session['llm_calls'], 'model call')}",
        f"{units.plural(session['tool_calls'], 'tool call')}",
        f"{units.count(session['input_tokens'])} tokens in",
        f"{units.count(session['output_tokens'])} out",
        f"{units.duration(active)} active",
    )
    return " · ".join(words)


def _line(row: Row) -> str:
    return "│ " * row.depth + " ".join(filter(None, (row.kind, row.name)))


class _Walk:
    """Goes down the tree; every call of the session comes exactly once. A step is a row, or the
    steps of what is further down.
    """

    def __init__(self, tables: Tables, session_id: str, texts: "Content") -> None:
        of = pl.col("session_id") == session_id
        self._texts = texts
        self._loops = _grouped(tables.interactions.filter(of), "agent_id")
        self._calls = _grouped(tables.llm_calls.filter(of), "agent_id", "interaction")
        self._tools = _grouped(tables.tool_calls.filter(of), "agent_id", "turn")
        self._agents = _grouped(tables.subagents.filter(of), "tool_call_id")
        trouble = pl.col("kind").is_in(["error", "abort"])
        troubles = tables.incidents.filter(of & trouble).unique(
            maintain_order=True, subset=["at", "kind", "detail"]
        )
        self._troubles = troubles.to_dicts()

    def steps(self) -> Iterator[Any]:
        """The root agent's loops with all that is in them, then what hangs nowhere."""
        yield self._agent(MAIN, 0)
        yield from self._trouble(None)
        while self._agents:  # the `task` call is not in the log
            for agent in self._agents.pop(next(iter(self._agents))):
                yield self._subagent(agent, 0)
        for key in list(self._tools):  # no turn is known of them
            for tool in self._tools.pop(key):
                yield self._tool(tool, 0)

    def _trouble(self, until: datetime | None) -> Iterator[Row]:
        """Errors and aborts before the next interaction, or all that are left."""
        while self._troubles:
            trouble = self._troubles[0]
            if until and (trouble["at"] or until) >= until:
                break
            self._troubles.pop(0)
            yield Row(0, trouble["kind"], None, trouble["at"], None, "", trouble["detail"])

    def _agent(self, agent: str, depth: int) -> Iterator[Any]:
        for loop in self._loops.pop((agent,), []):
            if agent == MAIN:
                yield from self._trouble(loop["started_at"])
            kind = {"autopilot": "nudge", "subagent": "prompt"}.get(loop["kind"], loop["kind"])
            yield Row(
                depth,
                kind,
                None,
                loop["started_at"],
                _between(loop["started_at"], loop["ended_at"]),
                loop["outcome"],
                _parts(loop),
                self._texts.user(agent, loop["started_at"]),
            )
            for call in self._calls.pop((agent, loop["interaction"]), []):
                yield self._call(agent, call, depth + 1)
        for key in [key for key in self._calls if key[0] == agent]:
            for call in self._calls.pop(key):
                yield self._call(agent, call, depth)

    def _call(self, agent: str, call: dict[str, Any], depth: int) -> Iterator[Any]:
        compaction = call["evidence"] == "compaction"
        yield Row(
            depth,
            "compaction" if compaction else "turn",
            None if compaction else call["turn_id"],
            call["started_at"],
            call["llm_ms"],
            call["status"],
            call["model"],
            None if compaction else self._texts.assistant(agent, call["replied_at"]),
            call["input_tokens"],
            call["output_tokens"],
        )
        for tool in [] if compaction else self._tools.pop((agent, call["turn"]), []):
            yield self._tool(tool, depth + 1)
            for sub in self._agents.pop((tool["tool_call_id"],), []):
                yield self._subagent(sub, depth + 2)

    def _tool(self, tool: dict[str, Any], depth: int) -> Row:
        at = tool["started_at"] or tool["ended_at"]
        said = self._texts.tool(tool["tool_call_id"])
        return Row(
            depth, "tool", tool["tool"], at, tool["duration_ms"], tool["status"], _held(tool), said
        )

    def _subagent(self, sub: dict[str, Any], depth: int) -> Iterator[Any]:
        took = _between(sub["started_at"], sub["ended_at"])
        yield Row(
            depth,
            "sub-agent",
            sub["agent_name"],
            sub["started_at"],
            took,
            sub["status"],
            sub["execution_mode"],
        )
        yield self._agent(sub["agent_id"], depth + 1)


def _grouped(frame: pl.DataFrame, *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in frame.iter_rows(named=True):
        groups[tuple(row[key] for key in keys)].append(row)
    return dict(groups)


def _between(start: datetime | None, end: datetime | None) -> int | None:
    return round((end - start).total_seconds() * 1000) if start and end else None


def _parts(loop: dict[str, Any]) -> str:
    parts = ((name, loop[part]) for part, name in PART_NAMES.items() if part != "other_ms")
    return ", ".join(f"{name} {units.duration(ms)}" for name, ms in parts if ms)


def _held(tool: dict[str, Any]) -> str | None:
    words = [tool["error_code"], tool["exit_code"] and f"exit {tool['exit_code']}"]
    held = (("permission", tool["permission_ms"]), ("hooks", tool["hook_ms"]))
    words += [f"{name} {units.duration(ms)}" for name, ms in held if ms]
    return ", ".join(filter(None, words)) or None
