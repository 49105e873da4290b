"""Sections → text: for a terminal, as Markdown, CSV or JSON. Formats, never computes.

Everything that comes from a log is hostile: control characters and direction marks are
shown as escapes, and nothing of it is markup, a formula or a link where it is printed.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

import polars as pl

from copilot_insights import units
from copilot_insights.reports import Column, Section

FORMATS: Final = ("table", "json", "csv", "markdown")

# C0, C1, line and paragraph separators, and what reorders or hides text
_HOSTILE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def clean(text: str) -> str:
    """The text with every character that could act on a terminal shown as an escape."""
    return _HOSTILE.sub(lambda m: ascii(m[0])[1:-1], text)


def cells(text: str) -> int:
    """How wide the text is on a terminal, once clean."""
    from rich.cells import cell_len  # noqa: PLC0415

    return cell_len(clean(text))


def fit(text: str, width: int) -> str:
    """The text, clean, in exactly `width` cells."""
    from rich.cells import set_cell_size  # noqa: PLC0415

    text = clean(text)
    return (
        set_cell_size(text, width) if cells(text) <= width else f"{set_cell_size(text, width - 1)}…"
    )


def render(
    sections: Sequence[Section], form: str, *, tz: str, width: int = 80, color: bool = False
) -> Iterator[str]:
    """The sections in a format of FORMATS, in pieces; the pieces hold their newlines."""
    if form == "json":
        yield from _json(sections)
    elif form == "csv":
        yield from _csv(sections)
    elif form == "markdown":
        yield from _markdown(sections, tz)
    else:
        yield from _terminal(sections, tz, width, color=color)


# --- for machines -------------------------------------------------------------------------


def _json(sections: Sequence[Section]) -> Iterator[str]:
    """One section: an array of rows. A report: an object, section name → rows."""
    if len(sections) == 1:
        yield from _rows(sections[0].frame)
        yield "\n"
        return
    for index, section in enumerate(sections):
        yield ("{" if index == 0 else ",") + f"\n{json.dumps(section.name)}: "
        yield from _rows(section.frame)
    yield "\n}\n"


def _rows(frame: pl.DataFrame) -> Iterator[str]:
    yield "["
    for index, row in enumerate(frame.iter_rows(named=True)):
        text = json.dumps(row, ensure_ascii=False, default=_plain)
        yield ("," if index else "") + "\n" + _HOSTILE.sub(_escaped, text)
    yield "\n]" if frame.height else "]"


def _escaped(found: re.Match[str]) -> str:
    code = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{code[i : i + 4]}" for i in range(0, len(code), 4))


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def _csv(sections: Sequence[Section]) -> Iterator[str]:
    """A header and rows; several sections stand apart by an empty line and a comment."""
    for index, section in enumerate(sections):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if len(sections) > 1:
            text.write(("\n" if index else "") + f"# {section.name}\n")
        writer.writerow(section.frame.columns)
        for row in section.frame.iter_rows():
            writer.writerow([_cell(value) for value in row])
        yield text.getvalue()


_FORMULA: Final = frozenset("=+-@＝＋－＠")  # also in full width  # noqa: RUF001


def _cell(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, datetime | date):
        return _plain(value)
    text = clean(value if isinstance(value, str) else json.dumps(value, default=_plain))
    # a spreadsheet runs what begins like this; the quote makes it text
    return f"'{text}" if text.lstrip()[:1] in _FORMULA else text


# --- for people ---------------------------------------------------------------------------

_READ: Final[dict[str, Callable[[Any], str]]] = {
    "count": units.count,
    "some": lambda v: "" if v is None else units.count(v),
    "amount": units.amount,
    "ms": units.duration,
    "percent": units.percent,
    "day": units.day,
    "number": lambda v: (
        units.NOTHING if v is None else f"{v:g}" if isinstance(v, float) else str(v)
    ),
}
LEFT: Final = frozenset({"text", "time", "stamp", "day", "bar"})
"""Units that are not numbers."""


def cell(value: object, unit: str, tz: str) -> str:
    """A value as people read it, by the unit of its column."""
    if unit == "time":
        return units.moment(value, tz)  # type: ignore[arg-type]
    if unit == "stamp":
        return units.NOTHING if value is None else _plain(value)
    if unit in {"text", "right"}:
        if value is None:
            return ""
        return clean(value if isinstance(value, str) else json.dumps(value, default=_plain))
    return _READ[unit](value)


def _shown(section: Section) -> tuple[pl.DataFrame, str]:
    """The rows that people see, and what to say of those that they don't."""
    frame = section.frame if section.shown is None else section.shown
    if section.limit is None or frame.height <= section.limit:
        return frame, ""
    more = f"{units.count(frame.height - section.limit)} more: {section.rest}"
    return (frame.tail if section.newest else frame.head)(section.limit), more


_MARKUP: Final = re.compile(r"([\\`*_\[\]<>|~&])")
# a word that some renderer links or draws as it stands: an address, @name, #12, GH-12, the hash
# of a commit, $formula$, :emoji:. An escape or entity does not keep GitHub from it; as code,
# nothing in it acts.
_LIVE: Final = re.compile(
    r"[@#$]|//|www\.|\.[^\W\d_]{2}|:[a-z+-]\w*:|\b(?:gh|cve)-\d|\bghsa-|[\da-f]{7}", re.IGNORECASE
)
_WORD: Final = re.compile(r"[^\s\\`|]+|[\\`|]")


def _escape(text: str) -> str:
    return _WORD.sub(_inert, text)


def _inert(word: re.Match[str]) -> str:
    return f"`{word[0]}`" if _LIVE.search(word[0]) else _MARKUP.sub(r"\\\1", word[0])


