"""The command as people and programs meet it: exit codes, streams, files, filters."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = str(Path(__file__).parent.parent / "sample_logs")
REPORTS = ("report", "sessions", "turns", "tools", "models", "agents", "daily", "check")
OTHERS = ("table", "show", "run", "serve", "model")
LOG = """\
{"type":"session.start","data":{"sessionId":"one"},"id":"1","timestamp":"2026-03-01T10:00:00.000Z"}
{"type":"user.message","data":{"content":"hi"},"id":"2","timestamp":"2026-03-01T10:00:01.000Z"}
"""


def process(*words, env=None, **more):
    """The real command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "copilot_insights.cli", *map(str, words)],
        env={**os.environ, "COLUMNS": "80", **(env or {})},
        capture_output=True,
        check=False,
        timeout=60,
        **more,
    )


def one_line(text):
    """The message in what is on standard error, which is one line."""
    assert re.fullmatch(r"copilot-insights: [^\n]+\n", text), text
    return text.removeprefix("copilot-insights: ").rstrip("\n")


def test_limit_is_for_people_and_programs_get_all(cli):
    assert len(json.loads(cli("turns", SAMPLES, "--json", "--limit", "2")[1])) == 62
    assert "60 more: --limit 0 shows all." in cli("turns", SAMPLES, "--limit", "2")[1]
    assert "more:" not in cli("turns", SAMPLES, "--limit", "0")[1]


# --- output to a file ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.json", "[\n{"), ("a.csv", "tool,"), ("a.md", "## Tools\n"), ("a.TXT", "Tools\n")],
)
def test_the_suffix_of_the_file_is_the_format(cli, tmp_path, name, start):
    assert cli("tools", SAMPLES, "-o", tmp_path / name) == (0, "", "")
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_a_format_that_is_named_wins_over_the_suffix(cli, tmp_path):
    cli("tools", SAMPLES, "-o", tmp_path / "a.txt", "--json")
    assert json.loads((tmp_path / "a.txt").read_text(encoding="utf-8"))


def test_a_file_is_overwritten_only_by_force(cli, tmp_path):
    file = tmp_path / "precious.json"
    file.write_text("mine")
    code, out, err = cli("tools", SAMPLES, "-o", file)
    assert (code, out, file.read_text()) == (1, "", "mine")
    assert "--force" in one_line(err)
    assert cli("tools", SAMPLES, "-o", file, "--force") == (0, "", "")
    assert json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("place", ["", "no/such/folder/a.json", "file/a.json"])
def test_a_place_that_cannot_be_written_is_one_line(cli, tmp_path, place):
    (tmp_path / "file").touch()
    code, out, err = cli("tools", SAMPLES, "-o", tmp_path / place, "-f", "json", "--force")
    assert (code, out) == (1, "")
    assert f"cannot write {tmp_path / place}" in one_line(err)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["export", "csv", "-o", "d"], "llm_calls.csv"),
        (["export", "parquet", "-o", "d"], "incidents.parquet"),
        (
            ["html", "-o", "r.html", "--waterfalls", "d"],
            "cdef9596-d157-458b-8950-8f1bda9a12a2.html",
        ),
        (["dashboards", "-o", "d"], "copilot-v1.41.json"),
    ],
)
def test_of_several_files_all_are_written_or_none(cli, tmp_path, monkeypatch, words, file):
    monkeypatch.chdir(tmp_path)
    if words[0] != "dashboards":
        words = [*words, SAMPLES]
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / file).write_text("mine")
    code, out, err = cli(*words)
    assert (code, out) == (1, "")
    assert f"{file} exists" in one_line(err)
    assert [path.name for path in tmp_path.rglob("*")] == ["d", file]
    assert (tmp_path / "d" / file).read_text() == "mine"
    assert cli(*words, "--force")[0] == 0
    assert len([*(tmp_path / "d").iterdir()]) > 1


