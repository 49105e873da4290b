"""Tables → metric points: what each session adds to the counters and histograms that the CLI
sends, over the session's own time.

Two profiles, for the names changed: `latest` is what CLI 1.0.102 sends, `v1.41` what 1.0.65
sends and published dashboards expect (semantic conventions 1.41). Beside both stand our own,
`copilot_insights.*`, which the CLI has no name for. Every series also has the repository.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any, Final, Literal, NamedTuple

from copilot_insights.otel.spans import nanoseconds, tool_error
from copilot_insights.rows import Row, Rows, by_session
from copilot_insights.schema import MAIN
from copilot_insights.tables import Tables

Profile = Literal["latest", "v1.41"]
PROFILES: Final[tuple[Profile, ...]] = ("latest", "v1.41")

_D1: Final = tuple(0.01 * 2**n for n in range(14))
_A1: Final = tuple(round(0.1 * 2**n, 1) for n in range(13))
_T1: Final = tuple(4**n for n in range(14))
_C1: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_N1: Final = (0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000)


class Metric(NamedTuple):
    """Unit, description and, for a histogram, its bounds."""

    unit: str
    description: str
    bounds: tuple[float, ...] = ()


METRICS: Final[dict[str, Metric]] = {
    # both profiles
    "gen_ai.client.operation.duration": Metric("s", "GenAI operation duration.", _D1),
    "gen_ai.invoke_agent.duration": Metric(
        "s", "The end-to-end duration of a single agent invocation.", _A1
    ),
    "gen_ai.execute_tool.duration": Metric("s", "The duration of a single tool execution.", _D1),
    "github.copilot.tool.call.count": Metric(
        "{call}", "Number of tool invocations by tool name and outcome."
    ),
    "github.copilot.tool.call.duration": Metric("s", "Tool execution latency.", _D1),
    "github.copilot.agent.turn.count": Metric(
        "{turn}", "Number of LLM round-trips per agent invocation.", _N1
    ),
    # latest
    "gen_ai.client.inference.duration": Metric(
        "s", "GenAI client inference operation duration.", _D1
    ),
    "gen_ai.client.inference.time_to_first_chunk": Metric(
        "s", "Time to receive the first chunk from a streaming response.", _D1
    ),
    "gen_ai.client.inference.operation.input_tokens": Metric(
        "{token}", "The number of input tokens used per inference operation.", _T1
    ),
    "gen_ai.client.inference.operation.output_tokens": Metric(
        "{token}", "The number of output tokens used per inference operation.", _T1
    ),
    "gen_ai.client.inference.usage.input_tokens": Metric(
        "{token}", "The number of input tokens used, including cached tokens."
    ),
    "gen_ai.client.inference.usage.output_tokens": Metric(
        "{token}", "The number of output tokens used, including reasoning tokens."
    ),
    "gen_ai.client.inference.usage.cache_read.input_tokens": Metric(
        "{token}", "The number of input tokens served from a provider-managed cache."
    ),
    "gen_ai.client.inference.usage.cache_write.input_tokens": Metric(
        "{token}", "The number of input tokens written to a provider-managed cache."
    ),
    "gen_ai.client.inference.usage.reasoning.output_tokens": Metric(
        "{token}", "The number of output tokens used for reasoning."
    ),
    "gen_ai.invoke_agent.inference_calls": Metric(
        "{inference_call}",
        "The number of inference (model) calls a GenAI agent makes during a single invocation.",
        _C1,
    ),
    "gen_ai.invoke_agent.tool_calls": Metric(
        "{tool_call}",
        "The number of tool calls a GenAI agent makes during a single invocation.",
        _C1,
    ),
    "github.copilot.code.lines_added": Metric("{line}", "Lines added by file-editing tools."),
    "github.copilot.code.lines_removed": Metric("{line}", "Lines removed by file-editing tools."),
    # v1.41
    "gen_ai.client.token.usage": Metric("{token}", "Number of input and output tokens used.", _T1),
    "gen_ai.client.operation.time_to_first_chunk": Metric(
        "s", "Time to receive the first chunk from a streaming response.", _D1
    ),
    # ours
    "copilot_insights.session.count": Metric("{session}", "Sessions."),
    "copilot_insights.inference.call.count": Metric(
        "{call}", "Model calls by how they ended: ok, error, aborted, open."
    ),
    "copilot_insights.tool.outcome.count": Metric(
        "{call}", "Tool calls by how they ended: ok, failed, denied, interrupted, open."
    ),
    "copilot_insights.interaction.time": Metric(
        "s", "Wall time of interactions by what it went to; the parts do not overlap."
    ),
    "copilot_insights.permission.wait": Metric("s", "Wait for an answer to a permission.", _A1),
    "copilot_insights.usage.input_tokens": Metric(
        "{token}", "Input tokens as the sessions' totals have them, cached ones included."
    ),
    "copilot_insights.usage.cache_read.input_tokens": Metric("{token}", "Of them, cached."),
    "copilot_insights.usage.output_tokens": Metric(
        "{token}", "Output tokens as the sessions' totals have them, reasoning included."
    ),
    "copilot_insights.usage.ai_credits": Metric("{credit}", "AI credits, 1e9 nano-AIU each."),
    "copilot_insights.usage.premium_requests": Metric("{request}", "Premium requests."),
    "copilot_insights.log.rejected_lines": Metric("{line}", "Log lines that are no events."),
}  # fmt: skip
"""Every metric that is sent, by name."""

Attributes = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of a histogram: how many in each bucket (≤ its bound), and in all."""

    counts: tuple[int, ...]
    count: int
    sum: float
    min: float
    max: float


