"""What a receiver was sent already, in a small database of the user's: a session that is
exported again sends only its news, and no counter counts anything twice.

A batch is noted before it is sent and confirmed after it. What stands noted but not confirmed
(the exporter was killed, the receiver did not answer) is sent again, with the same ids.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from copilot_insights.errors import InsightsError
from copilot_insights.places import home

_VERSION: Final = 1
_SCHEMA: Final = """
create table if not exists names (number integer primary key, name text unique);
create table if not exists batches (batch integer primary key, sent integer);
create table if not exists spans (
    owner integer, id blob, batch integer, primary key (owner, id)
) without rowid;
create table if not exists series (
    owner integer, key integer, value text, sent text, primary key (owner, key)
) without rowid;
create table if not exists done (owner integer primary key, size integer);
"""
# an owner is the number of a target and a session together, a key that of a series


def default_path() -> Path:
    """`otel.db` under $XDG_STATE_HOME, by default ~/.local/state. Raises InsightsError where
    there is no home.
    """
    place = os.environ.get("XDG_STATE_HOME") or home() / ".local" / "state"
    return Path(place) / "copilot-insights" / "otel.db"


class State:
    """The sent spans and counted amounts of one target, for one exporter at a time."""

    def __init__(self, path: Path | None, target: str, *, keep: bool = True) -> None:
        """Without a path, in memory; without `keep`, nothing new is kept. Raises
        InsightsError where the file can't be used, or another exporter has it.
        """
        self._path, self._target, self._keep = path, target, keep
        with self._told("open"):
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path or ":memory:", timeout=0.5, isolation_level=None)
            # held to the end: two exporters that count on from the same totals would lose one's
            self._base.execute("pragma locking_mode = exclusive")
            self._base.execute("begin immediate")
            new = not self._base.execute("select 1 from sqlite_schema").fetchone()
            (version,) = self._base.execute("pragma user_version").fetchone()
            if not new and version != _VERSION:
                raise sqlite3.DatabaseError("another version wrote it")
            self._base.executescript(
                f"begin immediate; pragma user_version = {_VERSION}; {_SCHEMA} commit;"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if "locked" in str(error):
                message = f"another export uses {self._path}"
                raise InsightsError(message, "Wait for its end, or use --state FILE.") from None
            reason = getattr(error, "strerror", None) or str(error)
            raise InsightsError(
                f"cannot {doing} {self._path}: {reason}",
                "Nothing that is not noted there is sent; make room or use --state FILE.",
            ) from None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._told("write"):
            try:  # an interrupt is raised as soon as a call is over: also when this one is
                self._base.execute("begin immediate")
                yield self._base
                self._base.execute("commit" if self._keep else "rollback")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("rollback")
                raise

    def _name(self, session: str) -> str:
        return f"{self._target}\0{session}"

    def _numbers(self, base: sqlite3.Connection, names: Iterable[str]) -> dict[str, int]:
        wanted = list(dict.fromkeys(names))
        base.executemany("insert or ignore into names (name) values (?)", zip(wanted, strict=True))
        query = "select number from names where name = ?"
        return {name: base.execute(query, (name,)).fetchone()[0] for name in wanted}

    def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._told("read"):
            return self._base.execute(query, values).fetchall()

    def size(self, session: str) -> int:
        """How long the session's logs were when all of it was sent; -1 before that."""
        query = "select size from done join names on number = owner where name = ?"
        rows = self._read(query, self._name(session))
        return int(rows[0][0]) if rows else -1

    def sent(self, session: str) -> set[int]:
        """The ids of its spans that arrived."""
        query = (
            "select id from spans join names on number = owner join batches using (batch)"
            " where name = ? and sent"
        )
        rows = self._read(query, self._name(session))
        return {int.from_bytes(row[0], "big") for row in rows}

    def note_spans(self, spans: Iterable[tuple[str, int]]) -> int:
        """That these (session, id) are about to be sent; the number of their batch."""
        named = [(self._name(session), id_.to_bytes(8, "big")) for session, id_ in spans]
        with self._writing() as base:
            batch = base.execute("insert into batches (sent) values (0)").lastrowid or 0
            owners = self._numbers(base, (name for name, _ in named))
            rows = [(owners[name], id_, batch) for name, id_ in named]
            base.executemany("insert or replace into spans values (?, ?, ?)", rows)
        return batch

    def confirm_spans(self, batch: int) -> None:
        """That they arrived."""
        with self._writing() as base:
            base.execute("update batches set sent = 1 where batch = ?", (batch,))

    def counted(self, session: str | None = None) -> list[tuple[str, str]]:
        """(series, amount) that arrived, of one session or of all."""
        query = (
            "select k.name, sent from series join names o on o.number = owner"
            " join names k on k.number = key where sent is not null and o.name"
        )
        if session is None:
            start = self._name("")
            return self._read(f"{query} >= ? and o.name < ?", start, start[:-1] + "\1")
        return self._read(f"{query} = ?", self._name(session))

    def note_amounts(self, amounts: Iterable[tuple[str, str, str]]) -> None:
        """That these (session, series, amount) are about to be sent."""
        query = (
            "insert into series values (?, ?, ?, null)"
            " on conflict do update set value = excluded.value"
        )
        named = [(self._name(session), key, amount) for session, key, amount in amounts]
        with self._writing() as base:
            numbers = self._numbers(base, (name for row in named for name in row[:2]))
            rows = [(numbers[name], numbers[key], amount) for name, key, amount in named]
            base.executemany(query, rows)

    def confirm_amounts(self, amounts: Iterable[tuple[str, str, str]]) -> None:
        """That they arrived."""
        named = [(self._name(session), key) for session, key, _ in amounts]
        with self._writing() as base:
            numbers = self._numbers(base, (name for row in named for name in row))
            rows = [(numbers[name], numbers[key]) for name, key in named]
            base.executemany("update series set sent = value where owner = ? and key = ?", rows)

    def extent(self) -> tuple[int, int] | None:
        """The first start and last end of the amounts that arrived."""
        first, last = self.size("\0first"), self.size("\0last")
        return (first, last) if first >= 0 else None

    def extend(self, extent: tuple[int, int]) -> None:
        """Keeps that."""
        self.finish(zip(("\0first", "\0last"), extent, strict=True))

    def finish(self, sizes: Iterable[tuple[str, int]]) -> None:
        """That all of these (session, size) arrived."""
        named = [(self._name(session), size) for session, size in sizes]
        with self._writing() as base:
            owners = self._numbers(base, (name for name, _ in named))
            rows = [(owners[name], size) for name, size in named]
            base.executemany("insert or replace into done values (?, ?)", rows)

    def forget(self) -> None:
        """All that this target was sent, to send it anew."""
        start = self._name("")
        mine = "owner in (select number from names where name >= ? and name < ?)"
        with self._writing() as base:
            for table in ("spans", "series", "done"):
                query = f"delete from {table} where {mine}"  # noqa: S608 (of our own names)
                base.execute(query, (start, start[:-1] + "\1"))
