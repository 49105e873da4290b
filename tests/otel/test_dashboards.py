"""The dashboards, asked of real servers: Debian's victoria-metrics and prometheus."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import polars as pl
import pytest

from copilot_insights import load
from copilot_insights.dashboards.build import dashboard, text, within
from copilot_insights.errors import InsightsError
from copilot_insights.otel.metrics import METRICS, PROFILES, points
from copilot_insights.otel.prometheus import openmetrics, series_name, serve
from copilot_insights.otel.temporality import Totals, added, summed
from copilot_insights.schema import PARTS

ROOT = Path(__file__).parents[2]
each_profile = pytest.mark.parametrize("profile", PROFILES)


@pytest.fixture(scope="module")
def tables():
    return load([ROOT / "sample_logs"])


def exported(tables, profile):
    """The metrics of `export otel`: running totals, each at the end of its session."""
    return Totals(delta=False).metrics(added(points(tables, profile), {}))


@pytest.fixture(scope="module")
def data(tables):
    """One point a series, as for a scrape."""
    return summed(points(tables))


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


SERVERS = ["victoria-metrics", "prometheus"]


@pytest.fixture(scope="module", params=[(s, p) for s in SERVERS for p in PROFILES],
                ids="-".join)  # fmt: skip
def ask(request, tables, tmp_path_factory):
    """(profile, function that answers PromQL) of a server that has the samples' export."""
    name, profile = request.param
    data = exported(tables, profile)
    home, port = tmp_path_factory.mktemp("tsdb"), free_port()
    url = f"http://127.0.0.1:{port}"
    if name == "victoria-metrics":
        needs("victoria-metrics")
        server = started(
            ["victoria-metrics", f"-storageDataPath={home}", f"-httpListenAddr=127.0.0.1:{port}",
             "-retentionPeriod=100y"], f"{url}/health",
        )  # fmt: skip
        urlopen(f"{url}/api/v1/import/prometheus", data=openmetrics_ms(data)).close()
        urlopen(f"{url}/internal/force_flush").close()
    else:
        needs("prometheus", "promtool")
        command = ["export", "openmetrics", ROOT / "sample_logs", "--profile", profile, "-o"]
        subprocess.run(
            [sys.executable, "-m", "copilot_insights.cli", *command, home / "in"], check=True
        )
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

    def query(expression, range_="3650d", at=None):
        filled = expression.replace("$__range", range_).replace("$repository", ".*")
        # a fixed date past all samples: their range must not depend on when the test runs
        at = at or tables.sessions["ended_at"].max() + timedelta(seconds=60)
        asked = urlencode({"query": filled, "time": at.timestamp()})
        with urlopen(f"{url}/api/v1/query?{asked}") as got:
            answer = json.load(got)
        assert answer["status"] == "success"
        return {
            tuple(sorted(r["metric"].items())): float(r["value"][1])
            for r in answer["data"]["result"]
        }

    query.__doc__ = name
    yield profile, query
    server.terminate()
    server.wait(20)


def openmetrics_ms(data):
    """The same lines with the milliseconds of the older text format."""
    lines = [
        line.rsplit(" ", 1) for line in openmetrics(data).decode().splitlines() if line[0] != "#"
    ]
    return "".join(f"{head} {int(float(at) * 1000)}\n" for head, at in lines).encode()


def panels(profile):
    return {p["title"]: [t["expr"] for t in p["targets"]] for p in dashboard(profile)["panels"]}


def test_every_expression_is_answered(ask):
    profile, query = ask
    expressions = [e for found in panels(profile).values() for e in found]
    assert len(expressions) > 25
    silent = [e for e in expressions if not query(e)]
    # nothing is open in no log, and no line of the samples is damaged
    assert {re.search(r"(\w+)\{", e)[1] for e in silent} <= {
        "copilot_insights_log_rejected_lines_total",
        "copilot_insights_inference_call_count_total",
    }


def one(answer):
    return answer.get((), 0)


