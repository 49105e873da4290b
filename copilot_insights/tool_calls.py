"""Tool calls, and the permissions and hooks that hold them up."""

from typing import Final

import polars as pl

from copilot_insights.reader import Events
from copilot_insights.schema import CATEGORY
from copilot_insights.spans import collect, elapsed, spans

LOOP_HOOKS: Final = (
    "preToolUse",
    "postToolUse",
    "postToolUseFailure",
    "permissionRequest",
    "errorOccurred",
    "agentStop",
    "subagentStart",
    "subagentStop",
    "preCompact",
    "preMcpToolCall",
)
"""Hooks that run within the loop; the others run between interactions."""


def permissions(events: Events) -> pl.LazyFrame:
    """A row per permission request. Extra columns: session, interaction."""
    pairs = spans(events, "permission.requested", "permission.completed", ["session", "request_id"])
    return pairs.with_columns(
        tool_call_id=pl.coalesce("tool_call_id", "tool_call_id_end"),
        interaction=pl.coalesce("interaction", "interaction_end"),
        started_at="at",
        ended_at="at_end",
        wait_ms=pl.when(pl.col("process") == pl.col("process_end")).then(elapsed("at", "at_end")),
        outcome=pl.coalesce(
            "outcome_end", pl.when(pl.col("row_end").is_null()).then(pl.lit("open"))
        ),
    )


def hooks(events: Events) -> pl.LazyFrame:
    """A row per hook run. Extra columns: row, session, agent, interaction, tool_call_ids.

    A preToolUse hook names its calls; one that ran after a tool is tied to the completion
    that follows it, of the same agent, tool and (where they agree) arguments.
    """
    pairs = collect(spans(events, "hook.start", "hook.end", ["session", "request_id"]))
    pairs = pairs.with_columns(
        hook_invocation_id="request_id",
        kind=pl.coalesce("kind", "kind_end"),
        interaction=pl.coalesce("interaction", "interaction_end"),
        started_at="at",
        ended_at="at_end",
        duration_ms=pl.when(pl.col("process") == pl.col("process_end")).then(
            elapsed("at", "at_end")
        ),
        outcome=pl.when(pl.col("row_end").is_null())
        .then(pl.lit("open"))
        .when(pl.col("success_end").not_().fill_null(value=False))
        .then(pl.lit("failed"))
        .otherwise(pl.lit("ok")),
    )
    after = pl.col("tool").is_not_null() & pl.col("tool_call_ids").is_null()
    starts = events.of("tool.execution_start").select(
        "session", "tool_call_id", "tool", "arguments_hash"
    )
    ends = (
        events.of("tool.execution_complete")
        .select("session", "agent", "row", "tool_call_id")
        .join(starts.unique(["session", "tool_call_id"]), on=["session", "tool_call_id"])
        .sort("row")
    )
    wanted = (
        pairs.filter(after).with_columns(hook="row", row=pl.coalesce("row_end", "row")).sort("row")
    )
    same = ["agent", "tool", "arguments_hash"]
    exact = wanted.join_asof(
        ends, on="row", by=same, strategy="forward", suffix="_done", check_sortedness=False
    )
    loose = wanted.join_asof(
        ends, on="row", by=same[:2], strategy="forward", suffix="_done", check_sortedness=False
    )
    tied = (
        exact.select("hook", exact="tool_call_id")
        .join(loose.select("hook", loose="tool_call_id"), on="hook")
        .select(row="hook", after=pl.coalesce("exact", "loose"))
    )
    return pairs.join(tied, on="row", how="left", maintain_order="left").with_columns(
        tool_call_ids=pl.coalesce(
            "tool_call_ids", pl.when(pl.col("after").is_not_null()).then(pl.concat_list("after"))
        ),
        tool_call_id=pl.coalesce(
            "after",
            pl.when(pl.col("tool_call_ids").list.len() == 1).then(
                pl.col("tool_call_ids").list.first()
            ),
        ),
    )


