"""Tables of logs that were read before, kept on disk: only what has changed is read again.

`<directory>/tables-<code>/<batch>/` has a parquet file for each table of some logs, and three
more: `logs` says which logs these are and what they looked like, `keys` has the hashes of their
events, `sums` the check sums of all files. A log is taken from here while it is the same file
of the same size and times, and the session stores say the same of its session. Only whole logs
that shared no session and no event with others of their batch are kept, and no content ever.

A batch is written under another name and then renamed, so it is there whole or not at all.
What is damaged, or gone meanwhile, is the same as nothing kept; other code of this package, or
another polars, has a directory of its own. Nothing is removed but what was made here.
"""

import os
import platform
import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from typing import Any, Final, NamedTuple
from uuid import uuid4
from zlib import crc32

import msgspec
import polars as pl

from copilot_insights.discover import LogFile
from copilot_insights.schema import TABLES
from copilot_insights.session_store import store_beside
from copilot_insights.tables import Tables, Wanted

KEPT: Final[Wanted] = {name: of for name, of in TABLES.items() if name != "events"}
"""Tables that are kept, whole: `events` is as long as the logs."""

_WORTH: Final = 4_000_000  # bytes of logs: fewer are read again as fast
_MOST: Final = 40  # batches
_DAY: Final = 86_400
_SETTLED: Final = 10**9  # nanoseconds
_LOGS: Final = {
    "session_id": pl.String,
    "place": pl.String,
    "layout": pl.String,
    "name": pl.String,
    "stamp": pl.String,
    "stored": pl.UInt64,
}
_SAME: Final = ["place", "layout", "name", "stamp"]
_OURS: Final = re.compile(r"tables-[0-9a-f]{16}")
# a path that polars can't take is a TypeError or a UnicodeError
_TROUBLES: Final = (
    OSError,
    TypeError,
    ValueError,
    msgspec.DecodeError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)


class Part(NamedTuple):
    """What some logs gave: their tables; of each log session_id, path, bytes, whole and
    repeats (see `reader.Read`); of each session session_id and `keys`, the hashes of its
    events.
    """

    tables: Tables
    logs: pl.DataFrame
    keys: pl.DataFrame


def default_directory() -> Path | None:
    """Where the command line keeps tables: the user's cache directory, if there is one."""
    from platformdirs import user_cache_path  # noqa: PLC0415

    with suppress(RuntimeError):  # a user without a home
        return user_cache_path("copilot-insights", appauthor=False)
    return None


