"""Events → tables: the bundle of all tables, and the two that sum the others up.

Every table of a session depends on that session's log alone, and the store beside it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from copilot_insights import accounting, interactions, model_calls, spans, tool_calls, totals
from copilot_insights.reader import Events, Read
from copilot_insights.schema import EVENTS, FAILED, MAIN, PARTS, RENAMED, TABLES, conform
from copilot_insights.spans import collect, elapsed


@dataclass(frozen=True)
class Tables:
    """All tables of some logs; columns are those of `schema.TABLES`.

    `problems` has a line for each place that could not be read.
    """

    sessions: pl.DataFrame
    interactions: pl.DataFrame
    llm_calls: pl.DataFrame
    tool_calls: pl.DataFrame
    usage: pl.DataFrame
    bookings: pl.DataFrame
    subagents: pl.DataFrame
    permissions: pl.DataFrame
    hooks: pl.DataFrame
    incidents: pl.DataFrame
    events: pl.DataFrame
    problems: list[str]

    def table(self, name: str) -> pl.DataFrame:
        """The table called `name`. Raises KeyError for no such table."""
        if name not in TABLES:
            raise KeyError(name)
        frame: pl.DataFrame = getattr(self, name)
        return frame

    def of(self, sessions: Collection[str]) -> "Tables":
        """These sessions only."""
        return self._filter(pl.col("session_id").is_in(list(sessions)))

    def apart(self) -> "dict[str, Tables]":
        """Each session alone, by its id; what could not be read is nobody's."""
        parts = {name: self.table(name).partition_by("session_id", as_dict=True) for name in TABLES}
        return {
            session: Tables(
                **{
                    name: found.get((session,), self.table(name).clear())
                    for name, found in parts.items()
                },
                problems=[],
            )
            for session in self.sessions["session_id"]
        }

    def without(self, sessions: Collection[str]) -> "Tables":
        """All but these sessions."""
        return self._filter(~pl.col("session_id").is_in(list(sessions)))

    def only(self, wanted: "Wanted") -> "Tables":
        """These tables and columns only; the other tables are empty."""
        frames: dict[str, Any] = {
            name: self.table(name).select(c for c in TABLES[name] if c in wanted[name])
            if name in wanted
            else pl.DataFrame(schema=TABLES[name])
            for name in TABLES
        }
        return replace(self, **frames)

    def by_session(self, order: pl.Series) -> "Tables":
        """Rows in this order of their sessions; as they are within each."""
        places = pl.DataFrame({"session_id": order}).with_row_index("place")
        frames: dict[str, Any] = {}
        for name in TABLES:
            frame = self.table(name)
            if frame.height:
                at = frame.select("session_id").join(
                    places, on="session_id", how="left", maintain_order="left"
                )["place"]
                if not at.is_sorted():
                    frame = frame.with_columns(at).sort("place", maintain_order=True).drop("place")
            frames[name] = frame
        return replace(self, **frames)

    def _filter(self, rows: pl.Expr) -> "Tables":
        frames: dict[str, Any] = {name: self.table(name).filter(rows) for name in TABLES}
        return replace(self, **frames)


def join(parts: Sequence[Tables]) -> Tables:
    """Tables of separate logs, together."""
    frames = {name: pl.concat([part.table(name) for part in parts]) for name in TABLES}
    return Tables(**frames, problems=[problem for part in parts for problem in part.problems])


Wanted = Mapping[str, Collection[str]]
"""Tables, and the columns of each, that are to be filled."""


