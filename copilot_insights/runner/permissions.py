"""Who may do what: rules, the confinement to a directory, and whom to ask.

The order, as in the CLI: a deny rule ends it; `allow_all` or an allow rule lets it pass; a
hook's word comes next; reading inside the working directory passes; whatever is left is
asked. Only what is asked leaves `permission.requested` and `permission.completed` in the log.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from copilot_insights.errors import InsightsError
from copilot_insights.runner.command_line import runs

if TYPE_CHECKING:
    from copilot_insights.runner.tools import Access, Preview, Tool, ToolContext

Decision: TypeAlias = dict[str, Any]
"""What a client answers: `{kind: approve-once | approve-for-session | reject | …, feedback?}`."""

Ask: TypeAlias = Callable[[dict[str, Any]], Awaitable[Decision | None]]
"""Takes the data of a `permission.requested` to whoever decides, and waits for the answer;
None if there is nobody."""

HARMLESS_COMMANDS = frozenset({"cat", "echo", "false", "head", "ls", "pwd", "tail", "true", "wc"})
SHELL_SYNTAX = frozenset("|&;<>()$`\\\"'*?[]{}~#!\n")
PLAIN_FLAG = re.compile(r"-[A-Za-z0-9]+")
UNATTENDED = "denied-no-approval-rule-and-could-not-request-from-user"
OUTCOMES: dict[str, str] = {
    "approve-once": "approved",
    "approve-for-session": "approved-for-session",
    "approve-for-location": "approved-for-location",
    "approve-permanently": "approved",
    "approve-read-only-for-session": "approved-read-only-for-session",
    "reject": "denied-interactively-by-user",
}
"""A client's decision → `permission.completed.result.kind`; anything else is unattended."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`shell`, `shell(git:*)`, `write(*.py)`, `read`, or a tool's name; `(…)` may be left out."""

    subject: str
    argument: str | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read a rule as it is given on the command line."""
        subject, opened, rest = text.partition("(")
        if not subject or (opened and not rest.endswith(")")):
            raise InsightsError(
                f"{text!r} is no permission rule",
                hint="Rules look like shell, shell(git:*), write or view.",
                exit_code=2,
            )
        return cls(subject, rest[:-1].strip() or None)

    def allows(self, tool: Tool, call: Call) -> bool:
        """Whether the rule is about all that this call does: the very command, or each path."""
        if self.subject not in (tool.name, tool.access):
            return False
        if self.argument is None:
            return True
        if tool.access == "shell":
            return _is_command(self.argument, call.command)
        return bool(call.paths) and all(_is_path(self.argument, path) for path in call.paths)

    def denies(self, tool: Tool, call: Call) -> bool:
        """Whether the rule is about anything that this call may do.

        One command of many is enough, with whatever arguments, or one path. What cannot be told
        counts; yet a script or another program can hide a command, so this is no sandbox.
        """
        if self.subject not in (tool.name, tool.access):
            return False
        if self.argument is None:
            return True
        if tool.access == "shell":
            words = self.argument.removesuffix(":*").split()
            return self.argument == call.command or not words or runs(call.command, words)
        return any(_is_path(self.argument, path) for path in call.paths)

    def __str__(self) -> str:
        """As it was given."""
        return self.subject if self.argument is None else f"{self.subject}({self.argument})"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as permissions see it: what it would run, or where it would reach."""

    command: str
    paths: tuple[Path, ...]


@dataclass(slots=True)
class Policy:
    """The rules of one session.

    `allow_paths` lifts the confinement. With `ask` a client decides; `ask_reads` sends it
    every request, as the CLI does for its SDK, even for reading inside the directory.
    """

    allow_all: bool = False
    allow_paths: bool = False
    allow: list[Rule] = field(default_factory=list)
    deny: list[Rule] = field(default_factory=list)
    directories: tuple[Path, ...] = ()
    ask: Ask | None = None
    ask_reads: bool = False

    def outside(self, call: Call, cwd: Path) -> list[Path]:
        """The paths of a call that lead out of where it may work."""
        if self.allow_paths:
            return []
        places = (cwd, *self.directories)
        return [p for p in call.paths if not any(p.is_relative_to(place) for place in places)]

    def denied_by(self, tool: Tool, call: Call) -> str | None:
        """The message of the deny rules that match."""
        rules = [str(rule) for rule in self.deny if rule.denies(tool, call)]
        if not rules:
            return None
        named = ", ".join(f"`{rule}`" for rule in rules)
        return f"Permission to run this tool was denied due to the following rules: {named}"

    def passes(self, tool: Tool, call: Call, cwd: Path, *, hook_allowed: bool) -> bool:
        """Whether a call needs no question."""
        if tool.access == "none":
            return True
        if self.outside(call, cwd):
            return False
        if self.allow_all or hook_allowed or any(rule.allows(tool, call) for rule in self.allow):
            return True
        if self.ask_reads:
            return False
        return tool.access == "read" or (
            tool.access == "shell" and is_harmless(call.command, cwd, self.directories)
        )

    def remember(self, tool: Tool, call: Call) -> None:
        """Keep an approval for the rest of the session."""
        argument = call.command if tool.access == "shell" else None
        self.allow.append(Rule(tool.name if argument is None else "shell", argument))


def describe(tool: Tool, context: ToolContext, arguments: Mapping[str, Any]) -> Call:
    """What a call would do, from its arguments; wrong types are the tool's to refuse."""
    command = arguments.get("command") if tool.access == "shell" else None
    paths: list[Path] = []
    for name in tool.paths:
        value = arguments.get(name)
        places = value if isinstance(value, list) else [value]
        for place in places:
            if isinstance(place, str):
                try:
                    paths.append(context.path(place))
                except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL byte
                    paths.append(Path("/"))
    return Call(command if isinstance(command, str) else "", tuple(paths))


