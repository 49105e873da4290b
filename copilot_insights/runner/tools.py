"""What a tool is: a function whose signature says what the model may pass.

The JSON schema that the model sees and the check of what it sends both come from the
function's annotations. A tool that cannot do its work raises `ToolFailed`; whatever else
goes wrong in it becomes a failed result too, so that the model sees it and the loop goes on.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_type_hints

import msgspec

from copilot_insights.runner import foreign

if TYPE_CHECKING:
    from copilot_insights.runner.model import ToolCall

ErrorCode: TypeAlias = Literal["failure", "denied", "timeout", "interrupted"]
"""`error.code` of a `tool.execution_complete`."""

Access: TypeAlias = Literal["read", "write", "shell", "custom-tool", "none"]
"""What a call does to the machine: the kind of permission that it needs."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gave: the text for the model, and fields that only the log gets."""

    text: str
    code: ErrorCode | None = None
    detail: str = ""
    log: Mapping[str, Any] = field(default_factory=dict)
    telemetry: Mapping[str, Any] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """A command that ran and exited with 3 is a success; see `log` for its exit code."""
        return self.code is None


class ToolFailed(Exception):  # noqa: N818  # said of the tool, like the event
    """The tool could not do it; the message goes to the model."""

    def __init__(self, message: str, code: ErrorCode = "failure") -> None:
        """`code` is what the log says beside it."""
        super().__init__(message)
        self.code = code


class TaskRunner(Protocol):
    """How the `task` tool starts a sub-agent."""

    async def __call__(self, call: ToolCall, arguments: Mapping[str, Any]) -> ToolResult:
        """Run it to its end, or start it in the background."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running tool knows of its surroundings.

    `spill` is where outputs go that are too large for the model, `bash_timeout` is in seconds.
    """

    cwd: Path
    call: ToolCall
    spill: Path
    run_task: TaskRunner
    bash_timeout: float = 600.0
    large_output: int = 20_480

    def path(self, text: str) -> Path:
        """An argument's path, absolute, with `..` and symbolic links resolved."""
        return (self.cwd / Path(text).expanduser()).resolve()


@dataclass(frozen=True, slots=True)
class Preview:
    """What a call would write: shown to whoever is asked to permit it."""

    diff: str
    content: str


ToolFunction: TypeAlias = Callable[..., Awaitable[ToolResult]]
"""`async (context, *, argument, …) → ToolResult`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the loop uses it.

    `paths` names the arguments that hold paths, so that the confinement to the working
    directory is checked in one place. `preview` says what a call would write, or fails as the
    call itself would, so that nobody is asked about what cannot be done. `external` tools are
    run by a client.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    run: Callable[[ToolContext, Mapping[str, Any]], Awaitable[ToolResult]]
    access: Access
    title: str = ""
    paths: tuple[str, ...] = ()
    preview: Callable[[ToolContext, Mapping[str, Any]], Preview] | None = None
    external: bool = False

    def definition(self) -> dict[str, Any]:
        """The Chat Completions function definition."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.schema,
            },
        }


def make_tool(  # a tool is six facts
    function: ToolFunction,
    access: Access,
    title: str = "",
    *,
    paths: tuple[str, ...] = (),
    names: Mapping[str, str] | None = None,
    preview: Callable[..., Preview] | None = None,
) -> Tool:
    """A tool from an async function: name, description and schema are the function's own.

    Args:
        function: its first parameter is the `ToolContext`, the rest are keywords.
        access: what it does to the machine.
        title: what it is called in the log.
        paths: its arguments that hold paths.
        names: parameter → name on the wire, where that is no Python name (`-n`).
        preview: the same parameters, but it only says what would be written.
    """
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, hints[parameter.name]))
        else:
            fields.append((parameter.name, hints[parameter.name], parameter.default))
    arguments = msgspec.defstruct(
        function.__name__, fields, rename=dict(names or {}), kw_only=True, omit_defaults=True
    )
    _, components = msgspec.json.schema_components([arguments], ref_template="{name}")
    schema = {k: v for k, v in components[function.__name__].items() if k != "title"}

    def check(raw: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return msgspec.structs.asdict(msgspec.convert(raw, arguments))
        except msgspec.ValidationError as error:
            raise ToolFailed(f"Invalid arguments: {error}") from error

    async def run(context: ToolContext, raw: Mapping[str, Any]) -> ToolResult:
        return await function(context, **check(raw))

    return Tool(
        name=function.__name__,
        description=inspect.getdoc(function) or "",
        schema=schema,
        run=run,
        access=access,
        title=title,
        paths=paths,
        preview=(lambda context, raw: preview(context, **check(raw))) if preview else None,
    )


async def run_tool(
    tool: Tool | None, context: ToolContext, arguments: dict[str, Any] | str
) -> ToolResult:
    """Run a tool; every failure, foreseen or not, is a result. Only cancellation passes."""
    if tool is None:
        return ToolResult(f"Tool '{context.call.name}' does not exist.", "failure")
    if isinstance(arguments, str):
        return ToolResult(f"The arguments are no JSON object: {arguments[:200]}", "failure")
    try:
        result: ToolResult = await foreign.call(tool.run, context, arguments)
    except Exception as error:  # noqa: BLE001  # a broken tool must not end the loop
        return failure(error)
    return result


def failure(error: Exception) -> ToolResult:
    """The result of a call that failed, foreseen or not."""
    if isinstance(error, ToolFailed):
        return ToolResult(str(error), error.code)
    if isinstance(error, OSError):
        return ToolResult(error.strerror or str(error), "failure")
    return ToolResult(f"{type(error).__name__}: {error}", "failure")
