"""The command line: options to filters, reports to text. The only place that prints and
exits; everything else is imported late, so that --help is instant.
"""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from copilot_insights import __version__
from copilot_insights.errors import InsightsError
from copilot_insights.runner.commands import register

if TYPE_CHECKING:
    from copilot_insights.metrics import Filter
    from copilot_insights.reports import Section
    from copilot_insights.tables import Tables

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
_FORMATS: Final = {".json": "json", ".csv": "csv", ".md": "markdown", ".txt": "table"}
_Option = typer.Option
STDIN: Final = "-"


@dataclass(frozen=True)
class Options:
    """What every reading command can be asked."""

    paths: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", show_default=False)] = (
        None
    )
    format: Annotated[
        str | None,
        _Option("--format", "-f", metavar="NAME", help="table, json, csv or markdown."),
    ] = None
    json: Annotated[bool, _Option("--json", help="Short for --format json.")] = False
    output: Annotated[
        Path | None,
        _Option("--output", "-o", metavar="FILE", help="Write to FILE (.json, .csv, .md, .txt)."),
    ] = None
    force: Annotated[bool, _Option("--force", help="Overwrite that file.")] = False
    limit: Annotated[
        int | None,
        _Option(metavar="N", min=0, help="Rows shown in a table or Markdown; 0 shows all."),
    ] = None
    since: Annotated[
        str | None,
        _Option(metavar="WHEN", help="2026-11-30, 2026-11-30T12:00, today, yesterday, 12h, 7d."),
    ] = None
    until: Annotated[
        str | None, _Option(metavar="WHEN", help="The same; a day is meant to its end.")
    ] = None
    tz: Annotated[
        str | None, _Option(metavar="ZONE", help="Zone of days and times; default: here.")
    ] = None
    session: Annotated[str | None, _Option(metavar="ID", help="Sessions whose id begins so.")] = (
        None
    )
    repo: Annotated[
        str | None, _Option(metavar="TEXT", help="Part of the repository or directory.")
    ] = None
    branch: Annotated[str | None, _Option(metavar="TEXT", help="Part of the branch.")] = None
    model: Annotated[
        str | None, _Option(metavar="TEXT", help="Calls of models with this in their name.")
    ] = None
    agent: Annotated[
        str | None, _Option(metavar="NAME", help="main, or a sub-agent's name or id.")
    ] = None


def _reading(function: Callable[..., None]) -> Callable[..., None]:
    """A command of its own parameters and those of Options; called with the options first."""
    own = list(signature(function).parameters.values())[1:]
    shared = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in fields(Options)
    ]

    @wraps(function)
    def command(**values: Any) -> None:  # noqa: ANN401 (whatever the options are)
        options = Options(**{p.name: values.pop(p.name) for p in shared})
        function(options, **values)

    parameters = [*(p.replace(kind=Parameter.KEYWORD_ONLY) for p in own), *shared]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


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
        from copilot_insights.reports import NAMED  # noqa: PLC0415

        tables, chosen, tz = _load(options)
        _some_event(tables, options)
        _put(NAMED[name](tables, chosen, tz), options, tz, found=tables.sessions.height > 0)
        _not_empty(tables)

    command.__doc__ = text
    app.command(name)(_reading(command))


for _name, _text in _REPORTS.items():
    _report_command(_name, _text)


@app.command()
@_reading
def table(
    options: Options,
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(TABLE_NAMES)}.")],
) -> None:
    """A table, whole, for other programs."""
    from copilot_insights import reports  # noqa: PLC0415

    if name not in TABLE_NAMES:
        raise InsightsError(f"no table {name}", f"Tables: {', '.join(TABLE_NAMES)}.", exit_code=2)
    tables, _, tz = _load(options, only=(*reports.USED, name))
    _put([reports.table(tables, name)], options, tz, found=tables.sessions.height > 0)
    _not_empty(tables)


@app.command()
@_reading
def show(
    options: Options,
    which: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", help="Its id's beginning, or its log; default: newest."),
    ] = None,
    *,
    content: Annotated[bool, _Option("--content", help="Print what was said, too.")] = False,
) -> None:
    """One session as a tree, with times."""
    from copilot_insights.tree import show as tree  # noqa: PLC0415

    if which and (which == STDIN or "/" in which or Path(which).exists()):
        options = replace(options, paths=[which, *(options.paths or [])])
        which = None
    tables, _, tz = _load(options)
    _some_event(tables, options)
    if not tables.sessions.height:
        raise typer.Exit(1)
    session_id = _session(tables, which) if which else _newest(tables)
    _put([tree(tables, session_id, tz, content=content)], options, tz)


def _newest(tables: "Tables") -> str:
    return str(tables.sessions.sort("started_at", nulls_last=False)["session_id"][-1])


@app.command()
@_reading
def check(options: Options) -> None:
    """Damage and doubts; exits 3 if there are any."""
    from copilot_insights.reports import NAMED, PROBLEMS  # noqa: PLC0415

    tables, chosen, tz = _load(options)
    _put(NAMED["check"](tables, chosen, tz), options, tz, found=tables.sessions.height > 0)
    _not_empty(tables)
    if tables.problems or tables.incidents["kind"].is_in(PROBLEMS).any():
        raise typer.Exit(3)


register(app)


def _session(tables: "Tables", text: str) -> str:
    """The id that begins so. Raises InsightsError with the nearest ones."""
    from difflib import get_close_matches  # noqa: PLC0415

    ids = tables.sessions["session_id"].to_list()
    found = [i for i in ids if i == text] or [i for i in ids if i.startswith(text)]
    if len(found) == 1:
        return str(found[0])
    if found:
        raise InsightsError(f"{len(found)} sessions begin with {text}", f"Which: {_some(found)}?")
    heads = {i[: len(text)]: i for i in reversed(ids)}
    near = [heads[head] for head in get_close_matches(text, heads, n=3, cutoff=0.5)]
    hint = f"Nearest: {_some(near)}." if near else f"There are: {_some(ids[-3:])}."
    raise InsightsError(f"no session begins with {text}", hint)


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")


