"""The file tools: view, create, edit, glob, grep, with the CLI's names and arguments.

Where a path may lead is not decided here: the loop checks every path argument before a tool
runs (see `permissions`), and the tools never follow a link out of the place they were given.
"""

from __future__ import annotations

import asyncio
import difflib
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from copilot_insights.runner.shell import clip, run_command
from copilot_insights.runner.tools import Preview, ToolContext, ToolFailed, ToolResult

LARGEST_FILE = 10 * 1024 * 1024
MOST_MATCHES = 1000
SEARCH_SECONDS = 60.0

PathText = Annotated[str, Meta(description="A path, absolute or from the working directory")]
Paths = Annotated[
    str | list[str] | None, Meta(description="Where to look; the working directory if left out")
]


async def view(
    context: ToolContext,
    *,
    path: PathText,
    view_range: Annotated[
        list[int] | None, Meta(description="First and last line, from 1; -1 is the end")
    ] = None,
) -> ToolResult:
    """Show a file, or the names in a directory."""
    target = context.path(path)
    if target.is_dir():
        names = sorted(child.name + "/" * child.is_dir() for child in target.iterdir())
        return ToolResult("\n".join(names))
    text = _read(target)
    if view_range is not None:
        if len(view_range) != 2:
            raise ToolFailed("view_range takes two numbers.")
        first, last = view_range
        lines = text.splitlines(keepends=True)
        if not 1 <= first <= max(len(lines), 1) or (last != -1 and last < first):
            raise ToolFailed(f"view_range {view_range} is outside the file's {len(lines)} lines.")
        text = "".join(lines[first - 1 : None if last == -1 else last])
    return ToolResult(clip(text, len(text.encode(errors="replace")), context))


async def create(
    context: ToolContext,
    *,
    path: PathText,
    file_text: Annotated[str, Meta(description="The whole content")],
) -> ToolResult:
    """Create a file that is not there yet, in a directory that is."""
    target = context.path(path)
    preview = preview_create(context, path=path, file_text=file_text)
    try:
        with target.open("x", encoding="utf-8", newline="") as file:
            file.write(file_text)
    except FileExistsError as error:
        raise ToolFailed("Path already exists") from error
    text = f"Created file {target} with {len(file_text)} characters"
    return _edited(target, "create", preview.diff, text)


def preview_create(context: ToolContext, *, path: str, file_text: str) -> Preview:
    """What `create` would write."""
    target = context.path(path)
    if target.exists():
        raise ToolFailed("Path already exists")
    if not target.parent.is_dir():
        raise ToolFailed("Parent directory does not exist")
    return Preview(_diff(target, "", file_text), file_text)


async def edit(
    context: ToolContext,
    *,
    path: PathText,
    old_str: Annotated[str, Meta(description="Text that is in the file exactly once")],
    new_str: Annotated[str, Meta(description="What takes its place")] = "",
) -> ToolResult:
    """Replace one piece of text in a file."""
    target = context.path(path)
    preview = preview_edit(context, path=path, old_str=old_str, new_str=new_str)
    with target.open("w", encoding="utf-8", newline="") as file:
        file.write(preview.content)
    return _edited(target, "edit", preview.diff, f"File {target} updated with changes.")


def preview_edit(context: ToolContext, *, path: str, old_str: str, new_str: str) -> Preview:
    """What `edit` would write."""
    target = context.path(path)
    before = _read(target, errors="strict")
    count = before.count(old_str) if old_str else 0
    if count != 1:
        raise ToolFailed("Multiple matches found" if count else "No match found")
    after = before.replace(old_str, new_str)
    return Preview(_diff(target, before, after), after)


async def glob(
    context: ToolContext,
    *,
    pattern: Annotated[str, Meta(description="Such as **/*.py")],
    paths: Paths = None,
) -> ToolResult:
    """Find files by name. Hidden directories are left out."""
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise ToolFailed("A pattern goes down from its place: no absolute path and no `..` in it.")
    found: list[str] = []
    for root, shown in _roots(context, paths):
        names = await asyncio.to_thread(_matching, root, pattern)
        found += [f"{shown}/{name}" for name in names]
    return ToolResult("\n".join(found) or "No files matched the pattern.")


