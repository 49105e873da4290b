"""Hooks: what users run at fixed points of the loop, as callables or as commands in a file.

A hook gets a dictionary (`sessionId`, `timestamp` in epoch ms, `cwd` and what its type adds)
and gives a dictionary or nothing. A hook that fails is recorded as failed and changes
nothing. File format: the CLI's `.github/hooks/*.json`, `{"version": 1, "hooks": {TYPE: [{"type":
"command", "bash": COMMAND, "timeoutSec": N, "cwd": DIR, "env": {}}]}}`; a command reads its
input as JSON on stdin and prints its output as JSON.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from copilot_insights.errors import InsightsError
from copilot_insights.runner import foreign
from copilot_insights.runner.shell import run_command

HookInput: TypeAlias = dict[str, Any]
HookOutput: TypeAlias = dict[str, Any]
Hook: TypeAlias = Callable[[HookInput], HookOutput | Awaitable[HookOutput | None] | None]
"""Sync or async; the input in, an output or nothing out."""

HOOK_TYPES = (
    "sessionStart",
    "sessionEnd",
    "userPromptSubmitted",
    "userPromptTransformed",
    "preToolUse",
    "postToolUse",
    "postToolUseFailure",
    "errorOccurred",
    "agentStop",
    "subagentStart",
    "subagentStop",
)

MOST_BLOCKS = 8
"""How often in a row an agentStop hook may send the agent back to work, as in the CLI."""


class CommandHook(msgspec.Struct, frozen=True, rename="camel"):
    """One command of a hook file."""

    bash: str
    type: str = "command"
    timeout_sec: float = 30.0
    cwd: str | None = None
    env: dict[str, str] = {}

    async def __call__(self, data: HookInput) -> HookOutput | None:
        """Run it. A non-zero exit or output that is no JSON object is a failure."""
        cwd = Path(str(data.get("cwd", "."))) / (self.cwd or "")
        settings = [f"{name}={value}" for name, value in self.env.items()]
        command = ["env", *settings, "bash", "-c", self.bash]
        given = json.dumps(data).encode()
        try:
            done = await run_command(command, cwd, self.timeout_sec, given, errors=False)
        except TimeoutError as error:
            raise RuntimeError(f"killed after {self.timeout_sec:g} seconds") from error
        text = done.output.decode(errors="replace").strip()
        if done.exit_code:
            raise RuntimeError(f"exit code {done.exit_code}: {text[:500]}")
        if not text:
            return None
        output: HookOutput = json.loads(text)
        return output


class HookFile(msgspec.Struct, frozen=True):
    """A hook file as it is read."""

    hooks: dict[str, list[CommandHook]]
    version: int = 1


@dataclass(slots=True)
class Hooks:
    """The hooks of a session, by type, in the order in which they run."""

    by_type: dict[str, list[Hook]] = field(default_factory=dict)

    def add(self, kind: str, hook: Hook) -> None:
        """Run `hook` at `kind`, after those that are there.

        Raises:
            InsightsError: there is no such type of hook.
        """
        if kind not in HOOK_TYPES:
            raise InsightsError(
                f"There is no hook {kind!r}", hint=f"There are: {', '.join(HOOK_TYPES)}."
            )
        self.by_type.setdefault(kind, []).append(hook)

    def of(self, kind: str) -> list[Hook]:
        """The hooks of one type."""
        return self.by_type.get(kind, [])


async def call_hook(hook: Hook, data: HookInput) -> HookOutput | None:
    """Call a hook, sync or async.

    Raises:
        Exception: it failed; a TypeError for what is no output.
    """
    output: object = await foreign.call(hook, copy.deepcopy(data))  # ours is in the log
    if output is not None and not isinstance(output, dict):
        raise TypeError(f"a hook gives an object or nothing, and not {type(output).__name__}")
    return output


def load_hook_files(paths: Iterable[Path], hooks: Hooks) -> None:
    """Add the commands of hook files; types that the loop does not have are left out.

    Raises:
        InsightsError: a file is not in the format above.
    """
    for path in paths:
        try:
            file = msgspec.json.decode(path.read_bytes(), type=HookFile)
        except (OSError, msgspec.MsgspecError) as error:
            raise InsightsError(f"{path} is no hook file: {error}") from error
        for kind, commands in file.hooks.items():
            if kind in HOOK_TYPES:
                for command in commands:
                    hooks.add(kind, command)


def common_input(session_id: str, timestamp: int, cwd: Path) -> HookInput:
    """What every hook is told."""
    return {"sessionId": session_id, "timestamp": timestamp, "cwd": str(cwd)}


def merge_outputs(outputs: Iterable[Mapping[str, Any]]) -> HookOutput:
    """Later hooks win, field by field."""
    merged: HookOutput = {}
    for output in outputs:
        merged |= output
    return merged
