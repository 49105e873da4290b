"""Every report is well formed in every format, and hostile text in a log takes effect nowhere:
not on a terminal, in a page, or in a spreadsheet.
"""

import csv
import io
import json
import re
import unicodedata
from functools import cache
from html import unescape
from pathlib import Path

import polars as pl
import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len

from copilot_insights import load, loading
from copilot_insights.filters import Filter
from copilot_insights.render import FORMATS, clean, render
from copilot_insights.reports import NAMED, Column, Section, table
from copilot_insights.schema import AT, TABLES
from copilot_insights.tree import show

SAMPLES = Path(__file__).parent.parent / "sample_logs"
COMMANDS = [[name] for name in NAMED] + [["table", name] for name in TABLES]
DAMAGED = """\
{"type":"session.start","data":{"sessionId":"cdef"},"id":"1","timestamp":"2026-03-01T10:00:00.000Z"}
{"type":"user.message","data":{"content":"hi"},"id":"2","timestamp":"2026-03-01T10:00:01.000Z"}
not an event
{"type":"assistant.turn_start","data":{"turnId":"0"},"id":"3","timestamp":"2026-03-01T10:00:02.000Z"}
{"type":"tool.execution_start","data":{"toolCallId":"c","toolName":"bash"},"id":"4","timestamp":"20"""

each_command = pytest.mark.parametrize("command", COMMANDS, ids="-".join)
each_format = pytest.mark.parametrize("form", FORMATS)
LOAD = loading.load


@cache
def loaded(paths, events):
    return LOAD(paths, events=events)


@pytest.fixture
def printing(cli, monkeypatch):
    """The command; its logs do not change: they are read once, and printed each time."""
    monkeypatch.setattr(loading, "load", lambda paths, *, events, **_: loaded(tuple(paths), events))
    return cli


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    log = tmp_path_factory.mktemp("damaged") / "log.jsonl"
    log.write_text(DAMAGED)
    return log


# --- formats ------------------------------------------------------------------------------


def page(text):
    """Markdown → HTML, and the number of cells in each row of its tables."""
    html = MarkdownIt("gfm-like", {"html": True}).render(text)
    tables = re.findall("(?s)<table>.*?</table>", html)
    return html, [
        [row.count("</t") - 1 for row in re.findall("(?s)<tr>.*?</tr>", t)] for t in tables
    ]


def rows(text, form):
    """Section → number of rows, of JSON or CSV, all rows of which have the same columns."""
    if form == "json":
        told = json.loads(text)
        sections = told if isinstance(told, dict) else {"": told}
        assert all(len({tuple(row) for row in rows}) <= 1 for rows in sections.values())
        times = re.findall(r'"\d{4}-\d\d-\d\dT[^"]*"', text)
        assert all(re.fullmatch(r'".{10}T\d\d:\d\d:\d\d\.\d{3}Z"', time) for time in times)
        return {name: len(found) for name, found in sections.items()}
    parts = re.split(r"(?:^|\n)# (\w+)\n", text) if text.startswith("# ") else ["", "", text]
    tables = [list(csv.reader(io.StringIO(part), strict=True)) for part in parts[2::2]]
    assert all(len({len(row) for row in table}) == 1 for table in tables)
    return {name: len(table) - 1 for name, table in zip(parts[1::2], tables, strict=True)}


def assert_well_formed(out, form):
    assert out.strip()
    assert out.endswith("\n")
    assert "\x1b" not in out
    if form in {"json", "csv"}:
        rows(out, form)
    if form == "markdown":
        tables = page(out)[1]
        assert all(len(set(cells)) == 1 for cells in tables)
        assert len(tables) == len(re.findall(r"^\|( -{3}:? \|)+$", out, re.MULTILINE))


@each_command
@each_format
def test_every_command_prints_real_logs_in_every_format(printing, command, form):
    code, out, err = printing(*command, SAMPLES, "--format", form)
    assert (code, err) == (3 if command == ["check"] else 0, "")
    assert_well_formed(out, form)


@each_command
@each_format
def test_what_no_session_matches_is_well_formed_said_on_stderr_and_exits_1(printing, command, form):
    code, out, err = printing(*command, SAMPLES, "--format", form, "--repo", "nope")
    assert code == 1
    assert err == "copilot-insights: nothing of 14 sessions matches --repo nope\n"
    if form in {"table", "markdown"}:
        assert not out
    else:
        assert_well_formed(out, form)


@each_command
@each_format
def test_every_command_prints_a_damaged_log_in_every_format(printing, damaged, command, form):
    code, out, err = printing(*command, damaged, "--format", form)
    assert (code, err) == (3 if command == ["check"] else 0, "")
    assert_well_formed(out, form)