@pytest.mark.parametrize(
    "command",
    [
        ["html"],
        ["chart", "calls", "-o", "x.svg"],
        ["export", "otel", "--console"],
        ["export", "openmetrics"],
        ["export", "csv", "-o", "x"],
        ["export", "parquet", "-o", "x"],
        ["show", "--html"],
        ["compare", ".", ".", "-o", "x.PNG"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "option", [["--limit", "0"], ["--format", "csv"], ["--json"]], ids=" ".join
)
def test_what_only_tables_have_is_refused_where_there_is_none(
    cli, tmp_path, monkeypatch, command, option
):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*command, *option)
    assert (code, out) == (2, "")
    assert f"has no {option[0]}" in one_line(err)
    assert not list(tmp_path.iterdir())


def test_what_fails_writes_no_file(cli, tmp_path):
    assert cli("show", "zzz", SAMPLES, "-o", tmp_path / "a.json")[0] == 1
    assert cli("tools", SAMPLES, "-o", tmp_path / "a.xlsx")[0] == 2
    assert not list(tmp_path.iterdir())


# --- wrong usage, and what cannot be done -------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tools", SAMPLES, "--format", "xml"], "json, csv, markdown"),
        (["table", "nope", SAMPLES], "sessions, interactions, llm_calls"),
        (["table"], "NAME"),
        (["tools", SAMPLES, "--tz", "Mars/Olympus"], "Mars/Olympus"),
        (["tools", SAMPLES, "--tz", "../etc/passwd"], "../etc/passwd"),
        (["tools", SAMPLES, "--since", "sometime"], "sometime"),
        (["tools", SAMPLES, "--until", "2026-13-01"], "2026-13-01"),
        (["tools", SAMPLES, "--since", "7y"], "7y"),
        (["tools", SAMPLES, "--limit", "-1"], "--limit"),
        (["tools", SAMPLES, "--no-such-option"], "--no-such-option"),
        (["tools", SAMPLES, "-o", "a.xlsx"], ".json, .csv, .md, .txt"),
    ],
)
def test_wrong_usage_is_one_line_and_exits_2(cli, words, said):
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert said in one_line(err)


def test_a_wrong_session_gets_the_nearest_ones(cli):
    code, out, err = cli("show", "cdee", SAMPLES)
    assert (code, out) == (1, "")
    assert "cdef9596-d157-458b-8950-8f1bda9a12a2" in one_line(err)
    assert re.search("The newest: [0-9a-f]{8}-", one_line(cli("show", "zzz", SAMPLES)[2]))


def test_an_id_that_several_sessions_begin_with_is_not_guessed(cli):
    code, out, err = cli("show", "ce", SAMPLES)
    assert (code, out) == (1, "")
    assert all(i in one_line(err) for i in ("ced55a0f", "cec01a66"))


def test_without_a_session_the_newest_is_shown(cli, monkeypatch):
    monkeypatch.setenv("COPILOT_HOME", SAMPLES)
    for words in (["show"], ["show", SAMPLES], ["show", SAMPLES, "--agent", "main"]):
        code, out, err = cli(*words)
        assert (code, err) == (0, "")
        assert "cec01a66-4835-4be3-bf0c-c72dc1c345a2" in out


def test_with_content_a_call_that_was_denied_is_still_one(cli):
    lines = cli("show", f"{SAMPLES}/denied-1.0.102", "--content", width=100)[1].splitlines()
    assert sum(" denied " in line and "tool" in line for line in lines) == 2


def test_a_log_is_shown_whatever_other_paths_follow(cli):
    for place in ("tools-1.0.102/events.jsonl", "tools-1.0.102"):
        alone = cli("show", f"{SAMPLES}/{place}")
        assert alone[0] == 0
        assert cli("show", f"{SAMPLES}/{place}", SAMPLES) == alone