class Point(NamedTuple):
    """What a session adds to one series. Times are nanoseconds since 1970."""

    name: str
    attributes: Attributes
    session_id: str
    start: int
    end: int
    value: float | Distribution


def distribution(values: Iterable[float], bounds: tuple[float, ...]) -> Distribution:
    """Of at least one value. A value on a bound is in the bucket below it."""
    counts, found = [0] * (len(bounds) + 1), list(values)
    for value in found:
        counts[bisect_left(bounds, value)] += 1
    return Distribution(tuple(counts), len(found), sum(found), min(found), max(found))


USED: Final = (
    "interactions", "llm_calls", "tool_calls", "subagents", "permissions", "bookings", "incidents",
)  # fmt: skip
"""The tables that points are made of, besides `sessions`."""


def points(tables: Tables, profile: Profile = "latest") -> Iterator[Point]:
    """What each session adds, session by session. A session without a time has no points."""
    for session, rows in by_session(tables, USED):
        yield from session_points(session, rows, profile)


def session_points(
    session: Row, rows: Rows, profile: Profile, *, settled: bool = True
) -> Iterator[Point]:
    """What one session adds. Calls that are open are counted as such once it is settled."""
    start, end = session["started_at"], session["ended_at"]
    if start is None or end is None:
        return
    series = _Series(session["repository"])
    _tools(series, rows, profile)
    _agents(series, session, rows, profile)
    if profile == "latest":
        _latest(series, session, rows)
    else:
        _v1_41(series, rows)
    _own(series, session, rows, settled=settled)
    for (name, attributes), values in series.values.items():
        bounds = METRICS[name].bounds
        yield Point(
            name, attributes, session["session_id"],
            nanoseconds(start), max(nanoseconds(end), nanoseconds(start) + 1),
            distribution(values, bounds) if bounds else sum(values),
        )  # fmt: skip


class _Series:
    """Values by metric and attributes."""

    def __init__(self, repository: str | None) -> None:
        self._own = {"vcs.repository.name": repository} if repository else {}
        self.values: defaultdict[tuple[str, Attributes], list[float]] = defaultdict(list)

    def add(self, name: str, value: float | None, **attributes: Any) -> None:  # noqa: ANN401
        """A value, unless it is null; `__` stands for a dot, null attributes are left out."""
        if value is not None:
            said = {k.replace("__", "."): v for k, v in attributes.items() if v is not None}
            key = tuple(sorted({**said, **self._own}.items()))
            self.values[name, key].append(value)


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end and end >= start else None


