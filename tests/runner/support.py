"""Where the tests find things, and how they start the commands."""

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

from copilot_insights.runner.hooks import Hooks

HERE = Path(__file__).parent
REAL = HERE.parent / "data" / "real_logs"
SCRIPTS = REAL / "scripts.json"


def command(*arguments):
    """The command line that starts the runner's commands."""
    return [sys.executable, str(HERE / "app.py"), *map(str, arguments)]


def write_scripts(directory, delay=0.0):
    """The scripts of the real logs and those of `more_scripts.json`, in one file.

    Each step that says no delay of its own is given one, in seconds.
    """
    scripts = json.loads(SCRIPTS.read_text(encoding="utf-8"))
    scripts |= json.loads((HERE / "more_scripts.json").read_text(encoding="utf-8"))
    for step in (step for steps in scripts.values() for step in steps):
        step.setdefault("delay", delay)
    path = directory / "scripts.json"
    path.write_text(json.dumps(scripts), encoding="utf-8")
    return path


def write_executable(directory, *arguments):
    """A program that starts `copilot-insights ARGUMENTS …`: what an SDK takes for the CLI."""
    path = directory / "copilot"
    words = " ".join(f"'{word}'" for word in command(*arguments))
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def of(kind, events):
    """The data of the events of one type."""
    return [event["data"] for event in events if event["type"] == kind]


def types(events):
    """The types of the events, in order."""
    return [event["type"] for event in events]


def hooks(**by_type):
    """Hooks of a session: type → callable."""
    made = Hooks()
    for kind, hook in by_type.items():
        made.add(kind, hook)
    return made


@contextlib.contextmanager
def listening(environment, *arguments, ends=False):
    """A server that runs as long as the block; its port. `ends` if the block ends it."""
    process = subprocess.Popen(
        command(*arguments),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    try:
        found = re.search(r"(?:port |:)(\d+)", process.stdout.readline())
        assert found, "the server did not say where it listens"
        yield int(found[1])
        if ends:
            assert process.wait(timeout=10) == 0
        assert ends or process.poll() is None, "the server has ended"
    finally:
        process.terminate()
        process.wait(timeout=10)
        process.stdout.close()


async def vanish(client):
    """Close a client's connection without a goodbye, as a crash would."""
    assert client._peer  # noqa: SLF001
    await client._peer.close()  # noqa: SLF001


async def close_pipes(client):
    """Stop an SDK client, and close the pipes that it leaves to the garbage collector."""
    process = client._cli_process  # noqa: SLF001
    await client.stop()
    for pipe in (process.stdout, process.stderr):
        pipe.close()
