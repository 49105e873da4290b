"""The analysis counts the same in the runner's logs as in the real CLI's."""

import json
import subprocess
import sys

import pytest

from tests.runner.support import REAL
from tests.runner.test_conformity import RUNS

pytest.importorskip("copilot_insights.cli", reason="the analysis is not there")

COUNTS = (
    "ending",
    "processes",
    "interactions",
    "nudges",
    "turns_started",
    "turns_completed",
    "llm_calls",
    "failed_llm_calls",
    "tool_calls",
    "failed_tool_calls",
    "subagents",
    "errors",
    "aborts",
    "task_complete",
    "output_tokens",
    "reasoning_tokens",
    "usage_source",
    "lines_added",
    "lines_removed",
    "rejected_lines",
    "duplicate_events",
    "events",
)
"""Input tokens are not among them: the CLI's system prompt and tools are longer."""


def session_row(path, environment):
    arguments = [sys.executable, "-m", "copilot_insights.cli", "table", "sessions", str(path)]
    shown = subprocess.check_output([*arguments, "--json"], env=environment)
    [row] = json.loads(shown)
    return {name: row[name] for name in COUNTS}


@pytest.mark.parametrize("scenario", [name for name in RUNS if name != "compact"])
def test_the_counts_are_the_same(scenario, run, log, clean_environment):
    for prompt, *options in RUNS[scenario]:
        run(prompt, *options, check=scenario != "error")
    theirs = REAL / "1.0.102" / scenario / "events.jsonl"
    assert session_row(log(), clean_environment) == session_row(theirs, clean_environment)
