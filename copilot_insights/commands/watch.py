"""`watch`: what all sessions do now, on a terminal; and their telemetry as it happens."""

import sys
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from copilot_insights.errors import InsightsError
from copilot_insights.options import PATHS, note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl

    from copilot_insights.follow import Change, Follower
    from copilot_insights.otel.live import LiveExport
    from copilot_insights.otel.metrics import Point
    from copilot_insights.tables import Tables

_Option = typer.Option


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("watch", short_help="Sessions as they run: who waits, what is stuck.")(_watch)


def _watch(  # noqa: PLR0913
    paths: Annotated[list[str] | None, PATHS] = None,
    *,
    once: Annotated[bool, _Option("--once", help="Print one frame and end.")] = False,
    json: Annotated[bool, _Option("--json", help="One frame as JSON rows.")] = False,
    every: Annotated[
        float, _Option(metavar="SECONDS", min=0.1, help="Look at the logs this often.")
    ] = 1.0,
    recent: Annotated[
        float, _Option(metavar="DAYS", min=0, help="Sessions without news for longer stay out.")
    ] = 1.0,
    otel: Annotated[
        bool, _Option("--otel", help="Send each span as it closes (export otel's variables).")
    ] = False,
    endpoint: Annotated[
        str | None, _Option(metavar="URL", help="Of the OpenTelemetry receiver, with --otel.")
    ] = None,
    protocol: Annotated[
        str | None, _Option(metavar="NAME", help="http/protobuf (the default) or grpc.")
    ] = None,
    profile: Annotated[
        str, _Option(metavar="NAME", help="Metric names: latest (CLI 1.0.102) or v1.41.")
    ] = "latest",
    state: Annotated[
        Path | None, _Option(metavar="FILE", help="Where to keep what was sent.")
    ] = None,
    prometheus: Annotated[
        str | None, _Option(metavar="[HOST]:PORT", help="Serve metrics to be scraped: :9464.")
    ] = None,
    content: Annotated[
        bool, _Option("--content", help="With --otel: prompts, replies, arguments, results too.")
    ] = False,
    no_cache: Annotated[
        bool, _Option("--no-cache", help="Read every log anew, and take nothing kept of it.")
    ] = False,
) -> None:
    """Sessions as they run: who waits for you, which tools run, what is stuck."""
    if otel and (once or json):
        raise InsightsError("--otel goes on and on", "Use export otel.", exit_code=2)
    if not (once or json or otel or prometheus or sys.stdout.isatty()):
        raise InsightsError("watch needs a terminal", "Use --once, --json or --otel.", exit_code=2)
    if (endpoint or protocol or state or content) and not otel:
        message = "--endpoint, --protocol, --state and --content are of --otel"
        raise InsightsError(message, "Add --otel.", exit_code=2)
    with ExitStack() as stack:
        export = (
            _live_export(stack, (endpoint, protocol), state, profile, content=content)
            if otel
            else None
        )
        sums = _endpoint(stack, prometheus) if prometheus else None
        view = _View(timedelta(days=recent), profile, export, sums)
        follower = view.follower(paths or [], cached=not no_cache)
        if once or json:
            from copilot_insights.discover import find  # noqa: PLC0415

            find(paths or [])  # says where there is nothing, for which a watcher would wait
            view.update(follower.poll())
            if trouble := view.trouble():
                note(trouble)
            sys.stdout.write(view.text("json" if json else "table"))
            return
        _loop(view, follower, every)


def _live_export(
    stack: ExitStack,
    receiver: tuple[str | None, str | None],
    state: Path | None,
    profile: str,
    *,
    content: bool,
) -> "LiveExport":
    from copilot_insights.otel import delivery, exporters  # noqa: PLC0415
    from copilot_insights.otel import state as states  # noqa: PLC0415
    from copilot_insights.otel.content import asked  # noqa: PLC0415
    from copilot_insights.otel.live import LiveExport  # noqa: PLC0415

    endpoint, protocol = receiver
    target = exporters.otlp(endpoint, exporters.protocol(protocol))
    stack.callback(target.close)
    memory = stack.enter_context(states.State(state or states.default_path(), target.name))
    what = delivery.What(profile=delivery.profile(profile), content=content or asked())
    return LiveExport(delivery.Delivery(target, memory, what))


def _endpoint(stack: ExitStack, address: str) -> "dict[str, list[Point]]":
    """Points by session, which are served as they are when somebody asks."""
    from copilot_insights.otel.prometheus import serve  # noqa: PLC0415
    from copilot_insights.otel.temporality import summed  # noqa: PLC0415

    points: dict[str, list[Point]] = {}
    # a copy, as they change while they are served
    url = stack.enter_context(
        serve(address, lambda: summed(p for found in list(points.values()) for p in found))
    )
    note(f"metrics at {url}")
    return points


