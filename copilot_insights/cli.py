"""The command line: options to filters, reports to text. The only place that prints and
exits; everything else is imported late, so that --help is instant.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from copilot_insights import __version__
from copilot_insights.commands import chart, compare, dashboards, export, html, redact, show, watch
from copilot_insights.errors import InsightsError
from copilot_insights.options import (
    Options,
    load_chosen,
    not_empty,
    note,
    put,
    reading,
    some_event,
)
from copilot_insights.runner.commands import register

app = typer.Typer(
    name="copilot-insights",
    help="Numbers you can trust from the session logs of the GitHub Copilot CLI.\n\n"
    "PATH is a log, a session directory, a root with sessions, a glob, or - for standard "
    "input. Without one, the Copilot CLI's own logs are read; without a command, report.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="For example:\n\ncopilot-insights --since 7d\n\ncopilot-insights tools --json\n\n"
    "copilot-insights show",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

# kept here, where nothing heavy is imported; a test holds it equal to schema.TABLES
TABLE_NAMES: Final = (
    "sessions", "interactions", "llm_calls", "tool_calls", "usage", "bookings", "subagents",
    "permissions", "hooks", "incidents", "events",
)  # fmt: skip
_Option = typer.Option


# --- commands -----------------------------------------------------------------------------

_REPORTS: Final = {
    "report": "The overview; what you get without a command.",
    "sessions": "Sessions: calls, tools, tokens, active time.",
    "turns": "Model calls: latency, tokens, tools asked for.",
    "tools": "Tools: calls, failures, latency, total time.",
    "models": "Models: calls, latency, tokens, credits.",
    "agents": "Sub-agents: runs, calls, tokens, time.",
    "daily": "Days: calls, tools, tokens, credits.",
}


def _report_command(name: str, text: str) -> None:
    def command(options: Options) -> None:
        from copilot_insights.reports import NAMED, OVERVIEW  # noqa: PLC0415

        tables, chosen, tz = load_chosen(options, only=OVERVIEW if name == "report" else ())
        some_event(tables, options)
        put(NAMED[name](tables, chosen, tz), options, tz, found=tables.sessions.height > 0)
        not_empty(tables)

    command.__doc__ = text
    app.command(name)(reading(command))


for _name, _text in _REPORTS.items():
    _report_command(_name, _text)


@app.command()
@reading
def table(
    options: Options,
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(TABLE_NAMES)}.")],
) -> None:
    """A table, whole, for other programs."""
    from copilot_insights import reports  # noqa: PLC0415

    if name not in TABLE_NAMES:
        raise InsightsError(f"no table {name}", f"Tables: {', '.join(TABLE_NAMES)}.", exit_code=2)
    tables, _, tz = load_chosen(options, only=(*reports.USED, name))
    put([reports.table(tables, name)], options, tz, found=tables.sessions.height > 0)
    not_empty(tables)


show.register(app)
html.register(app)
chart.register(app)


@app.command()
@reading
def check(options: Options) -> None:
    """Damage and doubts; exits 3 if there are any."""
    from copilot_insights.reports import NAMED, PROBLEMS  # noqa: PLC0415

    tables, chosen, tz = load_chosen(options)
    put(NAMED["check"](tables, chosen, tz), options, tz, found=tables.sessions.height > 0)
    not_empty(tables)
    if tables.problems or tables.incidents["kind"].is_in(PROBLEMS).any():
        raise typer.Exit(3)


compare.register(app)
watch.register(app)
export.register(app)
redact.register(app)
register(app)
dashboards.register(app)


@app.callback(invoke_without_command=True)
def _root(
    *,
    version: Annotated[bool, _Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)  # noqa: T201
        raise typer.Exit


def _meant(words: list[str], names: set[str]) -> str:
    """For a mistyped command, which is taken for a path."""
    from difflib import get_close_matches  # noqa: PLC0415

    typed = words[1] if words[:1] == ["report"] and len(words) > 1 else ""
    near = get_close_matches(typed, names, n=1, cutoff=0.7)
    return f" Or did you mean the command {near[0]}?" if near else ""


def _unforeseen(error: Exception) -> int:
    """Wrong usage as typer words it, else a fault of ours; a line, and the exit code."""
    if hasattr(error, "format_message"):
        said = error.format_message().partition("\n")[0].rstrip(".")  # not the whole of a help
        note(f"{said}. Try --help.")
        return 2
    if isinstance(error, OSError) and error.strerror:  # a full disk, say
        note(f"cannot go on: {f'{error.filename}: ' if error.filename else ''}{error.strerror}.")
        return 1
    note(
        f"this should not happen: {type(error).__name__}: {error}. "
        "Please report it, with what COPILOT_INSIGHTS_DEBUG=1 prints."
    )
    return 1


def main() -> None:
    """The command `copilot-insights`. Exit codes: 0 ok, 1 cannot do it, 2 usage, 3 a check
    found problems.
    """
    # the work is spread over processes; threads would only be in each other's way
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    names = {
        info.name or info.callback.__name__ for info in app.registered_commands if info.callback
    }
    names |= {group.name for group in app.registered_groups if group.name}
    words = sys.argv[1:]
    if not words or (words[0] not in names and words[0] not in {"--help", "-h", "--version"}):
        words = ["report", *words]
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # a terminal of another encoding, or a lone surrogate in a path, is no reason to fail
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = app(words, standalone_mode=False, prog_name="copilot-insights")
    except InsightsError as error:
        note(str(error) + _meant(words, names))
        code = error.exit_code
    except typer.Exit as error:
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        if os.environ.get("COPILOT_INSIGHTS_DEBUG"):
            raise
        code = _unforeseen(error)
    sys.exit(code)


if __name__ == "__main__":
    main()
