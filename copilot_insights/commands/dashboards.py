"""`copilot-insights dashboards`: the Grafana dashboards as files."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from copilot_insights.options import make_directory, note, vacant, write_file


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command(short_help="Grafana dashboards for the exported metrics.")(dashboards)


def dashboards(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where to write them.")
    ] = Path(),
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files there.")] = False,
) -> None:
    """Grafana dashboards, as JSON to import: one for each metric profile."""
    found = sorted(
        (f for f in files("copilot_insights.dashboards").iterdir() if f.name.endswith(".json")),
        key=lambda f: f.name,
    )
    vacant((output / f.name for f in found), force=force)
    make_directory(output)
    for file in found:
        write_file(output / file.name, file.read_bytes(), force=force)
        note(f"wrote {output / file.name}")
