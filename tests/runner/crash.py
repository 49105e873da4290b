"""Kills a running session at a random instant, many times, and resumes what is left.

    python crash.py DIRECTORY KILLS SEED

Each victim is a forked child, so that an instant costs milliseconds. What it left is kept as
DIRECTORY/NUMBER/killed.jsonl. Prints one JSON object.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from copilot_insights.runner.permissions import Policy
from copilot_insights.runner.scripts import ScriptedModel, load_scripts
from copilot_insights.runner.session import Session, Settings

SCRIPTS = {
    "crash": [
        {
            "text": "One.",
            "delay": 0.02,
            "tools": [
                {"name": "bash", "arguments": {"command": "echo 1"}},
                {"name": "glob", "arguments": {"pattern": "*"}},
            ],
        },
        {
            "text": "Two.",
            "delay": 0.02,
            "tools": [
                {
                    "name": "task",
                    "arguments": {
                        "name": "a",
                        "prompt": "[[script:child]] a",
                        "agent_type": "explore",
                        "description": "a",
                    },
                },
                {
                    "name": "task",
                    "arguments": {
                        "name": "b",
                        "prompt": "[[script:child]] b",
                        "agent_type": "explore",
                        "description": "b",
                        "mode": "background",
                    },
                },
                {
                    "name": "create",
                    "arguments": {"path": "{cwd}/new.py", "file_text": "x\n" * 5000},
                },
                {"name": "bash", "arguments": {"command": "seq 2000"}},
            ],
        },
        {"text": "Three.", "delay": 0.02, "tools": []},
        {"text": "Four.", "delay": 0.02, "tools": []},
    ],
    "child": [
        {
            "text": "",
            "delay": 0.02,
            "tools": [{"name": "bash", "arguments": {"command": "echo 2"}}],
        },
        {"text": "Found.", "delay": 0.02, "tools": []},
    ],
    "hello": [{"text": "Hello again.", "tools": []}],
}


def settings(directory, scripts):
    cwd = directory / "shop"
    cwd.mkdir(parents=True, exist_ok=True)
    model = ScriptedModel(load_scripts(scripts))
    return Settings(directory, cwd, model, policy=Policy(allow_all=True))


async def live(directory, scripts, begun):
    session = Session.create(settings(directory, scripts), "victim")
    os.write(begun, b"!")
    await session.send_and_wait("[[script:crash]] go")
    await session.shutdown()


async def revive(directory, scripts):
    session = Session.resume(settings(directory, scripts), "victim")
    said = await session.send_and_wait("[[script:hello]] go")
    assert said == "Hello again.", said
    await session.shutdown()


def inspect(raw):
    """The whole lines' events, and whether a torn line follows; a bad line before it fails.

    A line is one write, but the kernel may end a killed one's at a page's end.
    """
    *lines, torn = raw.split(b"\n")
    return [json.loads(line) for line in lines], bool(torn)


def main(root, kills, seed):
    generator = random.Random(seed)  # noqa: S311  # instants, no secrets
    scripts = root / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS), encoding="utf-8")
    last_types: Counter[str] = Counter()
    lines, logs, torn, empty = 0, 0, 0, 0
    for number in range(kills):
        directory = root / str(number)
        reading, writing = os.pipe()
        victim = os.fork()
        if victim == 0:
            os.setpgid(0, 0)
            asyncio.run(live(directory, scripts, writing))
            os._exit(0)
        os.read(reading, 1)
        os.close(reading)
        os.close(writing)
        time.sleep(generator.uniform(0.0, 0.15))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        path = directory / "session-state" / "victim" / "events.jsonl"
        if not path.exists() or not path.stat().st_size:
            empty += 1
            continue
        raw = path.read_bytes()
        (directory / "killed.jsonl").write_bytes(raw)
        before, is_torn = inspect(raw)
        lines += len(before)
        torn += is_torn
        logs += 1
        last_types[before[-1]["type"] if before else "nothing"] += 1
        asyncio.run(revive(directory, scripts))
        events, still_torn = inspect(path.read_bytes())
        assert events[: len(before)] == before
        assert not still_torn
        assert events[-1]["type"] == "session.shutdown"
        counted = events[-1]["data"]["modelMetrics"]["scripted"]["requests"]["count"]
        assert counted == sum(event["type"] == "session.usage_record" for event in events)
        assert [e["parentId"] for e in events] == [None, *(e["id"] for e in events[:-1])]
        opened = {e["data"]["toolCallId"] for e in events if e["type"] == "tool.execution_start"}
        closed = {e["data"]["toolCallId"] for e in events if e["type"] == "tool.execution_complete"}
        assert opened == closed, opened ^ closed
    result = {"logs": logs, "lines": lines, "torn": torn, "before_the_first_message": empty}
    sys.stdout.write(json.dumps(result | {"last_line": dict(last_types)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
