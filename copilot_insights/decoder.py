"""One log: bytes → events; survives any damage.

A damaged line is repaired (what is damaged there is null, and named) or rejected with a
reason. A line gives one event at most: events + rejected lines = non-empty lines, always.
"""

import io
import re
from contextlib import suppress
from types import NoneType
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec
from msgspec import DecodeError, Raw, Struct, ValidationError

from copilot_insights.schema import ANY_EVENT, EVENTS, Event, Other

_DECODER: Final = msgspec.json.Decoder(ANY_EVENT)
_OTHER: Final = msgspec.json.Decoder(Other)
_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n\x0b\x0c"
_DEPTH: Final = 64


class Rejected(NamedTuple):
    """A line that is no event: 1-based line, byte offset in the file, and why."""

    line: int
    offset: int
    reason: str


class Decoded(NamedTuple):
    """The lines of one log. `lines` has each event's line number; `bad_fields` an event's
    index and the names of its fields that were not as they should be.
    """

    events: list[Event]
    lines: list[int]
    rejected: list[Rejected]
    bad_fields: list[tuple[int, str]]

    def non_empty(self) -> int:
        """How many lines held anything but white space."""
        return len(self.events) + len(self.rejected)


def decode(data: bytes) -> Decoded:
    """Every non-empty line of `data` as an event or a rejection; raises nothing."""
    out = Decoded([], [], [], [])
    stream = io.BytesIO(data)
    number = 1  # of the next line
    while True:
        first = len(out.events)
        try:
            out.events.extend(map(_DECODER.decode, stream))  # in C, until a line is odd
            whole = True
        except (DecodeError, RecursionError):
            whole = False
        lines = range(number, number + len(out.events) - first)
        out.lines.extend(lines)
        if whole:
            return out
        number = lines.stop
        start = data.rfind(b"\n", 0, stream.tell() - 1) + 1
        raw = data[start : stream.tell()]
        if raw.strip():
            line = read_line(raw)
            if line.event is None:
                out.rejected.append(Rejected(number, start, line.reason))
            else:
                if line.bad:
                    out.bad_fields.append((len(out.events), "; ".join(line.bad)))
                out.events.append(line.event)
                out.lines.append(number)
        number += 1


MENDED: Final = "bytes that no text has, mended"
"""What is missing of a line that had them, if nothing else."""


class Line(NamedTuple):
    """What is read of a line: its event, or the reason why there is none; what of it is missing;
    and where it stands in the line's text, which is JSON as far as it can be mended.
    """

    event: Event | None
    reason: str
    bad: list[str]
    text: bytes
    place: slice | None


def read_line(text: bytes) -> Line:
    """What `decode` reads of a line."""
    event, reason, bad = _decode_lenient(text)
    if event is None and (mended := _mend(text)) != text:
        damaged = _as_text(text) != _bare(text)
        text = mended
        event, reason, bad = _decode_lenient(text) if text else (None, "NUL bytes", [])
        if event is not None and damaged:
            bad = [*bad, f"{_tag(event)}: {MENDED}"]
    if event is not None:
        return Line(event, "", bad, text, slice(0, len(text)))
    if piece := _whole_event_of(text):
        event, place = piece
        return Line(event, "", [f"{_tag(event)}: torn text beside it on its line"], text, place)
    return Line(None, reason, [], text, None)


def _tag(event: Event) -> str:
    return event.type if isinstance(event, Other) else str(type(event).__struct_config__.tag)


def _decode_lenient(raw: bytes) -> tuple[Event | None, str, list[str]]:
    """Field by field: what has the wrong type is missing, and named."""
    try:
        other = _OTHER.decode(raw)
        if other.type and other.type not in EVENTS:
            return other, "", []
        return _DECODER.decode(raw), "", []
    except (DecodeError, RecursionError):
        pass
    try:
        value = msgspec.json.decode(raw)
    except (DecodeError, RecursionError) as error:
        torn = "truncated" in str(error)
        return None, "torn line: the JSON stops early" if torn else "not JSON", []
    if not isinstance(value, dict):
        return None, "JSON, but not an object", []
    name = value.get("type")
    if not isinstance(name, str) or not name:
        return None, "an object without an event type", []
    bad: list[str] = []
    event = _lenient(value, EVENTS.get(name, Other), "", bad)
    return event, "", [f"{name}: {field}" for field in bad]


_TYPE: Final = b'{"type":"'
_TRIES: Final = 8


