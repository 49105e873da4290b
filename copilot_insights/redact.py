"""Logs → copies without content or identity, of which the same numbers can be read.

An allow-list: of a log survive its structure, the names of known fields, true, false, null
and the numbers of known fields, times, and strings of a closed vocabulary (`WORDS`, types of
events that are read, tools and agents of the CLI itself, names of public models, versions).
Every other string, key and number is replaced by one of the same length in bytes, the same
value by the same one wherever it stands in the copy. Replacements are numbered in the order
of their appearance: nothing of the original can be computed, or guessed and checked, from
them.

What is known of a line is a matter of its tokens, not of its JSON: the copy has every byte
where the original has it, so that sizes, offsets and damage stay what they are.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, get_args

import msgspec
from msgspec import Struct

from copilot_insights.decoder import MENDED, read_line
from copilot_insights.discover import LOG, STDIN, LogFile
from copilot_insights.errors import InsightsError
from copilot_insights.schema import CATEGORY, EVENTS, MAIN

REPLACED: Final = {
    "sessions": ("session_id", "path", "model", "cwd", "repository", "branch"),
    "interactions": ("session_id", "agent_id", "interaction_id"),
    "llm_calls": ("session_id", "agent_id", "interaction_id", "turn_id", "api_call_id", "model"),
    "tool_calls": ("session_id", "tool_call_id", "agent_id", "tool", "mcp_server",
                   "arguments_hash"),
    "usage": ("session_id", "agent_id", "model"),
    "bookings": ("session_id", "agent_id", "model"),
    "subagents": ("session_id", "agent_id", "tool_call_id", "agent_name", "model"),
    "permissions": ("session_id", "request_id", "tool_call_id", "agent_id"),
    "hooks": ("session_id", "hook_invocation_id", "tool_call_id", "agent_id"),
    "incidents": ("session_id", "detail"),
    "events": ("session_id", "type", "event_id", "parent_id", "agent_id", "turn_id",
               "interaction_id", "tool_call_id", "parent_tool_call_id", "api_call_id",
               "request_id", "tool", "mcp_server", "agent_name", "model", "cwd", "repository",
               "branch", "source", "arguments_hash", "tool_call_ids", "statements"),
}  # fmt: skip
"""Table → the columns whose values are replaced, one by one; all others are equal before and
after. Types of events that are read, names of the CLI's own tools and agents and of public
models stay.
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- what survives ------------------------------------------------------------------------

WORDS: Final = _words("""
abort agent agent_completed agent_idle agentStop api api_error approved approved-for-location
approved-for-session approved-read-only-for-session assistant async authentication autopilot
autopilot_credit_limit background cancelled commands complete completed content_filter
context_limit conversation-agent conversation-compaction conversation-subagent copilot-agent
copilot-insights custom-tool denied denied-by-content-exclusion-policy
denied-by-permission-request-hook denied-by-rules denied-interactively-by-user
denied-no-approval-rule-and-could-not-request-from-user end_turn error errorOccurred failed
failure file function high hook idle interactive interrupted invalid_request_error length low
manual mcp mcp-sampling medium memory model_call_failure notification partial path
permissionRequest plan postToolUse postToolUseFailure preCompact preToolUse query queued quota
rate_limit rate_limit_error read rejected remote_command routine server_error sessionEnd
sessionStart shell shell_completed shell_detached_completed skill steering stop sub-agent
subagentStart subagentStop success sync system timeout tool_calls tool_use top_level transport
unattended_fallback unavailable url user user_abort user_initiated userPromptSubmitted
userPromptTransformed write xhigh
""")  # fmt: skip
"""Values of fields that have a closed vocabulary; in any other field they are content."""

AGENTS: Final = _words(
    "code-review explore general-purpose research rubber-duck security-review task"
)
"""The CLI's own agents."""

