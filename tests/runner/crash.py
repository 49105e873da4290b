"""Kills a running session at a random instant, many times, and resumes what is left.

    python crash.py DIRECTORY KILLS SEED

Each victim is a forked child, so that an instant costs milliseconds. Prints one JSON object.
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
    """How many whole lines, and whether the last line is torn; a bad line before it fails."""
    lines = raw.split(b"\n")
    torn = lines.pop()
    for line in lines:
        json.loads(line)
    return len(lines), bool(torn)


def main(root, kills, seed):
    generator = random.Random(seed)  # noqa: S311  # instants, no secrets
    scripts = root / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS), encoding="utf-8")
    last_types: Counter[str] = Counter()
    whole, torn, empty = 0, 0, 0
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
        count, is_torn = inspect(raw)
        torn += is_torn
        whole += 1
        last_types[json.loads(raw.split(b"\n")[count - 1])["type"] if count else "nothing"] += 1
        asyncio.run(revive(directory, scripts))
        events = [json.loads(line) for line in path.read_bytes().splitlines()]
        assert events[-1]["type"] == "session.shutdown"
        assert [e["parentId"] for e in events] == [None, *(e["id"] for e in events[:-1])]
        opened = {e["data"]["toolCallId"] for e in events if e["type"] == "tool.execution_start"}
        closed = {e["data"]["toolCallId"] for e in events if e["type"] == "tool.execution_complete"}
        assert opened == closed, opened ^ closed
    result = {"logs": whole, "torn": torn, "before_the_first_message": empty}
    sys.stdout.write(json.dumps(result | {"last_line": dict(last_types)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