@each_format
def test_a_session_is_a_tree_in_every_format(printing, damaged, form):
    for place in (SAMPLES, damaged):
        code, out, err = printing("show", "cdef", place, "--format", form)
        assert (code, err) == (0, "")
        assert_well_formed(out, form)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_in_json_is_rows_of_exactly_its_columns(printing, name):
    found = json.loads(printing("table", name, SAMPLES, "--json")[1])
    times = [column for column, dtype in TABLES[name].items() if dtype == AT]
    assert found
    for row in found:
        assert list(row) == list(TABLES[name])
        assert all(row[c] is None or re.search(r"T.*\.\d{3}Z$", row[c]) for c in times)


@each_command
def test_csv_has_the_rows_of_json(printing, command):
    counts = [rows(printing(*command, SAMPLES, "-f", form)[1], form) for form in ("json", "csv")]
    assert counts[0] == counts[1]
    assert len(counts[0]) == (7 if command == ["report"] else 1)


@each_command
def test_no_line_is_wider_than_the_terminal(printing, command):
    for width in (80, 200):
        out = printing(*command, SAMPLES, "--limit", "0", width=width)[1]
        assert max(map(cell_len, out.splitlines())) <= width


# --- hostile text -------------------------------------------------------------------------

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]0;title\x07\x1b[2J\x1b[H",
    "\x9b31mC1\x85\x90q\x9c",
    "nul\x00 bell\x07 back\x08 delete\x7f",
    "\rover\rover",
    "two\nlines\r\nor three\x0b\x0c",
    "separators\u2028\u2029",
    "[bold red]x[/]",
    "[/][link=http://evil.example]x[/link]",
    ":smile: [@click=app.bell]x",
    "a|b||c",
    "a\\|b\\",
    "`code` ```fence",
    "<script>alert(1)</script><!--",
    "&lt;b&gt;&#x202e;",
    "[x](http://evil.example) ![x](http://evil.example/x.png)",
    "https://evil.example/x?a_b_c|d www.evil.example //evil.example",
    "@someone/www.evil.example me@evil.example mailto:me@evil.example ftp://evil.example",
    "owner/repo#12 #12 GH-12 o@0123abc 0123abcd `https://evil.example` \\https://evil.example",
    "$\\sqrt{x}$ $`x`$ :+1:",
    "<http://evil.example>",
    "**b** __b__ *i* _i_ ~~s~~",
    "# heading",
    "- item\n- item",
    "| --- |",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "  =1+1",
    '"=1+1',
    'quote",comma',
    "left\u202eright\u202c \u2066isolate\u2069 \u200fmark \u061carabic",
    "zero\u200bwidth\u200d\u2060\ufeff",
    "soft\u00adhyphen",
    "tags\U000e0041\U000e0042",
    "wide 日本語日本語日本語 👩‍💻",
    "long " * 60,
]
ON_GITHUB = re.compile(
    r"(?i)://|www\.|@\w|#\d|\bGH-\d|\b(?=\d*[a-f])[\da-f]{7,40}\b|\$\S|:[a-z+]\w*:"
)
REPORTS = {name: lambda t, n=name: NAMED[n](t, Filter(), "UTC") for name in NAMED}
REPORTS |= {f"table-{name}": lambda t, n=name: [table(t, n)] for name in TABLES}

each_report = pytest.mark.parametrize("report", REPORTS)


def log(number, text):
    """A session in which all that a log can name is called `text`."""
    call = {"toolCallId": text, "toolName": text, "mcpServerName": text, "model": text}
    sub = {"toolCallId": text, "agentName": text, "agentDisplayName": text, "model": text}
    context = {"cwd": text, "repository": text, "branch": text, "gitRoot": text}
    hook = {"hookInvocationId": text, "hookType": text}
    asked = {"requestId": text, "permissionRequest": {"kind": text, "toolCallId": text}}
    said = {"content": text, "model": text, "outputTokens": 3, "apiCallId": text}
    failed = {"toolCallId": text, "success": False, "error": {"code": text, "message": text}}
    events = [
        {
            "type": "session.start",
            "data": {"sessionId": text, "copilotVersion": text, "producer": text,
                     "selectedModel": text, "context": context},
        },
        {"type": "user.message", "data": {"content": text, "source": text, "interactionId": text}},
        {"type": "assistant.turn_start", "data": {"turnId": text, "model": text}},
        {"type": "assistant.message", "data": {"turnId": text, **said}},
        {"type": "tool.execution_start", "data": {**call, "arguments": {text: text}}},
        {"type": "hook.start", "data": hook},
        {"type": "hook.end", "data": {**hook, "success": False}},
        {"type": "permission.requested", "data": asked},
        {"type": "permission.completed", "data": {"requestId": text, "result": {"kind": text}}},
        {"type": "tool.execution_complete", "data": failed},
        {"type": "subagent.started", "agentId": text, "data": sub},
        {"type": "user.message", "agentId": text, "data": {"content": text}},
        {"type": "assistant.turn_start", "agentId": text, "data": {"turnId": text, "model": text}},
        {"type": "assistant.message", "agentId": text, "data": said},
        {"type": "assistant.turn_end", "agentId": text, "data": {"turnId": text}},
        {"type": "subagent.completed", "agentId": text, "data": sub},
        {"type": "assistant.turn_end", "data": {"turnId": text}},
        {"type": text, "data": {}},
        {"type": "session.error", "data": {"errorType": text, "message": text}},
        {"type": "abort", "data": {"reason": text}},
        {"type": "session.shutdown", "data": {"shutdownType": text, "modelMetrics": {text: {}}}},
    ]  # fmt: skip
    at = [f"2026-03-01T10:{number:02}:{second:02}.000Z" for second in range(len(events))]
    ids = [{"id": f"{number}.{n}{text}", "timestamp": time} for n, time in enumerate(at)]
    return "".join(
        json.dumps(e | i, separators=(",", ":")) + "\n" for e, i in zip(events, ids, strict=True)
    )


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Tables of a session per hostile text, in folders that are called by it where they can be."""
    root = tmp_path_factory.mktemp("hostile")
    for number, text in enumerate(HOSTILE):
        place = root / f"{number}{text.replace('/', '_').replace(chr(0), '')[:40]}"
        place.mkdir()
        (place / "events.jsonl").write_text(log(number, text))
    return load([root], events=True)


@pytest.fixture(scope="module")
def sections(tables):
    """Report or tree → its sections; a tree for each session, with what was said and without."""

    @cache
    def of(name):
        if name != "show":
            return REPORTS[name](tables)
        ids = tables.sessions["session_id"]
        return [show(tables, i, "UTC", content=content) for i in ids for content in (True, False)]

    return of


def printed(sections, form, **how):
    return "".join(render(sections, form, **{"tz": "UTC", "width": 200} | how))


def acting(text):
    """The characters in it that do something rather than show something."""
    return {c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}} - {"\n"}


def everything(found):
    """All strings within a JSON value."""
    if isinstance(found, dict | list):
        for part in [*found, *found.values()] if isinstance(found, dict) else found:
            yield from everything(part)
    elif isinstance(found, str):
        yield found


def test_the_log_reaches_the_tables(tables):
    for column in ("session_id", "cwd", "repository", "branch", "model", "cli_version", "producer"):
        assert set(HOSTILE) <= set(tables.sessions[column])
    assert set(HOSTILE) <= set(tables.tool_calls["tool"])
    assert set(HOSTILE) <= set(tables.tool_calls["error_code"])
    assert set(HOSTILE) <= set(tables.subagents["agent_name"])
    assert set(HOSTILE) <= set(tables.hooks["kind"])
    assert set(HOSTILE) <= set(tables.permissions["outcome"])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("report", [*REPORTS, "show"])
def test_no_character_acts_in_any_format(sections, report, form):
    for section in sections(report):
        assert acting(printed([section], form)) == set()


@each_report
def test_json_parses_back_to_the_original_text(sections, tables, report):
    back = json.loads(printed(sections(report), "json"))
    if report.startswith("table-") and "model" in TABLES[report.removeprefix("table-")]:
        assert {*HOSTILE} <= {*everything(back)}
    if report == "table-sessions":
        assert [row["session_id"] for row in back] == tables.sessions["session_id"].to_list()


@pytest.mark.parametrize("report", [*(r for r in REPORTS if r != "report"), "show"])
def test_no_cell_of_csv_is_a_formula_and_no_text_makes_a_row(sections, report):
    for section in sections(report):
        text = printed([section], "csv")
        head, *found = csv.reader(io.StringIO(text), strict=True)
        assert head == section.frame.columns
        assert [len(row) for row in found] == [len(head)] * section.frame.height
        cells = {cell for row in found for cell in row}
        assert not {c for c in cells if c[:1] in set("=+-@\t\r") or c.lstrip()[:1] in set("=+-@")}


@pytest.mark.parametrize("report", [*REPORTS, "show"])
def test_nothing_is_markup_in_markdown_and_tables_keep_their_columns(sections, report):
    for section in sections(report):
        html, cells = page(printed([section], "markdown"))
        tags = {*re.findall(r"<(\w+)", html)}
        assert tags <= {"h2", "ul", "li", "p", "table", "thead", "tbody", "tr", "th", "td", "code"}
        # nor is anything that GitHub links or draws as it stands, but in code
        assert not ON_GITHUB.search(unescape(re.sub("<code>[^<]*</code>|<.*?>", "", html)))
        columns = len([column for column in section.columns if column.unit != "bar"])
        frame = section.frame if section.shown is None else section.shown
        shown = min(frame.height, section.limit or frame.height)
        assert cells == ([[columns] * (shown + 1)] if columns and shown else [])


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_the_text_that_stands_in_the_log(text):
    section = Section("x", "", pl.DataFrame({"x": [text]}), (Column("x", "x"),))
    [shown] = re.findall("<td>(.*)</td>", page(printed([section], "markdown"))[0])
    assert unescape(re.sub("</?code>", "", shown)) == clean(text).strip()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me/a_b 1.0.65", r"/home/me/a\_b 1.0.65"),
        ("gpt-5.1 high-5 at 10:00:00", "gpt-5.1 high-5 at 10:00:00"),
        ("see https://x.example/a_b now", "see `https://x.example/a_b` now"),
        ("a@b.example|GH-12", r"`a@b.example`\|`GH-12`"),
        ("1b93736e", "`1b93736e`"),
    ],
)
def test_only_words_that_would_act_are_code_in_markdown(text, shown):
    section = Section("x", "", pl.DataFrame({"x": [text]}), (Column("x", "x"),))
    assert printed([section], "markdown").splitlines()[-1] == f"| {shown} |"


@pytest.mark.parametrize("report", [*REPORTS, "show"])
def test_colour_is_all_that_a_colour_terminal_gets_more(sections, report):
    for section in sections(report):
        colourful = printed([section], "table", color=True)
        plain = printed([section], "table")
        without = re.sub(r"\x1b\[\d*(;\d+)*m", "", colourful)
        assert [x.rstrip() for x in without.split("\n")] == plain.split("\n")
        assert set(re.findall(r"\x1b\[[\d;]*.", colourful)) <= {"\x1b[0m", "\x1b[1m", "\x1b[2m"}


@pytest.mark.parametrize("width", [40, 120])
@pytest.mark.parametrize("report", [*REPORTS, "show"])
def test_no_line_of_hostile_text_is_wider_than_the_terminal(sections, report, width):
    for section in sections(report):
        lines = printed([section], "table", width=width).splitlines()
        assert max(map(cell_len, lines)) <= width


def test_rich_markup_is_shown_as_it_is(sections):
    text = printed(sections("table-tool_calls"), "table", width=2000)
    for markup in ("[bold red]x[/]", "[/][link=http://evil.example]x[/link]", ":smile:"):
        assert markup in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb", "a\\nb"),
        ("tags\U000e0041", "tags\\U000e0041"),
        ("naïve 日本語 é", "naïve 日本語 é"),
    ],
)
def test_what_would_act_is_shown_as_an_escape(text, shown):
    assert clean(text) == shown


@pytest.mark.parametrize(
    "words",
    [
        ["report", "no\x1b[31m\u202esuch"],
        ["show", "\x1b]0;owned\x07"],
        ["table", "\x1b[2J"],
        ["report", "--format", "\x1b[2J"],
        ["report", "--since", "\x1b[2J"],
        ["report", "--tz", "\x1b[2J"],
        ["report", "--\x1b[2J"],
        ["report", "-o", "\x1b[2J"],
        ["tools", "--repo", "\x1b[2J\u202e"],
    ],
)
def test_messages_are_as_harmless(cli, tmp_path, monkeypatch, words):
    (tmp_path / "a.jsonl").write_text(log(0, "plain"))
    monkeypatch.setenv("COPILOT_HOME", str(tmp_path))
    code, out, err = cli(*words)
    assert code in {1, 2}
    assert acting(out) | acting(err) == set()
    assert err.count("\n") == 1


def test_a_folder_with_a_hostile_name_is_named_harmlessly(cli, tmp_path):
    (tmp_path / "\x1b[31m\nfolder").mkdir()
    code, out, err = cli("report", tmp_path / "\x1b[31m\nfolder")
    assert (code, out) == (1, "")
    assert acting(err) == set()
    assert err.count("\n") == 1


def test_a_lone_surrogate_in_a_log_or_a_path_is_no_reason_to_fail(cli, tmp_path):
    text = log(0, "half").replace('"half"', r'"half \ud800"')
    (tmp_path / "a.jsonl").write_text(text)
    for form in FORMATS:
        code, out, _ = cli("tools", tmp_path, "--format", form)
        assert code == 0
        assert "half" in out
        assert acting(out) == set()
        out.encode()
    code, _, err = cli("report", tmp_path / "no\udcff")
    assert code == 1
    err.encode()
