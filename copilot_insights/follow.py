"""Follows logs that grow, appear, are replaced or cut: tells which sessions changed, and reads
these anew, whole. A log is small beside its history, and what a fresh read gives is right.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from copilot_insights.cache import Cache
from copilot_insights.discover import LogFile, default_roots, find
from copilot_insights.errors import InsightsError
from copilot_insights.loading import load_files
from copilot_insights.tables import Tables, Wanted

# parts of the time that searching for logs, and reading one that grows, may take
_SEARCHING: Final = 0.004
_READING: Final = 0.1
_FRESH: Final = 10.0  # seconds; so long after a directory changed, its new log may appear


class _Whole(LogFile):
    """A log up to its last newline: what stands behind it is still being written."""

    __slots__ = ()

    def read(self) -> bytes:
        """Its whole lines."""
        data = super().read()
        return data[: data.rfind(b"\n") + 1]


class Change(NamedTuple):
    """Whole tables of the sessions that changed, and the paths of logs that are gone."""

    tables: Tables | None
    gone: list[str]


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
        self._stamps: dict[str, str] = {}
        self._dirs: dict[str, int] = {}
        self._search_at = 0.0
        self._fresh_until = 0.0
        self._read_at: dict[str, float] = {}

    def poll(self) -> Change:
        """What changed since the last poll; the first gives all."""
        now = time.monotonic()
        if self._eager or now >= self._search_at or self._place_changed(now):
            self._search()
            took = time.monotonic() - now
            self._search_at = now + max(1.0, took / _SEARCHING)
        names = {file.name for file in self._files if self._has_changed(file, now)}
        changed = [_Whole(*file) for file in self._files if file.name in names]
        there = {file.path for file in self._files}
        gone = [path for path in self._stamps if path not in there]
        for path in gone:
            del self._stamps[path]
        tables = self._read(changed) if changed else None
        return Change(tables, gone)

    def _read(self, files: list[_Whole]) -> Tables | None:
        start = time.monotonic()
        tables = load_files(files, self._wanted, cache=self._cache)
        again = time.monotonic() + (time.monotonic() - start) / _READING
        self._read_at |= {file.name: again for file in files}
        return tables if tables.sessions.height else None

    def _search(self) -> None:
        try:
            self._files = [file for file in find(self._paths).files if file.path != "-"]
        except InsightsError:  # none yet
            self._files = []
        folders = {str(Path(file.path).parent.parent) for file in self._files}
        folders |= {str(place) for place in self._places}
        folders |= {str(place / "session-state") for place in self._places}
        self._dirs = {folder: _changed(folder) for folder in folders}

    def _place_changed(self, now: float) -> bool:
        if any(_changed(folder) != at for folder, at in self._dirs.items()):
            self._fresh_until = now + _FRESH
        return now < self._fresh_until

    def _has_changed(self, file: LogFile, now: float) -> bool:
        stamp = file.stamp()
        resting = now < self._read_at.get(file.name, 0) and not self._eager
        if stamp is None or self._stamps.get(file.path) == stamp or resting:
            return False
        self._stamps[file.path] = stamp
        return True


def _changed(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0
