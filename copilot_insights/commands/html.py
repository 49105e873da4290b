"""`html`: the report as one page, to look at and to send."""

import os
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from copilot_insights.options import (
    Options,
    Progress,
    load_chosen,
    make_directory,
    not_empty,
    note,
    reading,
    refuse,
    some_event,
    vacant,
    write_file,
)

if TYPE_CHECKING:
    from copilot_insights.tables import Tables

_Option = typer.Option
_DEFAULT: Final = Path("copilot-report.html")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("html")(reading(_html, output="Write to FILE; default: copilot-report.html."))


def _html(
    options: Options,
    *,
    cdn: Annotated[
        bool, _Option("--cdn", help="Fetch plotly when opened: a small file, but not offline.")
    ] = False,
    waterfalls: Annotated[
        Path | None,
        _Option(metavar="DIR", help="Write each session's waterfall there, and link to it."),
    ] = None,
    show: Annotated[bool, _Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """The report as one page that works offline."""
    refuse(options, "html")
    output = options.output or _DEFAULT
    vacant([output], force=options.force)  # said before the work, not after it
    from copilot_insights import reports  # noqa: PLC0415
    from copilot_insights.filters import select  # noqa: PLC0415
    from copilot_insights.rows import COURSE  # noqa: PLC0415

    only = reports.USED if waterfalls is None else {*reports.USED, *COURSE}
    tables, chosen, tz = load_chosen(
        replace(options, output=None), only=tuple(only), whole=waterfalls is not None
    )
    some_event(tables, options)
    not_empty(tables)
    from copilot_insights.report_page import report_page  # noqa: PLC0415

    links = {}
    if waterfalls is not None:  # of whole sessions, also where the report is of a part
        links = _waterfalls(tables, tz, waterfalls, output, options)
        tables = select(tables, chosen)
    page = report_page(tables, chosen, tz, cdn=cdn, links=links)
    data = page.encode(errors="backslashreplace")
    write_file(output, data, force=options.force)
    note(f"{output}: {tables.sessions.height} sessions, {len(data) / 1e6:.1f} MB")
    if show:
        typer.launch(output.resolve().as_uri())


def _waterfalls(
    tables: "Tables", tz: str, folder: Path, output: Path, options: Options
) -> dict[str, str]:
    """Writes the pages; session id → address from the report."""
    from copilot_insights.waterfall_page import waterfall_page  # noqa: PLC0415

    names = {session: _file_name(session) for session in tables.sessions["session_id"]}
    vacant((folder / name for name in names.values()), force=options.force)
    make_directory(folder)
    way = os.path.relpath(folder.resolve(), output.resolve().parent)
    links = {}
    with Progress("drawing waterfalls") as progress:
        for done, (session, name) in enumerate(names.items()):
            page = waterfall_page(tables, session, tz)
            write_file(folder / name, page.encode(errors="backslashreplace"), force=options.force)
            links[session] = quote(f"{Path(way).as_posix()}/{name}")
            progress((done + 1) / len(names))
    return links


def _file_name(session: str) -> str:
    """A log may call its session ../../x: then only what is harmless, and a hash."""
    safe = re.sub(r"[^0-9A-Za-z_-]", "_", session)[:80]
    if safe != session or not safe:
        safe += f"-{sha256(session.encode(errors='backslashreplace')).hexdigest()[:12]}"
    return f"{safe}.html"