def test_a_log_can_be_shown_by_its_place(cli):
    code, out, _ = cli("show", f"{SAMPLES}/sub2-1.0.102")
    assert code == 0
    assert "cdef9596-d157-458b-8950-8f1bda9a12a2" in out


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        (["1.0.102", "1.0.9"], "CLI 1.0.9, 1.0.102"),
        (["1.0.10", "1.0.\u00b2", "1.0.9"], "CLI 1.0.9, 1.0.\u00b2, 1.0.10"),
        (["9" * 5000, "1.0.9"], "CLI 1.0.9, 9"),
    ],
)
def test_versions_stand_in_their_order_whatever_they_are(cli, tmp_path, versions, told):
    for number, version in enumerate(versions):
        data = {"sessionId": f"{number}", "copilotVersion": version}
        said = {"type": "session.start", "data": data, "id": f"{number}"}
        log = json.dumps(said | {"timestamp": "2026-03-01T10:00:00.000Z"})
        (tmp_path / f"{number}.jsonl").write_text(f"{log}\n", encoding="utf-8")
    code, out, err = cli("report", tmp_path, width=6000)
    assert (code, err) == (0, "")
    assert told in out


@pytest.mark.parametrize("words", [[], ["report"], ["tools", "--json"], ["show", "x"], ["check"]])
def test_without_logs_a_line_says_where_was_looked_and_what_to_do(
    cli, tmp_path, monkeypatch, words
):
    monkeypatch.setenv("COPILOT_HOME", str(tmp_path / "none"))
    code, out, err = cli(*words)
    assert (code, out) == (1, "")
    assert str(tmp_path / "none") in one_line(err)
    assert "COPILOT_HOME" in one_line(err)


@pytest.mark.parametrize("path", ["nothing-here", "no*thing", "file/below"])
def test_a_path_that_is_not_there_is_one_line(cli, tmp_path, path):
    (tmp_path / "file").touch()
    code, out, err = cli("report", tmp_path / path)
    assert (code, out) == (1, "")
    assert str(tmp_path / path) in one_line(err)


def test_a_mistyped_command_is_told_the_right_one(cli):
    assert "tools" in one_line(cli("tols", SAMPLES)[2])


@pytest.mark.parametrize("command", ["report", "tools", "show"])
@pytest.mark.parametrize("text", ["", "\n\n", "no\nlog\n", "[1]\n{}\n"])
def test_what_holds_no_event_is_said(cli, tmp_path, command, text):
    (tmp_path / "notes.txt").write_text(text)
    code, _, err = cli(command, tmp_path / "notes.txt")
    assert code == 1
    assert "notes.txt" in one_line(err)


@pytest.mark.parametrize("command", [*REPORTS, "show"])
def test_a_log_without_a_time_is_told_all_the_same(cli, tmp_path, command):
    (tmp_path / "log.jsonl").write_text('{"type":"user.message","data":{},"id":"1"}\n')
    code, out, err = cli(command, tmp_path / "log.jsonl")
    assert (code, err) == (3 if command == "check" else 0, "")
    assert out


def test_a_log_that_cannot_be_read_is_a_note_beside_the_others(cli, tmp_path, monkeypatch):
    for name in ("good", "bad"):
        (tmp_path / f"{name}.jsonl").write_text(LOG.replace("one", name))
    read = Path.read_bytes

    def denied(path):  # tests may run as root, whom no mode keeps out
        if path.name == "bad.jsonl":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    code, out, err = cli("sessions", tmp_path, "--json")
    assert (code, [row["session_id"] for row in json.loads(out)]) == (0, ["good"])
    assert "bad.jsonl" in one_line(err)
    assert "Permission denied" in one_line(err)
    assert "1 unreadable place" in cli("report", tmp_path)[1]
    code, out, _ = cli("check", tmp_path)
    assert (code, out.split(" in ")[0]) == (3, "1 problem")
    found = json.loads(cli("check", tmp_path, "--json")[1])
    assert [(row["kind"], row["detail"].split(": ")[-1]) for row in found] == [
        ("unreadable", "Permission denied")
    ]
    code, out, err = cli("sessions", tmp_path / "bad.jsonl")
    assert (code, out) == (1, "")
    assert "Permission denied" in one_line(err)