def _whole_event_of(raw: bytes) -> tuple[Event, slice] | None:
    """The whole event on a line that holds more, and where: writers append after a crash, and
    the torn line before has no newline. A line gives one event at most.
    """
    depth = 0
    for token in _TOKEN.finditer(raw):
        depth += (token[0] in b"[{") - (token[0] in b"]}")
        if depth <= 0 and token[0] in b"]}":
            event = _decode_lenient(raw[: token.end()])[0]
            if event is not None:
                return event, slice(0, token.end())
            break
    start = len(raw)
    for _ in range(_TRIES):
        start = raw.rfind(_TYPE, 0, start)
        if start <= 0:
            break
        event = _decode_lenient(raw[start:])[0]
        # what is nested in a torn line has neither
        if event is not None and event.id and event.timestamp:
            return event, slice(start, len(raw))
    return None


def _lenient(value: Any, kind: Any, path: str, bad: list[str]) -> Any:  # noqa: ANN401
    """`value` as a `kind`, or None; the paths of what is not of its type go to `bad`."""
    of = get_args(kind)
    if NoneType in of:
        return None if value is None else _lenient(value, of[0], path, bad)
    found: Any = None
    if kind is Raw:
        found = Raw(msgspec.json.encode(value))
    elif isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, dict):
        found = _lenient_struct(value, kind, path, bad)
    elif get_origin(kind) is dict and isinstance(value, dict):
        items = {key: _lenient(v, of[1], path, bad) for key, v in value.items()}
        found = {key: item for key, item in items.items() if item is not None}
    elif get_origin(kind) is list and isinstance(value, list):
        found = [item for v in value if (item := _lenient(v, of[0], path, bad)) is not None]
    else:
        whole = isinstance(value, float) and value.is_integer()
        with suppress(ValidationError):
            found = msgspec.convert(int(value) if whole else value, kind)
    if found is None:
        bad.append(path)
    return found


def _lenient_struct(value: dict[str, Any], kind: type[Struct], path: str, bad: list[str]) -> Struct:
    known = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in value:
            where = f"{path}.{field.encode_name}".removeprefix(".").removeprefix("data.")
            inner = _lenient(value[field.encode_name], field.type, where, bad)
            if inner is not None:
                known[field.name] = inner
    return kind(**known)


_CONTROL: Final = bytes.maketrans(bytes(range(32)), b" " * 32)
_ESCAPE: Final = re.compile(
    rb"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)"
)
# a string to its end, or to the line's where it is torn; possessive, for lines of megabytes
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_TOKEN: Final = re.compile(_STRING + rb"|[\[{]|[\]}]")
_NO_NUMBER: Final = re.compile(
    rb"(" + _STRING + rb")|-?(?:NaN|Infinity)"
    rb"|(?<![\d.])-?(?:\d[\d.]*+[eE][+-]?\d{3,}|\d{400,})"
)


def _mend(raw: bytes) -> bytes:
    """The line without what makes good JSON bad: NULs, BOM, broken UTF-8, lone surrogates
    and control characters, no numbers, and anything nested deeper than a log ever is.
    """
    raw = _as_text(raw)
    if b"\\u" in raw:
        raw = _ESCAPE.sub(_paired, raw)
    raw = _NO_NUMBER.sub(lambda m: m[1] or b'"no number"', raw)
    return _flatten(raw) if raw.count(b"[") + raw.count(b"{") > _DEPTH else raw


def _bare(raw: bytes) -> bytes:
    return raw.strip(_SPACE).removeprefix(_BOM).strip(_SPACE)


def _as_text(raw: bytes) -> bytes:
    """The line without bytes that no text has."""
    raw = raw.strip(_SPACE + b"\0").removeprefix(_BOM).strip(_SPACE + b"\0")
    return raw.translate(_CONTROL).decode("utf-8", "replace").encode()


def _paired(found: re.Match[bytes]) -> bytes:
    lone = (
        found[1] is None and found[0][:3].lower() == b"\\ud" and found[0][3:4] in b"89abcdefABCDEF"
    )
    return b"\\ufffd" if lone else found[0]


def _flatten(raw: bytes) -> bytes:
    """Null for every value that begins deeper than _DEPTH."""
    kept, depth, last = [], 0, 0
    for token in _TOKEN.finditer(raw):
        if token[0] in b"[{":
            depth += 1
            if depth == _DEPTH:
                kept.append(raw[last : token.start()] + b"null")
        elif token[0] in b"]}":
            depth -= 1
            if depth == _DEPTH - 1:
                last = token.end()
    if depth < _DEPTH:
        kept.append(raw[last:])
    return b"".join(kept)
