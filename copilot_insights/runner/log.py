"""The session log: one JSON event a line, appended whole, never rewritten.

The log is the session. Everything else (the history sent to the model, the totals at
shutdown, what a resumed session knows) is a view of its events. Format: the `events.jsonl`
of Copilot CLI 1.0.102.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from datetime import UTC, datetime
from io import FileIO
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from copilot_insights.errors import InsightsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock; there the second writer is not kept out
    fcntl = None  # type: ignore[assignment]

Mode: TypeAlias = Literal["interactive", "plan", "autopilot"]
"""How a session works."""

Event: TypeAlias = dict[str, Any]
"""`{type, data, [agentId], [ephemeral], id, timestamp, parentId}`, keys in the CLI's order."""


class _Data(msgspec.Struct, rename="camel"):
    """What is read of an event's data when a session goes on; nothing else is looked at."""


class _Start(_Data):
    start_time: datetime
    context: dict[str, Any] | None = None


class _User(_Data):
    content: str
    transformed_content: str | None = None


class _Text(_Data):
    content: str | None = None


class _Request(_Data):
    tool_call_id: str
    name: str


class _Reply(_Data):
    content: str | None = None
    tool_requests: list[_Request] | None = None


class _Call(_Data):
    tool_call_id: str


class _Edit(_Data):
    path: str | None = None


class _Completion(_Call):
    file_edits: list[_Edit] | None = None
    tool_telemetry: dict[str, dict[str, str | int | float | bool | None]] | None = None


class _Usage(_Data):
    model: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    duration: float | None = None


class _Record(_Data):
    usage: _Usage


class _Mode(_Data):
    new_mode: Mode | None = None
    mode: Mode | None = None


class _Envelope(msgspec.Struct, rename="camel"):
    type: str
    data: dict[str, Any]
    id: str
    agent_id: str | None = None


_DATA: Final[dict[str, Any]] = {
    "session.start": _Start,
    "system.message": _Text,
    "system.notification": _Text,
    "user.message": _User,
    "assistant.message": _Reply,
    "tool.execution_start": _Call,
    "tool.execution_complete": _Completion,
    "session.usage_record": _Record,
    "session.mode_changed": _Mode,
    "session.mode_notice_delivered": _Mode,
}

LOCK_ATTEMPTS = 6
LOCK_WAIT_SECONDS = 0.05