class Cache:
    """The tables kept below a directory, which need not exist."""

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._here = directory / f"tables-{_code()}"
        self._known = frozenset[str]()

    # --- taking ---------------------------------------------------------------------------

    def take(
        self, files: Sequence[LogFile], wanted: Wanted, store: pl.DataFrame
    ) -> tuple[list[Part], Sequence[LogFile]]:
        """What is kept of these logs, and the logs that are to be read. `store` has the rows
        of the session stores beside all of them.
        """
        try:
            kept = self._logs([name for name in KEPT if name in wanted])
            live = _unchanged(kept, files, store)
            self._known = frozenset(live["path"])
            apart = _apart(live)
            if not apart.height:
                return [], files
            part = _without(_part(kept, apart, wanted))
            os.utime(self._here)  # it is in use
        except _TROUBLES:  # another process put batches together just now
            self._known = frozenset()
            return [], files
        there = set(part.logs["path"])
        return [part], [file for file in files if file.path not in there]

    def _logs(self, names: Collection[str] = tuple(KEPT)) -> pl.DataFrame:
        """`_LOGS` of every batch that is sound, and the `batch`."""
        batches = sorted(path.parent for path in self._here.glob("[!.]*/sums"))
        sound = [batch / "logs" for batch in batches if _is_sound(batch, names)]
        if not sound:
            return pl.DataFrame(schema={**_LOGS, "batch": pl.String})
        return _scan(sound).collect().with_columns(pl.col("batch").str.head(-len("/logs")))

    # --- keeping --------------------------------------------------------------------------

    def before(self, files: Sequence[LogFile]) -> pl.DataFrame:
        """What logs that can be kept look like before they are read. Not one that is kept as it
        is, nor one that was just written: it may change again within a tick of the clock.
        """
        latest = time.time_ns() - _SETTLED
        seen = _seen([f for f in files if f.path not in self._known and type(f) is LogFile])
        changed = pl.col("stamp").str.split(" ").list.last().cast(pl.Int64)
        return seen.filter(changed < latest)

    def keep(self, part: Part, seen: pl.DataFrame, store: pl.DataFrame) -> None:
        """Keeps what was read of logs that `before` has seen; `store` is as in `take`, `part`
        has the tables of `KEPT`.

        A log that does not end with a newline is being written, and a watcher reads less of it.
        """
        alone = part.logs.filter(
            pl.col("whole"),
            pl.len().over("session_id") == 1,
            pl.col("repeats").list.len() == 0,
        )
        logs = alone.join(seen, on="path").join(_stored(store), on="session_id", how="left")
        if not logs.height or logs["bytes"].sum() < _WORTH:
            return
        names = logs["session_id"].implode()
        frames = {
            name: frame.filter(pl.col("session_id").is_in(names))
            for name, frame in [*((n, part.tables.table(n)) for n in KEPT), ("keys", part.keys)]
        }
        self._write({**frames, "logs": logs.select(_LOGS.keys())})

    def _write(self, frames: Mapping[str, pl.DataFrame]) -> None:
        draft = self._here / f".{uuid4().hex}"
        with suppress(*_TROUBLES):
            self._root.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self._root, self._here, draft):
                folder.mkdir(mode=0o700, exist_ok=True)
            for name, frame in frames.items():
                frame.write_parquet(draft / name, statistics=False)
            sums = {name: crc32((draft / name).read_bytes()) for name in frames}
            (draft / "sums").write_bytes(msgspec.json.encode(sums))
            draft.rename(self._here / uuid4().hex)
        rmtree(draft, ignore_errors=True)

    def tidy(self) -> None:
        """Removes batches of which nothing would be taken, and what other code left here a
        month ago; puts small batches together when there are many.
        """
        with suppress(*_TROUBLES):
            kept = self._logs()
            files = [LogFile(*row) for row in kept.select("place", "layout", "name").iter_rows()]
            live = _unchanged(kept, files, store_beside(kept["place"], []))
            used = {Path(batch).name for batch in live["batch"].unique()}
            for batch in self._here.iterdir():
                draft = batch.name.startswith(".") and _age(batch) < _DAY
                if batch.name not in used and not draft:
                    rmtree(batch, ignore_errors=True)
            if len(used) > _MOST:
                self._merge(kept, live.join(_smallest(live), on="batch", maintain_order="left"))
            for other in self._root.iterdir():
                ours = _OURS.fullmatch(other.name) and not other.is_symlink()
                if ours and other != self._here and _age(other) > 30 * _DAY:
                    rmtree(other, ignore_errors=True)

    def _merge(self, kept: pl.DataFrame, live: pl.DataFrame) -> None:
        if live.height:
            part = _part(kept, live, KEPT)
            tables = {name: part.tables.table(name) for name in KEPT}
            self._write({**tables, "keys": part.keys, "logs": live.select(_LOGS.keys())})
        for batch in live["batch"].unique():
            rmtree(batch, ignore_errors=True)


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _is_sound(batch: Path, names: Collection[str]) -> bool:
    """Whether these tables of a batch are what was written. One that is not is removed."""
    try:
        sums = msgspec.json.decode((batch / "sums").read_bytes(), type=dict[str, int])
        sound = all(
            crc32((batch / name).read_bytes()) == sums[name] for name in (*names, "keys", "logs")
        )
    except (OSError, KeyError, msgspec.DecodeError, UnicodeError):
        sound = False
    if not sound:
        rmtree(batch, ignore_errors=True)
    return sound


def _smallest(live: pl.DataFrame) -> pl.DataFrame:
    """The `batch` of half of `_MOST` small ones, of which no two have the same session: one
    batch could not tell their rows apart.
    """
    of = live.group_by("batch").agg("session_id", logs=pl.len()).sort("logs", "batch")
    chosen, sessions = list[str](), set[str]()
    for batch, names, _ in of.iter_rows():
        if len(chosen) < _MOST // 2 and sessions.isdisjoint(names):
            chosen.append(batch)
            sessions.update(names)
    return pl.DataFrame({"batch": chosen}, schema={"batch": pl.String})


