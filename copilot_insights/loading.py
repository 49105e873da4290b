"""Logs → tables for any number of logs: in batches, on all cores, in bounded memory.

Logs are read as if none shared an event with another, which is nearly always so. Those
that do (a copy under another root, a fork, a saved stdout stream) are found by the ids of
their sessions and events, and read again together.
"""

import gc
import io
import os
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

import polars as pl

from copilot_insights.accounting import store_beside
from copilot_insights.discover import STDIN, LogFile, find
from copilot_insights.errors import InsightsError
from copilot_insights.reader import read
from copilot_insights.schema import TABLES
from copilot_insights.tables import Tables, build, join

# so many bytes of logs at a time: more would save little time and take more memory
_BATCH: Final = 24 * 2**20
_WORTH_A_PROCESS: Final = 48 * 2**20

Progress = Callable[[float], None]
"""Called now and then with the part that is done, 0 to 1."""


class _Part(NamedTuple):
    """Some logs' tables; their files table; the key of each event and the number of its
    session in `names`.
    """

    tables: Tables
    files: pl.DataFrame
    keys: pl.DataFrame
    names: list[str]


def load(
    paths: Sequence[str | Path] | str | Path = (),
    *,
    events: bool = False,
    only: Collection[str] = (),
    progress: Progress | None = None,
) -> Tables:
    """Reads logs into tables.

    Args:
        paths: logs, session directories, roots, globs or `-`; none means the CLI's own
            places (`$COPILOT_HOME`, else `~/.copilot`).
        events: also fill the `events` table, which is as long as the logs.
        only: the tables wanted besides `sessions` (names of `schema.TABLES`); the others
            are left empty, which saves memory on many logs.
        progress: called now and then with the part that is done, 0 to 1.

    Raises:
        InsightsError: no log was found, or none could be read.
    """
    found = find([paths] if isinstance(paths, str | Path) else paths)
    wanted = frozenset(only or TABLES) - (set() if events else {"events"}) | {"sessions"}
    tables = load_files(found.files, wanted, progress)
    if tables.problems and not tables.sessions.height:
        raise InsightsError(tables.problems[0], "Check its permissions.")
    return replace(tables, problems=[*found.problems, *tables.problems])


def load_files(
    files: Sequence[LogFile], wanted: frozenset[str], progress: Progress | None = None
) -> Tables:
    """The same for logs that are found already."""
    own, others = _shares(_side_by_side(files))
    with _collector_off():
        workers = [_Worker(share, wanted) for share in others]
        parts = list(_load(own, wanted, progress))
        parts += [part for worker in workers for part in worker.result()]
        parts = _settle_overlaps(parts, files, wanted)
    return join([part.tables for part in parts])


def _side_by_side(files: Sequence[LogFile]) -> list[LogFile]:
    """Logs of one name behind each other: they are likely to be of one session."""
    groups: defaultdict[str, list[LogFile]] = defaultdict(list)
    for file in files:
        groups[file.name].append(file)
    return [file for group in groups.values() for file in group]


def _shares(files: list[LogFile]) -> tuple[list[LogFile], list[list[LogFile]]]:
    """What this process reads and what each further one does, of about equal bytes."""
    sizes = [file.size() for file in files]
    number = min(os.cpu_count() or 1, sum(sizes) // _WORTH_A_PROCESS + 1)
    shares: list[list[LogFile]] = [[] for _ in range(number)]
    done = 0
    for file, size in zip(files, sizes, strict=True):
        shares[done * number // (sum(sizes) + 1) if file.path != STDIN else 0].append(file)
        done += size
    return shares[0], [share for share in shares[1:] if share]


def _batches(files: Sequence[LogFile]) -> Iterator[tuple[list[LogFile], float]]:
    """Logs of a few megabytes together, and the part of all that is done with them."""
    whole = sum(file.size() for file in files)
    batch: list[LogFile] = []
    held = done = 0
    for file in files:
        batch.append(file)
        held += file.size()
        if held >= _BATCH:
            done += held
            yield batch, done / whole
            batch, held = [], 0
    if batch or not done:
        yield batch, 1.0


def _load(
    files: Sequence[LogFile], wanted: frozenset[str], progress: Progress | None = None
) -> Iterator[_Part]:
    for batch, done in _batches(files):
        yield _part(batch, wanted)
        if progress:
            progress(done)


def _part(files: Sequence[LogFile], wanted: frozenset[str]) -> _Part:
    got = read(files, full="events" in wanted)
    tables = build(got, store_beside(file.path for file in files), wanted)
    base = got.events.base
    names = base.unique("session", keep="first", maintain_order=True)["session_id"]
    return _Part(tables, got.files, base.select("session", "key").drop_nulls(), names.to_list())


def _settle_overlaps(
    parts: list[_Part], files: Sequence[LogFile], wanted: frozenset[str]
) -> list[_Part]:
    """Reads logs again, together, that share a session or events with another part."""
    if len(parts) == 1:
        return parts
    twice = pl.concat([part.keys["key"] for part in parts]).is_duplicated()
    named = pl.concat([part.files.with_columns(part=pl.lit(n)) for n, part in enumerate(parts)])
    sessions = named.unique(["session_id", "part"])["session_id"]
    mixed = set(sessions.filter(sessions.is_duplicated()))
    first = 0
    for part in parts if twice.any() else ():
        codes = part.keys["session"].filter(twice.slice(first, part.keys.height))
        mixed.update(part.names[code] for code in codes.unique())
        first += part.keys.height
    if not mixed:
        return parts
    # which log a part's repeated events repeat is not kept: take all that repeat any
    mixed |= set(named.filter(pl.col("duplicates") > 0)["session_id"])
    paths = set(named.filter(pl.col("session_id").is_in(list(mixed)))["path"])
    again = _part([file for file in files if file.path in paths], wanted)
    return [*(part._replace(tables=part.tables.without(mixed)) for part in parts), again]


@contextmanager
def _collector_off() -> Iterator[None]:
    """Nothing here makes cycles; looking for them in millions of objects takes as long as
    the work.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class _Worker:
    """A further process for a share of the logs.

    A plain child with a pipe: forking a process that has polars' threads can hang, and
    multiprocessing's other ways run the caller's main module again.
    """

    def __init__(self, files: list[LogFile], wanted: frozenset[str]) -> None:
        self._job = files, wanted
        self._process = subprocess.Popen(  # noqa: S603 (ourselves)
            [sys.executable, "-c", f"from {__name__} import work; work()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "POLARS_MAX_THREADS": "1"},  # a process has a core
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin  # noqa: S101 (for the type checker)
        assert stdout  # noqa: S101
        with suppress(OSError):  # should it not start, result() does its work here
            stdin.write(pickle.dumps(self._job))
            stdin.close()
        self._said: list[bytes] = []
        # read as it comes, or the pipe would be full and the process would wait
        self._ear = Thread(target=lambda: self._said.append(stdout.read()), daemon=True)
        self._ear.start()

    def result(self) -> Iterator[_Part]:
        """Its parts; should the process have died, its work is done here."""
        self._ear.join()
        with self._process as process:
            process.wait()
        if process.returncode:
            yield from _load(*self._job)
            return
        with io.BytesIO(self._said.pop()) as data:
            while data.tell() < len(data.getbuffer()):
                yield pickle.load(data)  # noqa: S301 (from ourselves)


def work() -> None:
    """What a further process does: logs from standard input, tables to standard output."""
    files, wanted = pickle.load(sys.stdin.buffer)  # noqa: S301 (from ourselves)
    with _collector_off():
        for part in _load(files, wanted):
            pickle.dump(part, sys.stdout.buffer, protocol=5)
