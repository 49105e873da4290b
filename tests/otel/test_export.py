"""`export otel` as users run it, into real receivers; what goes wrong with them; what is kept."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grpc
import polars as pl
import pytest
from google.protobuf import json_format

from copilot_insights import load
from copilot_insights.otel.delivery import Delivery, What
from copilot_insights.otel.exporters import otlp
from copilot_insights.otel.metrics import Distribution, points
from copilot_insights.otel.spans import spans
from copilot_insights.otel.state import State
from copilot_insights.schema import TABLES

from .receivers import Metrics, Received, Traces, free_port, grpc_server, http
from .telemetry import REAL

SAMPLES = Path(__file__).parent.parent.parent / "sample_logs"


@pytest.fixture(scope="module")
def samples():
    return load(SAMPLES)


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def expected(tables):
    return {f"{made.span.context.span_id:016x}" for made in spans(tables)}


def totals(tables):
    """Last values of every series as a receiver sees them."""
    found = Counter()
    for point in points(tables):
        value = point.value.count if isinstance(point.value, Distribution) else point.value
        found[point.name] += value
    return found


def by_name(received):
    found = Counter()
    for (name, _), value in received.totals().items():
        found[name] += value
    return found


def near(found):
    return {name: pytest.approx(value) for name, value in found.items()}


@pytest.mark.parametrize("server", [http, grpc_server])
def test_a_receiver_gets_every_span_and_point_once(server, cli, samples):
    protocol = "grpc" if server is grpc_server else "http/protobuf"
    with server() as (url, received):
        words = ["export", "otel", SAMPLES, "--endpoint", url, "--protocol", protocol]
        code, out, err = cli(*words)
        assert (code, out) == (0, "")
        assert f"got {len(received.spans)} spans and {len(received.points)} points" in err
        assert set(received.spans) == expected(samples)
        assert set(received.times.values()) == {1}
        assert by_name(received) == near(totals(samples))
        seen = received.times.copy(), len(received.points)
        code, _, err = cli(*words, "--since-last")
        assert "it has 14 sessions from before" in err
        assert (received.times, len(received.points)) == seen
        assert cli(*words, "--again")[0] == 0
        assert set(received.times.values()) == {2}


def test_standard_variables_say_where_and_with_what(cli, monkeypatch):
    with http() as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer abc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        assert cli("export", "otel", SAMPLES, "--no-metrics")[0] == 0
    assert received.headers[0]["authorization"] == "Bearer abc"
    assert received.spans
    assert not received.points


def test_a_file_holds_the_same_and_reads_back(cli, tmp_path, samples):
    place = tmp_path / "out.jsonl"
    assert cli("export", "otel", SAMPLES, "--file", place)[0] == 0
    assert cli("export", "otel", SAMPLES, "--file", place)[:2] == (1, "")
    assert cli("export", "otel", SAMPLES, "--file", place, "--force")[0] == 0
    read, raw = Received(), set()
    for line in place.read_text(encoding="utf-8").splitlines():
        request = json.loads(line)
        if "resourceSpans" in request:
            # OTLP/JSON writes ids in hexadecimal, protobuf's own JSON in base64
            for resource in request["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        raw.add(span["spanId"])
                        for name in ("traceId", "spanId", "parentSpanId"):
                            span.pop(name, None)
            json_format.ParseDict(request, Traces())
        else:
            read.metrics(json_format.ParseDict(request, Metrics()))
    assert raw == expected(samples)
    assert by_name(read) == near(totals(samples))


def test_the_console_has_a_line_for_each(cli, samples):
    code, out, err = cli("export", "otel", SAMPLES, "--console")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert sum("span_id" in line.get("context", {}) for line in lines) == len(expected(samples))
    assert "console got" in err


def test_a_dry_run_sends_and_keeps_nothing(cli):
    with http() as (url, received):
        code, out, err = cli("export", "otel", SAMPLES, "--endpoint", url, "--dry-run")
        assert (code, out) == (0, "")
        assert "would get 144 spans" in err
        assert not received.requests
        assert (
            "would get 144 spans"
            in cli("export", "otel", SAMPLES, "--endpoint", url, "--dry-run")[2]
        )


def test_what_was_left_out_is_sent_when_it_is_asked_for(cli, samples):
    with http() as (url, received):
        words = ["export", "otel", SAMPLES, "--endpoint", url]
        assert cli(*words, "--no-metrics")[0] == 0
        assert cli(*words, "--no-traces", "--profile", "v1.41")[0] == 0
        assert {name for name, *_ in received.points} >= {"gen_ai.client.token.usage"}
        assert "got 0 spans" in cli(*words)[2]
    assert set(received.times.values()) == {1}
    assert {name for name, *_ in received.points} >= set(totals(samples))


def test_filters_choose_whole_sessions(cli):
    with http() as (url, received):
        words = ["export", "otel", SAMPLES, "--endpoint", url]
        assert cli(*words, "--agent", "explore")[0] == 0
        some = len(received.spans)
        assert any(s["name"] == "invoke_agent" for s in received.spans.values())
        assert cli(*words)[0] == 0
    assert 0 < some < len(received.spans) == 144
    assert set(received.times.values()) == {1}


def test_content_goes_only_where_it_is_asked_for(cli, monkeypatch):
    def sent(*more):
        with http() as (url, received):
            assert cli("export", "otel", SAMPLES, "--endpoint", url, *more)[0] == 0
        return received

    def names(received):
        return {a["key"] for s in received.spans.values() for a in s["attributes"]}

    said = {"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments",
            "gen_ai.tool.call.result"}  # fmt: skip
    assert not names(sent()) & said
    assert said < names(sent("--content"))
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    received = sent()
    chats = [s for s in received.spans.values() if s["name"].startswith("chat")]
    first = {a["key"]: a["value"] for a in chats[0]["attributes"]}
    messages = json.loads(first["gen_ai.input.messages"]["stringValue"])
    assert messages[0]["role"] == "user"
    assert messages[0]["parts"][0]["type"] == "text"
    reply = json.loads(first["gen_ai.output.messages"]["stringValue"])[0]
    assert (reply["role"], reply["finish_reason"] in {"stop", "tool_call"}) == ("assistant", True)


# --- faults ---------------------------------------------------------------------------------


def test_nobody_there(cli, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    url = f"http://127.0.0.1:{free_port()}"
    code, out, err = cli("export", "otel", SAMPLES, "--endpoint", url)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "cannot be reached: connection refused" in err
    assert "Delivered: 0 spans and 0 points; the same command sends the rest" in err


def small_batches(monkeypatch):
    monkeypatch.setattr("copilot_insights.otel.delivery._SPANS", 20)
    monkeypatch.setattr("copilot_insights.otel.delivery._POINTS", 100)


@pytest.mark.parametrize("fault", [429, 503, "reset", "slow"])
def test_a_receiver_that_falters_gets_all_of_it_once(fault, cli, monkeypatch, samples):
    small_batches(monkeypatch)
    with http(lambda n: fault if n in {2, 5} else 200) as (url, received):
        assert cli("export", "otel", SAMPLES, "--endpoint", url)[0] == 0
    assert set(received.spans) == expected(samples)
    assert set(received.times.values()) == {1}
    assert by_name(received) == near(totals(samples))


def test_what_was_taken_before_the_connection_broke_is_not_counted_twice(cli, monkeypatch, samples):
    small_batches(monkeypatch)
    with http(lambda n: "taken" if n in {3, 12} else 200) as (url, received):
        assert cli("export", "otel", SAMPLES, "--endpoint", url)[0] == 0
    assert set(received.spans) == expected(samples)
    assert max(received.times.values()) == 2, "sent again, with the same ids"
    assert by_name(received) == near(totals(samples)), "running totals do not add up"


def test_a_receiver_that_dies_in_between_gets_the_rest_later(cli, monkeypatch, samples):
    small_batches(monkeypatch)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    down = [True]
    with http(lambda n: 503 if down[0] and n > 9 else 200) as (url, received):
        words = ["export", "otel", SAMPLES, "--endpoint", url]
        code, _, err = cli(*words)
        assert code == 1
        assert f"Delivered: {len(received.spans)} spans and {len(received.points)} points" in err
        down[0] = False
        assert cli(*words)[0] == 0
    assert set(received.spans) == expected(samples)
    assert set(received.times.values()) == {1}
    assert by_name(received) == near(totals(samples))


def test_a_batch_that_is_refused_does_not_hold_up_the_others(cli, monkeypatch, samples):
    small_batches(monkeypatch)
    with http(lambda n: 400 if n == 1 else 200) as (url, received):
        code, _, err = cli("export", "otel", SAMPLES, "--endpoint", url)
        assert code == 1
        assert len(err.splitlines()) == 1
        assert "refused 20 items" in err
        assert "400" in err
        assert len(received.spans) == len(expected(samples)) - 20
        assert cli("export", "otel", SAMPLES, "--endpoint", url)[0] == 0, "later it takes them"
    assert set(received.spans) == expected(samples)
    assert set(received.times.values()) == {1}


@pytest.mark.parametrize("number", [1, 2])
def test_a_partial_success_is_said_and_not_sent_again(number, cli):
    """The first request has spans, the second points: both answers are alike on the wire."""
    with http(lambda n: "partial" if n == number else 200) as (url, received):
        code, _, err = cli("export", "otel", SAMPLES, "--endpoint", url)
        assert (code, len(err.splitlines())) == (1, 1)
        assert "refused 1 item: too old" in err
        delivered = (143, 512) if number == 1 else (144, 511)
        assert "Delivered: {} spans and {} points".format(*delivered) in err
        assert cli("export", "otel", SAMPLES, "--endpoint", url)[0] == 0
    assert set(received.times.values()) == {1}


def test_a_state_of_another_version_is_said(cli, tmp_path):
    place = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(place)) as base:
        base.execute("create table spans (other text)")
    code, _, err = cli("export", "otel", SAMPLES, "--state", place)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "another version wrote it" in err


def test_a_redirect_is_no_delivery(cli, samples):
    turned = [True]
    with http(lambda _n: 302 if turned[0] else 200) as (url, received):
        code, _, err = cli("export", "otel", SAMPLES, "--endpoint", url)
        assert (code, len(err.splitlines())) == (1, 1)
        assert "it answers 302 and points to another address" in err
        turned[0] = False
        assert cli("export", "otel", SAMPLES, "--endpoint", url)[0] == 0
    assert set(received.spans) == expected(samples)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT])
def test_grpc_that_falters_or_refuses(code, cli, monkeypatch, samples):
    small_batches(monkeypatch)
    with grpc_server(lambda n: code if n == 1 else None) as (url, received):
        words = ["export", "otel", SAMPLES, "--endpoint", url, "--protocol", "grpc"]
        status, _, err = cli(*words)
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            assert (status, len(err.splitlines())) == (1, 1)
            assert "refused 20 items" in err
            status, _, err = cli(*words)
        assert status == 0, err
    assert set(received.spans) == expected(samples)
    assert set(received.times.values()) == {1}
    assert by_name(received) == near(totals(samples))


def test_two_exporters_at_once(cli, tmp_path):
    place = tmp_path / "state.db"
    with http() as (url, received), State(place, "other"):
        code, _, err = cli("export", "otel", SAMPLES, "--endpoint", url, "--state", place)
        assert code == 1
        assert "another export uses" in err
        assert not received.requests


def test_a_full_disk_sends_nothing_that_it_can_not_note(tmp_path):
    """The state may grow to 40 kB: the first batches fit."""
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40960, 40960))\n"
        "import copilot_insights.otel.delivery as d\n"
        "d._SPANS = 20\n"
        "from copilot_insights.cli import main\n"
        "main()\n"
    )
    place = tmp_path / "state.db"
    with http() as (url, received):
        words = ["export", "otel", str(SAMPLES), "--endpoint", url, "--state", str(place)]
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert "cannot write" in done.stderr
        subprocess.run([sys.executable, "-m", "copilot_insights.cli", *words], check=True,
                       capture_output=True)  # fmt: skip
    assert len(received.spans) == 144
    # at most the batch that was under way when the disk was full came twice
    assert sum(times - 1 for times in received.times.values()) <= 20


def test_a_state_that_can_not_be_used_is_said(cli, tmp_path):
    place = tmp_path / "not a database"
    place.write_text("hello\n" * 99)
    code, _, err = cli("export", "otel", SAMPLES, "--state", place)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "file is not a database" in err


# --- logs that grow -------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["resume", "sub2", "never"])
def test_a_growing_log_is_sent_bit_by_bit(run, tmp_path):
    """Whatever is there at each export: in the end everything once, and the counts whole."""
    data = (REAL / "1.0.102" / run / "events.jsonl").read_bytes().splitlines(keepends=True)
    place = tmp_path / "session" / "events.jsonl"
    place.parent.mkdir()
    with http() as (url, received):
        for stop in [*range(3, len(data), 9), len(data)]:
            place.write_bytes(b"".join(data[:stop]))
            tables = load(place.parent)
            with State(tmp_path / "state.db", url) as state:
                # nobody would wait for ten minutes
                now = tables.sessions["ended_at"][0] if stop < len(data) else None
                Delivery(otlp(url, "http/protobuf"), state, What()).send(tables, now=now)
    tables = load(place.parent)
    assert set(received.spans) == expected(tables)
    assert set(received.times.values()) == {1}
    assert by_name(received) == near(totals(tables))


def test_kill_9_in_between_loses_and_doubles_nothing(tmp_path, samples):
    shutil.copytree(SAMPLES, tmp_path / "logs")
    script = (
        "import copilot_insights.otel.delivery as d\n"
        "d._SPANS, d._POINTS = 10, 50\n"
        "from copilot_insights.cli import main\n"
        "main()\n"
    )
    with http(lambda _n: "slow") as (url, received):
        words = [sys.executable, "-c", script, "export", "otel", str(tmp_path / "logs"),
                 "--endpoint", url, "--state", str(tmp_path / "state.db")]  # fmt: skip
        for _ in range(3):
            before = received.requests
            with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
                while received.requests < before + 2 and process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.05)
                process.send_signal(signal.SIGKILL)
        subprocess.run(words, check=True, capture_output=True)
    assert set(received.spans) == expected(samples)
    again = sum(times - 1 for times in received.times.values())
    assert again <= 30, "only batches under way, three at most, came again"
    assert by_name(received) == near(totals(samples))


def test_delta_is_what_each_session_adds(cli, monkeypatch, samples):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    with http() as (url, received):
        assert cli("export", "otel", SAMPLES, "--endpoint", url)[0] == 0
    found = Counter()
    for name, _, point in received.points:
        found[name] += float(point.get("count", point.get("asInt", point.get("asDouble", 0))))
    assert found == near(totals(samples))


def test_running_totals_never_fall_and_their_times_rise(cli):
    with http() as (url, received):
        assert cli("export", "otel", SAMPLES, "--endpoint", url)[0] == 0
    last = {}
    for name, _, point in received.points:
        key = (name, json.dumps(point.get("attributes")))
        value = float(point.get("count", point.get("asInt", point.get("asDouble", 0))))
        time = int(point["timeUnixNano"])
        before = last.get(key, (-1.0, 0))
        assert value >= before[0]
        assert time > before[1]
        last[key] = value, time


# --- tables ---------------------------------------------------------------------------------


def test_tables_go_to_parquet_and_csv(cli, tmp_path, samples):
    code, out, err = cli("export", "parquet", SAMPLES, "-o", tmp_path / "p")
    assert (code, out) == (0, "")
    assert "11 tables of 14 sessions" in err
    for name, columns in TABLES.items():
        frame = pl.read_parquet(tmp_path / "p" / f"{name}.parquet")
        assert dict(frame.schema) == columns
        if name != "events":
            assert frame.height == samples.table(name).height
    assert cli("export", "csv", SAMPLES, "-o", tmp_path / "c")[0] == 0
    assert len((tmp_path / "c" / "sessions.csv").read_text().splitlines()) == 15
    assert cli("export", "csv", SAMPLES, "-o", tmp_path / "c")[0] == 1
    assert cli("export", "csv", SAMPLES)[0] == 2
