"""The notebooks run top to bottom, show pictures with something in them, and are right in
what they say.
"""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from copilot_insights import charts, load, metrics
from copilot_insights.waterfall import waterfall

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIGURES = {"1_tour": 2, "2_tools": 3, "3_models_tokens_credits": 3, "4_one_session": 1,
           "5_before_and_after": 3}  # fmt: skip
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def prose(name):
    cells = json.loads((ROOT / f"notebooks/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.sub(r"\s+", " ", text)


def empty(figure):
    """Whether a trace of it has nothing to draw."""
    sizes = [
        len(v["bdata"]) if isinstance(v, dict) else len(v)
        for trace in figure["data"]
        for k, v in trace.items()
        if k in {"x", "y"}
    ]
    return not sizes or not all(sizes)


@each
@pytest.mark.filterwarnings("ignore")  # of the kernel's own start
def test_a_notebook_runs_and_draws(path):
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=60, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    assert not [out for out in outputs if out.output_type == "error"]
    kind = "application/vnd.plotly.v1+json"
    figures = [out["data"][kind] for out in outputs if kind in out.get("data", ())]
    assert len(figures) == FIGURES[path.stem]
    assert not [figure for figure in figures if empty(figure)]
    assert all(figure["layout"]["title"]["text"] for figure in figures)
    looks = [figure["layout"]["template"]["layout"]["colorway"] for figure in figures]
    assert looks == [list(charts.COLORS)] * len(figures)


@each
def test_a_notebook_is_kept_without_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


def test_there_are_five_notebooks():
    assert [path.stem for path in NOTEBOOKS] == list(FIGURES)


def test_what_the_notebooks_say_is_so():
    tables = load(ROOT / "sample_logs")
    o = metrics.overview(tables).row(0, named=True)
    parts = dict(metrics.time_parts(tables).select("part", "share").iter_rows())
    tools = {row["tool"]: row for row in metrics.tools(tables).iter_rows(named=True)}
    models = {row["model"]: row for row in metrics.models(tables).iter_rows(named=True)}
    source = tables.sessions.group_by("usage_source").len()
    sources = dict(source.iter_rows())
    sides = [
        load([ROOT / "sample_logs/*-1.0.12", ROOT / "sample_logs/*-1.0.65"]),
        load(ROOT / "sample_logs/*-1.0.102"),
    ]
    calls = [metrics.models(side).row(0, named=True) for side in sides]
    bash = [
        metrics.tools(side).row(by_predicate=pl.col("tool") == "bash", named=True) for side in sides
    ]
    sub2 = load(ROOT / "sample_logs/sub2-1.0.102")
    bars = waterfall(sub2, sub2.sessions["session_id"][0]).bars
    tasks = bars.filter(name="task").sort("duration_ms", descending=True)["duration_ms"].to_list()
    mock, view, edit = models["mock-model"], tools["view"], tools["edit"]
    said = {
        "1_tour": [
            f"{o['sessions']} in all",
            f"{o['llm_calls']} model calls in {o['interactions']} interactions",
            f"{o['tool_calls']} tool calls, {o['failed_tool_calls']} of them failed",
            f"Models take {parts['llm']:.0%} of it and tools {parts['tool']:.0%}".replace(
                "%", " %"
            ),
        ],
        "2_tools": [
            f"{tools['bash']['calls']} times",
            f"`view` fails in {view['failed']} of {view['calls']} calls",
            f"`edit` in {edit['failed']} of {edit['calls']}",
            f"{o['denied_tool_calls']} of the {o['failed_tool_calls']} failures",
            f"Hooks hold `bash` for {tools['bash']['hook_ms']} ms",
            f"`glob` for {tools['glob']['hook_ms']} ms",
            f"({tools['glob']['total_ms']} ms)",
            f"{tools['bash']['max_ms'] / 1000:.1f} s",
        ],
        "3_models_tokens_credits": [
            f"{mock['input_tokens']:,} tokens went in",
            f"{mock['cache_read_tokens']:,} came from",
            f"take {mock['p50_ms']} ms or less",
            f"more than {mock['p95_ms']} ms",
            f"{sources['usage_record']} sessions have usage records",
            f"{sources['shutdown']} state totals",
            f"({o['compaction_input_tokens']:,} tokens in)",
        ],
        "4_one_session": [
            f"{bars.height} bars here",
            f"({tasks[0]} ms and {tasks[1]} ms)",
        ],
        "5_before_and_after": [
            f"{sides[0].sessions.height} sessions on each side",
            f"from {calls[0]['p50_ms']} ms to {calls[1]['p50_ms']} ms",
            f"from {calls[0]['p95_ms']} ms to {calls[1]['p95_ms']} ms",
            f"({bash[0]['p50_ms']} ms to {bash[1]['p50_ms']} ms",
        ],
    }
    for name, phrases in said.items():
        text = prose(name)
        assert [phrase for phrase in phrases if phrase not in text] == [], name
