"""Hostile text in a log takes effect nowhere: not on a terminal, in a page, or a spreadsheet."""

import csv
import io
import json
import re
import unicodedata
from functools import cache

import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len

from copilot_insights import load
from copilot_insights.metrics import Filter
from copilot_insights.render import FORMATS, clean, render
from copilot_insights.reports import NAMED, table
from copilot_insights.schema import TABLES
from copilot_insights.tree import show

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
        head, *rows = csv.reader(io.StringIO(text), strict=True)
        assert head == section.frame.columns
        assert [len(row) for row in rows] == [len(head)] * section.frame.height
        cells = {cell for row in rows for cell in row}
        assert not {c for c in cells if c[:1] in set("=+-@\t\r") or c.lstrip()[:1] in set("=+-@")}


@pytest.mark.parametrize("report", [*REPORTS, "show"])
def test_nothing_is_markup_in_markdown_and_tables_keep_their_columns(sections, report):
    for section in sections(report):
        page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(
            printed([section], "markdown")
        )  # fmt: skip
        tags = {*re.findall(r"<(\w+)", page)}
        assert tags <= {"h2", "ul", "li", "p", "table", "thead", "tbody", "tr", "th", "td"}
        rows = [len(re.findall("<t[hd]", row)) for row in re.findall("(?s)<tr>.*?</tr>", page)]
        columns = len([column for column in section.columns if column.unit != "bar"])
        frame = section.frame if section.shown is None else section.shown
        shown = min(frame.height, section.limit or frame.height)
        assert rows == ([columns] * (shown + 1) if columns and shown else [])


@pytest.mark.parametrize("report", [*REPORTS, "show"])
def test_colour_is_all_that_a_colour_terminal_gets_more(sections, report):
    for section in sections(report):
        colourful = printed([section], "table", color=True)
        plain = printed([section], "table")
        without = re.sub(r"\x1b\[\d*(;\d+)*m", "", colourful)
        assert [x.rstrip() for x in without.split("\n")] == plain.split("\n")
        assert set(re.findall(r"\x1b\[[\d;]*.", colourful)) <= {"\x1b[0m", "\x1b[1m", "\x1b[2m"}


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("report", [*REPORTS, "show"])
def test_no_line_is_wider_than_the_terminal(sections, report, width):
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
