"""Hooks: what users run at fixed points of the loop, as callables or as commands in a file.

A hook gets a dictionary (`sessionId`, `timestamp` in epoch ms, `cwd` and what its type adds)
and gives a dictionary or nothing. A hook that fails is recorded as failed and changes
nothing; what is no answer is left out, and said once. File format: the CLI's
`.github/hooks/*.json`, `{"version": 1, "hooks": {TYPE: [{"type": "command", "bash": COMMAND,
"timeoutSec": N, "cwd": DIR, "env": {}}]}}`; a command reads its input as JSON on stdin and
prints its output as JSON.
"""

from __future__ import annotations

import copy
import json
import logging
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
"""How often in a row a hook may send an agent back to work: the CLI's limit for the main agent."""

ANSWERS: dict[str, type | tuple[type, ...]] = {
    "additionalContext": str,
    "decision": str,
    "modifiedArgs": dict,
    "modifiedPrompt": str,
    "modifiedResponse": str,
    "modifiedResult": (dict, str),
    "modifiedTransformedPrompt": str,
    "permissionDecision": str,
    "permissionDecisionReason": str,
    "reason": str,
}
"""What the loop looks at in an output; null is as good as nothing."""

logger = logging.getLogger(__name__)


class CommandHook(msgspec.Struct, frozen=True, rename="camel"):
    """One command of a hook file."""

    bash: str
    type: str = "command"
    timeout_sec: float = 30.0
    cwd: str | None = None
    env: dict[str, str] = {}

    async def __call__(self, data: HookInput) -> HookOutput | None:
        """Run it. A non-zero exit or output that is no JSON is a failure."""
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
class Listed:
    """A hook as the loop calls it: what it gets is its own, what it gives is an answer."""

    kind: str
    hook: Hook
    warned: bool = False

    async def __call__(self, data: HookInput) -> HookOutput:
        """Call it, sync or async.

        Raises:
            Exception: it failed.
        """
        output: Any = await foreign.call(self.hook, copy.deepcopy(data))  # ours is in the log
        if output is None:
            return {}
        if not isinstance(output, dict):
            self._warn(f"an answer of type {type(output).__name__}")
            return {}
        known = {name: output[name] for name in ANSWERS if output.get(name) is not None}
        wrong = [name for name, value in known.items() if not isinstance(value, ANSWERS[name])]
        if wrong:
            self._warn(", ".join(f"{n} of type {type(known[n]).__name__}" for n in wrong))
        return {name: value for name, value in output.items() if name not in wrong}

    def _warn(self, amiss: str) -> None:
        if not self.warned:
            logger.warning("A hook at %s gave %s, which is left out", self.kind, amiss)
            self.warned = True


@dataclass(slots=True)
class Hooks:
    """The hooks of a session, by type, in the order in which they run."""

    by_type: dict[str, list[Listed]] = field(default_factory=dict)

    def add(self, kind: str, hook: Hook) -> None:
        """Run `hook` at `kind`, after those that are there.

        Raises:
            InsightsError: there is no such type of hook.
        """
        if kind not in HOOK_TYPES:
            raise InsightsError(
                f"There is no hook {kind!r}", hint=f"There are: {', '.join(HOOK_TYPES)}."
            )
        self.by_type.setdefault(kind, []).append(Listed(kind, hook))

    def of(self, kind: str) -> list[Listed]:
        """The hooks of one type."""
        return self.by_type.get(kind, [])


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


def merge_outputs(kind: str, outputs: Iterable[Mapping[str, Any]]) -> HookOutput:
    """Later hooks win, field by field; what they add is put together, as in the CLI."""
    merged: HookOutput = {}
    for output in outputs:
        before = merged.get("additionalContext")
        merged |= output
        if kind != "userPromptSubmitted":
            merged["additionalContext"] = paragraphs(before, output.get("additionalContext"))
    return merged


def paragraphs(*texts: str | None) -> str:
    """The texts that there are, one below the other."""
    return "\n\n".join(text for text in texts if text)