def test_check_exits_0_without_problems_and_3_with(cli, tmp_path):
    assert cli("check", f"{SAMPLES}/tools-1.0.102")[0] == 0
    assert cli("check", f"{SAMPLES}/killed-1.0.65")[0] == 3
    (tmp_path / "log.jsonl").write_text(LOG + "not an event\n")
    code, out, _ = cli("check", tmp_path, "--json")
    assert code == 3
    assert "rejected_line" in {row["kind"] for row in json.loads(out)}


# --- the process --------------------------------------------------------------------------


def test_a_path_without_a_command_means_report():
    plain, named = process(SAMPLES), process("report", SAMPLES)
    assert plain.returncode == 0
    assert plain.stdout == named.stdout != b""
    assert plain.stderr == b""


def test_standard_input_that_is_closed_is_said():
    command = f"exec {sys.executable} -m copilot_insights.cli report - <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "cannot read -: it is closed" in one_line(done.stderr.decode())


def test_a_dash_is_standard_input():
    log = Path(SAMPLES, "tools-1.0.102", "events.jsonl").read_bytes()
    done = process("sessions", "-", "--json", input=log)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [row["llm_calls"] for row in json.loads(done.stdout)] == [5]
    done = process("show", "-", input=log)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"aad87572-07e7-4e15-9457-42f8473946d2" in done.stdout


