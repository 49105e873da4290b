"""`show`: one session as a tree, a timeline in characters, or a waterfall in a page."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from copilot_insights.errors import InsightsError
from copilot_insights.options import (
    Options,
    load_chosen,
    one_session,
    put,
    reading,
    refuse,
    some_event,
    write_file,
)

if TYPE_CHECKING:
    from copilot_insights.reports import Section
    from copilot_insights.tables import Tables

_Option = typer.Option


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("show")(reading(_show))


def _show(
    options: Options,
    which: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", help="Its id's beginning, or its log; default: newest."),
    ] = None,
    *,
    timeline: Annotated[
        bool, _Option("--timeline", help="Draw when each call ran, in characters.")
    ] = False,
    html: Annotated[
        bool, _Option("--html", help="The waterfall as a page; -o FILE writes it.")
    ] = False,
    content: Annotated[bool, _Option("--content", help="Print what was said, too.")] = False,
) -> None:
    """One session as a tree, with times."""
    from copilot_insights.discover import LOG, is_path  # noqa: PLC0415

    if timeline and html:
        raise InsightsError("--timeline and --html are two pictures", "Use one.", exit_code=2)
    if timeline and content:
        raise InsightsError("--timeline draws no content", "Use --html.", exit_code=2)
    output = options.output
    if html:  # its suffix names no format of tables
        refuse(options, "--html")
        options = replace(options, output=None)
    if which and is_path(which):
        log = Path(which).is_file() or (Path(which) / LOG).is_file()
        options = replace(options, paths=[which] if log else [which, *(options.paths or [])])
        which = None
    drawn = timeline or html
    if drawn:
        from copilot_insights.rows import COURSE  # noqa: PLC0415
    tables, _, tz = load_chosen(options, only=COURSE if drawn else ())
    some_event(tables, options)
    if not tables.sessions.height:
        raise typer.Exit(1)
    session_id = one_session(tables, which)
    if html:
        from copilot_insights.waterfall_page import waterfall_page  # noqa: PLC0415

        _write(waterfall_page(tables, session_id, tz, content=content), output, options)
        return
    put(
        [_section(tables, session_id, tz, options, timeline=timeline, content=content)], options, tz
    )


def _section(
    tables: "Tables", session_id: str, tz: str, options: Options, *, timeline: bool, content: bool
) -> "Section":
    from copilot_insights.tree import heading, show  # noqa: PLC0415

    if not timeline:
        return show(tables, session_id, tz, content=content)
    from copilot_insights import timeline as characters  # noqa: PLC0415
    from copilot_insights.waterfall import waterfall  # noqa: PLC0415

    fall = waterfall(tables, session_id)
    return characters.timeline(fall, heading(fall.session, tz), options.limit)


def _write(page: str, output: Path | None, options: Options) -> None:
    if output is not None:
        write_file(output, page.encode(errors="backslashreplace"), force=options.force)
    elif sys.stdout.isatty():
        raise InsightsError("a page is nothing for a terminal", "Use -o FILE.", exit_code=2)
    else:
        sys.stdout.write(page)
