"""What every reading command shares: its options, the logs that they choose, and where the
answer goes. A command is `@reading def name(options, …)`: it loads with `load_chosen`, and puts
sections with `put` (or a page or picture with `write_file`).
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from copilot_insights.errors import InsightsError
from copilot_insights.places import exists

if TYPE_CHECKING:
    from copilot_insights.filters import Filter
    from copilot_insights.reports import Section
    from copilot_insights.tables import Tables, Wanted

_FORMATS: Final = {".json": "json", ".csv": "csv", ".md": "markdown", ".txt": "table"}
_Option = typer.Option

PATHS: Final = typer.Argument(
    metavar="PATH", show_default=False, help="Logs, sessions, roots, globs or -; default: your own."
)
"""Which logs."""


@dataclass(frozen=True)
class Options:
    """What every reading command can be asked."""

    paths: Annotated[list[str] | None, PATHS] = None
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
        str | None, _Option(metavar="NAME", help="main, or of a sub-agent's name or id.")
    ] = None
    no_cache: Annotated[
        bool, _Option("--no-cache", help="Read every log anew, and keep nothing of it.")
    ] = False


_OF_TABLES: Final = ("format", "json", "limit")


def reading(function: Callable[..., None], *, output: str | None = "") -> Callable[..., None]:
    """A command of its own parameters and those of Options; called with the options first.
    Of a command that writes no tables `output` says what --output is (None for nothing); its
    help leaves out what only tables have.
    """
    own = list(signature(function).parameters.values())[1:]
    told = {} if output == "" else {"output": output} | dict.fromkeys(_OF_TABLES)
    shared = [
        Parameter(
            f.name,
            Parameter.KEYWORD_ONLY,
            default=f.default,
            annotation=_told_so(f.type, told[f.name]) if f.name in told else f.type,
        )
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


def _told_so(annotation: Any, text: str | None) -> Any:  # noqa: ANN401 (a type form)
    """The option's annotation with another help, or with none: then it is hidden."""
    option = copy(annotation.__metadata__[0])
    option.help, option.hidden = text, text is None
    return Annotated[annotation.__origin__, option]


def load_chosen(
    options: Options, *, only: "Collection[str] | Wanted" = (), whole: bool = False
) -> "tuple[Tables, Filter, str]":
    """The chosen part of the logs, the choice, and the time zone. `only` is as in `load`;
    by default the tables that reports are made of. `whole` gives all of each session of
    which any part is chosen.
    """
    chosen, tz = choice(options)
    tables = load_all(options, only)
    picked = choose(tables, chosen, options)
    return (tables.of(picked.sessions["session_id"]) if whole else picked), chosen, tz


def choice(options: Options) -> "tuple[Filter, str]":
    """What the options choose, and the time zone. What is wrong with them is raised here, before
    the work and not after it.

    Raises:
        InsightsError: a time, a zone or a format is none.
    """
    from copilot_insights import when  # noqa: PLC0415
    from copilot_insights.filters import Filter  # noqa: PLC0415

    _form(options)
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
    return chosen, tz


def load_all(options: Options, only: "Collection[str] | Wanted" = ()) -> "Tables":
    """All of the logs, whatever is chosen; `only` as in `load_chosen`."""
    from copilot_insights.cache import default_directory  # noqa: PLC0415
    from copilot_insights.loading import load  # noqa: PLC0415
    from copilot_insights.reports import USED  # noqa: PLC0415

    with Progress("reading logs") as progress:
        tables = load(
            options.paths or (),
            events="events" in only,
            only=only or USED,
            progress=progress,
            cache=None if options.no_cache else default_directory(),
        )
    for problem in tables.problems:
        note(problem)
    return tables


def choose(tables: "Tables", chosen: "Filter", options: Options) -> "Tables":
    """The chosen part; that there is none is noted."""
    from copilot_insights.filters import Filter, select  # noqa: PLC0415

    picked = select(tables, chosen)
    if not tables.sessions.height:
        note(f"no event in {', '.join(options.paths or ['any log'])}")
    elif not picked.sessions.height and chosen != Filter():
        note(f"nothing of {tables.sessions.height} sessions matches {_told(options)}")
    return picked


def some_event(tables: "Tables", options: Options) -> None:
    """Raises InsightsError where what was read is no session log at all: no line is an event,
    or all are of types that nobody knows and at no time (telemetry of the CLI).
    """
    known = tables.sessions.select("started_at", "interactions", "llm_calls", "tool_calls")
    counts = tables.sessions.select("events", "rejected_lines").sum().row(0)
    some = known["started_at"].count() or known.drop("started_at").sum().row(0) != (0, 0, 0)
    typed = counts[0] and not (tables.incidents["kind"] == "unknown_type").any()
    if sum(counts) and not some and not typed:
        where = ", ".join(options.paths or ["any log"])
        raise InsightsError(
            f"no event in {where}: none of {sum(counts)} lines is one", "Is that a session log?"
        )


