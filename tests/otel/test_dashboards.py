"""The dashboards, asked of real servers: Debian's victoria-metrics and prometheus."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import polars as pl
import pytest
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from copilot_insights import load
from copilot_insights.dashboards.build import PROFILES, dashboard, text, within
from copilot_insights.errors import InsightsError
from copilot_insights.otel.metrics import points
from copilot_insights.otel.prometheus import openmetrics, series_name, serve
from copilot_insights.otel.temporality import Totals, added

ROOT = Path(__file__).parents[2]
D1 = [0.01 * 2**n for n in range(14)]
CUMULATIVE = AggregationTemporality.CUMULATIVE
each_profile = pytest.mark.parametrize("profile", PROFILES)


@pytest.fixture(scope="module")
def tables():
    return load([ROOT / "sample_logs"])


def durations(rows, attributes):
    """A histogram point of (milliseconds, end) rows."""
    seconds = [ms / 1000 for ms, _ in rows]
    edges = [float("-inf"), *D1, float("inf")]
    counts = [sum(a < s <= b for s in seconds) for a, b in pairwise(edges)]
    at = int(max(end for _, end in rows).timestamp() * 1e9)
    return HistogramDataPoint(
        attributes, at, at, len(rows), sum(seconds), counts, D1, min(seconds), max(seconds)
    )


@pytest.fixture(scope="module")
def data(tables):
    """Calls, input tokens and tool calls of the samples, each series at its own last time."""
    calls = tables.llm_calls.drop_nulls(["llm_ms", "replied_at", "model"])
    latency, tokens, tools = [], [], []
    for (model,), rows in calls.group_by("model"):
        attributes = {"gen_ai.request.model": model, "gen_ai.operation.name": "chat"}
        latency.append(durations(rows.select("llm_ms", "replied_at").rows(), attributes))
        end = int(rows["replied_at"].max().timestamp() * 1e9)
        tokens.append(NumberDataPoint(attributes, end, end, int(rows["input_tokens"].sum())))
    done = tables.tool_calls.filter(pl.col("status").is_in(["ok", "failed"]))
    for (tool, success), rows in done.group_by("tool", pl.col("status") == "ok"):
        attributes = {"gen_ai.tool.name": tool, "success": success}
        end = int(rows["ended_at"].max().timestamp() * 1e9)
        tools.append(NumberDataPoint(attributes, end, end, rows.height))
    metrics = [
        Metric(name, "", "s", Histogram(latency, CUMULATIVE))
        for name in ("gen_ai.client.inference.duration", "gen_ai.client.operation.duration")
    ] + [
        Metric(name, "", "{x}", Sum(points, CUMULATIVE, is_monotonic=True))
        for name, points in (
            ("gen_ai.client.inference.usage.input_tokens", tokens),
            ("github.copilot.tool.call.count", tools),
        )
    ]
    scope = ScopeMetrics(InstrumentationScope("test"), metrics, "")
    return MetricsData([ResourceMetrics(Resource({}), [scope], "")])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def started(command, url):
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(150):
        try:
            urlopen(url, timeout=2).close()
        except (URLError, OSError):
            assert server.poll() is None, f"{command[0]} did not start"
            time.sleep(0.1)
        else:
            return server
    server.kill()
    server.wait()
    raise AssertionError(f"{command[0]} does not answer")


def needs(*programs):
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")


@pytest.fixture(scope="module", params=["victoria-metrics", "prometheus"])
def ask(request, data, tmp_path_factory):
    """Answers PromQL from a server that has the samples with the times of their logs."""
    home, port = tmp_path_factory.mktemp("tsdb"), free_port()
    url = f"http://127.0.0.1:{port}"
    if request.param == "victoria-metrics":
        needs("victoria-metrics")
        server = started(
            ["victoria-metrics", f"-storageDataPath={home}", f"-httpListenAddr=127.0.0.1:{port}",
             "-retentionPeriod=100y"], f"{url}/health",
        )  # fmt: skip
        urlopen(f"{url}/api/v1/import/prometheus", data=openmetrics_ms(data)).close()
        urlopen(f"{url}/internal/force_flush").close()
    else:
        needs("prometheus", "promtool")
        (home / "in").write_bytes(openmetrics(data))
        (home / "config.yml").write_text("global: {}\n")
        subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", home / "in", home / "db"],
            check=True, capture_output=True,
        )  # fmt: skip
        server = started(
            ["prometheus", f"--config.file={home}/config.yml", f"--storage.tsdb.path={home}/db",
             "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}"],
            f"{url}/-/ready",
        )  # fmt: skip

    def query(expression):
        filled = expression.replace("$__range", "3650d").replace("$repository", ".*")
        # a fixed date past all samples: their range must not depend on when the test runs
        end = max(
            p.time_unix_nano for rm in data.resource_metrics for s in rm.scope_metrics
            for m in s.metrics for p in m.data.data_points
        ) / 1e9 + 60  # fmt: skip
        with urlopen(f"{url}/api/v1/query?{urlencode({'query': filled, 'time': end})}") as got:
            answer = json.load(got)
        assert answer["status"] == "success"
        return {
            tuple(sorted(r["metric"].items())): float(r["value"][1])
            for r in answer["data"]["result"]
        }

    yield query
    server.terminate()
    server.wait(20)


def openmetrics_ms(data):
    """The same lines with the milliseconds of the older text format."""
    lines = [
        line.rsplit(" ", 1) for line in openmetrics(data).decode().splitlines() if line[0] != "#"
    ]
    return "".join(f"{head} {int(float(at) * 1000)}\n" for head, at in lines).encode()


@each_profile
def test_every_expression_is_answered(ask, profile):
    expressions = [t["expr"] for p in dashboard(profile)["panels"] for t in p["targets"]]
    assert len(expressions) > 15
    for expression in expressions:
        ask(expression)


@each_profile
def test_the_answers_are_the_numbers_of_the_tables(ask, profile, tables):
    panels = {p["title"]: p["targets"] for p in dashboard(profile)["panels"]}

    def of(title):
        return ask(panels[title][0]["expr"])

    calls = tables.llm_calls.drop_nulls(["llm_ms", "replied_at", "model"])
    assert of("Model calls") == {(): calls.height}
    by_model = {(("gen_ai_request_model", m),): n for m, n in calls["model"].value_counts().rows()}
    assert of("Model calls by model") == by_model
    done = tables.tool_calls.filter(pl.col("status").is_in(["ok", "failed"]))
    assert of("Tool calls") == {(): done.height}
    assert of("Failed tool calls") == {(): (done["status"] == "failed").sum()}
    assert all(0 < value < 82 for value in of("Model latency").values())
    if profile == "latest":
        assert of("Tokens") == {(): calls["input_tokens"].sum()}


def test_increase_would_lose_what_was_exported_afterwards(ask, tables):
    """Why the dashboards do not use it: Prometheus gives nothing for a single point,
    VictoriaMetrics nothing for a first value that is large."""
    metric = "github_copilot_tool_call_count_total"
    done = tables.tool_calls.filter(pl.col("status").is_in(["ok", "failed"])).height
    assert sum(ask(f"increase({metric}[3650d])").values()) < done
    assert ask(within(metric)) == {(): done}


@each_profile
def test_the_files_are_what_the_code_makes(profile):
    file = ROOT / "copilot_insights" / "dashboards" / f"copilot-{profile}.json"
    if os.environ.get("UPDATE_DASHBOARDS"):
        file.write_text(text(profile))
    assert file.read_text() == text(profile)


@each_profile
def test_panels_do_not_overlap_and_name_no_machine(profile):
    panels = dashboard(profile)["panels"]
    cells = [
        (g["x"] + i, g["y"] + j)
        for g in (p["gridPos"] for p in panels) for i in range(g["w"]) for j in range(g["h"])
    ]  # fmt: skip
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert {p["datasource"]["uid"] for p in panels} == {"${datasource}"}


def test_a_scrape_gives_the_totals_of_now(data):
    with serve("127.0.0.1:0", lambda: data) as url, urlopen(url) as got:
        lines = got.read().decode().splitlines()
    assert any(line.startswith("gen_ai_client_inference_duration_seconds_count{") for line in lines)
    assert any('success="true"' in line for line in lines)


def test_a_taken_or_wrong_address_is_said(data):
    with serve(":0", lambda: data) as url, pytest.raises(InsightsError, match="in use"):
        serve(url.split("/")[2], lambda: data).__enter__()
    with pytest.raises(InsightsError, match="no address"):
        serve("here", lambda: data).__enter__()


def test_names_are_those_of_the_translation():
    assert (
        series_name("gen_ai.execute_tool.duration", "s") == "gen_ai_execute_tool_duration_seconds"
    )
    assert series_name("a.tokens", "{token}", counter=True) == "a_tokens"


def test_the_command_never_overwrites(tmp_path):
    command = [sys.executable, "-m", "copilot_insights.cli", "dashboards", "-o", tmp_path / "d"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    written = sorted((tmp_path / "d").iterdir())
    assert [f.name for f in written] == ["copilot-latest.json", "copilot-v1.41.json"]
    written[0].write_text("mine")
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert again.returncode == 1
    assert "exists" in again.stderr
    assert written[0].read_text() == "mine"


def test_prometheus_scrapes_the_endpoint(data, tables, tmp_path):
    needs("prometheus")
    port = free_port()
    with serve(":0", lambda: data) as scraped:
        (tmp_path / "config.yml").write_text(
            "scrape_configs: [{job_name: copilot, scrape_interval: 200ms, scrape_timeout: 200ms, "
            f"static_configs: [{{targets: ['{scraped.split('/')[2]}']}}]}}]"
        )
        url = f"http://127.0.0.1:{port}"
        server = started(
            ["prometheus", f"--config.file={tmp_path}/config.yml",
             f"--storage.tsdb.path={tmp_path}/db", f"--web.listen-address=127.0.0.1:{port}"],
            f"{url}/-/ready",
        )  # fmt: skip
        asked = {"query": "sum(github_copilot_tool_call_count_total)"}
        found = []
        for _ in range(100):
            with urlopen(f"{url}/api/v1/query?{urlencode(asked)}") as got:
                found = json.load(got)["data"]["result"]
            if found:
                break
            time.sleep(0.1)
        server.terminate()
        server.wait(20)
    done = tables.tool_calls.filter(pl.col("status").is_in(["ok", "failed"])).height
    assert float(found[0]["value"][1]) == done


@each_profile
def test_every_series_of_the_dashboards_is_one_that_is_exported(tables, profile):
    sent = Totals(delta=False).metrics(added(points(tables, profile), {}))
    text = openmetrics(sent).decode()
    for panel in dashboard(profile)["panels"]:
        for target in panel["targets"]:
            name = re.search(r"last_over_time\((\w+)\{", target["expr"])[1]
            assert f"\n{name}{{" in text or f"\n{name} " in text
