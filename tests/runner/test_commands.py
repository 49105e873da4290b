"""The command line, as a user types it."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from tests.runner.shapes import read
from tests.runner.support import command


def test_the_demo_works_at_once(run, log):
    done = run("What is here?", "--allow-all", script="demo")
    assert done.stdout.endswith("The log below holds all of it.\n")
    assert f"Log: {log()}" in done.stderr
    assert f"Report: copilot-insights show {log()}" in done.stderr
    assert "◆ agent scout: Look for the largest file" in done.stderr
    assert "exit code 3" in done.stderr
    assert "✗ view " in done.stderr
    events = read(log())
    assert sum(event["type"] == "assistant.turn_start" for event in events) == 4 + 2
    assert sum(event["type"] == "tool.execution_start" for event in events) == 7


def test_without_a_model_it_says_how_to_get_one(shop, clean_environment):
    done = subprocess.run(
        command("run", "hi", "--cwd", shop),
        env=clean_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "--script demo" in done.stderr
    assert "COPILOT_PROVIDER_BASE_URL" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_never_writes_where_the_cli_does(shop, tmp_path, clean_environment):
    arguments = ["[[script:hello]] go", "--cwd", shop, "--script", "demo"]
    env = clean_environment | {"COPILOT_HOME": str(tmp_path / "dot-copilot")}
    subprocess.run(command("run", *arguments), env=env, capture_output=True, check=False)
    assert not (tmp_path / ".copilot").exists()
    assert not (tmp_path / "dot-copilot").exists()
    assert list((tmp_path / ".copilot-insights").glob("session-state/*/events.jsonl"))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--script", "nowhere.json"], 1, "Cannot read the script nowhere.json"),
        (["--cwd", "nowhere", "--script", "demo"], 2, "There is no directory nowhere"),
        (["--script", "demo", "--resume", "nobody"], 1, "Session not found: nobody"),
        (["--script", "demo", "--resume", "../x"], 1, "is no session id"),
        (["--script", "demo", "--continue"], 1, "There is no session in"),
        (["--script", "demo", "--home", "/dev/null/x"], 1, "cannot be written: Not a directory"),
        (["--script", "demo", "--allow-tool", "(x"], 2, "is no permission rule"),
        (["--script", "demo", "--hooks", "nowhere.json"], 1, "is no hook file"),
    ],
)
def test_what_cannot_be_done_is_one_line(options, code, message, tmp_path, clean_environment):
    done = subprocess.run(
        command("run", "hi", "--home", tmp_path / "home", *options),
        cwd=tmp_path,
        env=clean_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_an_error_of_the_model_is_exit_code_1(run, log):
    done = run("[[error]] go", check=False)
    assert done.returncode == 1
    assert "✗ 400 boom" in done.stderr
    assert read(log())[-1]["type"] == "session.shutdown"


def test_json_is_every_event_a_line(run, log):
    done = run("[[script:tools]] go", "--allow-all-tools", "--output", "json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = {event["type"] for event in events}
    assert {"assistant.message_delta", "session.idle", "session.shutdown"} <= kinds
    persisted = [event for event in events if not event.get("ephemeral")]
    assert persisted == read(log())[1:]


def test_control_characters_do_not_reach_the_terminal(run):
    done = run("[[script:unicode]] go", "--allow-all-tools")
    assert "\x1b" not in done.stdout + done.stderr
    assert "é ü 漢字" in done.stdout


def test_a_session_can_be_continued(run, log):
    run("[[script:hello]] one")
    run("[[script:hello]] two", "--continue")
    run("[[script:hello]] three", "--resume", log().parent.name)
    texts = [e["data"]["content"] for e in read(log()) if e["type"] == "user.message"]
    assert texts == [f"[[script:hello]] {word}" for word in ("one", "two", "three")]


def test_an_interrupt_aborts_and_closes_the_log(shop, tmp_path, clean_environment, log):
    from tests.runner.support import SCRIPTS  # noqa: PLC0415

    arguments = ["--cwd", shop, "--home", tmp_path / "home", "--script", SCRIPTS, "--allow-all"]
    process = subprocess.Popen(
        command("run", "[[script:slow]] go", *arguments),
        env=clean_environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        logs = list((tmp_path / "home").glob("session-state/*/events.jsonl"))
        if logs and b"tool.execution_start" in logs[0].read_bytes():
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 1
    types = [event["type"] for event in read(log())]
    assert types[-3:] == ["abort", "assistant.turn_end", "session.shutdown"]


def test_a_terminal_sees_colours_unless_it_asks_not_to(shop, tmp_path, clean_environment):
    arguments = ["hi", "--cwd", shop, "--home", tmp_path / "home", "--script", "demo"]

    def on_a_terminal(env):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            command("run", *arguments), env=env, stdout=subprocess.DEVNULL, stderr=theirs
        )
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 65536):
                text += chunk
        except OSError:  # what Linux says at the end of a terminal
            pass
        os.close(ours)
        process.wait(timeout=10)
        return text

    coloured = {k: v for k, v in clean_environment.items() if k != "NO_COLOR"}
    assert b"\x1b[32m" in on_a_terminal(coloured)
    assert b"\x1b" not in on_a_terminal(clean_environment)


def test_help_is_there_and_importing_the_commands_is_cheap(clean_environment):
    code = (
        "import typer, sys;"
        "import copilot_insights.runner.commands as c; c.register(typer.Typer());"
        "print([m for m in ('asyncio', 'openai', 'msgspec', 'polars') if m in sys.modules])"
    )
    heavy = subprocess.check_output([sys.executable, "-c", code], env=clean_environment)
    assert heavy.decode().strip() == "[]"
    for name in ("run", "serve", "model"):
        shown = subprocess.check_output(command(name, "--help"), env=clean_environment)
        assert b"Usage:" in shown


def test_serve_takes_no_option_that_it_does_not_know(clean_environment):
    for options in (["--stdio", "--nonsense"], ["--stdio", "--port", "1"]):
        done = subprocess.run(
            command("serve", *options),
            env=clean_environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_stops_reading_disturbs_nobody(shop, tmp_path, clean_environment, log):
    arguments = ["hi", "--cwd", shop, "--home", tmp_path / "home", "--script", "demo"]
    process = subprocess.Popen(
        command("run", *arguments, "--output", "json"),
        env=clean_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    assert json.loads(process.stdout.readline())
    process.stdout.close()
    notes = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=20) == 0
    assert "Error" not in notes
    assert read(log())[-1]["type"] == "session.shutdown"