def build(read: Read, store: pl.DataFrame, wanted: Wanted = TABLES) -> Tables:
    """All tables of some logs, as pure functions of what was read.

    `store` has the usage rows of the session store beside the logs; see
    `session_store.store_beside`. Tables that are not wanted are empty, and columns that are
    not are left out.
    """
    events = spans.number(read.events)
    turns = collect(spans.turn_spans(events))
    calls = collect(model_calls.llm_calls(events, turns, store.lazy()))
    permissions = collect(tool_calls.permissions(events))
    hooks = collect(tool_calls.hooks(events))
    tools = collect(tool_calls.tool_calls(events, permissions, hooks))
    loops = collect(interactions.interactions(events, calls, tools, hooks))
    split = accounting.time_split(loops, calls, tools, permissions, hooks)
    loops = collect(
        loops.join(split, on=["session", "interaction"], how="left", maintain_order="left")
    )
    stated = collect(totals.added(events, turns, calls))
    usage = collect(accounting.usage(events, store.lazy()))
    bookings = collect(accounting.bookings(events, calls, stated, usage))
    subagents = collect(interactions.subagents(events, calls, tools, bookings))
    amounts = accounting.session_usage(events, calls, stated, bookings)
    sessions = collect(_sessions(read, events, calls, tools, loops, subagents, amounts))
    troubles = _incidents(read, events, turns, calls, tools, sessions, stated, bookings)
    frames = {
        "sessions": sessions,
        "interactions": loops,
        "llm_calls": calls,
        "tool_calls": tools,
        "usage": usage,
        "bookings": bookings,
        "subagents": subagents,
        "permissions": permissions,
        "hooks": hooks,
        "incidents": troubles,
        "events": events.table() if "events" in wanted else pl.LazyFrame(),
    }
    done = pl.collect_all(
        [
            conform(name, frame, wanted[name])
            if name in wanted
            else pl.LazyFrame(schema=TABLES[name])
            for name, frame in frames.items()
        ],
        engine="in-memory",
    )
    return Tables(**dict(zip(frames, done, strict=True)), problems=read.problems)


def _count(condition: pl.Expr) -> pl.Expr:
    return condition.fill_null(value=False).sum().cast(pl.Int64)


def _sessions(
    read: Read,
    events: Events,
    calls: pl.LazyFrame,
    tools: pl.LazyFrame,
    loops: pl.LazyFrame,
    subagents: pl.LazyFrame,
    amounts: pl.LazyFrame,
) -> pl.LazyFrame:
    """A row per session. Logs without a line of their own (all seen before) are in the row
    of the session that they repeat.
    """
    kind = pl.col("type")
    base = (
        events.base.lazy()
        .group_by("session", maintain_order=True)
        .agg(
            pl.col("session_id").first(),
            started_at=pl.col("at").min(),
            ended_at=pl.col("at").max(),
            processes=pl.col("process").max() + 1,
            events=pl.len().cast(pl.Int64),
            turns_started=_count((kind == spans.TURN_START) & ~pl.col("passing")),
            errors=_count(kind == "session.error"),
            aborts=_count(kind == "abort"),
            closed=kind.last().is_in(["session.shutdown", "result"]),
        )
    )
    context = (
        events.of("session.start", "session.resume", "session.context_changed")
        .group_by("session")
        .agg(pl.col("producer", "cli_version", "cwd", "repository", "branch").drop_nulls().last())
    )
    ended = (
        events.of("session.shutdown")
        .group_by("session")
        .agg(pl.col("outcome", "lines_added", "lines_removed", "files_modified").last())
    )
    done = (
        events.of("session.task_complete")
        .group_by("session")
        .agg(task_complete=(pl.col("success").fill_null(value=True)).any())
    )
    call = pl.col("evidence") != "compaction"
    main = call & (pl.col("agent_id") == MAIN)
    counted = calls.group_by("session").agg(
        llm_calls=pl.len().cast(pl.Int64),
        failed_llm_calls=_count(pl.col("status") == "error"),
        turns_completed=_count((pl.col("evidence") == "turn") & pl.col("row_end").is_not_null()),
        compactions=_count(~call),
        model=pl.coalesce(
            pl.col("model").filter(main).drop_nulls().mode().sort().first(),
            pl.col("model").drop_nulls().mode().sort().first(),
        ),
    )
    used = tools.group_by("session").agg(
        tool_calls=pl.len().cast(pl.Int64),
        failed_tool_calls=_count(pl.col("status").is_in(FAILED)),
    )
    root = (
        loops.filter(pl.col("agent_id") == MAIN)
        .group_by("session")
        .agg(
            interactions=pl.len().cast(pl.Int64),
            nudges=_count(pl.col("kind") == "autopilot"),
            **{part: pl.col(part).sum() for part in PARTS},
        )
    )
    agents = subagents.group_by("session_id").agg(subagents=pl.len().cast(pl.Int64))
    table = base
    for more in (context, ended, done, counted, used, root, amounts):
        table = table.join(more, on="session", how="left", maintain_order="left")
    table = table.join(agents, on="session_id", how="left", maintain_order="left")
    own = ["producer", "cli_version", "cwd", "repository", "branch"]
    files = (
        read.files.lazy()
        .group_by("session_id", maintain_order=True)
        .agg(
            pl.col("path", "layout").first(),
            pl.col("bytes").sum(),
            pl.col(own).drop_nulls().first().name.suffix("_stated"),
            lines=pl.col("non_empty").sum(),
            rejected_lines=pl.col("rejected").sum(),
            duplicate_events=pl.col("duplicates").sum(),
        )
    )
    # a log of damaged lines only is a session too: nothing is dropped silently
    table = files.filter(pl.col("lines") > 0).join(
        table, on="session_id", how="left", maintain_order="left"
    )
    zero = [
        "processes",
        "events",
        "turns_started",
        "turns_completed",
        "errors",
        "aborts",
        "llm_calls",
        "failed_llm_calls",
        "compactions",
        "tool_calls",
        "failed_tool_calls",
        "interactions",
        "nudges",
        "subagents",
    ]
    busy = pl.sum_horizontal(PARTS)
    wall = elapsed("started_at", "ended_at")
    return table.with_columns(
        pl.col(zero).fill_null(0),
        *(pl.coalesce(name, f"{name}_stated") for name in own),
        task_complete=pl.col("task_complete").fill_null(value=False),
        ending=pl.when(~pl.col("closed").fill_null(value=False))
        .then(pl.lit("none"))
        .when(pl.col("outcome") == "error")
        .then(pl.lit("error"))
        .otherwise(pl.lit("routine")),
        **{part: pl.when(wall.is_not_null()).then(pl.col(part).fill_null(0)) for part in PARTS},
    ).with_columns(
        wall_ms=pl.when(wall.is_not_null()).then(pl.max_horizontal(wall, busy)),
        user_ms=(wall - busy).clip(lower_bound=0),
    )


