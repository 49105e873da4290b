"""Metric points made from a log against those that the CLI sent for the same run."""

from collections import defaultdict

import pytest

from copilot_insights import load
from copilot_insights.otel.metrics import METRICS, PROFILES, Distribution, distribution, points

from .telemetry import EVERY_LOG, REAL, lines, runs

VERSION = {"latest": "1.0.102", "v1.41": "1.0.65"}
# its file holds only the last of the run's three processes
WHOLE = [(p, run) for p in PROFILES for run in runs(VERSION[p]) if run != "resume"]

NOT_IN_THE_LOG = {  # metrics, and attributes of others
    "gen_ai.client.inference.time_per_output_chunk",
    "gen_ai.client.operation.time_per_output_chunk",
    "github.copilot.sandbox.operation.count",
    "server.address", "server.port",
}  # fmt: skip
NOT_IN_OLD_LOGS = {"gen_ai.client.operation.time_to_first_chunk"}
OURS = "vcs.repository.name"
# CLI 1.0.65 counted one call less than its model's server for each sub-agent
CALLS_THAT_IT_MISSED = {"sub": 1, "sub2": 2}
# … and took the tools that a reply asked for as part of the call
WITH_TOOLS = {("gen_ai.client.operation.duration", "chat")}


def ours(profile, run):
    path = REAL / VERSION[profile] / run / "events.jsonl"
    return {
        (point.name, tuple(pair for pair in point.attributes if pair[0] != OURS)): point.value
        for point in points(load(path), profile)
        if not point.name.startswith("copilot_insights.")
    }


def theirs(profile, run):
    found = {}
    for line in lines(VERSION[profile], run, "metric"):
        for point in line["dataPoints"]:
            said = {k: v for k, v in point["attributes"].items() if k not in NOT_IN_THE_LOG}
            found[line["name"], tuple(sorted(said.items()))] = point["value"]
    skipped = NOT_IN_THE_LOG | (NOT_IN_OLD_LOGS if profile == "v1.41" else set())
    return {key: value for key, value in found.items() if key[0] not in skipped}


@pytest.mark.parametrize(("profile", "run"), WHOLE)
def test_series_are_those_of_the_cli(profile, run):
    assert set(ours(profile, run)) == set(theirs(profile, run))


@pytest.mark.parametrize(("profile", "run"), WHOLE)
def test_counts_are_those_of_the_cli(profile, run):
    its = theirs(profile, run)
    for key, value in ours(profile, run).items():
        attributes = dict(key[1])
        chat = profile == "v1.41" and attributes.get("gen_ai.operation.name") == "chat"
        if isinstance(value, Distribution):
            missed = CALLS_THAT_IT_MISSED.get(run, 0) if chat else 0
            assert value.count == its[key]["count"] + missed, key
            if not (chat and "duration" in key[0]) and not missed:
                far = 0.1 * value.count if METRICS[key[0]].unit == "s" else 0
                assert value.sum == pytest.approx(its[key]["sum"], abs=far), key
        else:
            assert value == its[key], key


@pytest.mark.parametrize("profile", PROFILES)
def test_units_descriptions_and_buckets_are_those_of_the_cli(profile):
    seen = set()
    for run in runs(VERSION[profile]):
        for line in lines(VERSION[profile], run, "metric"):
            if line["name"] in NOT_IN_THE_LOG:
                continue
            metric = METRICS[line["name"]]
            assert (line["unit"], line["description"]) == (metric.unit, metric.description)
            for point in line["dataPoints"]:
                value = point["value"]
                if isinstance(value, dict):
                    assert value["buckets"]["boundaries"] == pytest.approx(metric.bounds)
                    seen.add(line["name"])
                    if value["count"] == 1:  # then its one value is known
                        mine = distribution([value["sum"]], metric.bounds)
                        assert list(mine.counts) == value["buckets"]["counts"]
                else:
                    assert metric.bounds == ()
    assert len(seen) >= 6


def test_a_value_on_a_bound_is_in_the_bucket_below():
    assert distribution([0, 1, 1.5, 2, 9], (1, 2)).counts == (2, 2, 1)


@pytest.fixture(scope="module")
def everything():
    return load(EVERY_LOG)


@pytest.mark.parametrize("profile", PROFILES)
def test_sums_over_sessions_are_the_report_s(everything, profile):
    sums = defaultdict(float)
    for point in points(everything, profile):
        value = point.value
        sums[point.name] += value.sum if isinstance(value, Distribution) else value
    sessions, tools = everything.sessions, everything.tool_calls
    ours = "copilot_insights"
    assert sums[f"{ours}.session.count"] == sessions.filter(~sessions["wall_ms"].is_null()).height
    assert sums[f"{ours}.inference.call.count"] == sessions["llm_calls"].sum()
    assert sums[f"{ours}.tool.outcome.count"] == sessions["tool_calls"].sum()
    assert sums[f"{ours}.usage.input_tokens"] == sessions["input_tokens"].sum()
    assert sums[f"{ours}.usage.output_tokens"] == sessions["output_tokens"].sum()
    assert sums[f"{ours}.usage.premium_requests"] == pytest.approx(
        sessions["premium_requests"].sum()
    )
    parts = ("llm_ms", "tool_ms", "permission_ms", "hook_ms", "other_ms")
    whole = sum(sessions[part].sum() for part in parts)
    assert sums[f"{ours}.interaction.time"] == pytest.approx(whole / 1000)
    assert sums["github.copilot.tool.call.duration"] == pytest.approx(
        tools["duration_ms"].sum() / 1000
    )


def test_points_carry_the_session_s_own_time(everything):
    times = {
        row["session_id"]: (row["started_at"], row["ended_at"])
        for row in everything.sessions.iter_rows(named=True)
    }
    for point in points(everything):
        start, end = times[point.session_id]
        assert point.start == round(start.timestamp() * 1000) * 10**6
        assert point.end == max(round(end.timestamp() * 1000) * 10**6, point.start + 1)


def test_every_metric_is_listed_once_with_its_unit():
    assert all(metric.unit and metric.description[-1] == "." for metric in METRICS.values())