def iso(moment: datetime) -> str:
    """A UTC moment as the log writes it: `2026-12-01T03:36:47.364Z`."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode(event: object) -> bytes:
    """One JSON line without its newline.

    Text is kept as UTF-8; a lone surrogate, which UTF-8 has no bytes for, is escaped.
    """
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(event, separators=(",", ":")).encode()


def read_events(path: Path) -> tuple[list[Event], int]:
    """The events of a log and the byte length of its whole lines.

    A last line without newline is kept only if it is complete. Lines in the middle that are
    no events are passed over, as the CLI does since 1.0.86.
    """
    raw = path.read_bytes()
    lines = raw.splitlines(keepends=True)
    events = [event for line in lines if (event := parse_event(line))]
    if lines and not lines[-1].endswith(b"\n") and not parse_event(lines[-1]):
        return events, len(raw) - len(lines[-1])
    return events, len(raw)


def parse_event(line: bytes) -> Event | None:
    """The event of a line; None for one that is damaged where it would be read."""
    try:
        event: Event = json.loads(line)
        msgspec.convert(event, _Envelope)
        msgspec.convert(event["data"], _DATA.get(event["type"], dict))
    except (ValueError, RecursionError):
        return None
    return event


class EventLog:
    """The events of one session, in memory and in `path`.

    Nothing is written before the first user message of a process (so a session in which
    nothing was said leaves no log); from then on each event is one `write` of a whole line.

    Raises:
        InsightsError: `path` is not a session log, cannot be opened, or another process writes it.
    """

    def __init__(self, path: Path) -> None:
        """Take over the log if there is one."""
        self.path = path
        self.events: list[Event] = []
        self.size = 0
        self._waiting: list[bytes] = []
        self._writing = False
        self._file: FileIO | None = None
        self._last_moment = datetime.min.replace(tzinfo=UTC)
        if path.exists():
            self._file = self._open()
            with self.freed_on_error():
                self._take_over()

    def _take_over(self) -> None:
        self.events, self.size = read_events(self.path)
        # An empty file is a process that was killed before its first line.
        if self.size and (not self.events or self.events[0]["type"] != "session.start"):
            raise InsightsError(
                f"{self.path} does not begin with session.start",
                hint="Only a whole session log can be resumed.",
            )
        self._mend()

    def make(
        self, kind: str, data: dict[str, Any], agent_id: str | None = None, *, ephemeral: bool
    ) -> Event:
        """An event with its envelope; times never go back and `parentId` is the last line's id."""
        self._last_moment = max(datetime.now(UTC), self._last_moment)
        event: Event = {"type": kind, "data": data}
        if agent_id:
            event["agentId"] = agent_id
        if ephemeral:
            event["ephemeral"] = True
        event["id"] = str(uuid.uuid4())
        event["timestamp"] = iso(self._last_moment)
        event["parentId"] = self.events[-1]["id"] if self.events else None
        return event

    def append(self, event: Event) -> None:
        """Keep an event and write it.

        Raises:
            InsightsError: the log cannot be opened; the next user message tries again.
            OSError: it could not be written whole. The file then ends where it ended before,
                and the event is written with the next one.
        """
        self._waiting.append(encode(event) + b"\n")
        self.events.append(event)
        said = event["type"] == "user.message"
        if said and self._file is None:
            self._file = self._open()
        self._writing = self._writing or said
        if self._file is None or not self._writing:
            return
        chunk = b"".join(self._waiting)
        try:
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(chunk)
        self._waiting.clear()

    def _open(self) -> FileIO:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        with contextlib.ExitStack() as on_error:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                file = on_error.enter_context(FileIO(os.open(self.path, flags, 0o600), "a+"))
                if locked := not fcntl or _lock(file):
                    # as the CLI does: it is there while a process works on the session, and
                    # stays when that is killed
                    self._in_use.write_text(str(os.getpid()))
            except OSError as error:
                raise InsightsError(
                    f"The log {self.path} cannot be written: {error.strerror}",
                    hint="Name another directory with --home.",
                ) from error
            if not locked:
                raise InsightsError(
                    f"The session {self.path.parent.name} is in use by another process",
                    hint="Wait for it to end, or start a new session.",
                )
            on_error.pop_all()
        return file

    @property
    def _in_use(self) -> Path:
        return self.path.parent / f"inuse.{os.getpid()}.lock"

    def _mend(self) -> None:
        """Make the file end with a whole line: what a killed process left torn was no event."""
        if self._file and self.size:
            self._file.truncate(self.size)
            self._file.seek(self.size - 1)
            if self._file.read(1) != b"\n":
                self.size += self._file.write(b"\n")

    def close(self) -> None:
        """Let go of the file and its lock."""
        if self._file:
            file, self._file, self._writing = self._file, None, False
            with file:
                self._in_use.unlink(missing_ok=True)

    @contextlib.contextmanager
    def freed_on_error(self) -> Iterator[None]:
        """Let go of them if the block fails: nobody would have the log to close it."""
        try:
            yield
        except BaseException:
            self.close()
            raise


def _lock(file: FileIO) -> bool:
    """Take the lock of a log; false if another process has it.

    Asked for a few times: a command that a killed process was just starting shares its lock
    until it runs.
    """
    for attempt in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(LOCK_WAIT_SECONDS * (attempt + 1 < LOCK_ATTEMPTS))
        else:
            return True
    return False
