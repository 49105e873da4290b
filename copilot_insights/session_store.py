"""The session store of the CLI, a database beside the logs: what each call used.

Its table `assistant_usage_events` has a row per answered call, without the call's id.
"""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

import polars as pl

from copilot_insights.schema import MAIN, TOKENS

_STORE: Final = "session-store.db"
_STORE_SCHEMA: Final = {
    "session_id": pl.String,
    "agent_id": pl.String,
    "record_model": pl.String,
    "input_tokens": pl.Int64,
    "cache_read_tokens": pl.Int64,
    "cache_write_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "reasoning_tokens": pl.Int64,
    "nano_aiu": pl.Float64,
    "premium_requests": pl.Float64,
    "duration_ms": pl.Int64,
    "record_ttft_ms": pl.Int64,
    "record_initiator": pl.String,
    "finish_reason": pl.String,
    "at": pl.String,
}


def _text(column: str) -> str:
    return f"CASE typeof({column}) WHEN 'text' THEN {column} END"


def _number(column: str, most: int = 2**53) -> str:
    # a column of SQLite holds values of any type
    sound = f"typeof({column}) IN ('integer', 'real') AND {column} BETWEEN 0 AND {most}"
    return f"CASE WHEN {sound} THEN {column} END"


def _count(column: str) -> str:
    return f"CAST(round({_number(column)}) AS INTEGER)"


_QUERY: Final = f"""
    SELECT {_text("session_id")}, coalesce({_text("agent_id")}, ?), {_text("model")},
      {", ".join(map(_count, TOKENS))}, {_number("total_nano_aiu", 10**15)},
      CASE WHEN initiator IS NULL OR initiator = 'user'
        THEN {_number("request_multiplier", 10**15)} ELSE 0 END,
      {_count("duration_ms")}, {_count("time_to_first_token_ms")},
      {_text("initiator")}, {_text("finish_reason")}, {_text("created_at")}
    FROM assistant_usage_events WHERE initiator IS NOT 'compaction' ORDER BY id
"""  # noqa: S608 (our own names)


def store_beside(logs: Iterable[str], problems: list[str]) -> pl.DataFrame:
    """Usage from the session stores in whose home the logs lie; empty where there is none.

    The store is opened read-only and never locked. One that can't be read is one of
    `problems`, and the same as none: every number that it has is a second source.
    """
    homes = {os.path.dirname(os.path.abspath(log)) for log in logs}  # noqa: PTH100, PTH120 (many)
    places = {os.path.join(home, up, _STORE) for home in homes for up in ("..", "../..")}  # noqa: PTH118
    stores = sorted({Path(place).resolve() for place in places if os.path.isfile(place)})  # noqa: PTH113
    rows = [(*row, number) for number, store in enumerate(stores) for row in _rows(store, problems)]
    frame = pl.DataFrame(rows, {**_STORE_SCHEMA, "store": pl.Int64}, orient="row", strict=False)
    if len(stores) > 1:  # the same store in two places: of a session the one that knows most
        known = frame.group_by("session_id", "store").len().sort("len", "store")
        most = known.unique("session_id", keep="last")
        frame = frame.join(most, on=["session_id", "store"], how="semi", maintain_order="left")
    return frame.drop("store")


def _rows(store: Path, problems: list[str]) -> list[tuple[object, ...]]:
    # without a write-ahead log nothing is pending: then not even a lock file is touched
    still = "" if store.with_name(f"{_STORE}-wal").exists() else "&immutable=1"
    try:
        with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro{still}", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode(errors="replace")
            return connection.execute(_QUERY, (MAIN,)).fetchall()
    except sqlite3.Error as error:
        if not str(error).startswith("no such "):  # a version that keeps no usage
            problems.append(f"cannot read {store}: {error}")
        return []
