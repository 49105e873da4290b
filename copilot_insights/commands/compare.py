"""`compare`: two sets of sessions, and what differs between them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from copilot_insights.commands.chart import KINDS, write_figure
from copilot_insights.errors import InsightsError
from copilot_insights.options import Options, load_chosen, put, reading

if TYPE_CHECKING:
    from copilot_insights.tables import Tables

_Option = typer.Option
_BY: Final = ("model", "version", "branch", "repo", "agent")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compare", short_help="Two sets of sessions: what differs, or is it chance?")(
        reading(_compare)
    )


def _compare(
    options: Options,
    a: Annotated[str, typer.Argument(metavar="A", help="Logs, a time SINCE..UNTIL, or a value.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same, for the other side.")],
    *,
    by: Annotated[
        str | None,
        _Option(metavar="NAME", help=f"A and B are values of this: {', '.join(_BY)}."),
    ] = None,
) -> None:
    """Two sets of sessions: what differs, by how much, and whether it is chance.

    compare old/ new/ · compare ..2026-11-15 2026-11-15.. · compare --by model gpt-5 claude

    -o FILE.html, .png or .svg draws it.
    """
    from copilot_insights import compare as comparing  # noqa: PLC0415

    picture = options.output if options.output and options.output.suffix in KINDS else None
    if picture:  # its suffix names no format of tables
        options = replace(options, output=None)
    sides = [comparing.per_session(_side(options, text, by)) for text in (a, b)]
    for text, side in zip((a, b), sides, strict=True):
        if not side.height:
            raise InsightsError(f"no session in {text}", "Check both sides with report.")
    frame = comparing.compare(*sides)
    sizes = sides[0].height, sides[1].height
    if picture:
        from copilot_insights.forest import difference  # noqa: PLC0415

        write_figure(difference(frame, (a, b)), picture, force=options.force)
        return
    put(comparing.sections(frame, (a, b), sizes), options, "UTC")


def _side(options: Options, text: str, by: str | None) -> "Tables":
    from copilot_insights.compare import of_version  # noqa: PLC0415

    if by is not None and by not in _BY:
        raise InsightsError(f"no --by {by}", f"Use {', '.join(_BY)}.", exit_code=2)
    if by == "version":
        return of_version(load_chosen(options)[0], text)
    if by is not None:
        chosen = replace(options, **{by: text})  # type: ignore[arg-type]
    elif Path(text).expanduser().exists():
        if options.paths:
            message = f"{options.paths[0]} is a third set of logs"
            raise InsightsError(message, "Give two paths, or two times.", exit_code=2)
        chosen = replace(options, paths=[text])
    elif ".." in text:
        since, _, until = text.partition("..")
        chosen = replace(options, since=since or None, until=until or None)
    else:
        hint = "A side is a path, a time like 2026-11-01..2026-11-15, or a value with --by."
        raise InsightsError(f"what is {text}?", hint, exit_code=2)
    return load_chosen(chosen)[0]
