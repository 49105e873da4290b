"""Scripted models: fixed replies, for tests, demos and logs without an account.

A script file is JSON, name → list of steps. A step is `{text, tools: [{name, arguments}]}`
and optionally `delay` (seconds before the reply), `error` (`{status, message}`) and `usage`
(`{input, output, cached, reasoning}` tokens). The newest `[[script:NAME]]` in a user message
picks the script, the number of assistant messages since then is the step, `{cwd}` in an
argument becomes the working directory that the history names. `[[error]]` in the last message
fails with status 400. Without a marker the first script of the file plays.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from copilot_insights.errors import InsightsError
from copilot_insights.runner.model import (
    Delta,
    Message,
    ModelError,
    Reply,
    ToolCall,
    Usage,
    error_kind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MARKER = re.compile(r"\[\[script:([\w-]+)\]\]")
ERROR_MARKER = "[[error]]"
DIRECTORY = re.compile(r"[Cc]urrent working directory:?\s*(\S+)")
PAST_THE_END = "The end."


class ScriptedCall(msgspec.Struct, frozen=True):
    """One tool call of a step."""

    name: str
    arguments: dict[str, Any] = {}


class ScriptedError(msgspec.Struct, frozen=True):
    """A step that fails; `times` is how often before the step's reply comes, 0 = always."""

    status: int = 400
    message: str = "boom"
    type: str = "invalid_request_error"
    times: int = 0


class ScriptedUsage(msgspec.Struct, frozen=True):
    """Tokens that a step reports; what it leaves out is made up from the text's length."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None


class Step(msgspec.Struct, frozen=True):
    """One reply of a script."""

    text: str = ""
    tools: list[ScriptedCall] = []
    delay: float = 0.0
    error: ScriptedError | None = None
    usage: ScriptedUsage | None = None


Scripts: TypeAlias = dict[str, list[Step]]
"""Script name → its steps, in the file's order."""


@dataclass(frozen=True, slots=True)
class Cue:
    """Where in the scripts a history stands."""

    script: str
    step: int
    reply: Step


def load_scripts(source: str | Path) -> Scripts:
    """The scripts of a JSON file; `demo` is the one that comes with the package.

    Raises:
        InsightsError: no such file, or not in the format above.
    """
    if source == "demo":
        raw = resources.files(__package__).joinpath("demo.json").read_bytes()
    else:
        try:
            raw = Path(source).read_bytes()
        except OSError as error:
            raise InsightsError(
                f"Cannot read the script {source}: {error.strerror}",
                hint="`--script demo` is built in.",
            ) from error
    try:
        scripts = msgspec.json.decode(raw, type=Scripts)
    except msgspec.ValidationError as error:
        raise InsightsError(
            f"{source} is no script: {error}",
            hint='A script is {"NAME": [{"text": "…", "tools": []}]}.',
        ) from error
    except msgspec.DecodeError as error:
        raise InsightsError(f"{source} is not JSON: {error}") from error
    if not scripts:
        raise InsightsError(f"{source} holds no script")
    return scripts


def message_text(message: Message) -> str:
    """The text of a chat message, whose content may be a string, parts or nothing."""
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def find_cue(scripts: Scripts, messages: Sequence[Message]) -> Cue:
    """The script and step that a history asks for; past a script's end a closing word.

    Raises:
        ModelError: the history asks for an error, or for a script that there is none of.
    """
    if messages and ERROR_MARKER in message_text(messages[-1]):
        raise ModelError("400 boom", 400)
    name, step = next(iter(scripts)), 0
    for message in messages:
        if message.get("role") == "user":
            if found := MARKER.findall(message_text(message)):
                name, step = found[-1], 0
        elif message.get("role") == "assistant":
            step += 1
    return cue_at(scripts, name, step)


def cue_at(scripts: Scripts, name: str, step: int) -> Cue:
    """The given step of a script.

    Raises:
        ModelError: there is no script of that name.
    """
    if name not in scripts:
        raise ModelError(f"404 There is no script {name!r}", 404)
    steps = scripts[name]
    return Cue(name, step, steps[step] if step < len(steps) else Step(PAST_THE_END))


def working_directory(messages: Sequence[Message]) -> str:
    """The directory that the history names as current; "." if none is named."""
    for message in messages:
        if found := DIRECTORY.search(message_text(message)):
            return found[1].rstrip(".")
    return "."


def fill_in(value: object, cwd: str) -> object:
    """An argument with `{cwd}` replaced, also in lists."""
    if isinstance(value, list):
        return [fill_in(item, cwd) for item in value]
    return value.replace("{cwd}", cwd) if isinstance(value, str) else value


def make_reply(cue: Cue, messages: Sequence[Message]) -> Reply:
    """The reply of a step: ids made up, `{cwd}` filled in, usage estimated at 4 bytes a token."""
    cwd = working_directory(messages)
    calls = tuple(
        ToolCall(
            f"call_{uuid.uuid4().hex[:20]}",
            call.name,
            {key: fill_in(value, cwd) for key, value in call.arguments.items()},
        )
        for call in cue.reply.tools
    )
    said = cue.reply.usage or ScriptedUsage()
    size = sum(len(message_text(message)) for message in messages) // 4
    tokens = size if said.input is None else said.input
    usage = Usage(
        tokens,
        20 + cue.step if said.output is None else said.output,
        tokens // 2 if said.cached is None else said.cached,
        5 if said.reasoning is None else said.reasoning,
    )
    return Reply(
        f"chatcmpl-{uuid.uuid4().hex[:12]}",
        cue.reply.text,
        calls,
        usage,
        "tool_calls" if calls else "stop",
    )


def deltas(reply: Reply) -> list[Delta]:
    """A reply cut into the parts in which it is streamed: words, then whole tool calls."""
    words = re.findall(r"\S+\s*|\s+", reply.text)
    return [Delta(text=word) for word in words] + [
        Delta("", call.id, call.name, json.dumps(call.arguments)) for call in reply.tool_calls
    ]


class Failures:
    """Which errors of a script are to be given, and how often they were."""

    def __init__(self) -> None:
        """None was."""
        self._given: Counter[tuple[str, str, int]] = Counter()

    def next(self, cue: Cue, label: str = "") -> ScriptedError | None:
        """The error of a step, as long as it is to be given; each `label` has its own count."""
        error = cue.reply.error
        if error is None:
            return None
        self._given[label, cue.script, cue.step] += 1
        past = error.times and self._given[label, cue.script, cue.step] > error.times
        return None if past else error


class ScriptedModel:
    """A model that plays scripts in this process."""

    def __init__(self, scripts: Scripts, name: str = "scripted") -> None:
        """`name` is the model id in the log."""
        self.name = name
        self.scripts = scripts
        self._failures = Failures()

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],  # noqa: ARG002  # a script asks for what it likes
        on_delta: Callable[[Delta], None],
    ) -> Reply:
        """See `Model.reply`."""
        cue = find_cue(self.scripts, messages)
        await asyncio.sleep(cue.reply.delay)
        if error := self._failures.next(cue):
            raise ModelError(
                f"{error.status} {error.message}", error.status, error_kind(error.status)
            )
        reply = make_reply(cue, messages)
        for delta in deltas(reply):
            on_delta(delta)
        return reply

    async def close(self) -> None:
        """Nothing is open."""
