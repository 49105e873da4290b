"""Where logs are: roots, layouts, and what is not a log.

Layouts: `<id>/events.jsonl` (directory), `<id>.jsonl` of early versions (flat), and the
saved output of `copilot -p … --output-format json` (stdout). Nothing is opened but what a
user names; a root is searched where the CLI puts sessions, never deeper, because the
directories within a session hold copies (`rewind-snapshots/`).
"""

import os
import sys
from collections.abc import Iterator, Sequence
from errno import EBADF
from functools import cache
from glob import glob, has_magic
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from copilot_insights.errors import InsightsError
from copilot_insights.places import exists, expanded, home

LOG: Final = "events.jsonl"
STDIN: Final = "-"
_FOLDERS: Final = ("session-state", "history-session-state")


class LogFile(NamedTuple):
    """A log on disk, or standard input. `name` is the session's name by its place."""

    path: str
    layout: str
    name: str

    def read(self) -> bytes:
        """All bytes. Raises OSError."""
        return _stdin() if self.path == STDIN else Path(self.path).read_bytes()

    def stamp(self) -> str | None:
        """What is another when the log is: device, file, size, and when it and its mode were
        last changed; none for what can't be told or is standard input.
        """
        try:
            at = os.stat(self.path)  # noqa: PTH116 (a thousand of them, each second)
        except OSError:
            return None
        return (
            None
            if self.path == STDIN
            else f"{at.st_dev} {at.st_ino} {at.st_size} {at.st_mtime_ns} {at.st_ctime_ns}"
        )

    def size(self) -> int:
        """Bytes on disk; 0 when that can't be told."""
        try:
            return 0 if self.path == STDIN else Path(self.path).stat().st_size
        except OSError:
            return 0


@cache
def _stdin() -> bytes:
    if sys.stdin is None:
        raise OSError(EBADF, "it is closed")
    return sys.stdin.buffer.read()


class Found(NamedTuple):
    """Logs in a stable order, and what could not be looked into, a line each."""

    files: list[LogFile]
    problems: list[str]


def default_roots() -> list[Path]:
    """The CLI's own places: `$COPILOT_HOME`, else `~/.copilot` and the older XDG places.

    Raises:
        InsightsError: neither is known.
    """
    if own := os.environ.get("COPILOT_HOME"):
        return [Path(own)]
    user = home()
    xdg = [
        Path(os.environ.get(variable) or user / fallback) / name
        for variable, fallback in (
            ("XDG_STATE_HOME", ".local/state"),
            ("XDG_CONFIG_HOME", ".config"),
        )
        for name in (".copilot", "copilot")
    ]
    return [user / ".copilot", *xdg]


def is_path(text: str) -> bool:
    """Whether that means logs, and not a name or a time. Raises InsightsError where nobody
    can tell.
    """
    return text == STDIN or "/" in text or has_magic(text) or exists(expanded(text))


def find(paths: Sequence[str | Path] = ()) -> Found:
    """The logs at `paths` (logs, session directories, roots, globs, `-`), or by default all.

    Raises:
        InsightsError: a path does not exist or can't be looked for, or nothing at all was found;
            it says which places were looked at.
    """
    found: dict[str, LogFile] = {}
    problems: list[str] = []
    named = [str(path) for path in paths]
    looked = named or [str(path) for path in default_roots()]
    for text in looked:
        if not text:
            raise InsightsError("a path is empty", "Is a variable unset?", exit_code=2)
        if text == STDIN:
            found[STDIN] = LogFile(STDIN, "stdout", "stdin")
            continue
        matches = _expand(text) if named else [Path(text)]
        for match in matches:
            try:
                for file in _look(match, problems):
                    _add(file, found, problems)
            except OSError as error:
                problems.append(f"cannot read {match}: {error.strerror}")
    if not found:
        hint = (
            "Name a log, a session directory or a root"
            if named
            else "Run the Copilot CLI once, set COPILOT_HOME, or name a path"
        )
        why = f" ({problems[0]})" if problems else ""
        raise InsightsError(f"no session logs in {', '.join(looked)}{why}", f"{hint}.")
    return Found(list(found.values()), problems)


def _add(file: LogFile, found: dict[str, LogFile], problems: list[str]) -> None:
    try:
        file.path.encode()
    except UnicodeEncodeError:
        problems.append(f"cannot read {file.path!a}: its name is not UTF-8")
    else:
        found.setdefault(os.path.realpath(file.path), file)


def _expand(text: str) -> list[Path]:
    path = expanded(text)
    if exists(path):
        return [path]
    if has_magic(text):
        if matches := sorted(glob(str(path), recursive=True)):  # noqa: PTH207 (absolute patterns)
            return [Path(match) for match in matches]
        raise InsightsError(f"nothing matches {text}", "Check the pattern, or quote it.")
    raise InsightsError(f"no such file or directory: {text}", "Check the path.")


def _look(path: Path, problems: list[str]) -> Iterator[LogFile]:
    if path.is_file():
        yield _log(path)
    elif (path / LOG).is_file():
        yield _log(path / LOG)
    else:
        folders = [path / name for name in _FOLDERS if (path / name).is_dir()] or [path]
        for folder in folders:
            yield from _sessions(folder, problems)


def _sessions(folder: Path, problems: list[str], depth: int = 2) -> Iterator[LogFile]:
    """Logs one level down; two where a folder holds only folders (roots side by side)."""
    try:
        entries = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"cannot read {folder}: {error.strerror}")
        return
    for entry in entries:
        if entry.name == "rewind-snapshots" or (entry.name[:1] == "." and entry.name != ".copilot"):
            continue
        try:
            if (entry / LOG).is_file():
                yield _log(entry / LOG)
            elif entry.suffix == ".jsonl" and entry.is_file():
                if _is_log(entry):
                    yield _log(entry)
            elif depth > 1 and entry.is_dir():
                inner = entry / _FOLDERS[0]
                yield from _sessions(inner if inner.is_dir() else entry, problems, depth - 1)
        except OSError as error:
            problems.append(f"cannot read {entry}: {error.strerror}")


def _log(path: Path) -> LogFile:
    if path.name == LOG:
        return LogFile(str(path), "directory", path.absolute().parent.name)
    return LogFile(str(path), "stdout" if _is_stream(path) else "flat", path.stem)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096).lstrip(b"\xef\xbb\xbf\0 \r\n\t")


def _is_log(path: Path) -> bool:
    """Whether a loose `.jsonl` is a session; telemetry and other tools' files are not."""
    with path.open("rb") as file:
        lines = (
            line.lstrip(b"\xef\xbb\xbf\0 \r\n\t")
            for line in iter(lambda: file.readline(2**20), b"")
        )
        line = next(filter(None, lines), b"")
    try:
        event = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return line.replace(b" ", b"")[:9] == b'{"type":"'
    return isinstance(event, dict) and {"type", "data", "id"} <= set(event)


def _is_stream(path: Path) -> bool:
    """A saved stdout stream has no `session.start` in front, which a stored log begins with."""
    try:
        return b'"session.start"' not in _head(path).partition(b"\n")[0]
    except OSError:
        return False
