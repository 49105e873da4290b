"""The tools, run as the loop runs them."""

import asyncio
import contextlib
import time

import psutil
import pytest

from copilot_insights.runner.model import ToolCall
from copilot_insights.runner.toolbox import builtin_tools
from copilot_insights.runner.tools import Tool, ToolContext, ToolResult, run_tool
from tests.runner.shapes import read
from tests.runner.support import write_scripts

TOOLS = builtin_tools()


def is_gone(pid):
    """The process has ended, or does so within ten seconds: a kill takes its moment."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for _ in range(1000):
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.01)
        process.kill()
        return False
    return True


async def no_task(*_):
    raise AssertionError("no sub-agent is asked for here")


@pytest.fixture
def call(tmp_path, shop):
    """`call(tool, **arguments)`; what `run_tool` gives."""

    def call_(name, arguments=None, bash_timeout=20.0, call_id="call_1", **named):
        context = ToolContext(
            shop.resolve(), ToolCall(call_id, name, {}), tmp_path / "spill", no_task, bash_timeout
        )
        arguments = named if arguments is None else arguments
        return asyncio.run(run_tool(TOOLS.get(name), context, arguments))

    return call_


def test_the_schemas_say_what_the_clis_do():
    required = {name: tool.schema.get("required", []) for name, tool in TOOLS.items()}
    assert required == {
        "bash": ["command"],
        "view": ["path"],
        "create": ["path", "file_text"],
        "edit": ["path", "old_str"],
        "glob": ["pattern"],
        "grep": ["pattern"],
        "task": ["name", "prompt", "agent_type", "description"],
        "task_complete": ["summary"],
    }
    grep = TOOLS["grep"].schema["properties"]
    assert {"-n", "-i", "-A", "-B", "-C", "output_mode", "glob", "head_limit"} <= set(grep)
    assert grep["output_mode"]["enum"] == ["content", "count", "files_with_matches"]
    for tool in TOOLS.values():
        definition = tool.definition()["function"]
        assert definition["description"]
        assert definition["parameters"]["type"] == "object"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("view", {}, "missing required field `path`"),
        ("view", {"path": 5}, "Expected `str`, got `int` - at `$.path`"),
        ("bash", {"command": "true", "mode": "sideways"}, "Invalid enum value 'sideways'"),
        ("view", "{not json", "no JSON object"),
        ("no_such_tool", {}, "Tool 'no_such_tool' does not exist."),
        ("view", {"path": "nope.py"}, "Path does not exist"),
        ("create", {"path": "a.py", "file_text": ""}, "Path already exists"),
        ("create", {"path": "no/dir.py", "file_text": ""}, "Parent directory does not exist"),
        ("edit", {"path": "a.py", "old_str": "f()", "new_str": ""}, "Multiple matches found"),
        ("edit", {"path": "a.py", "old_str": "zzz", "new_str": ""}, "No match found"),
        ("edit", {"path": "a.py", "old_str": "", "new_str": "x"}, "No match found"),
        ("view", {"path": "a.py", "view_range": [3]}, "view_range takes two numbers."),
        ("view", {"path": "a.py", "view_range": [9, 10]}, "outside the file's 4 lines"),
        ("view", {"path": "nul\0byte"}, "null"),
        ("grep", {"pattern": "(unclosed"}, "Unmatched ("),
        ("bash", {"command": "sleep 1", "mode": "async"}, "Only mode sync"),
    ],
)
def test_what_cannot_be_done_is_an_error_that_the_model_sees(call, name, arguments, message):
    result = call(name, arguments)
    assert result.code == "failure"
    assert message in result.text


def test_a_tool_that_breaks_is_an_error_result(shop):
    async def broken(*_):
        raise ZeroDivisionError("division by zero")

    tool = Tool("broken", "", {}, broken, "none")
    context = ToolContext(shop, ToolCall("c", "broken", {}), shop, no_task)
    result = asyncio.run(run_tool(tool, context, {}))
    assert result == ToolResult("ZeroDivisionError: division by zero", "failure")


def test_files_are_viewed_created_and_edited(call, shop):
    assert call("view", path="a.py").text == "def f():\n    return 1\n\nprint(f())\n"
    assert call("view", path="a.py", view_range=[2, 3]).text == "    return 1\n\n"
    assert call("view", path="a.py", view_range=[4, -1]).text == "print(f())\n"
    (shop / "sub").mkdir()
    assert call("view", path=".").text == ".git/\na.py\nsub/"
    result = call("create", path="sub/b.py", file_text="x = 1\r\ny = 2\n")
    assert (shop / "sub/b.py").read_bytes() == b"x = 1\r\ny = 2\n"
    assert result.log["fileEdits"] == [{"path": str(shop / "sub/b.py"), "kind": "create"}]
    assert result.telemetry["metrics"] == {"linesAdded": 2, "linesRemoved": 0}
    result = call("edit", path="sub/b.py", old_str="x = 1\r\n", new_str="")
    assert (shop / "sub/b.py").read_bytes() == b"y = 2\n"
    assert result.telemetry["metrics"] == {"linesAdded": 0, "linesRemoved": 1}


def test_a_binary_file_is_not_rewritten(call, shop):
    (shop / "data.bin").write_bytes(b"\xff\xfe old \x00")
    assert call("edit", path="data.bin", old_str=" old ", new_str="new").code == "failure"
    assert (shop / "data.bin").read_bytes() == b"\xff\xfe old \x00"


def test_files_are_found_by_name_and_content(call, shop):
    (shop / "pkg").mkdir()
    (shop / "pkg" / "b.py").write_text("def g():\n    return 2\n", encoding="utf-8")
    assert call("glob", pattern="**/*.py").text == "./a.py\n./pkg/b.py"
    assert call("glob", pattern="*.zzz").text == "No files matched the pattern."
    assert call("glob", pattern="*", paths="pkg").text == f"{shop}/pkg/b.py"
    assert call("grep", pattern="return").text.splitlines() == ["./a.py", "./pkg/b.py"]
    found = call("grep", {"pattern": "RETURN", "-i": True, "-n": True, "output_mode": "content"})
    assert sorted(found.text.splitlines()) == ["./a.py:2:    return 1", "./pkg/b.py:2:    return 2"]
    counted = call("grep", pattern="return", output_mode="count", glob="a*")
    assert counted.text == "./a.py:1"
    assert call("grep", pattern="nowhere").text == "No matches found."
    assert call("grep", pattern="return", head_limit=1).text.count("\n") == 0
    assert ".git" not in call("grep", pattern=".").text


def test_a_command_gives_its_output_and_exit_code(call):
    result = call("bash", command="echo out; echo err >&2; exit 3", description="both")
    assert result.text.splitlines()[:2] == ["out", "err"]
    assert result.log == {"shellExecution": {"exitCode": 3}}
    assert result.success


def test_a_command_that_never_ends_is_killed_with_its_children(call):
    result = call("bash", command="sleep 600 & echo $!; sleep 600", bash_timeout=1.0)
    assert result.code == "timeout"
    assert "Killed after 1 s" in result.text
    assert is_gone(int(result.text.split()[-1]))


def test_a_child_left_behind_does_not_hold_the_call(call):
    result = call("bash", command="sleep 600 & echo $!", bash_timeout=60.0)
    assert result.success  # it did not wait for the child, else its time had run out
    assert is_gone(int(result.text.split()[0]))


def test_gigabytes_of_output_are_counted_not_kept(call, tmp_path):
    result = call("bash", command="head -c 2000000000 /dev/zero | tr '\\0' x", bash_timeout=60)
    assert "Output too large to read at once (1953125.0 KB)" in result.text
    assert len(result.text) < 2000
    [spilled] = (tmp_path / "spill").iterdir()
    assert spilled.stat().st_size == 4 * 1024 * 1024


def test_input_is_not_waited_for(call):
    assert call("bash", command="cat; read x; echo $?").text.startswith("1\n")


def test_paths_that_lead_out_are_refused(run, log, shop, tmp_path):
    """`../`, absolute and symlinked paths, with every tool allowed but not every path."""
    (tmp_path / "secret.txt").write_text("hush", encoding="utf-8")
    (shop / "link").symlink_to(tmp_path)
    scripts = write_scripts(tmp_path)
    run("[[script:outside]] go", "--allow-all-tools", "--deny-tool", "shell", script=scripts)
    completed = {
        e["data"]["toolCallId"]: e["data"]
        for e in read(log())
        if e["type"] == "tool.execution_complete"
    }
    outcomes = []
    for event in read(log()):
        if event["type"] == "tool.execution_start":
            data = completed[event["data"]["toolCallId"]]
            code = (data.get("error") or {}).get("code")
            outcomes.append((event["data"]["toolName"], code or data["result"]["content"]))
    assert outcomes == [
        ("view", "denied"),
        ("view", "denied"),
        ("glob", "failure"),
        ("glob", "No files matched the pattern."),
        ("grep", "denied"),
        ("grep", "No matches found."),
        ("create", "denied"),
        ("edit", "denied"),
        ("bash", "denied"),
    ]
    said = "".join(str(data) for data in completed.values())
    assert "hush" not in said
    assert (tmp_path / "secret.txt").read_text(encoding="utf-8") == "hush"
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("call_id", ["../evil", "/{}/evil", "a/b", "x" * 300, "nul\0", "."])
def test_an_output_is_spilled_to_its_place_whatever_the_model_calls_the_call(
    call, tmp_path, call_id
):
    before = sorted(tmp_path.rglob("*"))
    result = call("bash", command="seq 100000", call_id=call_id.format(tmp_path))
    assert result.success
    new = [path for path in tmp_path.rglob("*") if path not in before]
    assert {path.parent for path in new if path.is_file()} == {tmp_path / "spill"}


def test_a_spilled_output_can_be_read(call, tmp_path):
    result = call("bash", command="seq 100000")
    path = next((tmp_path / "spill").iterdir())
    assert str(path) in result.text
    assert call("view", path=str(path), view_range=[99999, 100000]).text == "99999\n100000\n"