_REPEATS: Final = 3


def _incidents(
    read: Read,
    events: Events,
    turns: pl.LazyFrame,
    calls: pl.LazyFrame,
    tools: pl.LazyFrame,
    sessions: pl.LazyFrame,
    stated: pl.LazyFrame,
    bookings: pl.LazyFrame,
) -> pl.LazyFrame:
    """A row per thing that went wrong, was cut or was damaged."""

    def rows(kind: str, frame: pl.LazyFrame, detail: pl.Expr) -> pl.LazyFrame:
        have = frame.collect_schema()
        place = [
            pl.col(c) if c in have else pl.lit(None).alias(c) for c in ("session_id", "seq", "at")
        ]
        return frame.select(*place, kind=pl.lit(kind), detail=detail.cast(pl.String))

    def words(*parts: str | pl.Expr) -> pl.Expr:
        texts = [pl.lit(p) if isinstance(p, str) else p.cast(pl.String) for p in parts]
        return pl.concat_str(texts, separator=" ", ignore_nulls=True)

    col = pl.col
    tools = tools.with_columns(seq=pl.coalesce("seq", "seq_end"), at=pl.coalesce("at", "at_end"))
    calls = calls.with_columns(at=pl.coalesce("started_at", "ended_at"))
    same = ["session", "agent_id", "interaction", "tool", "arguments_hash"]
    repeated = (
        tools.filter(col("arguments_hash").is_not_null())
        .group_by(same)
        .agg(
            col("session_id").first(),
            col("seq", "at").get(_REPEATS - 1, null_on_oob=True),
            times=pl.len(),
        )
        .filter(col("times") >= _REPEATS)
    )
    answered = totals.answered(calls)
    in_total = totals.without_total(answered, stated)
    names = events.base.lazy().group_by("session").agg(col("session_id").first())
    mismatch = (
        stated.group_by("session")
        .agg(col("requests").sum())
        .join(
            in_total.filter("covered").group_by("session").agg(found=pl.len()),
            on="session",
            how="left",
        )
        .with_columns(col("found").fill_null(0))
        .filter(col("requests") != col("found"))
        .join(names, on="session")
        # a fork's totals are also those of the calls that it shares with its original
        .join(
            sessions.filter(col("duplicate_events") > 0).select("session_id"),
            on="session_id",
            how="anti",
        )
    )
    # the store knows calls whose lines are gone: they were rewound, or the log is damaged
    stored = bookings.filter(col("source") == "store").group_by("session_id").agg(stored=pl.len())
    gone = (
        stored.join(
            answered.group_by("session_id").agg(found=pl.len()), on="session_id", how="left"
        )
        .with_columns(col("found").fill_null(0))
        .filter(col("stored") > col("found"))
    )
    partly = (
        in_total.filter(col("input_tokens").is_null() & ~col("covered"))
        .join(gone, on="session_id", how="anti")
        .group_by("session_id", maintain_order=True)
        .agg(n=pl.len())
    )
    orphans = pl.concat(
        [
            turns.filter(col("row").is_null()).select(
                "session_id", seq="seq_end", at="at_end", what=pl.lit("turn end")
            ),
            tools.filter(
                col("at_end").is_not_null() & col("tool").is_null() & col("started_at").is_null()
            ).select("session_id", "seq", "at", what=pl.lit("tool completion")),
        ]
    )
    known = [*EVENTS, *RENAMED.values()]
    unknown = (
        events.base.lazy()
        .filter(~col("type").is_in(known))
        .group_by("session_id", "type", maintain_order=True)
        .agg(col("seq", "at").first(), n=pl.len())
    )
    at_line = pl.format("line {}, byte {}: {}", "line", "offset", "reason")
    found = [
        rows("error", events.of("session.error"), words(col("error_code"), col("status_code"))),
        rows("abort", events.of("abort"), col("outcome")),
        rows(
            "compaction",
            calls.filter(col("evidence") == "compaction"),
            words(
                col("status"),
                col("input_tokens"),
                "input tokens",
                col("output_tokens"),
                "output tokens",
            ),
        ),
        rows(
            "truncation",
            events.of("session.truncation"),
            words(col("input_tokens"), "tokens removed"),
        ),
        rows("retry", events.of("assistant.turn_retry"), words("turn", col("turn_id"))),
        rows(
            "open_turn",
            turns.filter(col("row").is_not_null() & col("row_end").is_null()),
            words("turn", col("turn"), "of", col("agent_id")),
        ),
        rows(
            "open_tool",
            tools.filter(col("status").is_in(["open", "interrupted"])),
            words(col("tool"), col("status")),
        ),
        rows(
            "repeated_call",
            repeated,
            pl.format("{} {} times with the same arguments", "tool", "times"),
        ),
        rows("unpaired_end", orphans, pl.format("{} without a start", "what")),
        rows("rejected_line", read.rejected.lazy(), at_line),
        rows(
            "bad_field",
            events.base.lazy().filter(col("bad_fields").is_not_null()),
            col("bad_fields"),
        ),
        rows(
            "count_mismatch",
            mismatch,
            pl.format(
                "the totals state {} requests, the log has {} answered calls", "requests", "found"
            ),
        ),
        rows(
            "count_mismatch",
            gone,
            pl.format("the session store has {} calls, the log has {} of them", "stored", "found"),
        ),
        rows(
            "lost_lines",
            # else the rejected line says it
            events.base.lazy().filter("gap", ~col("behind_rejected")),
            pl.format("what stood before {} is gone", "type"),
        ),
        rows(
            "out_of_order",
            events.base.lazy().filter(col("row").is_in(read.moved.implode())),
            pl.format("{} stood before its parent", "type"),
        ),
        rows(
            "clock_back",
            events.base.lazy().filter("back"),
            pl.format("{} is earlier than what stands before it", "type"),
        ),
        rows("unknown_type", unknown, pl.format("{} of unknown type {}", "n", "type")),
        rows("tokens_unknown", partly, pl.format("calls without known input tokens: {}", "n")),
    ]
    return pl.concat(found, how="vertical_relaxed").sort(
        "session_id", "seq", nulls_last=True, maintain_order=True
    )
