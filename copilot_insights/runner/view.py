"""What `run` shows while it runs: turns and tools as they happen, on stderr; words on stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from copilot_insights.runner.log import Event

TELLING = ("command", "path", "pattern", "description", "summary")
CONTROL = {code: None for code in (*range(32), *range(127, 160)) if code != 10}
"""Control characters that a model or a tool may send and a terminal must not get."""


def plain(text: object, width: int = 100) -> str:
    """One line of a hostile text, safe on a terminal."""
    line = " ".join(str(text).translate(CONTROL).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def telling_argument(arguments: object) -> object:
    """Of a call's arguments, the one that says most about it."""
    if not isinstance(arguments, dict):
        return arguments
    known = (arguments[name] for name in TELLING if name in arguments)
    return next(known, next(iter(arguments.values()), ""))


def write_line(out: TextIO, text: str) -> None:
    """Write a line; if nobody reads any more, this and what follows goes nowhere."""
    try:
        out.write(f"{text}\n")
        out.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


class LiveView:
    """Prints events as they come.

    Replies go to `out`; turns, tools and endings to `notes`, coloured if that is a terminal.
    """

    def __init__(
        self, out: TextIO = sys.stdout, notes: TextIO = sys.stderr, *, colour: bool
    ) -> None:
        """`colour` is for `notes`."""
        self.out = out
        self.notes = notes
        self.colour = colour
        self._started: dict[str, float] = {}
        self._names: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Show one event; most are not shown."""
        data = event["data"]
        indent = "  " if event.get("agentId") else ""
        match event["type"]:
            case "user.message" if data.get("isAutopilotContinuation"):
                self._note(f"{indent}↻ nudged: the task is not marked as complete", "33")
            case "assistant.turn_start":
                self._note(f"{indent}● turn {data['turnId']}", "2")
            case "assistant.message" if data["content"] and not indent:
                write_line(self.out, data["content"].translate(CONTROL))
            case "tool.execution_start":
                self._started[data["toolCallId"]] = time.monotonic()
                about = plain(telling_argument(data["arguments"]), 60)
                self._names[data["toolCallId"]] = f"{data['toolName']} {about}"
            case "tool.execution_complete":
                self._note(indent + self._tool_line(data), "32" if data["success"] else "31")
            case "subagent.started":
                name, about = data["agentDisplayName"], data["agentDescription"]
                self._note(f"{indent}◆ agent {plain(name)}: {plain(about)}", "36")
            case "session.error":
                self._note(f"✗ {plain(data['message'], 300)}", "31")
            case "abort":
                self._note("✗ aborted", "31")
            case "session.task_complete":
                self._note("✓ the model says that the task is complete", "32")

    def _tool_line(self, data: dict[str, Any]) -> str:
        name = self._names.pop(data["toolCallId"], data["toolCallId"])
        seconds = time.monotonic() - self._started.pop(data["toolCallId"], time.monotonic())
        if not data["success"]:
            return f"  ✗ {name} ({seconds:.1f} s): {plain(data['error']['message'])}"
        code = data.get("shellExecution", {}).get("exitCode")
        return f"  ✓ {name} ({seconds:.1f} s)" + (f", exit code {code}" if code else "")

    def _note(self, text: str, code: str) -> None:
        self.notes.write(f"\x1b[{code}m{text}\x1b[0m\n" if self.colour else f"{text}\n")
        self.notes.flush()


class JsonLines:
    """Prints every event, ephemeral ones too, as the CLI does with `--output-format json`."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        """`out` gets one JSON object a line."""
        self.out = out

    def __call__(self, event: Event) -> None:
        """Print one event."""
        write_line(self.out, json.dumps(event))