def _place(file: LogFile) -> str:
    return os.path.abspath(file.path)  # noqa: PTH100 (a thousand of them)


def _seen(files: Sequence[LogFile]) -> pl.DataFrame:
    """path, and `_SAME`: what logs look like now."""
    return pl.DataFrame(
        [(f.path, _place(f), f.layout, f.name, stamp) for f in files if (stamp := f.stamp())],
        schema={"path": pl.String, **dict.fromkeys(_SAME, pl.String)},
        orient="row",
    )


def _stored(store: pl.DataFrame) -> pl.DataFrame:
    """session_id, stored: a number that is another when the store says something else of it."""
    rows = store.select("session_id", stored=pl.struct(pl.all()).hash())
    return rows.group_by("session_id").agg(pl.col("stored").sum())  # it may overflow


def _unchanged(kept: pl.DataFrame, files: Sequence[LogFile], store: pl.DataFrame) -> pl.DataFrame:
    """The rows of logs that are as they were, with their `path`; each log once, in order."""
    stored = _stored(store).rename({"stored": "now"})
    return (
        _seen(files)
        .join(kept, on=_SAME, maintain_order="left")
        .join(stored, on="session_id", how="left", maintain_order="left")
        .filter(pl.col("stored").eq_missing(pl.col("now")))
        .unique("path", keep="first", maintain_order=True)
    )


def shared(keys: pl.DataFrame) -> set[str]:
    """Sessions that have events of others: those in `Part.keys`, put together."""
    every = keys["keys"].explode().drop_nulls()
    if every.n_unique() == every.len():
        return set()
    events = keys.explode("keys").drop_nulls()
    return set(events.filter(pl.col("keys").is_duplicated())["session_id"])


def _apart(live: pl.DataFrame) -> pl.DataFrame:
    """Without logs of one session: they are to be read together."""
    return live.filter(~pl.col("session_id").is_duplicated())


def _without(part: Part) -> Part:
    """Without sessions that share events: the same."""
    if not (mixed := shared(part.keys)):
        return part
    own = ~pl.col("session_id").is_in(list(mixed))
    return Part(part.tables.without(mixed), part.logs.filter(own), part.keys.filter(own))


def _part(kept: pl.DataFrame, live: pl.DataFrame, wanted: Wanted) -> Part:
    """The tables of live logs, out of all that is kept in their batches."""
    batches = live["batch"].unique(maintain_order=True)
    gone = kept.filter(pl.col("batch").is_in(batches.implode())).join(
        live, on=["batch", "place"], how="anti"
    )

    def table(name: str, columns: Collection[str]) -> pl.DataFrame:
        frame = _scan([Path(batch) / name for batch in batches])
        if gone.height:
            frame = frame.with_columns(pl.col("batch").str.head(-len(name) - 1)).join(
                gone.lazy(), on=["batch", "session_id"], how="anti", maintain_order="left"
            )
        return frame.select(columns).collect(engine="streaming")

    frames: dict[str, Any] = {
        name: table(name, [c for c in TABLES[name] if c in wanted[name]])
        if name in wanted
        else pl.DataFrame(schema=TABLES[name])
        for name in TABLES
    }
    logs = live.select(
        "session_id",
        "path",
        bytes=pl.lit(None, pl.Int64),
        whole=pl.lit(value=True),
        repeats=pl.lit([], pl.List(pl.String)),
    )
    if "path" in frames["sessions"].columns:  # a log may be found another way each time
        paths = logs.select("session_id", "path")
        frames["sessions"] = frames["sessions"].update(paths, on="session_id")
    return Part(Tables(**frames, problems=[]), logs, table("keys", ["session_id", "keys"]))


def _scan(paths: list[Path]) -> pl.LazyFrame:
    """Files of one shape behind each other, and in `batch` the file that each row is of."""
    return pl.scan_parquet(paths, include_file_paths="batch", glob=False)


@cache
def _code() -> str:
    """A name for the code that makes tables: another one, and they may be others."""
    code = blake2b(f"{pl.__version__} {platform.machine()}".encode(), digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()
