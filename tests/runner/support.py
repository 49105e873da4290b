"""Where the tests find things, and how they start the commands."""

import json
import sys
from pathlib import Path

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
