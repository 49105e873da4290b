"""`compare`: two sets of sessions, and what differs between them."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from copilot_insights.commands.chart import KINDS, write_figure
from copilot_insights.errors import InsightsError
from copilot_insights.options import (
    Options,
    choice,
    choose,
    load_all,
    note,
    put,
    reading,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    The day at the end of a time is not part of it.

    -o FILE.html, .png or .svg draws it.
    """
    from copilot_insights import compare as comparing  # noqa: PLC0415

    if by is not None and by not in _BY:
        raise InsightsError(f"no --by {by}", f"Use {', '.join(_BY)}.", exit_code=2)
    picture = options.output
    if picture and picture.suffix.lower() in KINDS:  # it names no format of tables
        refuse(options, "a picture")
        options = replace(options, output=None)
    else:
        picture = None
    chosen = list(_sides(options, (a, b), by))
    doubts = list(comparing.doubts(*chosen))
    sides = [comparing.per_session(side) for side in chosen]
    for text, side in zip((a, b), sides, strict=True):
        if not side.height:
            raise InsightsError(f"no session in {text}", "Check both sides with report.")
    frame = comparing.compare(*sides)
    sizes = sides[0].height, sides[1].height
    if picture:
        from copilot_insights.compare_chart import difference  # noqa: PLC0415

        for text in doubts:
            note(text)
        write_figure(difference(frame, (a, b)), picture, force=options.force)
        return
    put(comparing.sections(frame, (a, b), sizes, doubts), options, "UTC")


def _sides(options: Options, texts: tuple[str, str], by: str | None) -> "Iterator[Tables]":
    """What the texts mean; logs that are of both sides are read once."""
    from copilot_insights.compare import of_version  # noqa: PLC0415

    asked = [_side(options, text, by) for text in texts]
    chosen = [choice(side)[0] for side in asked]
    read: dict[tuple[str, ...], Tables] = {}
    for text, side, choosing in zip(texts, asked, chosen, strict=True):
        paths = tuple(side.paths or ())
        if paths not in read:
            read[paths] = load_all(side)
        picked = choose(read[paths], choosing, side)
        yield of_version(picked, text) if by == "version" else picked


def _side(options: Options, text: str, by: str | None) -> Options:
    from copilot_insights import when  # noqa: PLC0415
    from copilot_insights.discover import is_path  # noqa: PLC0415

    if by == "version":
        return options
    if by is not None:
        return replace(options, **{by: text})  # type: ignore[arg-type]
    if is_path(text):
        if options.paths:
            message = f"{options.paths[0]} is a third set of logs"
            raise InsightsError(message, "Give two paths, or two times.", exit_code=2)
        return replace(options, paths=[text])
    if ".." in text:
        since, _, until = text.partition("..")
        if begins := when.parse(until or None, when.zone(options.tz)):
            until = begins.isoformat()  # a day ends a time before it, so that B can begin with it
        return replace(options, since=since or None, until=until or None)
    hint = "A side is a path, a time like 2026-11-01..2026-11-15, or a value with --by."
    raise InsightsError(f"{text} is no side", hint, exit_code=2)