# --- in and out ---------------------------------------------------------------------------


def _load(options: Options, *, only: tuple[str, ...] = ()) -> "tuple[Tables, Filter, str]":
    """The chosen part of the logs, the choice, and the time zone."""
    from copilot_insights import when  # noqa: PLC0415
    from copilot_insights.loading import load  # noqa: PLC0415
    from copilot_insights.metrics import Filter, select  # noqa: PLC0415
    from copilot_insights.reports import USED  # noqa: PLC0415

    _form(options)  # a wrong format is said before the work, not after it
    tz = when.zone(options.tz)
    chosen = Filter(
        since=when.parse(options.since, tz),
        until=when.parse(options.until, tz, end=True),
        session=options.session or None,
        repo=options.repo or None,
        branch=options.branch or None,
        model=options.model or None,
        agent=options.agent or None,
    )
    with _Progress() as progress:
        tables = load(
            options.paths or (), events="events" in only, only=only or USED, progress=progress
        )
    for problem in tables.problems:
        _note(problem)
    picked = select(tables, chosen)
    if not tables.sessions.height:
        _note(f"no event in {', '.join(options.paths or ['any log'])}")
    elif not picked.sessions.height and chosen != Filter():
        _note(f"nothing of {tables.sessions.height} sessions matches {_told(options)}")
    return picked, chosen, tz


def _some_event(tables: "Tables", options: Options) -> None:
    """Raises InsightsError where what was read is no session log at all."""
    if tables.sessions.height and not tables.sessions["events"].sum():
        where = ", ".join(options.paths or ["any log"])
        lines = int(tables.sessions["rejected_lines"].sum())
        raise InsightsError(
            f"no event in {where}: none of {lines} lines is one", "Is that a session log?"
        )


def _told(options: Options) -> str:
    names = ("since", "until", "session", "repo", "branch", "model", "agent")
    return " ".join(f"--{n} {getattr(options, n)}" for n in names if getattr(options, n))


def _not_empty(tables: "Tables") -> None:
    if not tables.sessions.height:
        raise typer.Exit(1)


def _form(options: Options) -> str:
    if options.json:
        return "json"
    if options.format:
        if options.format not in _FORMATS.values():
            known = ", ".join(_FORMATS.values())
            raise InsightsError(f"no format {options.format}", f"Formats: {known}.", exit_code=2)
        return options.format
    if options.output:
        suffix = options.output.suffix.lower()
        if suffix not in _FORMATS:
            raise InsightsError(
                f"no format for the suffix of {options.output}",
                f"Use {', '.join(_FORMATS)}, or --format.",
                exit_code=2,
            )
        return _FORMATS[suffix]
    return "table"


def _put(sections: "list[Section]", options: Options, tz: str, *, found: bool = True) -> None:
    """Prints the sections, or writes them where --output says. Where nothing was found,
    programs get their empty answer and people only the note.
    """
    from copilot_insights.render import render  # noqa: PLC0415

    if options.limit is not None:
        sections = [replace(s, limit=options.limit or None) for s in sections]
    form = _form(options)
    if not found and form in {"table", "markdown"}:
        return
    if options.output is None:
        width, color = _terminal()
        _write(sys.stdout, render(sections, form, tz=tz, width=width, color=color))
        return
    text = "".join(render(sections, form, tz=tz, width=120))  # before the file is touched
    try:
        mode = "w" if options.force else "x"
        with options.output.open(mode, encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise InsightsError(f"{options.output} exists", "Use --force to overwrite it.") from None
    except OSError as error:
        raise InsightsError(f"cannot write {options.output}: {error.strerror}") from None


def _write(file: Any, pieces: Iterable[str]) -> None:  # noqa: ANN401
    try:
        for piece in pieces:
            file.write(piece)
        file.flush()
    except BrokenPipeError:  # `| head` has seen enough; what is buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def _terminal() -> tuple[int, bool]:
    """Width, and whether to use colour (never with NO_COLOR, or into a pipe)."""
    from shutil import get_terminal_size  # noqa: PLC0415

    color = (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
    return max(40, get_terminal_size((80, 24)).columns), color


def _note(text: str) -> None:
    from copilot_insights.render import clean  # noqa: PLC0415

    print(f"copilot-insights: {clean(text)}", file=sys.stderr)  # noqa: T201


class _Progress:
    """A line on a terminal, past the first second; nothing anywhere else."""

    def __enter__(self) -> "Callable[[float], None]":
        from time import monotonic  # noqa: PLC0415

        start = monotonic()
        self._shown = False

        def progress(done: float) -> None:
            if sys.stderr.isatty() and monotonic() - start > 1:
                self._shown = True
                sys.stderr.write(f"\rreading logs: {done:4.0%}")
                sys.stderr.flush()

        return progress

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")


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
        _note(f"{error.format_message().rstrip('.')}. Try --help.")
        return 2
    _note(
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
    words = sys.argv[1:]
    if not words or (words[0] not in names and words[0] not in {"--help", "-h", "--version"}):
        words = ["report", *words]
    for stream in (sys.stdout, sys.stderr):
        # a terminal of another encoding, or a lone surrogate in a path, is no reason to fail
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = app(words, standalone_mode=False, prog_name="copilot-insights")
    except InsightsError as error:
        _note(str(error) + _meant(words, names))
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