# families and variants of public models; a private one has a word of its own
_MODEL: Final = re.compile(
    rb"(?:claude|gpt|gemini|grok|o[1-9]|llama|qwen|mistral|deepseek|raptor|goldeneye|mock|scripted)"
    rb"(?:[-.]?(?:\d{1,8}[a-z]?|sonnet|opus|haiku|mini|nano|micro|codex|pro|flash|lite|turbo|preview"
    rb"|max|fast|code|coder|chat|instruct|thinking|reasoning|latest|exp|beta|high|low|medium|large"
    rb"|small|model)(?![a-z\d])){0,6}|auto"
)
_VERSION: Final = re.compile(rb"\d{1,4}\.\d{1,4}\.\d{1,5}(?:-\d{1,4})?")
_TURN: Final = re.compile(rb"\d{1,4}|" + MAIN.encode())  # no more than a number within a session
_TIME: Final = re.compile(
    rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)((?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
)
# how the CLI ends the output of a command; the shell's name may be anybody's
_EXIT: Final = re.compile(
    rb"<(?:exited|(?:shellId: (\S{1,80}) )?completed) with exit code -?\d{1,9}>\Z"
)

_IDS: Final = _words("""
agentId apiCallId clientRequestId hookInvocationId id interactionId messageId
originatingMessageId parentAgentId parentAgentTaskId parentId parentToolCallId providerCallId
requestId serviceRequestId sessionId shellId tool_call_id toolCallId turnId
""")  # fmt: skip
_TIMES: Final = _words("timestamp startTime resumeTime")
_EPOCHS: Final = frozenset({b"sessionStartTime"})  # in milliseconds
_ENUMS: Final = _words("""
agentMode aiCreditsStatus code decisionSource delivery errorType executionMode finishReason
hookType initiator interactionType kind newMode previousMode mode permissionMode producer
reason reasoningEffort role shutdownType source status toolType type
""")  # fmt: skip
_MODELS: Final = _words("""
currentModel firstDispatchedModel model modelId newModel previousModel selectedModel
""")  # fmt: skip
_TOOLS: Final = _words("toolName")
_AGENTS: Final = _words("agentName agentType")
_VERSIONS: Final = frozenset({"copilotVersion"})
_COUNTS: Final = "count"
_KEYED: Final = {
    b"modelMetrics": "model", b"agentMetrics": "id", b"toolCounts": "tool",
    b"compactionTokensUsed": _COUNTS,  # where old logs name counts as others name content
}  # fmt: skip
"""Fields whose keys are names of things."""
_ARGUMENTS: Final = frozenset(b"args arguments toolArgs".split())
_FREE: Final = _ARGUMENTS | frozenset(
    b"attachments content detailedContent message metadata output reasoningText structuredContent "
    b"summary text transformedContent".split()
)
"""Fields that hold anything: no name or number within is known."""
_OPEN: Final = frozenset(b"input result".split())
"""Fields that hold anything, but in an object known names."""
_KINDS: Final = {
    **dict.fromkeys(_IDS, "id"), **dict.fromkeys(_TIMES, "time"), **dict.fromkeys(_ENUMS, "word"),
    **dict.fromkeys(_MODELS, "model"), **dict.fromkeys(_TOOLS, "tool"),
    **dict.fromkeys(_AGENTS, "agent"), **dict.fromkeys(_VERSIONS, "version"),
    "cwd": "dir", "gitRoot": "dir", "workingDirectory": "dir", "repository": "repo",
    "branch": "branch", "mcpServerName": "server", "mcpToolName": "tool",
}  # fmt: skip
_OTHER_KEYS: Final = """
agentDisplayName allowAllPermissions alreadyInUse conversationTokens currentTokens data durationMs
ephemeral eventCount eventsFileSizeBytes exitCode interTokenLatencyMs linesAdded linesRemoved
maxOutputTokens maxPromptTokens metrics numToolCalls permissionRequest requests result_length
sessionStartTime systemTokens tokenLimit toolCalls toolDefinitionsTokens toolRequests
toolTelemetry totalApiDurationMs totalTokens totalToolCalls usage version
"""  # fmt: skip


def _fields(kind: Any) -> Iterator[str]:  # noqa: ANN401
    """Names of all fields that are read of a struct, and of the structs in it."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        for field in msgspec.structs.fields(kind):
            yield field.encode_name
            yield from _fields(field.type)
    elif isinstance(kind, UnionType) or get_args(kind):
        for of in get_args(kind):
            yield from _fields(of)


KEYS: Final = frozenset(
    name.encode()
    for name in {
        *(name for event in EVENTS.values() for name in _fields(event)),
        *_KINDS, *_OTHER_KEYS.split(), *(key.decode() for key in _KEYED),
        *(key.decode() for key in _FREE | _OPEN),
    }
)  # fmt: skip
"""Names of fields that survive: all that the tables read, and some that people look for."""

_OF: Final = {name.encode(): kind for name, kind in _KINDS.items()}
_WORDS: Final = {
    "word": frozenset(word.encode() for word in WORDS),
    "tool": frozenset(name.encode() for name in CATEGORY),
    "agent": frozenset(name.encode() for name in AGENTS),
}
_SHAPES: Final = {"model": _MODEL, "version": _VERSION, "id": _TURN}
_TYPES: Final = frozenset(name.encode() for name in EVENTS)

# --- replacements -------------------------------------------------------------------------

_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#$%()+,-:;=@^_{}~"
_UUID: Final = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PREFIX: Final = re.compile(rb"(?:call|toolu|msg|resp|chatcmpl|agent)[_-](?=.)")
_LONG: Final = 64


class Replacements:
    """Same value and length → same replacement, for the whole of a copy."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._count: defaultdict[tuple[str, int] | str, int] = defaultdict(int)

    def of(self, text: bytes, kind: str) -> bytes:
        """Plain ASCII of the same length, that begins with its kind where there is room."""
        if not text:
            return text
        # the whole of long texts need not be kept to know them again
        key = (
            text
            if len(text) <= _LONG
            else blake2b(text, digest_size=20).digest() + b"%d" % len(text)
        )
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._new(text, kind)
        return found

    def _new(self, text: bytes, kind: str) -> bytes:
        size = len(text)
        if size == 36 and _UUID.fullmatch(text):
            number = self._next("uuid")  # also in front, where people read the first of an id
            return b"%08d-0000-4000-8000-%012d" % (number % 10**8, number)
        if size > 12 and (prefix := _PREFIX.match(text)):
            return prefix[0] + b"%0*d" % (size - prefix.end(), self._next(prefix[0].decode()))
        name = b"%s%d" % (kind.encode(), self._next(kind)) if size >= 8 else b""
        if name and len(name) <= size:
            return name.ljust(size, b"~")
        number, digits = self._next("", size), bytearray()
        while len(digits) < size:
            number, digit = divmod(number, len(_DIGITS))
            digits.append(_DIGITS[digit])
        return bytes(reversed(digits))

    def digits(self, text: bytes) -> bytes:
        """As many digits, with a zero in front only where there was one."""
        key = b"#" + text
        if key not in self._known and text != b"0":
            rest = len(text) - 1
            if text[:1] == b"0":
                self._known[key] = b"0%0*d" % (rest, self._next("0", rest))
            else:  # there are as many numbers as there can be values
                first = 10**rest
                self._known[key] = b"%d" % (first + self._next("#", rest) % (9 * first))
        return self._known.get(key, text)

    def _next(self, kind: str, size: int | None = None) -> int:
        place = kind if size is None else (kind, size)
        self._count[place] += 1
        return self._count[place] - (size is not None)


# --- a line -------------------------------------------------------------------------------

# possessive, for lines of megabytes
_TOKEN: Final = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*+:)?+|[{\[]|[}\]]|-?\d[\d.eE+-]*+')
_NOTHING: Final = b" \t\r\n\x0b\x0c\0\xef\xbb\xbf"
_RUN: Final = re.compile(rb"\d+")