def tool_calls(events: Events, permissions: pl.LazyFrame, hooks: pl.LazyFrame) -> pl.LazyFrame:
    """A row per tool call. Extra columns: row, session, agent, waits_for_user.

    `duration_ms` is start → completion as the CLI times it; `run_ms` is what is left of it
    without waiting for permissions, hooks and people.
    """
    key = ["session", "tool_call_id"]
    superseded = _superseded(events, key).implode()
    paired = spans(
        events,
        "tool.execution_start",
        "tool.execution_complete",
        key,
        pl.when(~pl.col("row").is_in(superseded)).then("tool_call_id").alias("tool_call_id"),
    )
    pairs = collect(paired.filter(~pl.col("row_end").is_in(superseded).fill_null(value=False)))
    waits = held(pairs, permissions).group_by("row").agg(permission_ms=pl.col("ms").sum())
    own = by_call(hooks.filter(pl.col("kind").is_in(LOOP_HOOKS)))
    hooked = held(pairs, own).group_by("row").agg(hook_ms=pl.col("ms").sum())
    code = pl.col("error_code_end")
    done = pl.col("row_end").is_not_null()
    cut = (code == "interrupted").fill_null(value=False)
    calls = pairs.join(waits, on="row", how="left", maintain_order="left").join(
        hooked, on="row", how="left", maintain_order="left"
    )
    mcp = pl.col("mcp_server").is_not_null()
    calls = calls.with_columns(
        turn=pl.coalesce("turn", "turn_end"),
        interaction=pl.coalesce("interaction", "interaction_end"),
        category=pl.when(mcp)
        .then(pl.lit("mcp"))
        .otherwise(
            pl.col("tool").replace_strict(CATEGORY, default="other", return_dtype=pl.String)
        ),
        started_at="at",
        ended_at=pl.when(~cut).then("at_end"),
        status=pl.when(~done)
        .then(pl.lit("open"))
        .when(cut)
        .then(pl.lit("interrupted"))
        .when(code.is_in(["denied", "rejected"]))
        .then(pl.lit("denied"))
        .when(pl.col("success_end").not_().fill_null(value=False) | code.is_not_null())
        .then(pl.lit("failed"))
        .otherwise(pl.lit("ok")),
        error_code="error_code_end",
        result_bytes="result_bytes_end",
    )
    user = pl.col("category") == "user"
    shell = pl.col("category") == "shell"
    # a completion by a later process ends no run that anybody timed
    calls = calls.with_columns(
        exit_code=pl.when(shell | pl.col("tool").is_null()).then("exit_code_end"),
        duration_ms=pl.when(~cut & (pl.col("process") == pl.col("process_end"))).then(
            elapsed("at", "at_end")
        ),
    ).with_columns(
        hook_ms=pl.when(pl.col("duration_ms").is_not_null()).then(pl.col("hook_ms").fill_null(0)),
        permission_ms=pl.when(pl.col("duration_ms").is_not_null()).then(
            pl.when(user).then("duration_ms").otherwise(pl.col("permission_ms").fill_null(0))
        ),
    )
    return calls.with_columns(
        run_ms=(pl.col("duration_ms") - pl.col("permission_ms") - pl.col("hook_ms")).clip(
            lower_bound=0
        ),
        waits_for_user=user,
        row=pl.coalesce("row", "row_end"),
    ).sort("row")


def _superseded(events: Events, key: list[str]) -> pl.Series:
    """Rows of completions that say "interrupted" of a call that another process completes,
    later (1.0.102) or before.
    """
    both = events.of("tool.execution_start", "tool.execution_complete")
    interrupted = (pl.col("error_code") == "interrupted").fill_null(value=False)
    completes = pl.col("type") == "tool.execution_complete"
    near = both.join(both.filter(interrupted).select(key), on=key, how="semi").sort("row")
    ended = (completes & ~interrupted).shift(1, fill_value=False).over(key)
    goes_on = completes.shift(-1, fill_value=False).over(key)
    return near.filter(interrupted & (ended | goes_on)).select("row").collect()["row"]


def by_call(hooks: pl.LazyFrame) -> pl.LazyFrame:
    """A row per tool call that a hook run is about, for `held`."""
    calls = hooks.with_columns(tool_call_id="tool_call_ids")
    return calls.explode("tool_call_id", empty_as_null=False)


def held(calls: pl.LazyFrame, holds: pl.LazyFrame) -> pl.LazyFrame:
    """When a wait or hook held up a tool call: a row for each of both, with the call's `row`,
    session and interaction, and what they have in common, `at` to `at_end` and ms.

    A call id can be used twice: the latest start before it counts, of the same agent if
    there is one.
    """
    key = ["session", "tool_call_id"]
    times = pl.col("at").is_not_null() & pl.col("at_end").is_not_null()
    starts = calls.filter(times).select(
        *key, "agent", "interaction", "row", from_="at", to="at_end", began="row"
    )
    holds = holds.filter(times).select(
        *key, "agent", "at", "at_end", hold="row", done=pl.coalesce("row_end", "row")
    )

    def latest(by: list[str]) -> pl.LazyFrame:
        found = holds.sort("done").join_asof(
            starts.sort("began"), left_on="done", right_on="began", by=by, check_sortedness=False
        )
        return found.filter(pl.col("row").is_not_null())

    own = latest([*key, "agent"])
    other = latest(key).join(own, on=["hold", "tool_call_id"], how="anti")
    found = pl.concat([own, other], how="diagonal")
    both = found.select(
        "session",
        "interaction",
        "row",
        at=pl.max_horizontal("at", "from_"),
        at_end=pl.min_horizontal("at_end", "to"),
    )
    return both.filter(pl.col("at_end") >= pl.col("at")).with_columns(ms=elapsed("at", "at_end"))