def test_what_takes_no_answer_is_a_line():
    command = [sys.executable, "-m", "copilot_insights.cli", "report", str(SAMPLES)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "copilot-insights: cannot write the answer: No space left on device\n"
    words = " ".join(f"'{word}'" for word in command)
    done = subprocess.run(
        ["bash", "-c", f"{words} >&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_that_is_closed_early_is_no_error():
    words = [sys.executable, "-m", "copilot_insights.cli", "table", "events", SAMPLES, "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"[\n"
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0


def test_an_interrupt_while_it_is_imported_is_no_traceback(tmp_path):
    interrupt = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "typer.py").write_text(interrupt, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "copilot_insights"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_an_encoding_without_bars_is_no_reason_to_fail(encoding):
    done = process("report", SAMPLES, env={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert "mock-model" in done.stdout.decode(encoding)


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of POSIX")
@pytest.mark.parametrize(
    ("env", "colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["plain", "NO_COLOR", "dumb"],
)
def test_colour_is_for_terminals_that_want_it(env, colour):
    ours, theirs = os.openpty()
    base = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS"}}
    words = [sys.executable, "-m", "copilot_insights.cli", "tools", SAMPLES]
    done = subprocess.run(words, stdout=theirs, env={**base, "TERM": "xterm", **env}, check=False)
    os.close(theirs)
    text = os.read(ours, 100_000)
    os.close(ours)
    assert done.returncode == 0
    assert (b"\x1b[" in text) == colour


@pytest.mark.parametrize("words", [[], *([c] for c in (*REPORTS, *OTHERS))])
def test_every_command_explains_itself(cli, words):
    code, out, err = cli(*words, "--help", width=80)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: copilot-insights")
    assert max(map(len, out.splitlines())) <= 80


def test_help_and_import_load_nothing_heavy():
    heavy = "{'polars', 'plotly', 'opentelemetry', 'openai', 'pyarrow', 'rich.table'}"
    code = (
        "import sys\nfrom copilot_insights import cli\nsys.argv = ['copilot-insights', '--help']\n"
        f"try: cli.main()\nexcept SystemExit: print('HEAVY', {heavy} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[-1] == "HEAVY set()"


# --- filters ------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path):
    """A root with session `cdef…` at noon UTC of 1 March and `885d…` late on the 5th, each with
    two calls of main and two runs of the sub-agent `explore`.
    """
    for sample, day, repository, branch, model in (
        ("sub2-1.0.102", "2026-03-01T12:00", "octo/Alpha", "main", "gpt-x"),
        ("sub2-1.0.12", "2026-03-05T23:30", "octo/beta", "feature/Login", "opus"),
    ):
        text = Path(SAMPLES, sample, "events.jsonl").read_text(encoding="utf-8")
        place = f'"repository":"{repository}","branch":"{branch}"'
        text = text.replace('"branch":"master"', place).replace("mock-model", model)
        (tmp_path / sample).mkdir()
        (tmp_path / sample / "events.jsonl").write_text(text.replace("2026-12-01T03:37", day))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ("--since 2026-03-05", "885d"),
        ("--since 2026-03-05T23:31", ""),
        ("--until 2026-03-01", "cdef"),
        ("--until 20260301", "cdef"),
        ("--until 2026-02-28", ""),
        ("--since 2026-03-01 --until 2026-03-05", "cdef 885d"),
        ("--since 2026-03-06 --tz Europe/Berlin", "885d"),
        ("--until 2026-03-05 --tz Europe/Berlin", "cdef"),
        ("--since 2026-03-05T18:00-05:00", "885d"),
        ("--session cd", "cdef"),
        ("--repo ALPHA", "cdef"),
        ("--repo 1.0.12/SHOP", "885d"),
        ("--branch login", "885d"),
        ("--model GPT", "cdef"),
        ("--model zzz", ""),
        ("--agent explore", "cdef 885d"),
        ("--agent main", "cdef 885d"),
        ("--agent zzz", ""),
        ("--repo octo --branch main", "cdef"),
        ("--repo alpha --branch login", ""),
    ],
)
def test_filters_choose_sessions(cli, two, options, ids):
    code, out, _ = cli("sessions", two, "--json", "--tz", "UTC", *options.split())
    assert [row["session_id"][:4] for row in json.loads(out)] == ids.split()
    assert code == (0 if ids else 1)


@pytest.mark.parametrize(
    ("options", "calls", "tools", "models"),
    [
        ("", 12, {"task": 4, "glob": 4}, {"gpt-x", "opus"}),
        ("--agent main", 4, {"task": 4}, {"gpt-x", "opus"}),
        ("--agent EXPLORE", 8, {"glob": 4}, {"gpt-x", "opus"}),
        ("--agent explore --session cd", 4, {"glob": 2}, {"gpt-x"}),
        ("--model opus", 6, {"task": 2, "glob": 2}, {"opus"}),
        ("--until 2026-03-04", 6, {"task": 2, "glob": 2}, {"gpt-x"}),
    ],
)
def test_filters_choose_calls_and_their_tools(cli, two, options, calls, tools, models):
    def rows(command):
        return json.loads(cli(command, two, "--json", "--tz", "UTC", *options.split())[1])

    assert len(rows("turns")) == calls
    assert {row["tool"]: row["calls"] for row in rows("tools")} == tools
    assert {row["model"] for row in rows("models")} == models
    tokens = [sum(row["output_tokens"] for row in rows(name)) for name in ("daily", "models")]
    assert tokens[0] == tokens[1]


def test_days_are_of_the_zone_asked_for(cli, two):
    for zone, days in (("UTC", ["01", "05"]), ("Asia/Tokyo", ["01", "06"])):
        rows = json.loads(cli("daily", two, "--json", "--tz", zone)[1])
        assert [row["day"][-2:] for row in rows] == days


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        ("EST5EDT", "EST5EDT"),
        ("UTC-3", "Etc/GMT-3"),
        ("<+03>-3", "Etc/GMT-3"),
        ("EST5", "Etc/GMT+5"),
        (":Asia/Tokyo", "Asia/Tokyo"),
    ],
)
def test_the_zone_of_this_machine_is_also_one_of_posix(cli, monkeypatch, machine, told):
    monkeypatch.setenv("TZ", machine)
    assert cli("daily", SAMPLES)[1].startswith(f"By day ({told})\n")


@pytest.mark.parametrize("machine", ["CET-1CEST", "Foo/Bar", "X9999"])
def test_a_zone_of_this_machine_that_is_none_is_said(cli, monkeypatch, machine):
    monkeypatch.setenv("TZ", machine)
    code, out, err = cli("daily", SAMPLES)
    assert (code, out) == (2, "")
    assert f"no time zone {machine} ($TZ). Use --tz" in one_line(err)


@pytest.mark.parametrize("words", ["html", "chart", "export csv", "export otel"])
def test_help_leaves_out_what_only_tables_have(cli, words):
    help_ = cli(*words.split(), "--help")[1]
    assert "--since" in help_
    assert not {"--format", "--json", "--limit"} & set(re.findall(r"--\w+", help_))
    assert ("--output" in help_) == (words != "export otel")


def test_content_is_shown_though_names_are_long(tmp_path):
    log = tmp_path / "s" / "events.jsonl"
    log.parent.mkdir()
    data = Path(SAMPLES, "tools-1.0.102", "events.jsonl").read_text()
    log.write_text(data.replace('"bash"', f'"{"long-name-" * 6}"'))
    out = process("show", log, "--content").stdout.decode()
    assert "Looking around." in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_head_of_a_tree_counts_what_was_chosen(cli):
    out = cli("show", "cdef", SAMPLES, "--agent", "explore")[1]
    assert "4 model calls · 2 tool calls · 7,920 tokens in · 82 out · 748 ms" in out
    assert "Counted is the part that was chosen." in out


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words in (["model", "demo"], ["serve"]):
            done = process(*words, "--port", port)
            assert done.returncode == 1
            assert f"127.0.0.1:{port}: Address already in use" in one_line(done.stderr.decode())
    done = process("model", "demo", "--log", "/dev/null/x")
    assert "cannot write /dev/null/x: Not a directory" in one_line(done.stderr.decode())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
@pytest.mark.parametrize("words", [["--help"], ["show", "aad", SAMPLES, "--html"]])
def test_a_full_disk_is_no_fault_of_ours(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "copilot_insights.cli", *words],
            stdout=full, stderr=subprocess.PIPE, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert one_line(done.stderr.decode()) == "cannot go on: No space left on device."


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["report", ""], 2, "a path is empty. Is a variable unset?"),
        (["tools", SAMPLES, "--json", "-f", "csv"], 2, "--json and --format contradict. Use one."),
        (["compare", "foo", "bar", SAMPLES], 2, "foo is no side. A side is"),
        (["export", "otel", SAMPLES, "--endpoint", "host"], 2, "host is no URL. Use one like"),
        (["tools", SAMPLES, "--since", "soon"], 2, "today, yesterday, 12h or 7d."),
    ],
)
def test_wrong_usage_is_a_line_that_says_what_to_do(cli, words, code, said):
    found, out, err = cli(*words)
    assert (found, out) == (code, "")
    assert said in one_line(err)


def test_the_last_of_all_days_is_a_time(cli):
    assert cli("tools", SAMPLES, "--until", "9999-12-31")[0] == 0


def test_telemetry_is_no_log(cli, tmp_path):
    log = tmp_path / "otel.jsonl"
    log.write_text('{"type":"span","name":"chat"}\n{"type":"metric"}\n')
    code, out, err = cli("report", log)
    assert (code, out) == (1, "")
    assert "none of 2 lines is one" in one_line(err)


def test_a_directory_of_windows_is_short_in_lists(cli, tmp_path):
    path = tmp_path / "events.jsonl"
    said = (
        '{"type":"session.start","data":{"sessionId":"s","context":{"cwd":"C:\\\\code\\\\shop"}}}'
    )
    path.write_text(said, encoding="utf-8")
    _, out, _ = cli("sessions", path)
    assert "shop" in out
    assert "code" not in out
