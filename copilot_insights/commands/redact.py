"""`redact`: a copy of logs that can be shared."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from copilot_insights.errors import InsightsError
from copilot_insights.options import PATHS, Progress, note

_Option = typer.Option
_DURATION: Final = re.compile(r"([+-]?)(\d{1,5})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("redact", short_help="A copy of logs without content or identity.")(_redact)


def _redact(
    paths: Annotated[list[str] | None, PATHS] = None,
    *,
    output: Annotated[
        Path, _Option("--output", "-o", metavar="DIR", help="Where the copy goes; it is made.")
    ],
    shift: Annotated[
        str | None,
        _Option(metavar="DURATION", help="Move all times alike: 90d, -36h, 2w, 45m, 30s."),
    ] = None,
    force: Annotated[
        bool, _Option("--force", help="Write into a directory that is not empty.")
    ] = False,
) -> None:
    """A copy of logs without content or identity, of which the same numbers can be read.

    What was said, arguments, results, paths, names and ids are replaced, the same by the same,
    each by as many bytes. Numbers, times, the CLI's own tools and agents and public models'
    names stay. The session store (session-store.db) is not copied: what only it knows is not
    in the copy.
    """
    from copilot_insights.discover import find  # noqa: PLC0415
    from copilot_insights.redact import redact  # noqa: PLC0415

    moved = _duration(shift)
    found = find(paths or ())
    try:
        if not force and output.exists() and (not output.is_dir() or any(output.iterdir())):
            what = "is not empty" if output.is_dir() else "is no directory"
            raise InsightsError(f"{output} {what}", "Name a new one, or use --force.")
        with Progress("redacting") as progress:
            copied = redact(found.files, output, moved, progress)
    except OSError as error:
        raise InsightsError(f"cannot write {error.filename or output}: {error.strerror}") from None
    for problem in (*found.problems, *copied.problems):
        note(problem)
    if not copied.files:
        raise typer.Exit(1)
    times = "times moved alike" if moved else "times kept (--shift moves them)"
    many = "s" if len(copied.files) != 1 else ""
    note(
        f"{len(copied.files)} log{many}, {copied.size:,} bytes, in {output}: no content, "
        f"new names and ids, {times}"
    )


def _duration(text: str | None) -> timedelta:
    if text is None:
        return timedelta(0)
    found = _DURATION.fullmatch(text)
    if not found:
        raise InsightsError(f"no duration: {text}", "Use 90d, -36h, 2w, 45m or 30s.", exit_code=2)
    moved = timedelta(**{_UNITS[found[3]]: int(found[2])})
    return -moved if found[1] == "-" else moved
