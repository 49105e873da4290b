"""Follows logs that grow, appear, are replaced or cut: tells which sessions changed, and reads
these anew, whole, with all that share events with them (a fork, a copy, a saved stream). A log
is small beside its history, and what a fresh read gives is right.
"""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from copilot_insights.cache import Cache, Part
from copilot_insights.discover import STDIN, LogFile, default_roots, find
from copilot_insights.errors import InsightsError
from copilot_insights.loading import load_files, together
from copilot_insights.tables import Tables, Wanted

# parts of the time that searching for logs, and reading one that grows, may take
_SEARCHING: Final = 0.004
_READING: Final = 0.1
_FRESH: Final = 10.0  # seconds; so long after a directory changed, its new log may appear


_LOGS: Final[dict[str, Any]] = {
    "session_id": pl.String,
    "path": pl.String,
    "repeats": pl.List(pl.String),
}
_KEYS: Final[dict[str, Any]] = {"session_id": pl.String, "keys": pl.List(pl.UInt64)}


class _Whole(LogFile):
    """A log up to its last newline: what stands behind it is still being written."""

    __slots__ = ()

    def read(self) -> bytes:
        """Its whole lines."""
        data = super().read()
        return data[: data.rfind(b"\n") + 1]


class Change(NamedTuple):
    """Whole tables of the sessions that changed, the ids of those that are gone, and a line for
    each log or place that cannot be read now.
    """

    tables: Tables | None
    gone: list[str]
    problems: list[str]


class Follower:
    """The logs at some paths, or the CLI's own. Paths that do not exist yet are waited for.

    An eager one searches and reads at every poll, whatever that costs. What a cache keeps of
    many logs is not read at first.
    """

    def __init__(
        self,
        paths: Sequence[str | Path] = (),
        *,
        wanted: Wanted,
        eager: bool = False,
        cache: Cache | None = None,
    ) -> None:
        self._eager, self._cache = eager, cache
        self._paths, self._wanted = list(paths), wanted
        self._places = [Path(p) for p in paths] or default_roots()
        self._files: list[LogFile] = []
        self._problems: list[str] = []
        self._stamps: dict[str, str | None] = {}
        self._dirs: dict[str, int] = {}
        self._search_at = 0.0
        self._fresh_until = 0.0
        self._read_at: dict[str, float] = {}
        # of all logs that were read, as in `Part`
        self._logs, self._keys = pl.DataFrame(schema=_LOGS), pl.DataFrame(schema=_KEYS)

    def poll(self) -> Change:
        """What changed since the last poll; the first gives all."""
        now = time.monotonic()
        if self._eager or now >= self._search_at or self._place_changed(now):
            self._search()
            took = time.monotonic() - now
            self._search_at = now + max(1.0, took / _SEARCHING)
        stamps = {file.path: file.stamp() for file in self._files}
        changed = {path for path, stamp in stamps.items() if self._has_changed(path, stamp, now)}
        gone = self._stamps.keys() - stamps.keys()
        if not changed and not gone:
            return Change(None, [], self._problems)
        return self._read(stamps, changed, gone)

    def _read(
        self, stamps: Mapping[str, str | None], changed: set[str], gone: Collection[str]
    ) -> Change:
        start = time.monotonic()
        paths = together(self._logs, {*changed, *gone}).difference(gone)
        part = self._load(paths)
        while more := self._sharing(part, {*paths, *gone}):
            paths |= more
            part = self._load(paths)
        read = set(part.logs["path"])  # what could not be is tried again at the next poll
        again = time.monotonic() + (time.monotonic() - start) / _READING
        self._read_at |= dict.fromkeys(read, again)
        self._stamps |= {path: stamps[path] for path in read}
        for path in gone:
            del self._stamps[path]
        before = set(self._logs["session_id"])
        old = self._logs.filter(~pl.col("path").is_in([*read, *gone]))
        self._logs = pl.concat([old, part.logs.select(*_LOGS)])
        kept = pl.col("session_id").is_in(old["session_id"].implode())
        self._keys = pl.concat([self._keys.filter(kept), part.keys])
        tables = part.tables
        now = {*old["session_id"], *tables.sessions["session_id"]}
        problems = [*self._problems, *tables.problems]
        return Change(tables if tables.sessions.height else None, sorted(before - now), problems)

    def _load(self, paths: Collection[str]) -> Part:
        files = [_Whole(*file) for file in self._files if file.path in paths]
        return load_files(files, self._wanted, cache=self._cache)

    def _sharing(self, part: Part, seen: Collection[str]) -> set[str]:
        """The other logs that are of its sessions, or share events with them."""
        old = self._logs.filter(~pl.col("path").is_in(list(seen)))
        others = self._keys.filter(pl.col("session_id").is_in(old["session_id"].implode()))
        events = part.keys["keys"].explode().drop_nulls()
        same = others.explode("keys").filter(pl.col("keys").is_in(events.implode()))
        names = [*part.logs["session_id"], *same["session_id"]]
        return together(old, old.filter(pl.col("session_id").is_in(names))["path"])

    def _search(self) -> None:
        found: dict[str, LogFile] = {}
        self._problems = []
        for paths in [[path] for path in self._paths] or [[]]:
            with suppress(InsightsError):  # not there yet
                files, problems = find(paths)
                self._problems += problems
                for file in files:
                    if file.path != STDIN:
                        found.setdefault(os.path.realpath(file.path), file)
        self._files = list(found.values())
        folders = {str(Path(file.path).parent.parent) for file in self._files}
        folders |= {str(place) for place in self._places}
        folders |= {str(place / "session-state") for place in self._places}
        self._dirs = {folder: _changed(folder) for folder in folders}

    def _place_changed(self, now: float) -> bool:
        if any(_changed(folder) != at for folder, at in self._dirs.items()):
            self._fresh_until = now + _FRESH
        return now < self._fresh_until

    def _has_changed(self, path: str, stamp: str | None, now: float) -> bool:
        resting = now < self._read_at.get(path, 0) and not self._eager
        return stamp is not None and self._stamps.get(path) != stamp and not resting


def _changed(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0
