"""What a receiver was sent already, in a small database of the user's: a session that is
exported again sends only its news, and no counter counts anything twice.

A batch is noted before it is sent and confirmed after it. What stands noted but not confirmed
(the exporter was killed, the receiver did not answer) is sent again, with the same ids.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Self

from copilot_insights.errors import InsightsError

_SCHEMA: Final = """
create table if not exists batches (batch integer primary key, sent integer);
create table if not exists spans (
    target text, session text, id blob, batch integer, primary key (target, session, id)
) without rowid;
create table if not exists series (
    target text, session text, key text, value text, sent text,
    primary key (target, session, key)
) without rowid;
create table if not exists done (
    target text, session text, size integer, primary key (target, session)
) without rowid;
"""


def default_path() -> Path:
    """`otel.db` under $XDG_STATE_HOME, by default ~/.local/state."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "copilot-insights" / "otel.db"


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
            self._base.executescript(f"begin immediate; {_SCHEMA} commit;")

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
            self._base.execute("begin immediate")
            try:
                yield self._base
                self._base.execute("commit" if self._keep else "rollback")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("rollback")
                raise

    def size(self, session: str) -> int:
        """How long the session's logs were when all of it was sent; -1 before that."""
        query = "select size from done where target = ? and session = ?"
        row = self._base.execute(query, (self._target, session)).fetchone()
        return int(row[0]) if row else -1

    def sent(self, session: str) -> set[int]:
        """The ids of its spans that arrived."""
        query = (
            "select id from spans join batches using (batch)"
            " where target = ? and session = ? and sent"
        )
        with closing(self._base.execute(query, (self._target, session))) as rows:
            return {int.from_bytes(row[0], "big") for row in rows}

    def note_spans(self, spans: Iterable[tuple[str, int]]) -> int:
        """That these (session, id) are about to be sent; the number of their batch."""
        with self._writing() as base:
            batch = base.execute("insert into batches (sent) values (0)").lastrowid or 0
            rows = [(self._target, name, id_.to_bytes(8, "big"), batch) for name, id_ in spans]
            base.executemany("insert or replace into spans values (?, ?, ?, ?)", rows)
        return batch

    def confirm_spans(self, batch: int) -> None:
        """That they arrived."""
        with self._writing() as base:
            base.execute("update batches set sent = 1 where batch = ?", (batch,))

    def counted(self, session: str | None = None) -> Iterator[tuple[str, str, str]]:
        """(session, series, amount) that arrived, of one session or of all."""
        query = "select session, key, sent from series where target = ? and sent is not null"
        if session is None:
            yield from self._base.execute(query, (self._target,))
        else:
            yield from self._base.execute(f"{query} and session = ?", (self._target, session))

    def note_amounts(self, amounts: Iterable[tuple[str, str, str]]) -> None:
        """That these (session, series, amount) are about to be sent."""
        rows = [(self._target, *amount) for amount in amounts]
        query = (
            "insert into series values (?, ?, ?, ?, null)"
            " on conflict do update set value = excluded.value"
        )
        with self._writing() as base:
            base.executemany(query, rows)

    def confirm_amounts(self, amounts: Iterable[tuple[str, str, str]]) -> None:
        """That they arrived."""
        rows = [(self._target, session, key) for session, key, _ in amounts]
        query = "update series set sent = value where target = ? and session = ? and key = ?"
        with self._writing() as base:
            base.executemany(query, rows)

    def extent(self) -> tuple[int, int] | None:
        """The first start and last end of the amounts that arrived."""
        first, last = self.size("\0first"), self.size("\0last")
        return (first, last) if first >= 0 else None

    def extend(self, extent: tuple[int, int]) -> None:
        """Keeps that."""
        self.finish(zip(("\0first", "\0last"), extent, strict=True))

    def finish(self, sizes: Iterable[tuple[str, int]]) -> None:
        """That all of these (session, size) arrived."""
        rows = [(self._target, *size) for size in sizes]
        with self._writing() as base:
            base.executemany("insert or replace into done values (?, ?, ?)", rows)

    def forget(self) -> None:
        """All that this target was sent, to send it anew."""
        with self._writing() as base:
            for table in ("spans", "series", "done"):
                base.execute(f"delete from {table} where target = ?", (self._target,))  # noqa: S608
