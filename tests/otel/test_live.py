"""`watch --otel` beside a run of the reference loop: the traces are those of an export
afterwards, also when the watcher is killed in between.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import pytest

from copilot_insights import load
from copilot_insights.otel.spans import spans
from copilot_insights.otel.state import State

from .receivers import http
from .telemetry import REAL
from .test_export import by_name, near, totals

PYTHON = [sys.executable, "-m", "copilot_insights.cli"]


@contextmanager
def watcher(url, tmp_path, *more):
    words = [*PYTHON, "watch", str(tmp_path / "home"), "--otel", "--endpoint", url, "--every",
             "0.2", "--state", str(tmp_path / "state.db"), *more]  # fmt: skip
    env = {**os.environ, "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def bash(command):
    arguments = {"command": command, "description": command, "mode": "sync", "initial_wait": 60}
    return {"text": "", "tools": [{"name": "bash", "arguments": arguments}]}


def loop(tmp_path, script="demo"):
    (tmp_path / "work").mkdir()
    words = [*PYTHON, "run", "What is here?", "--script", str(script), "--allow-all", "--home",
             str(tmp_path / "home")]  # fmt: skip
    return subprocess.Popen(
        words, cwd=tmp_path / "work", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def until(condition, seconds=20):
    for _ in range(seconds * 20):
        if condition():
            return True
        time.sleep(0.05)
    return False


def sent(received):
    """Name, parent, times and status of each span that arrived."""
    keys = ("name", "parentSpanId", "startTimeUnixNano", "endTimeUnixNano", "status")
    return {name: [span.get(key) for key in keys] for name, span in received.spans.items()}


def exported(tmp_path):
    """The same of an export afterwards."""
    with http() as (url, received):
        words = [*PYTHON, "export", "otel", str(tmp_path / "home"), "--endpoint", url, "--state",
                 str(tmp_path / "other.db")]  # fmt: skip
        subprocess.run(words, check=True, capture_output=True)
    return received


def test_spans_come_as_they_close_and_equal_those_of_an_export(tmp_path):
    script = tmp_path / "scripts.json"
    script.write_text(
        json.dumps({"demo": [bash("echo one"), bash("sleep 6"), {"text": "end", "tools": []}]})
    )
    with http() as (url, received), watcher(url, tmp_path):
        assert until((tmp_path / "state.db").exists)
        with loop(tmp_path, script) as run:
            assert until(lambda: any("bash" in s["name"] for s in received.spans.values()))
            assert run.poll() is None, "a tool's span is here before the run is over"
            run.wait()
        expected = {f"{m.span.context.span_id:016x}" for m in spans(load(tmp_path / "home"))}
        assert until(lambda: set(received.spans) == expected)
        after = exported(tmp_path)
        assert sent(received) == sent(after)
        assert set(received.times.values()) == {1}
        assert until(lambda: by_name(received) == near(totals(load(tmp_path / "home"))))


def test_content_goes_along_when_it_is_asked_for(tmp_path, monkeypatch):
    with loop(tmp_path) as run:
        run.wait()
    expected = {f"{m.span.context.span_id:016x}" for m in spans(load(tmp_path / "home"))}

    def said(name, *options):
        state = ["--state", str(tmp_path / f"{name}.db")]
        with http() as (url, received), watcher(url, tmp_path, *options, *state):
            assert until(lambda: set(received.spans) == expected)
        return "What is here?" in json.dumps(received.spans)

    assert not said("plain")
    assert said("option", "--content")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    assert said("variable")


def test_kill_9_five_times_in_between(tmp_path):
    with http() as (url, received):
        with loop(tmp_path) as run:
            for _ in range(5):
                before = received.requests
                with watcher(url, tmp_path) as process:
                    until(lambda before=before: received.requests > before, 3)
                    process.send_signal(signal.SIGKILL)
            run.wait()
        with watcher(url, tmp_path) as process:
            expected = {f"{m.span.context.span_id:016x}" for m in spans(load(tmp_path / "home"))}
            assert until(lambda: set(received.spans) == expected)
            process.send_signal(signal.SIGTERM)
            process.wait(10)
        after = exported(tmp_path)
        assert sent(received) == sent(after)
        assert by_name(received) == near(totals(load(tmp_path / "home")))


@pytest.mark.parametrize("step", range(1, 8))
def test_an_interrupt_at_any_step_leaves_the_state_usable(tmp_path, step):
    """It is raised when a call is over, "begin" and "commit" too."""

    class Interrupted:
        def __init__(self, base):
            self.base, self.left = base, step

        def __getattr__(self, name):
            def call(*arguments):
                answer = getattr(self.base, name)(*arguments)
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt
                return answer

            return call if name.startswith("execute") else getattr(self.base, name)

    with State(tmp_path / "state.db", "target") as state:
        base = state._base  # noqa: SLF001  # a signal can't be sent to an instant
        state._base = Interrupted(base)  # type: ignore[assignment]  # noqa: SLF001
        with suppress(KeyboardInterrupt):
            state.confirm_spans(state.note_spans([("session", 7)]))
        state._base = base  # noqa: SLF001
        state.confirm_spans(state.note_spans([("session", 7)]))
        assert state.sent("session") == {7}


@pytest.mark.parametrize("fault", [503, 400])
def test_a_receiver_that_fails_for_a_while_gets_everything_in_the_end(fault, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    down = [True]
    with http(lambda _n: fault if down[0] else 200) as (url, received):
        with watcher(url, tmp_path) as process:
            with loop(tmp_path) as run:
                run.wait()
            assert until(lambda: received.requests > 0)
            down[0] = False
            expected = {f"{m.span.context.span_id:016x}" for m in spans(load(tmp_path / "home"))}
            assert until(lambda: set(received.spans) == expected)
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=10)[1]
        assert len(said.splitlines()) <= 2
        assert "Traceback" not in said
        assert by_name(received) == near(totals(load(tmp_path / "home")))


def test_an_answer_s_trace_is_whole_while_the_session_goes_on(tmp_path):
    """The root span ends with the answer; the session itself may stay open for days."""
    lines = (REAL / "1.0.102" / "tools" / "events.jsonl").read_bytes().splitlines(keepends=True)
    until_answer = [line for line in lines if b'"session.shutdown"' not in line]
    place = tmp_path / "home" / "s1" / "events.jsonl"
    place.parent.mkdir(parents=True)
    shift = datetime.now(UTC) - load(REAL / "1.0.102" / "tools").sessions["ended_at"][0]
    stamp = re.compile(rb'"timestamp":"([^"]+)"')

    def now(found):
        at = datetime.fromisoformat(found[1].decode()) + shift
        return b'"timestamp":"%s"' % at.strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()

    place.write_bytes(b"".join(stamp.sub(now, line) for line in until_answer))
    with http() as (url, received), watcher(url, tmp_path):
        assert until(lambda: any(s["name"] == "invoke_agent" for s in received.spans.values()), 4)
        assert len(received.spans) == 11