async def grep(  # noqa: PLR0913  # the CLI's arguments
    context: ToolContext,
    *,
    pattern: Annotated[str, Meta(description="An extended regular expression")],
    paths: Paths = None,
    path: Annotated[str | None, Meta(description="The same as paths, for one place")] = None,
    output_mode: Literal["content", "files_with_matches", "count"] = "files_with_matches",
    glob: Annotated[str | None, Meta(description="Only files whose name matches")] = None,
    ignore_case: Annotated[bool, Meta(description="Upper case equals lower case")] = False,
    line_numbers: Annotated[bool, Meta(description="With line numbers (content)")] = False,
    after: Annotated[int, Meta(ge=0, description="Lines of context after (content)")] = 0,
    before: Annotated[int, Meta(ge=0, description="Lines of context before (content)")] = 0,
    around: Annotated[int, Meta(ge=0, description="Lines of context around (content)")] = 0,
    head_limit: Annotated[int, Meta(ge=1, description="At most so many lines")] = MOST_MATCHES,
) -> ToolResult:
    """Search file contents. Hidden directories and binary files are left out."""
    # An external grep: its matcher is linear in time and it can be killed, a Python regular
    # expression from a model is neither.
    command = ["grep", "-rEsI", "--exclude-dir=.?*", "--color=never"]
    command += {"files_with_matches": ["-l"], "count": ["-cH"], "content": ["-H"]}[output_mode]
    if output_mode == "content":
        command += ["-n"] if line_numbers else []
        command += [f"-A{after or around}"] if after or around else []
        command += [f"-B{before or around}"] if before or around else []
    command += ["-i"] if ignore_case else []
    command += [f"--include={glob}"] if glob else []
    command += ["-e", pattern, "--"]
    places = _roots(context, paths or path)
    names = ["." if shown == "." else str(root) for root, shown in places]
    try:
        done = await run_command([*command, *names], context.cwd, SEARCH_SECONDS)
    except TimeoutError as error:
        raise ToolFailed(f"Gave up after {SEARCH_SECONDS:g} seconds.", "timeout") from error
    printed = done.output.decode(errors="replace").splitlines()
    lines = [line for line in printed if not line.startswith("grep: ")]
    if done.exit_code > 1 and not lines:
        raise ToolFailed("".join(printed[:1]) or "grep could not run that search")
    if output_mode != "content":
        lines.sort()  # grep goes by the order in the directory
    if output_mode == "count":
        lines = [line for line in lines if not line.endswith(":0")]
    if not lines:
        return ToolResult("No matches found.")
    text = "\n".join(lines[:head_limit])
    return ToolResult(clip(text, len(text.encode(errors="replace")), context))


def _read(path: Path, errors: Literal["replace", "strict"] = "replace") -> str:
    if not path.exists():
        raise ToolFailed("Path does not exist")
    if not path.is_file():
        raise ToolFailed("Not a regular file")
    if path.stat().st_size > LARGEST_FILE:
        raise ToolFailed(f"The file is larger than {LARGEST_FILE} bytes; use bash to cut it.")
    try:
        with path.open(encoding="utf-8", errors=errors, newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ToolFailed("Not a text file in UTF-8") from error


def _roots(context: ToolContext, paths: str | list[str] | None) -> list[tuple[Path, str]]:
    """The places to search, each with how it is shown: `.` for the working directory."""
    if not paths:
        return [(context.cwd, ".")]
    places = [paths] if isinstance(paths, str) else paths
    roots = [(context.path(place), str(context.path(place))) for place in places]
    if missing := [shown for root, shown in roots if not root.exists()]:
        raise ToolFailed(f"Path does not exist: {missing[0]}")
    return roots


def _matching(root: Path, pattern: str) -> list[str]:
    """Files below `root` that match, relative to it; a link that leads out is left out."""
    names: list[str] = []
    for found in root.glob(pattern):
        name = found.relative_to(root)
        hidden = any(part.startswith(".") for part in name.parts[:-1])
        if not hidden and found.is_file() and found.resolve().is_relative_to(root):
            names.append(str(name))
        if len(names) == MOST_MATCHES:
            break
    return sorted(names)


def _diff(path: Path, before: str, after: str) -> str:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, f"a{path}", f"b{path}"))


def _edited(path: Path, kind: str, diff: str, text: str) -> ToolResult:
    lines = diff.split("\n")[2:]
    return ToolResult(
        text,
        detail=diff,
        log={"fileEdits": [{"path": str(path), "kind": kind}]},
        telemetry={
            "properties": {"command": kind},
            "metrics": {
                "linesAdded": sum(line.startswith("+") for line in lines),
                "linesRemoved": sum(line.startswith("-") for line in lines),
            },
        },
    )
