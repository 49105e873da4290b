"""The tools of the CLI that the runner has."""

from __future__ import annotations

from copilot_insights.runner import files, shell, subagents
from copilot_insights.runner.tools import Tool, make_tool

GREP_NAMES = {
    "ignore_case": "-i",
    "line_numbers": "-n",
    "after": "-A",
    "before": "-B",
    "around": "-C",
}


def builtin_tools() -> dict[str, Tool]:
    """The tools by name, with the CLI's names, arguments and titles."""
    tools = (
        make_tool(shell.bash, "shell", "Running command"),
        make_tool(files.view, "read", "Viewing file", paths=("path",)),
        make_tool(
            files.create, "write", "Creating file", paths=("path",), preview=files.preview_create
        ),
        make_tool(files.edit, "write", "Editing file", paths=("path",), preview=files.preview_edit),
        make_tool(files.glob, "read", "Finding files", paths=("paths",)),
        make_tool(files.grep, "read", "Searching files", paths=("paths", "path"), names=GREP_NAMES),
        make_tool(subagents.task, "none"),
        make_tool(subagents.task_complete, "none", "Task complete"),
    )
    return {tool.name: tool for tool in tools}
