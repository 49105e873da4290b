"""Logs → tables for any number of logs: in batches, on all cores, in bounded memory.

Logs are read as if none shared an event with another, which is nearly always so. Those
that do (a copy under another root, a fork, a saved stdout stream) are found by the ids of
their sessions and events, and read again together.
"""

import gc
import os
import pickle
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

import polars as pl

from copilot_insights.cache import KEPT, Cache, Part, shared
from copilot_insights.discover import STDIN, LogFile, find
from copilot_insights.errors import InsightsError
from copilot_insights.reader import read
from copilot_insights.schema import TABLES
from copilot_insights.session_store import store_beside
from copilot_insights.tables import Tables, Wanted, build, join

# so many bytes of logs at a time: more would save little time and take more memory
_BATCH: Final = 24 * 2**20
_WORTH_A_PROCESS: Final = 48 * 2**20
_MOST_WORKERS: Final = 3  # each takes some 150 MB
_WORTH_A_CACHE: Final = 16 * 2**20

Progress = Callable[[float], None]
"""Called now and then with the part that is done, 0 to 1."""


def load(
    paths: Sequence[str | Path] | str | Path = (),
    *,
    events: bool = False,
    only: Collection[str] | Mapping[str, Collection[str]] = (),
    progress: Progress | None = None,
    cache: str | Path | None = None,
) -> Tables:
    """Reads logs into tables.

    Args:
        paths: logs, session directories, roots, globs or `-`; none means the CLI's own
            places (`$COPILOT_HOME`, else `~/.copilot`).
        events: also fill the `events` table, which is as long as the logs.
        only: the tables wanted besides `sessions` (names of `schema.TABLES`), or for each
            the columns wanted of it besides `session_id`; the others are left empty, which
            saves memory on many logs.
        progress: called now and then with the part that is done, 0 to 1.
        cache: a directory where the tables of many logs are kept for the next time; what has
            not changed is taken from there. Made where it is not there.

    Raises:
        InsightsError: no log was found, or none could be read.
    """
    found = find([paths] if isinstance(paths, str | Path) else paths)
    columns = only if isinstance(only, Mapping) else {name: TABLES[name] for name in only or TABLES}
    wanted = {"sessions": tuple(TABLES["sessions"])} | {
        name: ("session_id", *of) for name, of in columns.items()
    }
    if not events:
        wanted.pop("events", None)
    kept = Cache(Path(cache)) if cache else None
    tables = load_files(found.files, wanted, progress, kept).tables
    if tables.problems and not tables.sessions.height:
        raise InsightsError(tables.problems[0], "Check that it can be read.")
    return replace(tables, problems=[*found.problems, *tables.problems])