def _milliseconds(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _agent_names(rows: Rows) -> dict[str, str | None]:
    return {row["agent_id"]: row["agent_name"] for row in rows["subagents"]}


def _tools(series: _Series, rows: Rows, profile: Profile) -> None:
    """Tool calls that were completed."""
    agents = _agent_names(rows)
    for row in rows["tool_calls"]:
        if row["status"] in {"open", "interrupted"}:
            continue
        seconds, ok = _milliseconds(row["duration_ms"]), row["status"] == "ok"
        error = None if ok else tool_error(row)
        if error and profile == "v1.41":
            error = row["error_code"] or error
        tool, failed = {"gen_ai.tool.name": row["tool"]}, {"error.type": error}
        agent = {"gen_ai.agent.name": agents.get(row["agent_id"])}
        series.add("gen_ai.client.operation.duration", seconds, **_EXECUTE_TOOL, **failed)
        series.add("gen_ai.execute_tool.duration", seconds, **_FUNCTION, **tool, **agent, **failed)
        series.add("github.copilot.tool.call.count", 1, **tool, success=ok)
        series.add("github.copilot.tool.call.duration", seconds, **tool)


def _agents(series: _Series, session: Row, rows: Rows, profile: Profile) -> None:
    """Interactions and runs of sub-agents that came to an end."""
    names = _agent_names(rows)
    broken = {row["agent_id"] for row in rows["subagents"] if row["status"] == "failed"}
    fault = (
        next(
            (
                (row["detail"] or "").split(" ")[0]
                for row in rows["incidents"]
                if row["kind"] == "error"
            ),
            "",
        )
        or "error"
    )
    calls: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for call in rows["llm_calls"]:
        if call["evidence"] != "compaction":
            calls[call["interaction"]].append(call)
    tools = Counter(row["interaction"] for row in rows["tool_calls"])
    for row in rows["interactions"]:
        if row["kind"] == "steering" or row["outcome"] == "open":
            continue
        number, root, name = row["interaction"], row["agent_id"] == MAIN, names.get(row["agent_id"])
        failed = row["outcome"] == "error" or row["agent_id"] in broken
        error = (
            {"error.type": ("SessionTurnError" if profile == "v1.41" else fault)} if failed else {}
        )
        model = calls[number][0]["model"] if calls[number] else None
        models = {"gen_ai.request.model": model, "gen_ai.response.model": None if failed else model}
        agent = {"gen_ai.agent.name": name}
        if profile == "v1.41":
            agent["gen_ai.agent.id"] = "github.copilot.default" if root else f"builtin:{name}"
            agent["gen_ai.agent.version"] = session["cli_version"]
        seconds = _seconds(row["started_at"], row["ended_at"])
        series.add("gen_ai.client.operation.duration", seconds, **_INVOKE_AGENT, **models, **error)
        series.add("gen_ai.invoke_agent.duration", seconds, **agent, **error)
        if profile == "latest":
            series.add("gen_ai.invoke_agent.inference_calls", len(calls[number]), **agent)
            series.add("gen_ai.invoke_agent.tool_calls", tools[number], **agent)
        if root:
            series.add("github.copilot.agent.turn.count", row["turns"],
                       gen_ai__operation__name="invoke_agent")  # fmt: skip


_GITHUB: Final = {"gen_ai.provider.name": "github"}
_CHAT: Final = {"gen_ai.operation.name": "chat", **_GITHUB}
_EXECUTE_TOOL: Final = {"gen_ai.operation.name": "execute_tool", **_GITHUB}
_INVOKE_AGENT: Final = {"gen_ai.operation.name": "invoke_agent", **_GITHUB}
_FUNCTION: Final = {"gen_ai.tool.type": "function"}


def _answers(rows: Rows) -> Iterator[tuple[dict[str, Any], dict[str, Any], bool]]:
    """Model calls that ended, what their series say, and whether they failed."""
    for call in rows["llm_calls"]:
        if call["evidence"] == "compaction" or call["status"] in {"open", "aborted"}:
            continue
        ok, model = call["status"] == "ok", call["model"]
        response = {"gen_ai.response.model": model} if ok else {}
        yield call, {**_CHAT, "gen_ai.request.model": model, **response}, not ok


def _chunks(series: _Series, name: str, call: dict[str, Any], said: dict[str, Any]) -> None:
    # the CLI measures it for the root agent only
    if call["agent_id"] == MAIN:
        first = {k: v for k, v in said.items() if k != "gen_ai.response.model"}
        series.add(f"{name}.time_to_first_chunk", _milliseconds(call["ttft_ms"]), **first)


def _booked(rows: Rows) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Tokens of each answered call, shared out from totals where the log has only those."""
    for book in rows["bookings"]:
        model = book["model"]
        yield book, {**_CHAT, "gen_ai.request.model": model, "gen_ai.response.model": model}


def _latest(series: _Series, session: Row, rows: Rows) -> None:
    inference = "gen_ai.client.inference"

    def tokens(said: dict[str, Any], amounts: dict[str, Any], error: str | None) -> None:
        for name in ("input_tokens", "output_tokens"):
            series.add(f"{inference}.operation.{name}", amounts[name], **said, error__type=error)
        for name, column in _USAGE.items():
            series.add(f"{inference}.usage.{name}", amounts[column], **said,
                       **_MODALITY)  # fmt: skip

    for call, said, failed in _answers(rows):
        error = "ModelCallError" if failed else None
        series.add(
            f"{inference}.duration", _milliseconds(call["llm_ms"]), **said, error__type=error
        )
        _chunks(series, inference, call, said)
        if failed:  # the conventions want a 0 for it
            tokens(said, dict.fromkeys(_USAGE.values(), 0), error)
    for book, said in _booked(rows):
        tokens(said, book, None)
    for way in ("added", "removed"):
        lines = session[f"lines_{way}"] or None
        series.add(f"github.copilot.code.lines_{way}", lines, gen_ai__provider__name="github",
                   gen_ai__request__model=session["model"])  # fmt: skip


_MODALITY: Final = {"gen_ai.token.modality": "unknown"}
_USAGE: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read.input_tokens": "cache_read_tokens",
    "cache_write.input_tokens": "cache_write_tokens",
    "reasoning.output_tokens": "reasoning_tokens",
}


def _v1_41(series: _Series, rows: Rows) -> None:
    operation = "gen_ai.client.operation"
    for call, said, _ in _answers(rows):
        series.add(f"{operation}.duration", _milliseconds(call["llm_ms"]), **said)
        _chunks(series, operation, call, said)
    for book, said in _booked(rows):
        for name in ("input", "output"):
            series.add("gen_ai.client.token.usage", book[f"{name}_tokens"], **said,
                       gen_ai__token__type=name)  # fmt: skip


def _own(series: _Series, session: Row, rows: Rows, *, settled: bool) -> None:
    """What the CLI does not send."""
    ours = "copilot_insights"
    if settled:
        series.add(f"{ours}.session.count", 1, ending=session["ending"])

    def counted(table: str) -> Iterator[Row]:
        return (row for row in rows[table] if settled or row["status"] != "open")

    for call in counted("llm_calls"):
        series.add(f"{ours}.inference.call.count", 1, gen_ai__request__model=call["model"],
                   status=call["status"], evidence=call["evidence"])  # fmt: skip
    for tool in counted("tool_calls"):
        series.add(f"{ours}.tool.outcome.count", 1, gen_ai__tool__name=tool["tool"],
                   status=tool["status"])  # fmt: skip
    main = (row for row in rows["interactions"] if row["agent_id"] == MAIN)
    root = [row for row in main if settled or row["outcome"] != "open"]
    for loop, part in product(root, ("llm", "tool", "permission", "hook", "other")):
        series.add(f"{ours}.interaction.time", _milliseconds(loop[f"{part}_ms"]), part=part)
    for wait in rows["permissions"]:
        series.add(f"{ours}.permission.wait", _milliseconds(wait["wait_ms"]), kind=wait["kind"],
                   outcome=wait["outcome"])  # fmt: skip
    for book in rows["bookings"]:
        model, usage = book["model"], f"{ours}.usage"
        for name in ("input_tokens", "cache_read.input_tokens", "output_tokens"):
            series.add(f"{usage}.{name}", book[_USAGE[name]], gen_ai__request__model=model)
    series.add(f"{ours}.usage.ai_credits", session["ai_credits"])
    series.add(f"{ours}.usage.premium_requests", session["premium_requests"])
    series.add(f"{ours}.log.rejected_lines", session["rejected_lines"])
