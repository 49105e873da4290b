"""The shape of the package: who may import whom, and what every module owes."""

import ast
from pathlib import Path

import pytest

import copilot_insights
from copilot_insights import load
from copilot_insights.schema import TABLES

PACKAGE = Path(copilot_insights.__file__).parent
ALL = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
RUNNER = {name: path for name, path in ALL.items() if name.startswith("runner.")}
MODULES = {
    name: path
    for name, path in ALL.items()
    if name not in RUNNER and name.rpartition(".")[2] != "__init__"
}
TREES = {
    name: ast.parse(path.read_text(encoding="utf-8")) for name, path in (MODULES | RUNNER).items()
}

# a module imports of the package only what stands above its own line; `otel.spans` is
# otel/spans.py
LAYERS = """
errors units values
when schema places
chain columns decoder discover session_store
reader
spans
model_calls tool_calls totals
interactions
accounting
tables
cache
loading
rows follow redact filters
metrics
reports
live compare
content waterfall
render
tree
breakdowns page
charts timeline waterfall_page
compare_chart
report_page
otel.spans
otel.metrics otel.content otel.state otel.exporters
otel.temporality
otel.delivery otel.prometheus
otel.live
options dashboards.build
commands.chart
commands.compare commands.dashboards commands.show commands.export
commands.html commands.redact commands.watch
cli
__main__
"""
RANK = {name: rank for rank, line in enumerate(LAYERS.split("\n")) for name in line.split()}

# what is slow to import, or prints, or talks → the modules that may, and when
CONFINED = {
    "typer": {
        "cli",
        "options",
        "commands.chart",
        "commands.compare",
        "commands.dashboards",
        "commands.export",
        "commands.html",
        "commands.redact",
        "commands.show",
        "commands.watch",
    },
    "rich": {"render", "commands.watch"},
    "plotly": {"charts"},
    "opentelemetry": {"otel.spans", "otel.temporality", "otel.exporters"},
    "openai": set(),
    "sqlite3": {"session_store", "otel.state"},
    "subprocess": {"loading"},
    "socket": set(),
    "requests": {"otel.exporters"},
}
NO_POLARS = {
    "errors", "units", "when", "places", "discover", "options", "cli", "__init__",
    "commands.chart", "commands.compare", "commands.dashboards", "commands.export",
    "commands.redact", "commands.show", "commands.html", "commands.watch", "redact",
}  # fmt: skip

each_module = pytest.mark.parametrize("module", MODULES)
everywhere = pytest.mark.parametrize("module", TREES)


def imports(tree):
    """Full names of what a module imports, wherever in it, but for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node)


def ours(tree):
    """Modules of the package that it imports."""
    names = {f"{name}." for name in imports(tree)}
    return {
        module
        for module in MODULES
        if any(name.startswith(f"copilot_insights.{module}.") for name in names)
    }


@each_module
def test_every_module_has_its_layer(module):
    assert module in RANK, f"say in LAYERS where {module} stands"


@each_module
def test_arrows_go_one_way_only(module):
    wrong = {name for name in ours(TREES[module]) if RANK[name] >= RANK[module]}
    assert not wrong, f"{module} must not import {wrong}"


@each_module
def test_what_is_heavy_or_has_effects_stays_where_it_belongs(module):
    tops = {name.partition(".")[0] for name in imports(TREES[module])}
    for name, allowed in CONFINED.items():
        assert name not in tops or module in allowed
    if module in NO_POLARS:
        assert "polars" not in tops


@each_module
def test_only_the_command_line_prints_and_exits(module):
    called = {
        ast.unparse(node.func) for node in ast.walk(TREES[module]) if isinstance(node, ast.Call)
    }
    speaks = module in {"options", "cli", "__main__"}
    assert speaks or not called & {"print", "sys.exit", "exit", "quit"}


@each_module
def test_analysis_does_not_know_the_runner(module):
    of = {name for name in imports(TREES[module]) if name.startswith("copilot_insights.runner")}
    assert not of or module == "cli"


@pytest.mark.parametrize("module", RUNNER)
def test_the_runner_shares_with_analysis_only_errors_and_the_schema(module):
    assert ours(TREES[module]) <= {"errors", "schema"}
    tops = {name.partition(".")[0] for name in imports(TREES[module])}
    assert not tops & {"polars", "plotly", "opentelemetry", "sqlite3"}
    assert "openai" not in tops or module == "runner.model"


def test_the_runner_has_no_circles():
    """Modules that import only what is gone already go, until none is left."""
    left = {
        name: {other for other in RUNNER for full in imports(TREES[name])
               if f"{full}.".startswith(f"copilot_insights.{other}.") and other != name}
        for name in RUNNER
    }  # fmt: skip
    assert any(left.values())
    while free := {name for name, needs in left.items() if not needs & set(left)}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert not left


@everywhere
def test_no_module_is_long(module):
    assert len(ALL[module].read_text(encoding="utf-8").splitlines()) <= 550


@everywhere
def test_everything_public_says_what_it_is(module):
    silent = [] if ast.get_docstring(TREES[module]) else [module]
    for node in TREES[module].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            inner = node.body if isinstance(node, ast.ClassDef) else []
            methods = [n for n in inner if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
            silent += [n.name for n in [node, *methods] if not ast.get_docstring(n)]
    decorated = {"report", "table", "check"} if module == "cli" else set()
    assert not set(silent) - decorated


@everywhere
def test_a_private_name_is_used_in_its_own_module_only(module):
    names = (name for name in imports(TREES[module]) if name.startswith("copilot_insights"))
    assert not [name for name in names if name.rpartition(".")[2][0] == "_" and "__" not in name]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_the_columns_of_the_schema(name, tmp_path):
    samples = PACKAGE.parent / "sample_logs"
    (tmp_path / "empty.jsonl").touch()
    for place in (samples, samples / "killed-1.0.65", tmp_path / "empty.jsonl"):
        for events in (True, False):
            frame = load([place], events=events).table(name)
            assert dict(frame.schema) == TABLES[name]


def test_every_table_begins_with_its_session_and_names_its_units():
    for columns in TABLES.values():
        assert next(iter(columns)) == "session_id"
        for name, dtype in columns.items():
            if name.endswith(("_ms", "_tokens")):
                assert str(dtype) == "Int64"
            if name.endswith("_at"):
                assert str(dtype) == "Datetime(time_unit='ms', time_zone='UTC')"


def test_the_package_says_what_is_public():
    assert all(getattr(copilot_insights, name) is not None for name in copilot_insights.__all__)
    with pytest.raises(AttributeError):
        _ = copilot_insights.nothing_of_the_kind