class _Head(Struct):
    type: Any = None


_HEAD: Final = msgspec.json.Decoder(_Head)


class _Place(NamedTuple):
    """What a value belongs to: its field; whether nothing about it is known; whether nothing
    is known of any key in this object; of what kind these keys are.
    """

    field: bytes = b""
    unknown: bool = False
    free: bool = False
    keys: str = ""


def _damaged(new: bytes, body: bytes) -> bytes:
    """The mended line with bytes in it that no text has, as before."""
    if len(new) == len(body):
        return bytes(was if was < 32 else now for was, now in zip(body, new, strict=True))
    return new.ljust(max(len(body), len(new) + 1), b"\0")


class Redactor:
    """Redacts the lines of any number of logs into one copy. `shift` is added to all times."""

    def __init__(self, shift: timedelta = timedelta(0)) -> None:
        self._replace = Replacements()
        self._shift = shift

    def name(self, text: str) -> str:
        """The replacement of a session's name."""
        return self._value(text.encode("utf-8", "replace"), "id").decode()

    def line(self, raw: bytes) -> bytes:
        """A line (with its newline, if any) as the copy has it."""
        body = raw.removesuffix(b"\n")
        if not body.strip(_NOTHING):
            return raw
        _, reason, bad, text, place = read_line(body)
        if place:
            head, tail = text[: place.start], text[place.stop :]
            new = b"x" * len(head) + self._event(text[place]) + b"x" * len(tail)
        elif reason.startswith("torn"):
            new = _torn(body)
        elif reason == "not JSON":
            new = b"x" * len(body)
        else:  # of an unknown shape
            new = self._tokens(text, _Place(unknown=True, free=True))
        if any(said.endswith(MENDED) for said in bad):
            new = _damaged(new, body)
        # what was mended away was as good as space
        return new.ljust(len(body)) + raw[len(body) :]

    def _event(self, text: bytes) -> bytes:
        """An event; of one of an unknown type, nothing about its payload is known."""
        return self._tokens(text, _Place(), data=str(_HEAD.decode(text).type) in EVENTS)

    def _tokens(self, text: bytes, place: _Place, *, data: bool = True) -> bytes:
        """JSON with its strings, keys and unknown numbers replaced. `data` says whether that
        field of the outermost object is of a known event.
        """
        out: list[bytes] = []
        outer: list[_Place] = []
        last = 0
        for token in _TOKEN.finditer(text):
            first = token[0][:1]
            if first == b'"':
                start, end = token.span(1)
                if token[2] is None:
                    top = len(outer) == 1 and place.field == b"type" and not place.unknown
                    new = self._type(token[1]) if top else self._string(token[1], place)
                else:
                    new, place = self._key(token[1], place)
                    if not data and len(outer) == 1 and new == b"data":
                        place = place._replace(unknown=True)
                if new != token[1]:
                    out += (text[last:start], new)
                    last = end
            elif first in b"{[":
                outer.append(place)
                place = _inside(place, first)
            elif first in b"}]":
                place = outer.pop() if outer else place
            else:
                new = self._number(token[0], place)
                out += (text[last : token.start()], new)
                last = token.end()
        out.append(text[last:])
        return b"".join(out)

    def _key(self, name: bytes, place: _Place) -> tuple[bytes, _Place]:
        if place.keys and place.keys != _COUNTS:
            return self._value(name, place.keys), place._replace(field=b"", unknown=False)
        if place.free or name not in KEYS:
            return self._replace.of(name, "key"), place._replace(field=b"", unknown=True)
        return name, _of_field(name, place)

    def _type(self, name: bytes) -> bytes:
        return name if name in _TYPES else self._replace.of(name, "type")

    def _string(self, text: bytes, place: _Place) -> bytes:
        if place.field in _ARGUMENTS and text[:1] == b"{":
            return self._json(text)
        return self._value(text, "text" if place.unknown else _OF.get(place.field, "text"))

    def _value(self, text: bytes, kind: str) -> bytes:
        """A string of a kind."""
        if kind == "time":
            return self._time(text)
        if text in _WORDS.get(kind, ()) or (kind in _SHAPES and _SHAPES[kind].fullmatch(text)):
            return text
        if kind == "word" and text.startswith(b"agent-"):  # whom a message is from
            return b"agent-" + self._replace.of(text[6:], "id")
        if kind == "text" and (end := _EXIT.search(text, max(0, len(text) - 160))):
            tail = end[0]
            if end[1]:
                tail = tail.replace(end[1], self._value(end[1], "id"), 1)
            return self._replace.of(text[: end.start()], kind) + tail
        return self._replace.of(text, kind)

    def _json(self, text: bytes) -> bytes:
        """JSON in a string: hooks have arguments so, and they are equal to the call's."""
        try:
            inner = msgspec.json.decode(b'"' + text + b'"', type=str).encode()
            msgspec.json.decode(inner)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return self._replace.of(text, "text")
        new = self._tokens(inner, _Place(unknown=True, free=True)).decode()
        quoted = msgspec.json.encode(new)[1:-1]
        return (
            quoted.ljust(len(text)) if len(quoted) <= len(text) else self._replace.of(text, "text")
        )

    def _number(self, text: bytes, place: _Place) -> bytes:
        if place.unknown:
            digits = re.split(b"([eE].*)", text, maxsplit=1)  # an exponent keeps its size
            digits[0] = _RUN.sub(lambda found: self._replace.digits(found[0]), digits[0])
            return b"".join(digits)
        if place.field in _EPOCHS and self._shift and text.isdigit() and len(text) < 20:
            return b"%d" % max(0, int(text) + self._shift // timedelta(milliseconds=1))
        return text

    def _time(self, text: bytes) -> bytes:
        try:
            found = _TIME.fullmatch(text)
            time = datetime.fromisoformat((found[1] if found else text).decode())
            if not self._shift:
                return text
            moved = time + self._shift
        except (ValueError, OverflowError):
            return self._replace.of(text, "time")
        return moved.isoformat().encode() + (found[2] if found else b"")


@cache
def _of_field(name: bytes, place: _Place) -> _Place:
    """The place of a value of a known field: there are not many."""
    content = (name in _FREE or name in _OPEN) and place.keys != _COUNTS
    return place._replace(field=name, unknown=content)


@cache
def _inside(place: _Place, bracket: bytes) -> _Place:
    """What an object or array in a place is to what is in it."""
    free = place.free or (place.unknown and place.field not in _OPEN)
    keys = _KEYED.get(place.field, "") if bracket == b"{" and not free else ""
    # what is in an array belongs to the array's field
    field = place.field if bracket == b"[" else b""
    return _Place(field, free or field in _OPEN, free, keys)


def _torn(body: bytes) -> bytes:
    """A line that stops early, still, with its type where that is known."""
    start = b'{"type":"'
    if not body.startswith(start[: len(body)]):
        start = b'{"'
    name, quote, _ = body[len(start) :].partition(b'"')
    head = start + name + b'","' if quote and name in _TYPES else start
    return head[: len(body)].ljust(len(body), b"x")


# --- logs ---------------------------------------------------------------------------------


class Copied(NamedTuple):
    """The copies, in the order of their logs; their bytes; a line for each log that could not
    be read.
    """

    files: list[Path]
    size: int
    problems: list[str]


def redact(
    files: Sequence[LogFile],
    to: Path,
    shift: timedelta = timedelta(0),
    progress: Callable[[float], None] | None = None,
) -> Copied:
    """Writes a redacted copy of the logs into the directory `to`, which is made.

    Each log is where it is found again, under its session's new name; sessions of different
    folders stay in different ones.

    Raises:
        InsightsError: a copy would stand in the place of its original.
        OSError: a file cannot be written.
    """
    redactor = Redactor(shift)
    targets = _targets(files, to, redactor)
    copies, problems = list[Path](), list[str]()
    size, whole = 0, sum(file.size() for file in files) or 1
    for file, target in zip(files, targets, strict=True):
        if target.exists() and file.path != STDIN and target.samefile(file.path):
            raise InsightsError(f"the copy would overwrite {target}", "Use another directory.")
        try:
            data = file.read()
        except OSError as error:
            problems.append(f"cannot read {file.path}: {error.strerror}")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as copy:
            copy.writelines(map(redactor.line, BytesIO(data)))
        copies.append(target)
        size += len(data)
        if progress:
            progress(size / whole)
    return Copied(copies, size, problems)


def _targets(files: Sequence[LogFile], to: Path, redactor: Redactor) -> list[Path]:
    folders = [Path(file.path).absolute().parents[file.layout == "directory"] for file in files]
    numbers = {folder: number for number, folder in enumerate(dict.fromkeys(folders), 1)}
    width = len(str(len(numbers)))
    targets = []
    for file, folder in zip(files, folders, strict=True):
        place = to / f"{numbers[folder]:0{width}}" if len(numbers) > 1 else to
        name = redactor.name(file.name)
        targets.append(
            place / name / LOG if file.layout == "directory" else place / f"{name}.jsonl"
        )
    return targets