def _markdown(sections: Sequence[Section], tz: str) -> Iterator[str]:
    yield "\n".join("\n\n".join(_blocks(section, tz)) + "\n" for section in sections)


def _blocks(section: Section, tz: str) -> Iterator[str]:
    """A section's heading, list, table and notes, as Markdown."""
    frame, more = _shown(section)
    if section.title:
        yield f"## {_escape(clean(section.title))}"
    if section.lines:
        yield "\n".join(f"- {_escape(clean(f'{k}: {v}' if k else v))}" for k, v in section.lines)
    columns = [c for c in section.columns if c.unit != "bar"]
    if columns:
        rows = [
            [
                # no text, whatever its digits are
                cell(v, c.unit, tz) if c.unit == "number" else _escape(cell(v, c.unit, tz))
                for v, c in zip(row, columns, strict=True)
            ]
            for row in frame.select(c.of for c in columns).iter_rows()
        ]
        rule = "|".join(" --- " if c.unit in LEFT else " ---: " for c in columns)
        table = [_row([c.title for c in columns]), f"|{rule}|", *map(_row, rows)]
        yield "\n".join(table) if rows else "none"
    if section.picture:  # a line that begins with blanks is code: nothing in it is markup
        lines = ("".join(text for text, _ in line) for line in section.picture(_PAGE))
        yield "\n".join(f"    {clean(line).rstrip()}" for line in lines)
    if notes := " ".join(filter(None, (section.note, more))):
        yield _escape(clean(notes))


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_PAGE: Final = 100
_BAR: Final = 20
_GAP: Final = 2
_NARROW: Final = 12
_WIDE: Final = 36


def _terminal(sections: Sequence[Section], tz: str, width: int, *, color: bool) -> Iterator[str]:
    from rich.console import Console  # noqa: PLC0415 (only this format needs it)
    from rich.text import Text  # noqa: PLC0415

    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for index, section in enumerate(sections):
        if index:
            console.print()
        if section.title:
            console.print(Text(clean(section.title), style="bold"))
        frame, more = _shown(section)
        for label, text in section.lines:
            console.print(_labelled(label, clean(text), width))
        missing = ""
        for inked in section.picture(width) if section.picture else ():
            console.print(
                Text.assemble(*((clean(text), style) for text, style in inked)),
                no_wrap=True, crop=True, overflow="crop",
            )  # fmt: skip
        if section.columns and frame.height:
            grid, missing = _grid(frame, section, tz, width)
            console.print(grid)
        elif section.columns:
            console.print(Text("none", style="dim"))
        for note in filter(None, (section.note, more, missing)):
            console.print(Text(clean(note), style="dim"))
    for line in out.getvalue().splitlines(keepends=True):
        yield line.rstrip() + "\n"  # a grid pads its last column


def _labelled(label: str, text: str, width: int) -> Any:  # noqa: ANN401 (rich is imported late)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table.grid(padding=(0, _GAP))
    grid.add_column(width=_NARROW, style="dim", no_wrap=True)
    grid.add_column(width=width - _NARROW - _GAP)
    grid.add_row(Text(label), Text(text))
    return grid


def _grid(frame: pl.DataFrame, section: Section, tz: str, width: int) -> tuple[Any, str]:
    """The rows as a grid, and what to say of columns that did not fit."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cells = {
        c: [
            units.bar(v, _BAR) if c.unit == "bar" else cell(v, c.unit, tz)
            for v in frame[c.of].to_list()
        ]
        for c in section.columns
    }
    kept, sizes = _fitting(section.columns, cells, width)
    table = Table(
        box=None,
        padding=(0, _GAP, 0, 0),
        pad_edge=False,
        header_style="dim",
        show_header=any(column.title for column in kept),
    )
    for column in kept:
        left = column.unit in LEFT
        table.add_column(
            Text(column.title),
            justify="left" if left else "right",
            no_wrap=True,
            max_width=sizes[column],
            overflow="ellipsis",
        )
    for row in zip(*(cells[column] for column in kept), strict=True):
        table.add_row(*(Text(cell) for cell in row))
    whole = section.title or section.lines or len(kept) == len(section.columns)
    missing = f"{len(kept)} of {len(section.columns)} columns; --format json or csv has all."
    return table, "" if whole else missing


def _fitting(
    columns: tuple[Column, ...], cells: dict[Column, list[str]], width: int
) -> tuple[list[Column], dict[Column, int]]:
    """Columns that say something and fit, and how wide each may be: text gives way first (to
    a dozen cells, or three where it is the point), then the columns of the highest rank go.
    """
    from rich.cells import cell_len  # noqa: PLC0415

    full = {c: max(cell_len(text) for text in (c.title, *cells[c])) for c in columns}
    silent = {c for c in columns if set(cells[c]) <= {units.NOTHING, ""} and c.rank}
    kept = [c for c in columns if c not in silent]

    point = _WIDE

    def least(column: Column) -> int:
        if column.unit != "text":
            return full[column]
        return min(full[column], max(point if column.rank == 0 else _NARROW, len(column.title)))

    while len(kept) > 1 and sum(map(least, kept)) + _GAP * (len(kept) - 1) > width:
        if point > _NARROW and not any(column.rank for column in kept):
            point = _NARROW  # rather than lose what was asked for
        else:
            kept.remove(max(reversed(kept), key=lambda c: c.rank))
    spare = width - _GAP * (len(kept) - 1) - sum(map(least, kept))
    sizes = {}
    # what is left goes to all alike, as far as they need it
    hungry = sorted(kept, key=lambda c: full[c] - least(c))
    for after, column in zip(range(len(hungry), 0, -1), hungry, strict=True):
        more = min(spare // after, full[column] - least(column))
        sizes[column] = max(1, least(column) + more)
        spare -= more
    return kept, sizes
