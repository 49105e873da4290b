"""Which part of the logs is looked at: tables → the part of them that is chosen."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import polars as pl

from copilot_insights.schema import MAIN, TABLES
from copilot_insights.tables import Tables


@dataclass(frozen=True)
class Filter:
    """What to look at; empty means everything.

    Times are instants, `until` is exclusive; they choose calls by when they began. session
    is the beginning of an id; repo, branch and model are parts of names, in any case; agent
    is the beginning of an agent's id, or part of its name; `main` is the root.
    """

    since: datetime | None = None
    until: datetime | None = None
    session: str | None = None
    repo: str | None = None
    branch: str | None = None
    model: str | None = None
    agent: str | None = None

    def timed(self) -> bool:
        """Whether only a part of time is looked at."""
        return self.since is not None or self.until is not None


def select(tables: Tables, chosen: Filter) -> Tables:
    """The part of the tables that is chosen: rows by time, model and agent, and the
    sessions (whole) that have any.
    """
    if chosen == Filter():
        return tables
    sessions = tables.sessions.filter(_all(_session_tests(chosen)))
    agents = _agents(tables, chosen.agent)
    frames: dict[str, Any] = {}
    for name, frame in ((name, tables.table(name)) for name in TABLES if name != "sessions"):
        rows = frame.filter(_all(_row_tests(name, frame, chosen)))
        if agents is not None and "agent_id" in frame.columns:
            rows = rows.join(agents, on=["session_id", "agent_id"], how="semi")
        frames[name] = rows.join(sessions, on="session_id", how="semi")
    busy = ["llm_calls", "tool_calls", "interactions"]
    if chosen.model:  # tools and interactions have no model: their calls decide
        busy = ["llm_calls"]
        for name, key in (("tool_calls", "turn"), ("interactions", "interaction")):
            of = ["session_id", "agent_id", key]
            frames[name] = frames[name].join(frames["llm_calls"], on=of, how="semi")
    if chosen.timed() or chosen.model or chosen.agent:
        ids = pl.concat([frames[name].select("session_id") for name in busy]).unique()
        sessions = sessions.join(ids, on="session_id", how="semi")
        frames = {n: f.join(sessions, on="session_id", how="semi") for n, f in frames.items()}
    return replace(tables, sessions=sessions, **frames)


def _all(tests: list[pl.Expr]) -> pl.Expr:
    return (
        pl.all_horizontal(test.fill_null(value=False) for test in tests)
        if tests
        else pl.lit(value=True)
    )


def _part(column: str, text: str) -> pl.Expr:
    return pl.col(column).str.to_lowercase().str.contains(text.lower(), literal=True)


def _session_tests(chosen: Filter) -> list[pl.Expr]:
    tests = []
    if chosen.session:
        tests.append(pl.col("session_id").str.starts_with(chosen.session))
    if chosen.repo:
        tests.append(
            _part("repository", chosen.repo).fill_null(value=False)
            | _part("cwd", chosen.repo).fill_null(value=False)
        )
    if chosen.branch:
        tests.append(_part("branch", chosen.branch))
    return tests


def _row_tests(name: str, frame: pl.DataFrame, chosen: Filter) -> list[pl.Expr]:
    tests = []
    if chosen.timed():
        at = pl.col("at") if "at" in frame.columns else pl.col("started_at")
        # what lost its start is of the time of its end
        if name in {"llm_calls", "tool_calls"}:
            at = pl.coalesce("started_at", "replied_at" if name == "llm_calls" else "ended_at")
        # damage has no time: it goes with its session
        untimed = at.is_null() if name == "incidents" else pl.lit(value=False)
        if chosen.since:
            tests.append(untimed | (at >= chosen.since))
        if chosen.until:
            tests.append(untimed | (at < chosen.until))
    if chosen.model and "model" in frame.columns and name != "events":
        tests.append(_part("model", chosen.model))
    return tests


def _agents(tables: Tables, agent: str | None) -> pl.DataFrame | None:
    if agent is None:
        return None
    if agent == MAIN:
        return tables.sessions.select("session_id", agent_id=pl.lit(MAIN))
    begins = pl.col("agent_id").str.starts_with(agent)
    named = begins | _part("agent_name", agent).fill_null(value=False)
    return tables.subagents.filter(named).select("session_id", "agent_id")