def load_files(
    files: Sequence[LogFile],
    wanted: Wanted,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> Part:
    """The same for logs that are found already, with what they are and hold."""
    files = _side_by_side(files)
    if "events" in wanted or sum(file.size() for file in files) < _WORTH_A_CACHE:
        cache = None
    problems: list[str] = []
    store = store_beside((file.path for file in files), problems)
    kept, rest = cache.take(files, wanted, store) if cache else ([], files)
    with _collector_off():
        reader = _Reader(wanted, store, cache)
        parts = kept if kept and not rest else [*kept, *_read(rest, reader, progress)]
        parts = _settle_overlaps(parts, files, reader)
    if cache and rest:
        cache.tidy()
    tables = _in_order(parts, files)
    tables.problems[:0] = problems
    return Part(tables, pl.concat([p.logs for p in parts]), pl.concat([p.keys for p in parts]))


class _Reader(NamedTuple):
    """Reads some logs: the tables that are wanted, the rows of the session stores beside all
    logs, and where to keep tables.
    """

    wanted: Wanted
    store: pl.DataFrame
    cache: Cache | None

    def part(self, files: Sequence[LogFile]) -> Part:
        """Some logs, read now; and kept, where there is a cache."""
        seen = self.cache.before(files) if self.cache else pl.DataFrame()
        got = read(files, full="events" in self.wanted)
        tables = build(got, self.store, KEPT if self.cache else self.wanted)
        keys = got.events.base.group_by("session", maintain_order=True).agg(
            pl.col("session_id").first(), keys=pl.col("key").drop_nulls()
        )
        logs = got.files.select("session_id", "path", "bytes", "whole", "repeats")
        part = Part(tables, logs, keys.drop("session"))
        if self.cache:
            self.cache.keep(part, seen, self.store)
        return part._replace(tables=tables.only(self.wanted))


def _read(files: Sequence[LogFile], reader: _Reader, progress: Progress | None) -> list[Part]:
    """Reads logs in batches, which processes share."""
    jobs = list(_batches(files))
    # standard input is only open to this process, which works from the front
    jobs.sort(key=lambda job: not any(file.path == STDIN for file in job))
    sizes = [sum(file.size() for file in job) for job in jobs]
    todo, done = deque(enumerate(jobs)), dict[int, Part]()
    workers = min((os.cpu_count() or 1) - 1, sum(sizes) // _WORTH_A_PROCESS, _MOST_WORKERS)
    threads = [
        Thread(target=_delegate, args=(todo, done, reader), daemon=True)
        for _ in range(min(workers, len(jobs) - 1))
    ]
    for thread in threads:
        thread.start()
    while todo or threads:
        while todo:
            with suppress(IndexError):  # a worker was faster
                number, job = todo.popleft()
                done[number] = reader.part(job)
            if progress:
                progress(sum(sizes[n] for n in list(done)) / (sum(sizes) or 1))
        while threads:  # should one have failed, its job is to do again
            threads.pop().join()
    return [done[number] for number in sorted(done)]


def _side_by_side(files: Sequence[LogFile]) -> list[LogFile]:
    """Logs of one name behind each other: they are likely to be of one session."""
    groups: defaultdict[str, list[LogFile]] = defaultdict(list)
    for file in files:
        groups[file.name].append(file)
    return [file for group in groups.values() for file in group]


def _batches(files: Sequence[LogFile]) -> Iterator[list[LogFile]]:
    """Logs of a few megabytes together."""
    batch: list[LogFile] = []
    held = 0
    for file in files:
        batch.append(file)
        held += file.size()
        if held >= _BATCH:
            yield batch
            batch, held = [], 0
    if batch or not files:
        yield batch


def _settle_overlaps(parts: list[Part], files: Sequence[LogFile], reader: _Reader) -> list[Part]:
    """Reads logs again, together, that share a session or events with another part."""
    if len(parts) == 1:
        return parts
    named = pl.concat(
        [
            part.logs.select("session_id", "path", "repeats", part=pl.lit(n))
            for n, part in enumerate(parts)
        ]
    )
    sessions = named.unique(["session_id", "part"])["session_id"]
    mixed = set(sessions.filter(sessions.is_duplicated()))
    mixed |= shared(pl.concat([part.keys for part in parts]))
    if not mixed:
        return parts
    paths = together(named, named.filter(pl.col("session_id").is_in(list(mixed)))["path"])
    again = reader._replace(cache=None).part([file for file in files if file.path in paths])
    read_again = pl.col("path").is_in(list(paths))
    gone = set(named.filter(read_again)["session_id"])
    left = [
        Part(
            part.tables.without(gone),
            part.logs.filter(~read_again),
            part.keys.filter(~pl.col("session_id").is_in(list(gone))),
        )
        for part in parts
    ]
    return [*left, again]


def together(logs: pl.DataFrame, some: Iterable[str]) -> set[str]:
    """Paths of these logs, and of all of `logs` (see `Part`) that are of their sessions, that
    repeat events of them or that they repeat events of, and so on.
    """
    paths = set(some)
    sessions: defaultdict[str, set[str]] = defaultdict(set)
    for path, name in logs.select("path", "session_id").iter_rows():
        sessions[name].add(path)
    repeating = logs.filter(pl.col("repeats").list.len() > 0)
    links = [{path, *of} for path, of in repeating.select("path", "repeats").iter_rows()]
    links += [of for of in sessions.values() if len(of) > 1]
    while more := [link for link in links if link & paths and not link <= paths]:
        paths.update(*more)
    return paths


def _in_order(parts: list[Part], files: Sequence[LogFile]) -> Tables:
    """Sessions in the order of their logs, in whatever order they were read."""
    paths = pl.Series("path", [file.path for file in files], dtype=pl.String)
    places = paths.to_frame().with_row_index("place")
    logs = pl.concat([part.logs.select("session_id", "path") for part in parts])
    order = logs.join(places, on="path").group_by("session_id").agg(pl.col("place").min())
    return join([part.tables for part in parts]).by_session(order.sort("place")["session_id"])


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


def _delegate(
    todo: deque[tuple[int, list[LogFile]]], done: dict[int, Part], reader: _Reader
) -> None:
    """Has a further process do jobs from the end of `todo`, as long as there are any.

    A plain child with pipes: forking a process that has polars' threads can hang, and
    multiprocessing's other ways run the caller's main module again.
    """
    # the modules that this process has, and never those of the directory that it is run in
    places = [str(place) for place in sys.path]
    code = f"import sys; sys.path[:] = {places!r}; from {__name__} import work; work()"
    with subprocess.Popen(  # noqa: S603 (ourselves)
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what it fails at is done here, and said here
        env={**os.environ, "POLARS_MAX_THREADS": "1"},  # a process has a core
    ) as process:
        assert process.stdin  # noqa: S101 (for the type checker)
        assert process.stdout  # noqa: S101
        with suppress(IndexError):
            said = pickle.dumps(reader)
            while True:
                number, job = todo.pop()
                try:
                    process.stdin.write(said)
                    said = b""  # once
                    pickle.dump(job, process.stdin)
                    process.stdin.flush()
                    done[number] = pickle.load(process.stdout)  # noqa: S301 (from ourselves)
                except (OSError, EOFError, pickle.UnpicklingError):
                    todo.append((number, job))
                    break
        with suppress(OSError):  # a process that died can't be told the end
            process.stdin.close()


def work() -> None:
    """What a further process does: logs from standard input, tables to standard output."""
    with _collector_off(), suppress(EOFError):
        reader = pickle.load(sys.stdin.buffer)  # noqa: S301 (from ourselves)
        while True:
            job = pickle.load(sys.stdin.buffer)  # noqa: S301
            pickle.dump(reader.part(job), sys.stdout.buffer, protocol=5)
            sys.stdout.buffer.flush()
