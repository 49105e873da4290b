"""The runner's logs beside those of the real CLI 1.0.102, made from the same scripts."""

import json
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.runner.shapes import LEFT_OUT, assert_same_shape, read
from tests.runner.support import REAL, SCRIPTS, command

try:
    from copilot.session_events import SessionEvent
except ImportError:  # the logs are then only compared, not parsed
    SessionEvent = None  # type: ignore[assignment,misc]

CLI = REAL / "1.0.102"
ALL = ("--allow-all-tools",)
RUNS: dict[str, list[tuple[Any, ...]]] = {
    "hello": [("[[script:hello]] go", *ALL)],
    "tools": [("[[script:tools]] go", *ALL)],
    "parallel": [("[[script:parallel]] go", *ALL)],
    "fail": [("[[script:fail]] go", *ALL)],
    "unicode": [("[[script:unicode]] go", *ALL)],
    "big": [("[[script:big]] go", *ALL)],
    "sub": [("[[script:sub]] go", *ALL)],
    "sub2": [("[[script:sub2]] go", *ALL)],
    "nudge": [("[[script:nudge]] go", *ALL, "--autopilot")],
    "never": [("[[script:never]] go", *ALL, "--autopilot", "--max-autopilot-continues", 3)],
    "error": [("[[error]] go", *ALL)],
    "denied": [("[[script:tools]] go",)],
    "compact": [("[[script:compact]] go", *ALL)],
    "resume": [
        ("[[script:tools]] first", *ALL),
        ("[[script:hello]] second", *ALL, "--continue"),
        ("[[script:parallel]] third", *ALL, "--continue"),
    ],
}
NOT_HERE = {
    "hooks": "needs a hook file: test_hooks_are_recorded_like_the_clis below",
    "killed": "test_a_killed_run_leaves_the_same_log below",
    "sigkill": "the same",
    "sdk": "driven by the official SDK: test_sdk.py",
}


def test_every_real_scenario_is_run():
    assert set(RUNS) | set(NOT_HERE) == {path.parent.name for path in CLI.glob("*/events.jsonl")}


@pytest.mark.parametrize("scenario", RUNS)
def test_the_log_has_the_shape_of_the_clis(scenario, run, log):
    for prompt, *options in RUNS[scenario]:
        run(prompt, *options, check=scenario != "error")
    events = read(log())
    assert_same_shape(events, read(CLI / scenario / "events.jsonl"))
    if SessionEvent is not None:
        for event in events:
            SessionEvent.from_dict(event)


def test_nothing_is_left_out_without_need():
    """A type that the real logs of these runs do not have needs no excuse."""
    seen = {e["type"] for path in CLI.glob("*/events.jsonl") for e in read(path)}
    assert set(LEFT_OUT) <= seen


def test_hooks_are_recorded_like_the_clis(run, log, tmp_path):
    hooks = {
        "preToolUse": [{"type": "command", "bash": "sleep 0.1; echo '{}'", "timeoutSec": 5}],
        "postToolUse": [{"type": "command", "bash": "echo '{}'", "timeoutSec": 5}],
        "sessionStart": [{"type": "command", "bash": "true", "timeoutSec": 5}],
    }
    file = tmp_path / "h.json"
    file.write_text(json.dumps({"version": 1, "hooks": hooks}), encoding="utf-8")
    run("[[script:tools]] go", *ALL, "--hooks", file)
    assert_same_shape(read(log()), read(CLI / "hooks" / "events.jsonl"))


@pytest.mark.parametrize(("scenario", "number"), [("killed", "SIGTERM"), ("sigkill", "SIGKILL")])
def test_a_killed_run_leaves_the_same_log(scenario, number, shop, tmp_path, clean_environment, log):
    arguments = ["--script", SCRIPTS, "--cwd", shop, "--home", tmp_path / "home", *ALL]
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
    process.send_signal(getattr(signal, number))
    process.wait(timeout=10)
    assert_same_shape(read(log()), read(CLI / scenario / "events.jsonl"))


@pytest.mark.parametrize("scenario", ["tools", "sub", "nudge"])
def test_each_event_carries_the_fields_of_the_clis(scenario, run, log):
    """Field names by event type are a subset of the CLI's, and the ids all pair up."""
    for prompt, *options in RUNS[scenario]:
        run(prompt, *options)
    ours = read(log())
    theirs: dict[str, set[str]] = {}
    for path in CLI.glob("*/events.jsonl"):
        for event in read(path):
            theirs.setdefault(event["type"], set()).update(event["data"])
    for event in ours:
        extra = set(event["data"]) - theirs[event["type"]] - {"toolTitle"}
        assert not extra, (event["type"], extra)
        assert list(event)[:2] == ["type", "data"]
    assert [e["parentId"] for e in ours] == [None, *(e["id"] for e in ours[:-1])]
    assert [e["timestamp"] for e in ours] == sorted(e["timestamp"] for e in ours)