class _View:
    """What is seen, and who else wants to know."""

    def __init__(
        self,
        recent: timedelta,
        profile: str,
        export: "LiveExport | None",
        sums: "dict[str, list[Point]] | None",
    ) -> None:
        from copilot_insights.rows import COURSE  # noqa: PLC0415
        from copilot_insights.schema import TABLES  # noqa: PLC0415

        self._recent, self._profile, self._export, self._sums = recent, profile, export, sums
        names = {*COURSE, "sessions"}
        if export or sums is not None:
            names.add("bookings")
        self._wanted = {name: tuple(TABLES[name]) for name in names}
        self._tables: dict[str, Tables] = {}
        self._problems: list[str] = []

    def follower(self, paths: list[str], *, cached: bool) -> "Follower":
        """Who tells what is new in these logs."""
        from copilot_insights.cache import Cache, default_directory  # noqa: PLC0415
        from copilot_insights.follow import Follower  # noqa: PLC0415

        place = default_directory() if cached else None
        return Follower(paths, wanted=self._wanted, cache=Cache(place) if place else None)

    def update(self, change: "Change") -> None:
        """What changed in the logs."""
        tables, self._problems = change.tables, change.problems
        for name in change.gone:
            self._tables.pop(name, None)
        if tables is None:
            return
        sessions = tables.apart()
        self._tables |= sessions
        if self._export:
            self._export.changed(sessions)
        if self._sums is not None:
            self._put(tables, self._sums)

    def _put(self, tables: "Tables", sums: "dict[str, list[Point]]") -> None:
        from copilot_insights.otel import metrics  # noqa: PLC0415
        from copilot_insights.otel.delivery import profile  # noqa: PLC0415
        from copilot_insights.rows import by_session  # noqa: PLC0415

        for session, rows in by_session(tables, metrics.USED):
            found = metrics.session_points(session, rows, profile(self._profile))
            sums[session["session_id"]] = list(found)

    def tick(self, *, last: bool = False) -> None:
        """Sends what is due."""
        if self._export:
            self._export.tick(last=last)

    def frame(self) -> "pl.DataFrame":
        """A row per session with news."""
        from copilot_insights import live  # noqa: PLC0415
        from copilot_insights.tables import join  # noqa: PLC0415

        now = datetime.now(UTC)
        ends = {name: t.sessions["ended_at"][0] for name, t in self._tables.items()}
        shown = [self._tables[n] for n, at in ends.items() if at and now - at <= self._recent]
        if not shown:
            return live.nothing()
        return live.status(join(shown), now)

    def text(self, form: str = "table", height: int | None = None) -> str:
        """The frame as it is printed, no higher than the terminal."""
        from copilot_insights import live, when  # noqa: PLC0415
        from copilot_insights.options import terminal  # noqa: PLC0415
        from copilot_insights.render import render  # noqa: PLC0415

        width, color = terminal()
        limit = max(1, height - 4) if height else None
        frame = self.frame()
        if form == "table" and not frame.height:
            days = self._recent / timedelta(days=1)
            last = f"{days:g} day{'s' if days != 1 else ''}"
            return f"no session with news in the last {last} ({len(self._tables)} in all)\n"
        section = live.section(frame, len(self._tables), limit)
        pieces = render([section], form, tz=when.zone(None), width=width, color=color)
        return "".join(pieces)

    def trouble(self) -> str | None:
        """What the receiver last said, should it not take telemetry; or what can't be read."""
        said = self._export.trouble if self._export else None
        return said or next(iter(self._problems), None)


def _loop(view: _View, follower: "Follower", every: float) -> None:
    from signal import SIGTERM, signal  # noqa: PLC0415

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal(SIGTERM, stop)  # what is due is sent first
    try:
        with _drawing(view) as draw:
            while True:
                view.update(follower.poll())
                view.tick()
                draw()
                time.sleep(every)
    except KeyboardInterrupt:
        return  # that is how it ends
    finally:
        view.tick(last=True)
        if trouble := view.trouble():
            note(trouble)


@contextmanager
def _drawing(view: _View) -> "Iterator[Callable[[], None]]":
    """A function that draws the view, on a terminal; elsewhere it only says new troubles."""
    if not sys.stdout.isatty():
        said: list[str | None] = [None]

        def tell() -> None:
            trouble = view.trouble()
            if trouble and trouble != said[-1]:
                note(trouble)
            said[-1] = trouble

        yield tell
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from copilot_insights.render import clean  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show() -> None:
            trouble = view.trouble()
            text = view.text(height=console.height) + (f"! {clean(trouble)}\n" if trouble else "")
            live.update(Text.from_ansi(text), refresh=True)

        yield show
