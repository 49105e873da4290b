"""`export`: telemetry to OpenTelemetry receivers, and whole tables to files."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from copilot_insights import units
from copilot_insights.errors import InsightsError
from copilot_insights.options import (
    Options,
    Progress,
    load_chosen,
    make_directory,
    not_empty,
    note,
    reading,
    refuse,
    vacant,
    write_file,
)

if TYPE_CHECKING:
    from copilot_insights.otel.delivery import Sent
    from copilot_insights.otel.exporters import Target

_Option = typer.Option
_DIRECTORY = "A directory for the files."
_app = typer.Typer(
    help="Send sessions to OpenTelemetry, or write the tables to files.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    _app.command("otel", short_help="Send traces and metrics over OTLP.")(
        reading(_otel, output=None)
    )
    _app.command("openmetrics", short_help="Write metrics as OpenMetrics text.")(
        reading(_openmetrics, output="Write to FILE.")
    )
    _app.command("parquet", short_help="Write every table as a Parquet file.")(
        reading(_parquet, output=_DIRECTORY)
    )
    _app.command("csv", short_help="Write every table as a CSV file.")(
        reading(_csv, output=_DIRECTORY)
    )
    app.add_typer(_app, name="export")


def _otel(  # noqa: PLR0913
    options: Options,
    *,
    endpoint: Annotated[
        str | None,
        _Option(metavar="URL", help="Of the receiver; default: OTEL_EXPORTER_OTLP_ENDPOINT."),
    ] = None,
    protocol: Annotated[
        str | None, _Option(metavar="NAME", help="http/protobuf (the default) or grpc.")
    ] = None,
    file: Annotated[
        Path | None, _Option(metavar="FILE", help="Write OTLP/JSON, a request a line, instead.")
    ] = None,
    console: Annotated[bool, _Option("--console", help="Print it instead.")] = False,
    profile: Annotated[
        str, _Option(metavar="NAME", help="Metric names: latest (CLI 1.0.102) or v1.41.")
    ] = "latest",
    traces: Annotated[bool, _Option("--traces/--no-traces", help="Spans.")] = True,
    metrics: Annotated[bool, _Option("--metrics/--no-metrics", help="Metrics.")] = True,
    content: Annotated[
        bool, _Option("--content", help="With prompts, replies, arguments and results.")
    ] = False,
    since_last: Annotated[
        bool, _Option("--since-last", help="Only what the receiver has not got (the default).")
    ] = False,
    again: Annotated[
        bool, _Option("--again", help="Everything, though the receiver has got it.")
    ] = False,
    state: Annotated[
        Path | None, _Option(metavar="FILE", help="Where to keep what was sent.")
    ] = None,
    dry_run: Annotated[bool, _Option("--dry-run", help="Say what would go; send nothing.")] = False,
) -> None:
    """Send traces and metrics, as the CLI itself would have, to an OpenTelemetry receiver."""
    if not (traces or metrics):
        raise InsightsError("neither traces nor metrics", "Send one of them.", exit_code=2)
    from copilot_insights.otel import delivery  # noqa: PLC0415
    from copilot_insights.otel import state as states  # noqa: PLC0415
    from copilot_insights.otel.content import asked  # noqa: PLC0415
    from copilot_insights.otel.exporters import nowhere  # noqa: PLC0415

    refuse(options, "telemetry", "Use --file FILE or --console.", also=["output"])
    if again and since_last:
        message = "--again and --since-last are opposites"
        raise InsightsError(message, "Use one.", exit_code=2)
    tables, _, _ = load_chosen(options, only=delivery.USED, whole=True)
    not_empty(tables)
    what = delivery.What(
        traces=traces,
        metrics=metrics,
        profile=delivery.profile(profile),
        content=content or asked(),
    )
    with ExitStack() as stack:
        target = _target(stack, file, endpoint, protocol, console=console, force=options.force)
        keeps = not (file or console) or since_last or state is not None
        path = (state or states.default_path()) if keeps else None
        memory = stack.enter_context(states.State(path, target.name, keep=not dry_run))
        if again:
            memory.forget()
        sending = delivery.Delivery(nowhere(target.name) if dry_run else target, memory, what)
        with Progress("sending") as progress:
            sending.send(tables, progress=progress)
    _tell(sending.sent, target.name, dry_run=dry_run)


def _target(
    stack: ExitStack,
    file: Path | None,
    endpoint: str | None,
    protocol: str | None,
    *,
    console: bool,
    force: bool,
) -> "Target":
    from copilot_insights.otel import exporters  # noqa: PLC0415

    if sum((bool(file), console, bool(endpoint))) > 1:
        message = "--file, --console and --endpoint are three places"
        raise InsightsError(message, "Use one.", exit_code=2)
    if console:
        return exporters.console(sys.stdout)
    if file is None:
        target = exporters.otlp(endpoint, exporters.protocol(protocol))
        stack.callback(target.close)
        return target
    try:
        stream = stack.enter_context(file.open("w" if force else "x", encoding="utf-8"))
    except FileExistsError:
        raise InsightsError(f"{file} exists", "Use --force to overwrite it.") from None
    except OSError as error:
        raise InsightsError(f"cannot write {file}: {error.strerror}") from None
    return exporters.file(file, stream)


def _tell(sent: "Sent", name: str, *, dry_run: bool) -> None:
    of = units.plural(sent.sessions, "session")
    said = [f"{name} {'would get' if dry_run else 'got'} {sent} of {of}"]
    if sent.earlier:
        before = units.plural(sent.earlier, "session")
        said.append(f"it has {before} from before (--again sends all once more)")
    if sent.waiting:
        said.append(f"{sent.waiting:,} spans wait for their ends")
    note("; ".join(said))


def _openmetrics(
    options: Options,
    *,
    profile: Annotated[
        str, _Option(metavar="NAME", help="Metric names: latest (CLI 1.0.102) or v1.41.")
    ] = "latest",
) -> None:
    """Write metrics with their own times as OpenMetrics text (-o FILE), for promtool."""
    from dataclasses import replace  # noqa: PLC0415

    from copilot_insights.otel import delivery, metrics  # noqa: PLC0415
    from copilot_insights.otel.prometheus import openmetrics  # noqa: PLC0415
    from copilot_insights.otel.temporality import Totals, added  # noqa: PLC0415

    refuse(options, "openmetrics")
    chosen = delivery.profile(profile)
    tables, _, _ = load_chosen(replace(options, output=None), only=metrics.USED, whole=True)
    not_empty(tables)
    data = openmetrics(Totals(delta=False).metrics(added(metrics.points(tables, chosen), {})))
    if options.output:
        write_file(options.output, data, force=options.force)
    else:
        sys.stdout.write(data.decode())


# --- tables -------------------------------------------------------------------------------


def _parquet(options: Options) -> None:
    """Write every table, whole, as Parquet files into a directory (-o DIR)."""
    _tables(options, "parquet")


def _csv(options: Options) -> None:
    """Write every table, whole, as CSV files into a directory (-o DIR)."""
    _tables(options, "csv")


def _tables(options: Options, form: Literal["parquet", "csv"]) -> None:
    from dataclasses import replace  # noqa: PLC0415
    from io import BytesIO  # noqa: PLC0415

    from copilot_insights import reports  # noqa: PLC0415
    from copilot_insights.render import render  # noqa: PLC0415
    from copilot_insights.schema import TABLES  # noqa: PLC0415

    refuse(options, f"export {form}")
    if options.output is None:
        raise InsightsError(
            "export needs a directory", f"Use -o DIR for its {form} files.", exit_code=2
        )
    files = {name: options.output / f"{name}.{form}" for name in TABLES}
    vacant(files.values(), force=options.force)
    # a directory has no suffix that names a format
    tables, _, tz = load_chosen(replace(options, output=None), only=tuple(TABLES))
    not_empty(tables)
    make_directory(options.output)
    for name, path in files.items():
        if form == "parquet":
            buffer = BytesIO()
            tables.table(name).write_parquet(buffer)
            data = buffer.getvalue()
        else:
            data = "".join(render([reports.table(tables, name)], "csv", tz=tz)).encode()
        write_file(path, data, force=options.force)
    note(f"{options.output}: {len(TABLES)} tables of {tables.sessions.height:,} sessions")