def expected(tables):
    """Panel → what it shows of these tables: of its queries' sums over all labels."""
    calls = tables.llm_calls.filter(
        pl.col("evidence") != "compaction", pl.col("status").is_in(["ok", "error"])
    )
    tools, books = tables.tool_calls, tables.bookings
    done = tools.filter(pl.col("status").is_in(["ok", "failed", "denied"]))
    bad = done.filter(pl.col("status") != "ok")
    tokens = [books[f"{n}_tokens"].sum() for n in ("input", "output", "cache_read")]
    latency = calls.drop_nulls("llm_ms").height
    root = tables.interactions.filter(pl.col("agent_id") == "main")
    return {
        "Model calls": [latency],
        "Failed model calls": [calls.filter(pl.col("status") == "error").height],
        "Tokens": tokens,
        "Credits": [tables.sessions["ai_credits"].sum(), tables.sessions["premium_requests"].sum()],
        "Tool calls": [done.height],
        "Failed tool calls": [bad.height],
        "Failures by tool": [bad.height],
        "Cut off": [0, tools.filter(pl.col("status").is_in(["open", "interrupted"])).height, 0],
        "Model calls by model": [latency],
        "Tokens by model": tokens,
        "Model calls by repository": [latency],
        "Tokens by repository": tokens,
        "Where the time went": [
            root.select(pl.sum_horizontal(part).sum() / 1000 for part in PARTS)
            .sum_horizontal()
            .item()
        ],
    }


def asked(ask, **more):
    profile, query = ask
    return {
        title: [sum(query(e, **more).values()) for e in queries]
        for title, queries in panels(profile).items()
    }


def test_the_answers_are_the_numbers_of_the_tables(ask, tables):
    got = asked(ask)
    for title, values in expected(tables).items():
        assert got[title] == pytest.approx(values[: len(got[title])]), title


def test_a_range_holds_what_was_done_in_it(ask, tables):
    """Also behind a gap in which nobody worked, and of series that began long before."""
    ends = tables.sessions.sort("ended_at")
    cut = ends["ended_at"][5] + timedelta(milliseconds=500)
    late = tables.of(ends.filter(pl.col("ended_at") > cut)["session_id"])
    end = ends["ended_at"][-1] + timedelta(seconds=60)
    seconds = (end - cut).total_seconds()
    got = asked(ask, range_=f"{int(seconds * 1000)}ms", at=end)
    for title, values in expected(late).items():
        assert got[title] == pytest.approx(values[: len(got[title])]), title
    idle = asked(ask, range_="5h", at=end + timedelta(days=9))
    assert not any(sum(values) for title, values in idle.items() if title in expected(tables))


def test_percentiles_are_in_their_bucket(ask, tables):
    profile, query = ask
    p50 = query(panels(profile)["Model latency"][0])
    calls = tables.llm_calls.filter(
        pl.col("evidence") != "compaction", pl.col("status").is_in(["ok", "error"])
    )
    for (model,), rows in calls.group_by("model"):
        true = rows["llm_ms"].median() / 1000
        got = p50[(("gen_ai_request_model", model),)]
        bounds = [0, *METRICS["gen_ai.client.inference.duration"].bounds]
        assert any(a <= true <= b and a <= got <= b for a, b in pairwise(bounds)), (true, got)


def test_increase_would_lose_what_was_exported_afterwards(ask, tables):
    """Why the dashboards do not use it: in Prometheus a series has no rise to its first point."""
    profile, query = ask
    metric = "github_copilot_tool_call_count_total"
    done = expected(tables)["Tool calls"][0]
    risen = sum(query(f"increase({metric}[3650d])").values())
    assert risen < done or query.__doc__ == "victoria-metrics"
    assert query(within(metric)) == {(): done}, profile


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
    assert "exist. Use --force" in again.stderr
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
    done = tables.tool_calls.filter(pl.col("status").is_in(["ok", "failed", "denied"])).height
    assert float(found[0]["value"][1]) == done


@each_profile
def test_every_series_of_the_dashboards_is_one_that_is_exported(tables, profile):
    text = openmetrics(exported(tables, profile)).decode()
    for panel in dashboard(profile)["panels"]:
        for target in panel["targets"]:
            name = re.search(r"last_over_time\((\w+)\{", target["expr"])[1]
            assert f"\n{name}{{" in text or f"\n{name} " in text