def _told(options: Options) -> str:
    names = ("since", "until", "session", "repo", "branch", "model", "agent")
    return " ".join(f"--{n} {getattr(options, n)}" for n in names if getattr(options, n))


def not_empty(tables: "Tables") -> None:
    """Exit code 1 where nothing matched; a note has said so."""
    if not tables.sessions.height:
        raise typer.Exit(1)


def refuse(options: Options, what: str, hint: str = "", also: Collection[str] = ()) -> None:
    """Raises InsightsError where an option is given that only tables have, or one of `also`."""
    for name in ("json", "format", "limit", *also):
        if getattr(options, name) is not getattr(Options, name):  # its default
            raise InsightsError(f"{what} has no --{name}", hint or "Leave it out.", exit_code=2)


def _form(options: Options) -> str:
    if options.json:
        if options.format not in {None, "json"}:
            raise InsightsError("--json and --format contradict", "Use one.", exit_code=2)
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


def put(sections: "list[Section]", options: Options, tz: str, *, found: bool = True) -> None:
    """Prints the sections, or writes them where --output says. Where nothing was found,
    programs get their empty answer and people only the note.
    """
    from copilot_insights.render import render  # noqa: PLC0415

    if options.limit is not None:
        sections = [s if s.picture else replace(s, limit=options.limit or None) for s in sections]
    form = _form(options)
    if not found and form in {"table", "markdown"}:
        return
    if options.output is None:
        width, color = terminal()
        _write(sys.stdout, render(sections, form, tz=tz, width=width, color=color))
        return
    text = "".join(render(sections, form, tz=tz, width=120))  # before the file is touched
    write_file(options.output, text.encode(errors="backslashreplace"), force=options.force)


def vacant(paths: Iterable[Path], *, force: bool) -> None:
    """Asked before the first is written, so that it is all or nothing. Raises InsightsError
    where one exists, unless forced, or that can't be told.
    """
    taken = [str(path) for path in paths if exists(path)]
    if taken and not force:
        exist = "exist" if len(taken) > 1 else "exists"
        raise InsightsError(f"{_some(taken)} {exist}", "Use --force to overwrite.")


def write_file(path: Path, data: bytes, *, force: bool) -> None:
    """Raises InsightsError where the file exists, unless forced, or cannot be written."""
    try:
        with path.open("wb" if force else "xb") as file:
            file.write(data)
    except FileExistsError:
        raise InsightsError(f"{path} exists", "Use --force to overwrite it.") from None
    except OSError as error:
        raise InsightsError(f"cannot write {path}: {error.strerror}") from None


def make_directory(path: Path) -> None:
    """Raises InsightsError where it can't be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InsightsError(f"cannot make {path}: {error.strerror}") from None


def _write(file: Any, pieces: Iterable[str]) -> None:  # noqa: ANN401
    try:
        for piece in pieces:
            file.write(piece)
        file.flush()
    except BrokenPipeError:  # `| head` has seen enough; what is buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
        raise InsightsError(f"cannot write the answer: {error.strerror}") from None


def terminal() -> tuple[int, bool]:
    """Width, and whether to use colour (never with NO_COLOR, or into a pipe)."""
    from shutil import get_terminal_size  # noqa: PLC0415

    color = (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
    return max(40, get_terminal_size((80, 24)).columns), color


def note(text: str) -> None:
    """A line on standard error; what is from a log in it does no harm."""
    from copilot_insights.render import clean  # noqa: PLC0415

    print(f"copilot-insights: {clean(text)}", file=sys.stderr)  # noqa: T201


class Progress:
    """A line on a terminal, past the first second; nothing anywhere else. Entered, it gives
    a function to call with the part that is done.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> "Callable[[float], None]":
        from time import monotonic  # noqa: PLC0415

        start = monotonic()
        self._shown = False

        def progress(done: float) -> None:
            if sys.stderr.isatty() and monotonic() - start > 1:
                self._shown = True
                sys.stderr.write(f"\r{self._doing}: {done:4.0%}")
                sys.stderr.flush()

        return progress

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def one_session(tables: "Tables", text: str | None = None) -> str:
    """The id that begins so, or of the newest session. Raises InsightsError with the
    nearest ones.
    """
    if not text:
        return str(tables.sessions.sort("started_at", nulls_last=False)["session_id"][-1])
    from difflib import get_close_matches  # noqa: PLC0415

    ids = tables.sessions["session_id"].to_list()
    found = [i for i in ids if i == text] or [i for i in ids if i.startswith(text)]
    if len(found) == 1:
        return str(found[0])
    if found:
        raise InsightsError(f"{len(found)} sessions begin with {text}", f"Which: {_some(found)}?")
    heads = {i[: len(text)]: i for i in reversed(ids)}
    near = [heads[head] for head in get_close_matches(text, heads, n=3, cutoff=0.5)]
    hint = f"Nearest: {_some(near)}." if near else f"The newest: {_some(ids[-3:])}."
    raise InsightsError(f"no session begins with {text}", hint)


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
