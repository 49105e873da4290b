"""`watch` in a real terminal beside the reference loop, and the states that it knows."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from copilot_insights import live, load

REAL = Path(__file__).parent / "data" / "real_logs" / "1.0.102"
PYTHON = [sys.executable, "-m", "copilot_insights.cli"]


def frame(lines, tmp_path, *, after=1, lock=None):
    """Status of a log of these lines, so many seconds after its last event."""
    place = tmp_path / "s1" / "events.jsonl"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"".join(lines))
    if lock:
        (place.parent / f"inuse.{lock}.lock").write_text(str(lock))
    tables = load(place)
    now = tables.sessions["ended_at"][0] + timedelta(seconds=after)
    return live.status(tables, now).row(0, named=True)


def lines_until(run, kind, nth=1):
    """Of a real log, up to its nth event of a kind."""
    found = []
    for line in (REAL / run / "events.jsonl").read_bytes().splitlines(keepends=True):
        found.append(line)
        nth -= json.loads(line)["type"] == kind
        if not nth:
            break
    return found


@pytest.mark.parametrize(
    ("run", "kind", "nth", "state", "what"),
    [
        ("tools", "assistant.turn_start", 1, "model", "mock-model"),
        ("tools", "tool.execution_start", 2, "tool", "bash, glob"),
        ("tools", "tool.execution_complete", 1, "tool", "bash"),
        ("sub", "subagent.started", 1, "sub-agent", "explore"),
        ("compact", "session.compaction_start", 1, "compaction", "mock-model"),
        ("hello", "session.shutdown", 1, "ended", ""),
    ],
)
def test_a_state_is_what_is_open(run, kind, nth, state, what, tmp_path):
    row = frame(lines_until(run, kind, nth), tmp_path)
    assert (row["state"], row["what"]) == (state, what)
    assert row["elapsed_ms"] >= 1000


def test_a_permission_or_a_question_waits_for_the_user(tmp_path):
    row = frame(lines_until("denied", "permission.requested"), tmp_path)
    assert (row["state"], row["what"]) == ("asks you", "permission: write")


def test_an_answered_session_is_the_user_s_turn(tmp_path):
    lines = lines_until("hello", "assistant.turn_end")
    assert frame(lines, tmp_path)["state"] == "your turn"
    assert frame(lines, tmp_path)["context_tokens"] > 5000
    assert frame(lines, tmp_path, after=7200)["state"] == "quiet"


def test_a_killed_process_is_told_by_its_lock(tmp_path):
    lines = lines_until("tools", "tool.execution_start")
    assert frame(lines, tmp_path, lock=os.getpid())["state"] == "tool"
    shutil.rmtree(tmp_path / "s1")
    with subprocess.Popen(["true"]) as process:
        pass
    row = frame(lines, tmp_path, lock=process.pid)
    assert (row["state"], row["what"]) == ("killed", "in bash")


def test_a_long_wait_is_a_warning(tmp_path):
    lines = lines_until("tools", "tool.execution_start")
    assert frame(lines, tmp_path, after=700)["warning"] == "stuck? nothing for 11 min"
    assert frame(lines, tmp_path, after=7)["warning"] is None


def test_one_frame_for_people_and_programs(cli):
    code, out, err = cli("watch", REAL.parent, "--once", "--recent", "99999", width=80)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert out.splitlines()[1].split()[:3] == ["session", "where", "now"]
    code, out, _ = cli("watch", REAL.parent, "--json", "--recent", "99999")
    rows = json.loads(out)
    assert len(rows) > 30
    assert {row["state"] for row in rows} <= set(live.STATES)
    assert cli("watch", REAL.parent)[0] == 2, "without a terminal it would have nobody to show"


def test_one_frame_of_nothing_says_so(cli, tmp_path):
    for form in ("--once", "--json"):
        code, out, err = cli("watch", tmp_path / "nowhere", form)
        assert (code, out) == (1, "")
        assert "no such file or directory" in err
        assert len(err.splitlines()) == 1
    code, _, err = cli("watch", REAL, "--once", "--endpoint", "http://localhost:1")
    assert code == 2
    assert "--otel" in err


def test_hostile_names_do_nothing(cli, tmp_path):
    evil = "\x1b[31m[red]x"
    event = {"type": "tool.execution_start", "id": "1", "timestamp": "2026-12-01T10:00:00.000Z",
             "data": {"toolCallId": "c", "toolName": evil, "arguments": {}}}  # fmt: skip
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "events.jsonl").write_text(json.dumps(event) + "\n")
    _, out, _ = cli("watch", tmp_path, "--once", "--recent", "99999")
    assert "\x1b" not in out
    assert "[red]x" in out


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_in_a_terminal_beside_the_loop(tmp_path):
    """Each step of a run is seen as it happens; killed, it is shown as that."""
    script = {
        "slow": [
            {"text": "Wait.", "tools": [{"name": "bash", "arguments": {
                "command": "sleep 60", "description": "wait", "mode": "sync",
                "initial_wait": 90}}]},
            {"text": "end", "tools": []},
        ],
        "quick": [{"text": "hello", "tools": []}],
    }  # fmt: skip
    (tmp_path / "scripts.json").write_text(json.dumps(script))
    (tmp_path / "work").mkdir()
    home, name = tmp_path / "home", f"watch{os.getpid()}"
    command = [*PYTHON, "watch", str(home), "--every", "0.2"]
    tmux = ["tmux", "-L", name]
    env = {k: v for k, v in os.environ.items() if k not in {"LINES", "COLUMNS"}}
    env["TERM"] = "xterm-256color"
    subprocess.run(
        [*tmux, "-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "12", *command],
        check=True,
        env=env,
    )

    def screen_until(*texts):
        for _ in range(600):  # a machine under load takes its time to start Python
            shown = subprocess.run(
                [*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True
            ).stdout
            if all(text in shown for text in texts):
                return shown
            time.sleep(0.1)
        raise AssertionError((texts, shown))

    def run(which):
        scripts = str(tmp_path / "scripts.json")
        words = [*PYTHON, "run", f"[[script:{which}]] go", "--script", scripts, "--allow-all",
                 "--home", str(home)]  # fmt: skip
        return subprocess.Popen(
            words, cwd=tmp_path / "work", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    try:
        screen_until("no session with news")
        with run("quick") as process:
            process.wait(30)
        screen_until("0 of 1 session going on", "ended")
        with run("slow") as process:
            shown = screen_until("1 of 2 sessions going on", "tool bash")
            assert shown.splitlines()[2].split()[1:4] == ["work", "tool", "bash"]
            process.send_signal(signal.SIGKILL)
        screen_until("0 of 2 sessions going on", "killed in bash")
        subprocess.run([*tmux, "send-keys", "C-c"], check=True)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)