def request_data(
    tool: Tool,
    call: Call,
    context: ToolContext,
    arguments: Mapping[str, Any],
    preview: Preview | None,
) -> dict[str, Any]:
    """The `permissionRequest` of a call, by the kind of what it does."""
    call_id = context.call.id
    kind: Access = tool.access
    if kind == "shell":
        return {
            "kind": "shell",
            "toolCallId": call_id,
            "fullCommandText": call.command,
            "intention": str(arguments.get("description") or call.command),
            "commands": [{"identifier": call.command, "readOnly": False}],
            "possiblePaths": [],
            "possibleUrls": [],
            "hasWriteFileRedirection": ">" in call.command,
            "canOfferSessionApproval": False,
        }
    path = str(call.paths[0] if call.paths else context.cwd)
    if kind == "write":
        return {
            "kind": "write",
            "toolCallId": call_id,
            "intention": f"{tool.name.capitalize()} file",
            "fileName": path,
            "diff": preview.diff if preview else "",
            "newFileContents": preview.content if preview else None,
            "canOfferSessionApproval": True,
        }
    if kind == "read":
        verb = "Read file" if tool.name == "view" else "Search in directory"
        return {
            "kind": "read",
            "toolCallId": call_id,
            "intention": f"{verb}: {path}",
            "path": path,
        }
    return {
        "kind": "custom-tool",
        "toolCallId": call_id,
        "toolName": tool.name,
        "toolDescription": tool.description,
        "args": dict(arguments),
    }


def prompt_data(request: Mapping[str, Any]) -> dict[str, Any]:
    """The `promptRequest` that goes with a `permissionRequest`."""
    if request["kind"] == "shell":
        return {
            "kind": "commands",
            "fullCommandText": request["fullCommandText"],
            "intention": request["intention"],
            "commandIdentifiers": [command["identifier"] for command in request["commands"]],
            "canOfferSessionApproval": False,
            "toolCallId": request["toolCallId"],
        }
    return dict(request)


def completion(decision: Decision | None) -> dict[str, Any]:
    """`result` (and what else) of `permission.completed`; None is that nobody could be asked."""
    kind = OUTCOMES.get(str((decision or {}).get("kind")), UNATTENDED)
    result: dict[str, Any] = {"kind": kind}
    if decision and kind == OUTCOMES["reject"] and decision.get("feedback"):
        result["feedback"] = decision["feedback"]
    if kind == UNATTENDED:
        return {"result": result, "decisionSource": "unattended_fallback"}
    return {"result": result}


def refusal(result: Mapping[str, Any]) -> str | None:
    """What the model is told about a request that was turned down; None if it was approved."""
    if result["kind"].startswith("approved"):
        return None
    if result["kind"] == OUTCOMES["reject"]:
        feedback = result.get("feedback")
        told = f" User feedback: {feedback}" if feedback else ""
        return f"The user rejected this tool call.{told}"
    return (
        "Permission denied: nobody was there to approve it. Try something that needs no approval."
    )


def is_harmless(command: str, cwd: Path, directories: Sequence[Path] = ()) -> bool:
    """Whether a command line only reads, and only inside the directory.

    Deliberately narrow: one known command, no shell syntax, every word that could be a path
    resolved. What this does not know is asked about.
    """
    if SHELL_SYNTAX & set(command):
        return False
    words = shlex.split(command)
    if not words or words[0] not in HARMLESS_COMMANDS:
        return False
    places = (cwd, *directories)
    return all(
        PLAIN_FLAG.fullmatch(word)
        if word.startswith("-")
        else any((cwd / word).resolve().is_relative_to(place) for place in places)
        for word in words[1:]
    )


def _is_path(pattern: str, path: Path) -> bool:
    """A pattern without a directory is about that name in any, as in the CLI."""
    return fnmatch.fnmatch(str(path), pattern) or path.match(pattern)


def _is_command(pattern: str, command: str) -> bool:
    """`git:*` is any single git command; anything else is the whole line."""
    prefix, wildcard, _ = pattern.partition(":*")
    if not wildcard:
        return command == pattern
    words = command.split()
    wanted = prefix.split()
    return words[: len(wanted)] == wanted and not (
        set("|&;<>`\n") & set(command) or "$(" in command
    )
