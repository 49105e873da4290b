"""Tables → the rows of one session at a time, for what is made session by session."""

from collections.abc import Collection, Iterator
from typing import Any, Final

from copilot_insights.tables import Tables

COURSE: Final = ("interactions", "llm_calls", "tool_calls", "subagents", "permissions", "hooks",
                 "incidents")  # fmt: skip
"""The tables that say what happened in a session and when."""

Row = dict[str, Any]
Rows = dict[str, list[Row]]
"""Table → its rows of one session."""


def by_session(tables: Tables, names: Collection[str]) -> Iterator[tuple[Row, Rows]]:
    """Each session's own row, and its rows of the tables named; sessions by their ends.

    A session's rows become Python objects only when it is its turn: of a big history they
    would take a hundred times the memory of the tables.
    """
    parts = {
        name: tables.table(name).partition_by("session_id", as_dict=True, include_key=True)
        for name in names
    }
    for session in tables.sessions.sort("ended_at", nulls_last=False).iter_rows(named=True):
        key = (session["session_id"],)
        yield (
            session,
            {name: list(found[key].iter_rows(named=True)) if key in found else []
             for name, found in parts.items()},
        )  # fmt: skip


def unrolled(steps: Iterator[Any]) -> Iterator[Any]:
    """What the generator yields, in the place of each generator what that yields: for trees
    that are deeper than calls may be.
    """
    stack = [steps]
    while stack:
        for step in stack[-1]:
            if isinstance(step, Iterator):
                stack.append(step)
                break
            yield step
        else:
            stack.pop()
