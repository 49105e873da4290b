"""`chart`: one chart as a picture or a page."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from copilot_insights.errors import InsightsError
from copilot_insights.options import (
    Options,
    load_chosen,
    not_empty,
    reading,
    refuse,
    some_event,
    write_file,
)

if TYPE_CHECKING:
    from copilot_insights.charts import Figure

_Option = typer.Option
# kept here, where nothing heavy is imported; a test holds it equal to charts.CHARTS
CHART_NAMES: Final = (
    "calls", "tokens", "output", "credits", "time", "time-days", "time-sessions",
    "model-latency", "tool-latency", "tool-outcomes", "failures", "sessions", "agents", "context",
)  # fmt: skip
KINDS: Final = {".png": "png", ".svg": "svg", ".html": "html"}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("chart")(reading(_chart, output="Write to FILE (.png, .svg, .html)."))


def _chart(
    options: Options,
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(CHART_NAMES)}.")],
    *,
    width: Annotated[int, _Option(metavar="PX", min=200, max=8000, help="Width.")] = 1000,
    height: Annotated[
        int | None, _Option(metavar="PX", min=100, max=8000, help="Height; default: as needed.")
    ] = None,
) -> None:
    """One chart as .png, .svg or .html (-o FILE)."""
    if name not in CHART_NAMES:
        raise InsightsError(f"no chart {name}", f"Charts: {', '.join(CHART_NAMES)}.", exit_code=2)
    refuse(options, "a chart")
    output = options.output
    if output is None or output.suffix.lower() not in KINDS:
        raise InsightsError(
            f"a chart goes into a file, {', '.join(KINDS)}", "Use -o FILE.", exit_code=2
        )
    tables, _, tz = load_chosen(replace(options, output=None))
    some_event(tables, options)
    not_empty(tables)
    from copilot_insights.charts import chart  # noqa: PLC0415

    figure = chart(name, tables, tz)
    if height:
        figure.update_layout(height=height)
    write_figure(figure, output, width, force=options.force)


def write_figure(figure: "Figure", path: Path, width: int = 1000, *, force: bool) -> None:
    """A figure as a file of the kind that its suffix names, one of KINDS."""
    write_file(path, _drawn(figure, KINDS[path.suffix.lower()], width), force=force)


def _drawn(figure: "Figure", kind: str, width: int) -> bytes:
    if kind == "html":
        from copilot_insights.report_page import figure_page  # noqa: PLC0415

        return figure_page(figure).encode(errors="backslashreplace")
    # a message of the browser that it can't read is none of ours
    for library in ("choreographer", "kaleido"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        return bytes(figure.to_image(format=kind, width=width, scale=2 if kind == "png" else 1))
    except Exception as error:  # noqa: BLE001 (kaleido's and the browser's have no common type)
        raise InsightsError(
            f"cannot draw a .{kind}: it takes kaleido and Chrome or Chromium",
            f"pip install 'copilot-insights[pictures]', or -o FILE.html. ({_first(error)})",
        ) from None


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
